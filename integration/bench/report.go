// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// What of docs/performance.md is written anew stands between these two lines.
const (
	reportBegin = "<!-- make performance writes from here"
	reportEnd   = "<!-- to here -->"
)

// report writes plots and tables of the rows in a file: what is in
// docs/performance.md between the two marks, docs/performance/*.svg, and the rows
// themselves. They must be those of a whole run, but for those that are kept already:
// these are drawn anew as they are. It writes all, or nothing if it can not.
func report(docs, file string) error {
	kept := filepath.Join(docs, "performance", "bench.json")
	if file == "" {
		file = kept
	}
	committed, err := readCommitted(file)
	if err != nil {
		return err
	}
	path := filepath.Join(docs, "performance.md")
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("failed to read the text around the tables: %w", err)
	}
	page, err := withTables(old, committed)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	all := map[string][]byte{path: page}
	for name, plot := range plots(committed) {
		all[filepath.Join(docs, "performance", name)] = plot
	}
	if file != kept {
		if lacks := lacking(committed); len(lacks) > 0 {
			return fmt.Errorf("%s is not of a whole run, nothing in %s was changed: it has no %s", file, docs, strings.Join(lacks, ", "))
		}
		if all[kept], err = os.ReadFile(file); err != nil {
			return fmt.Errorf("failed to read the rows: %w", err)
		}
	}
	for name, text := range all {
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return fmt.Errorf("failed to write a part of the report: %w", err)
		}
	}
	return nil
}

// lacking are rows that a whole run has, and that are not there.
func lacking(rows map[string]row) (names []string) {
	for _, g := range groups {
		for _, name := range g.rows {
			if _, ok := rows[name]; !ok {
				names = append(names, name)
			}
		}
	}
	return names
}

// withTables puts the tables of rows into a page.
func withTables(page []byte, rows map[string]row) ([]byte, error) {
	begin := bytes.Index(page, []byte(reportBegin))
	end := bytes.Index(page, []byte(reportEnd))
	if begin < 0 || end < begin {
		return nil, fmt.Errorf("the lines %q and %q are not there, in this order", reportBegin, reportEnd)
	}
	line := begin + bytes.IndexByte(page[begin:], '\n') + 1
	return slices.Concat(page[:line], []byte("\n"+tables(rows)+"\n"), page[end:]), nil
}

// sharedSets are the rows of jobs that share a GPU, in the order of the tables.
var sharedSets = []string{"makespan_bound_k2", "makespan_bound_k4", "makespan_bound_k8", "mix_k1", "mix_k2", "mix_k4", "mix_k8"}

func setName(row string) string {
	row = strings.Replace(row, "makespan_bound_k", "bursty ", 1)
	return strings.Replace(row, "mix_k", "mix ", 1)
}

var modeNames = map[string]string{byHardware: "hardware slicing", byVGPU: "vgpu", byOther: "the other library"}

func tables(rows map[string]row) string {
	var t strings.Builder
	t.WriteString("| jobs | how | makespan, ms | of one after another | of the lower bound | GPU computes |\n|---|---|---|---|---|---|\n")
	for _, name := range sharedSets {
		m := rows[name].more
		for _, mode := range []string{byHardware, byVGPU, byOther} {
			if span, ok := m[mode+"_makespan_ms"]; ok {
				fmt.Fprintf(&t, "| %s | %s | %.0f | %.2f | %.3f | %.0f %% |\n", setName(name), modeNames[mode], span,
					span/m["serial_ms"], span/m["bound_ms"], 100*m[mode+"_utilisation"])
			}
		}
	}
	t.WriteString("\nBursts, from the first launch to the completion, in ms: median and 99th percentile.\n\n")
	t.WriteString("| jobs | burst | hardware slicing | vgpu |\n|---|---|---|---|\n")
	for _, name := range sharedSets {
		m := rows[name].more
		for _, j := range append(slices.Clone(profiles), half) {
			if _, ok := m[byVGPU+"_"+j.name+"_p50_ms"]; !ok || j.bursts == 0 {
				continue
			}
			fmt.Fprintf(&t, "| %s | %s |", setName(name), j.name)
			for _, mode := range []string{byHardware, byVGPU} {
				fmt.Fprintf(&t, " %.2f, %.2f |", m[mode+"_"+j.name+"_p50_ms"], m[mode+"_"+j.name+"_p99_ms"])
			}
			t.WriteString("\n")
		}
	}
	t.WriteString("\nvgpud with so many vGPUs that all wait for turns: hand-over by its own account, from the last completion to the next grant.\n\n")
	t.WriteString("| GPUs | vGPUs | hand-over, us | 99 % | engine step, ns | CPU a turn, us | busy, of a core | idle, of a core | memory, MiB |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, gpus := range gpuCounts {
		m, engine := rows[fmt.Sprintf("growth_%d_gpus", gpus)].more, rows[fmt.Sprintf("engine_growth_%d_gpus", gpus)].more
		for _, n := range crowds {
			if _, ok := m[fmt.Sprint(n, "_memory_mib")]; !ok {
				continue
			}
			at := func(name string) float64 { return m[fmt.Sprintf("%d_%s", n, name)] }
			fmt.Fprintf(&t, "| %d | %d | %.0f | %.0f | %.0f | %.0f | %.2f | %.5f | %.1f |\n", gpus, n, at("handover_median_us"), at("handover_p99_us"),
				engine[fmt.Sprintf("%d_step_ns", n)], at("cpu_us_per_turn"), at("busy_cpu"), at("idle_cpu"), at("memory_mib"))
		}
	}
	t.WriteString("\nAll that has a budget:\n\n| row | value | budget | unit | |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		r := rows[name]
		sign, verdict := "<=", ""
		if r.rule == least {
			sign = ">="
		}
		if !r.pass() {
			verdict = "missed"
		}
		if r.rule != none {
			fmt.Fprintf(&t, "| `%s` | %s | %s %s | %s | %s |\n", name, exact(r.value), sign, r.limit(), r.unit, verdict)
		}
	}
	return t.String()
}

