// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// row is one number and what it may be at most, or at least.
type row struct {
	name    string
	value   float64
	unit    string
	budget  float64
	rule    rule
	samples int
	note    string // for people: how it came about in this run
	// more is what else was measured, by name, for docs/performance.md.
	more map[string]float64
	// committed is what it was when docs/performance.md was written, noise by which
	// part of that it may be worse; 0: it is not compared.
	committed, noise float64
}

// rule is what a budget is.
type rule int

const (
	none rule = iota // a number that others are measured in
	most
	least
)

func (r row) pass() bool {
	switch r.rule {
	case most:
		return r.value <= r.budget
	case least:
		return r.value >= r.budget
	}
	return true
}

// count is whether a row counts what may not be, such as a leak. Other programs
// do not excuse one.
func (r row) count() bool { return r.rule == most && r.budget == 0 }

// replaces is whether a row counts instead of an earlier one of its name: the
// better one does. Of a count it is the worse one, and of what has no budget the
// last.
func (r row) replaces(earlier row) bool {
	switch {
	case r.count(), r.rule == least:
		return r.value > earlier.value
	case r.rule == most:
		return r.value < earlier.value
	}
	return true
}

// best leaves one row of each name, in its first place.
func best(rows []row) []row {
	var kept []row
	at := make(map[string]int)
	for _, r := range rows {
		i, seen := at[r.name]
		switch {
		case !seen:
			at[r.name] = len(kept)
			kept = append(kept, r)
		case r.replaces(kept[i]):
			kept[i] = r
		}
	}
	return kept
}

// finite is an error for a number that is none, such as a ratio to nothing: it has no place
// in JSON, and of what came to that nothing was measured.
func finite(rows []row) error {
	for _, r := range rows {
		for name, v := range r.more {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return fmt.Errorf("%s, in it %s, came to %v", r.name, name, v)
			}
		}
		if math.IsNaN(r.value) || math.IsInf(r.value, 0) {
			return fmt.Errorf("%s came to %v", r.name, r.value)
		}
	}
	return nil
}

// spoilt is whether another try may mend what counts so far of the rows that were
// just measured.
func spoilt(counts, measured []row) bool {
	names := make(map[string]bool)
	for _, r := range measured {
		if r.count() && !r.pass() {
			return false
		}
		names[r.name] = true
	}
	return slices.ContainsFunc(counts, func(r row) bool { return names[r.name] && (!r.pass() || r.worse()) })
}

// row shows a row as soon as it is there.
func (b *bench) row(r row) {
	r.compare(b.committed)
	b.rows = append(b.rows, r)
	verdict, budget := "", ""
	if r.rule != none {
		verdict, budget = "ok", "<= "
		if r.rule == least {
			budget = ">= "
		}
		budget += r.limit()
		if !r.pass() {
			verdict = "MISSED"
		}
	}
	if r.worse() && r.pass() {
		verdict = "WORSE"
		r.note = fmt.Sprintf("it was %s, and may be worse by %.0f %%; ", number(r.committed), 100*r.noise) + r.note
	}
	fmt.Printf("%-20s %10s  %-10s %-22s %-6s %8d  %s\n", r.name, number(r.value), budget, r.unit, verdict, r.samples, r.note)
}

// limit is the budget as it was written: 0.995, not a rounded 0.99.
func (r row) limit() string { return strconv.FormatFloat(r.budget, 'g', -1, 64) }

func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < .1:
		return fmt.Sprintf("%.5f", v)
	case v < 100:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// onDisk is a row as docs/design.md says it. What has no budget has null.
type onDisk struct {
	Name    string   `json:"name"`
	Value   float64  `json:"value"`
	Budget  *float64 `json:"budget"`
	Unit    string   `json:"unit"`
	Pass    bool     `json:"pass"`
	Samples int      `json:"samples"`

	More map[string]float64 `json:"more,omitempty"`
}

// MarshalJSON writes a row.
func (r row) MarshalJSON() ([]byte, error) {
	var budget *float64
	if r.rule != none {
		budget = &r.budget
	}
	return json.Marshal(onDisk{r.name, r.value, budget, r.unit, r.pass(), r.samples, r.more})
}

// UnmarshalJSON reads what MarshalJSON wrote. Which kind of budget it is follows
// from whether the row passed.
func (r *row) UnmarshalJSON(data []byte) error {
	var d onDisk
	if err := json.Unmarshal(data, &d); err != nil {
		return err
	}
	*r = row{name: d.Name, value: d.Value, unit: d.Unit, samples: d.Samples, more: d.More}
	if d.Budget != nil {
		r.budget, r.rule = *d.Budget, least
		if (d.Value <= *d.Budget) == d.Pass {
			r.rule = most
		}
	}
	return nil
}

func writeJSON(path string, rows []row) error {
	data, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("failed to write the rows: %w", err)
	}
	return nil
}

// verdict is the error that names what is over its budget, or worse than it was.
func verdict(rows []row) error {
	var missed, worse []string
	for _, r := range rows {
		if !r.pass() {
			missed = append(missed, r.name)
		}
		if r.worse() {
			worse = append(worse, r.name)
		}
	}
	var errs []error
	if len(missed) > 0 {
		errs = append(errs, fmt.Errorf("missed the budget: %s", strings.Join(missed, ", ")))
	}
	if len(worse) > 0 {
		errs = append(errs, fmt.Errorf("worse than it was, by more than noise (docs/bench.md): %s", strings.Join(worse, ", ")))
	}
	return errors.Join(errs...)
}
