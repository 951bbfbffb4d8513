// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestReportIsCurrent(t *testing.T) {
	const docs = "../../docs"
	rows, err := readCommitted(filepath.Join(docs, "performance", "bench.json"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(docs, "performance.md"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := withTables(page, rows)
	if err != nil || !bytes.Equal(page, want) {
		t.Errorf("the tables of docs/performance.md are not those of its bench.json (%v): run build/bench/bench -report docs", err)
	}
	for name, plot := range plots(rows) {
		if got, err := os.ReadFile(filepath.Join(docs, "performance", name)); err != nil || !bytes.Equal(got, plot) {
			t.Errorf("docs/performance/%s is not current (%v): run build/bench/bench -report docs", name, err)
		}
		if !strings.Contains(string(page), "performance/"+name) {
			t.Errorf("docs/performance.md does not show %s", name)
		}
	}
}

// TestEveryDrawingIsShown: also what make flames draws, of which no machine is to be seen.
func TestEveryDrawingIsShown(t *testing.T) {
	page, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	drawings, err := filepath.Glob("../../docs/performance/*.svg")
	if err != nil || len(drawings) == 0 {
		t.Fatal(drawings, err)
	}
	for _, path := range drawings {
		svg, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if name := filepath.Base(path); !strings.Contains(string(page), "(performance/"+name+")") {
			t.Errorf("docs/performance.md does not show %s", name)
		}
		if len(svg) > 150<<10 {
			t.Errorf("%s has %d KiB", path, len(svg)>>10)
		}
		for _, part := range []string{"<script", " onclick="} { // flamegraph.pl's are not under our licence
			if strings.Contains(string(svg), part) {
				t.Errorf("%s has a script: %s", path, part)
			}
		}
		for _, place := range []string{"/home/", "/root/", "/tmp/", "/usr/", "/go/", "/work/", "/opt/", "/builds/", "/var/"} {
			if strings.Contains(string(svg), place) {
				t.Errorf("%s names a place below %s", path, place)
			}
		}
	}
}

func TestChartsShowEachValue(t *testing.T) {
	c := chart{title: "a < b", unit: "us", of: "c > d", x: []string{"2", "16"}, series: []series{{"one", []float64{math.NaN(), 4}}, {"two & more", []float64{3, 12}}}}
	if c.top() != 20 {
		t.Errorf("the axis of values up to 12 ends at %v", c.top())
	}
	for _, drawn := range []struct {
		svg  []byte
		what string
		n    int
	}{
		{c.lines(), "<polyline", 2}, {c.lines(), "NaN", 0}, {c.bars(), "two &amp; more", 1}, {c.lines(), "a &lt; b, us", 1}, {c.lines(), "c &gt; d", 1},
	} {
		if n := strings.Count(string(drawn.svg), drawn.what); n != drawn.n {
			t.Errorf("%d times %q, want %d", n, drawn.what, drawn.n)
		}
		for d := xml.NewDecoder(bytes.NewReader(drawn.svg)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	c.series[0].y[0] = 1
	if n := strings.Count(string(c.bars()), "<title>"); n != 4 {
		t.Errorf("%d bars, want 4", n)
	}
	if low, high := c.down(0), c.down(20); low != chartHeight-marginLow || high != marginTop {
		t.Errorf("the axis goes from %v to %v", low, high)
	}
}

// TestOnlyAWholeRunIsKept: of another one nothing is written, and the error says what
// it lacks; nor if the page has no place for it. What is kept is drawn anew as it is.
func TestOnlyAWholeRunIsKept(t *testing.T) {
	docs := t.TempDir()
	page, kept, measured := filepath.Join(docs, "performance.md"), filepath.Join(docs, "performance", "bench.json"), filepath.Join(docs, "measured.json")
	if err := os.Mkdir(filepath.Dir(kept), 0o700); err != nil {
		t.Fatal(err)
	}
	const before = reportBegin + "\nold\n" + reportEnd + "\n"
	if err := os.WriteFile(page, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	var rows []row
	for _, g := range groups {
		for _, name := range g.rows {
			rows = append(rows, row{name: name, value: 1, more: map[string]float64{"serial_ms": 1}})
		}
	}
	unchanged := func(want string) {
		t.Helper()
		if is, _ := os.ReadFile(page); string(is) != want {
			t.Errorf("the page is %q", is)
		}
		if is, err := os.ReadDir(filepath.Dir(kept)); len(is) > 0 || err != nil {
			t.Errorf("beside it: %v, %v", is, err)
		}
	}
	for i, r := range rows {
		if err := writeJSON(measured, slices.Delete(slices.Clone(rows), i, i+1)); err != nil {
			t.Fatal(err)
		}
		if err := report(docs, measured); err == nil || !strings.Contains(err.Error(), "it has no "+r.name) {
			t.Errorf("a run without %s: %v", r.name, err)
		}
	}
	unchanged(before)
	if err := writeJSON(measured, rows); err != nil {
		t.Fatal(err)
	}
	const unmarked = "no marks"
	if err := os.WriteFile(page, []byte(unmarked), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := report(docs, measured); err == nil {
		t.Error("a page without marks is taken")
	}
	unchanged(unmarked)
	if err := os.WriteFile(page, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := report(docs, measured); err != nil {
		t.Fatal(err)
	}
	if is, _ := os.ReadFile(page); strings.Contains(string(is), "old") {
		t.Errorf("the page is %q", is)
	}
	is, _ := os.ReadFile(kept)
	if want, _ := os.ReadFile(measured); !bytes.Equal(is, want) {
		t.Errorf("the rows are %q", is)
	}
	if err := writeJSON(kept, rows[1:]); err != nil {
		t.Fatal(err)
	}
	if err := report(docs, ""); err != nil {
		t.Errorf("what is kept: %v", err)
	}
}

func TestGrowthIsShown(t *testing.T) {
	rows := map[string]row{
		"growth_8_gpus":        {more: map[string]float64{"16_memory_mib": 20, "16_busy_cpu": .5, "16_cpu_us_per_turn": 85}},
		"engine_growth_8_gpus": {more: map[string]float64{"16_step_ns": 231.4}},
		"alone":                {value: 1, budget: .995, rule: least, unit: "of without vgpu"},
	}
	for _, want := range []string{"| 8 | 16 | 0 | 0 | 231 | 85 | 0.50 | 0.00000 | 20.0 |", "| `alone` | 1 | >= 0.995 | of without vgpu |  |"} {
		if got := tables(rows); !strings.Contains(got, want) {
			t.Errorf("%q is not in:\n%s", want, got)
		}
	}
	for _, name := range []string{"step.svg", "busy.svg"} {
		if svg := string(plots(rows)[name]); strings.Count(svg, "<polyline") != 1 || strings.Contains(svg, `points=""`) {
			t.Errorf("%s does not show 8 GPUs, and these alone:\n%s", name, svg)
		}
	}
}

func TestTablesComeBetweenTheMarks(t *testing.T) {
	rows := map[string]row{"makespan_bound_k2": {more: map[string]float64{
		"serial_ms": 2000, "bound_ms": 1000, "vgpu_makespan_ms": 1040, "vgpu_utilisation": .96, "vgpu_half_p50_ms": 10, "vgpu_half_p99_ms": 21,
	}}}
	got, err := withTables([]byte("before\n"+reportBegin+" -->\nold\n"+reportEnd+"\nafter\n"), rows)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"before\n", "| bursty 2 | vgpu | 1040 | 0.52 | 1.040 | 96 % |", "| bursty 2 | half |", " 10.00, 21.00 |", "\nafter\n"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%q is not in:\n%s", want, got)
		}
	}
	if strings.Contains(string(got), "old") {
		t.Error("what stood there is still there")
	}
	if _, err := withTables([]byte("no marks"), rows); err == nil {
		t.Error("a page without marks is taken")
	}
}
