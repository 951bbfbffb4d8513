// SPDX-License-Identifier: Apache-2.0

// Package docs_test holds the documents against the tree.
package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// tests are the test functions and fuzz targets of a directory, with the strings in
// each.
func tests(t *testing.T, dir string) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") && !strings.HasPrefix(f.Name.Name, "Fuzz") {
				continue
			}
			found[f.Name.Name] = nil
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING {
					if text, err := strconv.Unquote(s.Value); err == nil {
						found[f.Name.Name] = append(found[f.Name.Name], text)
					}
				}
				return true
			})
		}
	}
	return found
}

// inTestdata says whether a subtest's name is that of a scenario, or stands in a
// test program or a list of cases.
func inTestdata(t *testing.T, dir, name string) (found bool) {
	t.Helper()
	look := func(path string, d fs.DirEntry, err error) error {
		if err != nil || found {
			return err
		}
		switch filepath.Ext(path) {
		case ".txt":
			found = strings.TrimSuffix(d.Name(), ".txt") == name
		case ".c", ".go":
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			found = strings.Contains(string(text), strconv.Quote(name))
		}
		return nil
	}
	for _, of := range []string{"testdata", "cases"} {
		if err := filepath.WalkDir(filepath.Join("..", dir, of), look); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	return found
}

// named is how a cell of a table names a test.
var named = regexp.MustCompile("`([\\w/-]+): ((?:Test|Fuzz)\\w+)(?:/([^`]+))?`")

// checker holds the tests that tables name against those that there are.
type checker struct {
	t    *testing.T
	dirs map[string]map[string][]string
}

// cell checks that a row names tests, and nothing else in their place, and that they
// are there.
func (c *checker) cell(row, text string) {
	c.t.Helper()
	of := named.FindAllStringSubmatch(text, -1)
	if len(of) == 0 || strings.Count(text, "`") != 2*len(of) {
		c.t.Errorf("%s names no test, or one in another form: %s", row, text)
	}
	for _, n := range of {
		dir, test, sub := n[1], n[2], n[3]
		if c.dirs[dir] == nil {
			c.dirs[dir] = tests(c.t, dir)
		}
		literals, ok := c.dirs[dir][test]
		if !ok {
			c.t.Errorf("%s: there is no %s in %s", row, test, dir)
		} else if sub != "" && !slices.Contains(literals, sub) && !inTestdata(c.t, dir, sub) {
			c.t.Errorf("%s: %s in %s has no %q", row, test, dir, sub)
		}
	}
}

// Each row of known-bugs.md names tests, and these are there.
func TestKnownBugsHaveTheirTests(t *testing.T) {
	text, err := os.ReadFile("known-bugs.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`^\| ([A-E])(\d+) \| [^|]+ \| [^|]+ \| [^|]+ \| ([^|]+) \|$`)
	check := &checker{t, map[string]map[string][]string{}}
	rows, last := 0, 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "| no.") || strings.HasPrefix(line, "|---") {
			continue
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("no row of this table: %s", line)
			continue
		}
		rows++
		number, _ := strconv.Atoi(m[2])
		if number <= last {
			t.Errorf("%s%d comes after %d", m[1], number, last)
		}
		last = number
		check.cell(m[1]+m[2], m[3])
	}
	if rows != 50 {
		t.Errorf("%d rows, want 50", rows)
	}
}