// exact is a number with one digit more than a table on a terminal has room for.
func exact(v float64) string {
	if v >= .1 && v < 100 {
		return fmt.Sprintf("%.4g", v)
	}
	return number(v)
}

// plots draws what there are rows for, by file name.
func plots(rows map[string]row) map[string][]byte {
	all := make(map[string][]byte)
	var bars chart
	bars.title, bars.unit = "Makespan, of one after another", ""
	bars.series = []series{{name: "lower bound"}, {name: modeNames[byHardware]}, {name: modeNames[byVGPU]}}
	for _, name := range sharedSets {
		m := rows[name].more
		if m == nil {
			continue
		}
		bars.x = append(bars.x, setName(name))
		for i, key := range []string{"bound_ms", byHardware + "_makespan_ms", byVGPU + "_makespan_ms"} {
			bars.series[i].y = append(bars.series[i].y, m[key]/m["serial_ms"])
		}
	}
	all["makespan.svg"] = bars.bars()

	if m := rows["high_p99"].more; m != nil {
		c := chart{title: "99th percentile of a burst of a high class beside a hog", unit: "ms", x: []string{"alone", "vgpu", "hardware slicing", "allowed"}}
		c.series = []series{{y: []float64{m["solo_ms"], m["vgpu_ms"], m["hardware_ms"], m["allowed_ms"]}}}
		all["high.svg"] = c.bars()
	}
	if r := rows["oversubscribed"]; r.more != nil {
		c := chart{title: "Makespan with 1.9 times the memory there is, of one after another", x: []string{modeNames[byHardware]}}
		y := []float64{r.more["hardware"]}
		for _, f := range fixedQuanta {
			c.x, y = append(c.x, fmt.Sprint("quantum ", f.quantum)), append(y, r.more[f.key()])
		}
		c.x, c.series = append(c.x, "as vgpu finds it"), []series{{y: append(y, r.value)}}
		all["oversubscribed.svg"] = c.bars()
	}
	for file, c := range map[string]struct{ title, unit, row, key string }{
		"handover.svg": {"Hand-over, 99th percentile", "us", "growth", "handover_p99_us"},
		"step.svg":     {"Step of the engine for a hand-over", "ns", "engine_growth", "step_ns"},
		"turn.svg":     {"CPU of vgpud for a turn", "us", "growth", "cpu_us_per_turn"},
		"busy.svg":     {"CPU of vgpud while all wait for turns", "of a core", "growth", "busy_cpu"},
		"idle.svg":     {"CPU of vgpud while nothing happens", "of a core", "growth", "idle_cpu"},
		"memory.svg":   {"Memory of vgpud", "MiB", "growth", "memory_mib"},
	} {
		g := chart{title: c.title, unit: c.unit, of: "vGPUs"}
		for _, n := range crowds {
			g.x = append(g.x, fmt.Sprint(n))
		}
		for _, gpus := range gpuCounts {
			m := rows[fmt.Sprintf("%s_%d_gpus", c.row, gpus)].more
			if m == nil {
				continue
			}
			s := series{name: fmt.Sprintf("%d GPUs", gpus)}
			if gpus == 1 {
				s.name = "1 GPU"
			}
			for _, n := range crowds {
				y, ok := m[fmt.Sprintf("%d_%s", n, c.key)]
				if !ok {
					y = math.NaN()
				}
				s.y = append(s.y, y)
			}
			g.series = append(g.series, s)
		}
		all[file] = g.lines()
	}
	return all
}
