// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestGoTestOutcomes(t *testing.T) {
	// As "go tool test2json" makes them of a run that was ended by its time-out.
	got, err := goTestEvents(json.NewDecoder(strings.NewReader(`
{"Action":"start"}
{"Action":"run","Test":"TestA"}
{"Action":"run","Test":"TestA/one"}
{"Action":"output","Test":"TestA/one","Output":"text\n"}
{"Action":"pass","Test":"TestA/one","Elapsed":0.1}
{"Action":"pass","Test":"TestA"}
{"Action":"run","Test":"TestB"}
{"Action":"skip","Test":"TestB"}
{"Action":"run","Test":"TestHangs"}
{"Action":"fail"}
`)))
	if err != nil {
		t.Fatal(err)
	}
	want := results{"TestA": passed, "TestA/one": passed, "TestB": skipped, "TestHangs": failed}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestGinkgoOutcomes(t *testing.T) {
	report := filepath.Join(t.TempDir(), "report.json")
	write := func(specs string) {
		t.Helper()
		if err := os.WriteFile(report, []byte(`[{"SpecReports": [`+specs+`]}]`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`
{"LeafNodeType": "BeforeSuite", "State": "passed"},
{"ContainerHierarchyTexts": ["[k8s.io] Pod", "in one"], "LeafNodeText": "runs", "LeafNodeType": "It", "State": "passed"},
{"ContainerHierarchyTexts": ["[k8s.io] Pod"], "LeafNodeText": "breaks", "LeafNodeType": "It", "State": "panicked"},
{"ContainerHierarchyTexts": ["[k8s.io] Pod"], "LeafNodeText": "needs more", "LeafNodeType": "It", "State": "skipped", "Failure": {"Message": "no SELinux"}},
{"ContainerHierarchyTexts": ["[k8s.io] Pod"], "LeafNodeText": "was not selected", "LeafNodeType": "It", "State": "skipped"}`)
	got, err := parseGinkgo("", report)
	if err != nil {
		t.Fatal(err)
	}
	want := results{"[k8s.io] Pod in one runs": passed, "[k8s.io] Pod breaks": failed, "[k8s.io] Pod needs more": skipped}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	write(`{"LeafNodeType": "BeforeSuite", "State": "failed", "Failure": {"Message": "no daemon"}}`)
	if _, err := parseGinkgo("", report); err == nil || !strings.Contains(err.Error(), "no daemon") {
		t.Errorf("a suite that could not begin gave %v", err)
	}
}

// A test that has had one outcome with both, if not in the same try, does not differ.
func TestTestsThatDifferAreRunAgain(t *testing.T) {
	first := []results{
		{"always": passed, "by turns": failed, "late": passed, "neither": failed, "gone": passed},
		{"always": failed, "by turns": passed, "late": failed, "neither": skipped},
	}
	second := []results{
		{"always": passed, "by turns": passed, "late": passed, "neither": passed},
		{"always": failed, "by turns": failed, "late": failed, "neither": skipped},
	}
	third := []results{{"always": passed, "late": passed, "neither": failed}, {"always": failed, "late": passed, "neither": absent}}
	all := compare(run{}, first[0], first[1])
	var stocks, ours []results
	for i, tc := range []struct {
		try          []results
		left, agreed []string
	}{
		{first, []string{"always", "by turns", "gone", "late", "neither"}, nil},
		{second, []string{"always", "gone", "late", "neither"}, []string{"by turns"}},
		{third, []string{"always", "gone", "neither"}, []string{"late"}},
	} {
		stocks, ours = append(stocks, tc.try[0]), append(ours, tc.try[1])
		var agreed, left []string
		all, agreed = remaining(all, stocks, ours)
		for _, d := range all {
			left = append(left, d.test)
		}
		if !slices.Equal(left, tc.left) || !slices.Equal(agreed, tc.agreed) {
			t.Errorf("after %d tries %q differ, and %q agree, want %q and %q", i+1, left, agreed, tc.left, tc.agreed)
		}
	}
	want := []difference{
		{test: "always", stock: passed, ours: failed},
		{test: "gone", stock: passed, ours: absent},
		{test: "neither", stock: failed, ours: absent},
	}
	if diff := cmp.Diff(want, all, cmp.AllowUnexported(difference{}), cmpopts.IgnoreTypes(run{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestDifferencesNeedACause(t *testing.T) {
	r := plan(false, regexp.MustCompile("client-2.4.2-with$"))[0]
	all := compare(r, results{"A": passed, "B": passed, "C": failed, "D/x": passed, "E": skipped},
		results{"A": passed, "B": failed, "C": passed, "E": skipped, "F": passed})
	causes, err := readCauses(strings.NewReader("# comment\n" +
		"client-.*\tB\tpass\tfail\tit says \"so\"\n" +
		"client-.*\tC\tpass\tfail\tthe other way round\n" +
		"shimtest-.*\tF\tabsent\tpass\tanother suite\n" +
		"client-.*-with\tD/.*\tpass\tabsent\twithout parts\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := explain(all, causes); got != 2 {
		t.Errorf("%d differences have no cause, want those of C and F", got)
	}
	want := []difference{
		{test: "B", stock: passed, ours: failed, cause: `it says "so"`},
		{test: "C", stock: failed, ours: passed},
		{test: "D/x", stock: passed, ours: absent, cause: "without parts"},
		{test: "F", stock: absent, ours: passed},
	}
	if diff := cmp.Diff(want, all, cmp.AllowUnexported(difference{}), cmpopts.IgnoreTypes(run{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for i, used := range []bool{true, false, false, true} {
		if causes[i].used != used {
			t.Errorf("line %d of the causes: used is %v", i+1, causes[i].used)
		}
	}
}

func TestCausesAreChecked(t *testing.T) {
	for _, text := range []string{
		"client\tB\tpass\tfails\twhy\n", "client\tB\tpass\tfail\t\n", "client\t(\tpass\tfail\twhy\n", "client\tB\tpass\tfail\n",
	} {
		if _, err := readCauses(strings.NewReader(text)); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
	if _, err := loadCauses("differences.tsv"); err != nil {
		t.Error(err)
	}
}

func TestSelections(t *testing.T) {
	names := []string{"TestA/x.y", "TestB", "TestA"}
	if got, want := selectGoTests(names), "^(TestA|TestB)$"; got != want {
		t.Errorf("selected %s, want %s", got, want)
	}
	specs := regexp.MustCompile(selectSpecs([]string{"[k8s.io] Pod runs", "[k8s.io] Pod ends (late)"}))
	for name, want := range map[string]bool{"[k8s.io] Pod runs": true, "[k8s.io] Pod ends (late)": true, "[k8s.io] Pod runs again": false} {
		if specs.MatchString(name) != want {
			t.Errorf("whether %q is selected is %v", name, !want)
		}
	}
}

func TestPlanBeginsWithTheStockRuntime(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range plan(false, regexp.MustCompile("")) {
		key := r.suite.name + string(r.version)
		if first := !seen[key]; first != (r.runtime.name == stock) {
			t.Errorf("%s is out of place", r.name())
		}
		seen[key] = true
	}
	if len(seen) < len(suites) {
		t.Errorf("only %v are run", seen)
	}
}

func TestTables(t *testing.T) {
	r := plan(false, regexp.MustCompile("shimtest-2.4.2-(stock|with$)"))
	p := report{rows: []row{
		{run: r[0], results: results{"A": passed, "B": passed, "C": failed}},
		{run: r[1], results: results{"A": passed, "B": failed, "C": failed}, differences: []difference{{r[1], "B", passed, failed, "so"}}},
	}}
	if got, want := p.closing(), "conformance: 2 outcomes as with runc's shim, 1 differ with a known cause, 0 failed"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	text := p.tables(time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC), "0123456789abcdef")
	for _, line := range []string{
		"Measured on 2026-11-30 at commit 0123456789ab.",
		"| shimtest | 2.4.2 | stock | 2 | 1 | 0 | 0 | 0 |",
		"| shimtest | 2.4.2 | with | 1 | 2 | 0 | 1 | 0 |",
		"| shimtest-2.4.2-with | B | pass | fail | so |",
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %q in:\n%s", line, text)
		}
	}
	doc, err := splice("a\n"+beginTables+"old\n"+endTables+"b\n", "new\n")
	if want := "a\n" + beginTables + "new\n" + endTables + "b\n"; err != nil || doc != want {
		t.Errorf("%q, %v, want %q", doc, err, want)
	}
	if _, err := splice("a\nb\n", "new\n"); err == nil {
		t.Error("a document without the lines was accepted")
	}
}
