// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/template"
)

// row is a line of the table in docs/clients.md.
type row struct {
	Client  string
	Version string // as the client or its package tells it
	Rootfs  string // root file system: host, busybox, musl
	Does    string
	// Gated is how many submissions of one container the gate let through, the
	// same in each run; "-" of a client that submits nothing, or nothing to the gate.
	Gated  string
	Result string
}

// Results. A refusal is followed by its reason.
const (
	works     = "works"
	refused   = "refused: "
	unmanaged = "reported as unmanaged"
	// The page says why, below the table.
	notSimulated = "not on the simulated driver"
)

// table is the rows of the tests that have passed.
type table struct{ rows []row }

// Of programs that nobody here wrote, and of ways to load the driver and to start
// processes.
var rows, ways table

// add puts a row into the table. A test that adds one calls it last.
func (b *table) add(t *testing.T, r row) {
	t.Helper()
	for _, text := range []string{r.Client, r.Version, r.Rootfs, r.Does, r.Gated, r.Result} {
		if text == "" || strings.ContainsAny(text, "|\n") {
			t.Fatalf("%q can not stand in a table: %+v", text, r)
		}
	}
	// The same client under another containerd, or with -count.
	for _, other := range b.rows {
		if other == r {
			return
		}
		if other.key() == r.key() {
			t.Fatalf("one client has two rows:\n%+v\n%+v", other, r)
		}
	}
	b.rows = append(b.rows, r)
}

func (r row) key() string { return strings.ToLower(r.Client) + "\x00" + r.Rootfs + "\x00" + r.Does }

//go:embed clients.md.tmpl
var text string

var pageTemplate = template.Must(template.New("clients.md").Parse(text))

// page is docs/clients.md.
func page(clients, ways table) []byte {
	var out bytes.Buffer
	err := pageTemplate.Execute(&out, struct{ Clients, Ways []row }{clients.sorted(), ways.sorted()})
	if err != nil {
		panic(fmt.Sprintf("the template of docs/clients.md: %v", err)) // it is part of this package
	}
	return out.Bytes()
}

func (b *table) sorted() []row {
	return slices.SortedFunc(slices.Values(b.rows), func(a, b row) int { return cmp.Compare(a.key(), b.key()) })
}

// What the table looks like does not hang on the order of the tests.
func TestTableIsSorted(t *testing.T) {
	a := row{"alpha", "1", "host", "adds", "4", works}
	b := row{"Beta", "2", "host", "lists", "-", works}
	c := row{"beta", "2", "musl", "lists", "-", refused + "no musl"}
	var one, two table
	for _, r := range []row{a, b, c} {
		one.add(t, r)
	}
	for _, r := range []row{c, b, a, b} {
		two.add(t, r)
	}
	if !bytes.Equal(page(one, table{}), page(two, table{})) {
		t.Errorf("the order of the tests shows:\n%s\n%s", page(one, table{}), page(two, table{}))
	}
	if want := "| alpha | 1 | host | adds | 4 | works |\n| Beta | 2 | host | lists | - | works |\n| beta | 2 | musl | lists | - | refused: no musl |\n"; !strings.Contains(string(page(one, table{})), want) {
		t.Errorf("no\n%s\nin\n%s", want, page(one, table{}))
	}
}
