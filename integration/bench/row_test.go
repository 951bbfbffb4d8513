// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRows(t *testing.T) {
	rows := []row{
		{name: "floor", value: 12, unit: "ns", samples: 3},
		{name: "exactly", value: 2, unit: "x", budget: 2, rule: most},
		{name: "too much", value: 2.1, unit: "x", budget: 2, rule: most},
		{name: "enough", value: .99, unit: "x", budget: .99, rule: least},
		{name: "too little", value: .98, unit: "x", budget: .99, rule: least},
	}
	if err := verdict(rows); err == nil || err.Error() != "missed the budget: too much, too little" {
		t.Errorf("the verdict is %v", err)
	}
	path := filepath.Join(t.TempDir(), "bench.json")
	if err := writeJSON(path, rows[:2]); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	for i, want := range []map[string]any{
		{"name": "floor", "value": 12., "budget": nil, "unit": "ns", "pass": true, "samples": 3.},
		{"name": "exactly", "value": 2., "budget": 2., "unit": "x", "pass": true, "samples": 0.},
	} {
		for key := range want {
			if got[i][key] != want[key] || len(got[i]) != len(want) {
				t.Errorf("row %d is %v, want %v", i, got[i], want)
			}
		}
	}
}

func TestASpoiltRowIsMeasuredAgain(t *testing.T) {
	latency := func(v float64) row { return row{name: "latency", value: v, budget: 2, rule: most} }
	fairness := func(v float64) row { return row{name: "fairness", value: v, budget: .99, rule: least} }
	leaks := func(v float64) row { return row{name: "leaks", value: v, rule: most} }
	floor := func(v float64) row { return row{name: "floor", value: v} }
	for _, test := range []struct {
		name           string
		before, latest []row
		spoilt         bool
		want           []row
	}{
		{name: "all is well", latest: []row{latency(2), fairness(1)}, want: []row{latency(2), fairness(1)}},
		{name: "a miss", latest: []row{latency(3), fairness(1)}, spoilt: true, want: []row{latency(3), fairness(1)}},
		{
			name: "each row in another try", before: []row{latency(3), fairness(1)}, latest: []row{latency(1), fairness(.5)},
			want: []row{latency(1), fairness(1)},
		},
		{name: "nothing but misses", before: []row{latency(3)}, latest: []row{latency(4)}, spoilt: true, want: []row{latency(3)}},
		{name: "the miss of another group", before: []row{latency(3)}, latest: []row{fairness(1)}, want: []row{latency(3), fairness(1)}},
		{name: "a leak", latest: []row{latency(3), leaks(1)}, want: []row{latency(3), leaks(1)}},
		{name: "a leak in the second try", before: []row{latency(3), leaks(0)}, latest: []row{latency(1), leaks(1)}, want: []row{latency(1), leaks(1)}},
		{name: "the last floor", before: []row{floor(1)}, latest: []row{floor(2)}, want: []row{floor(2)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := best(slices.Concat(test.before, test.latest))
			same := func(a, b row) bool { return a.name == b.name && a.value == b.value && a.rule == b.rule }
			if !slices.EqualFunc(got, test.want, same) {
				t.Errorf("what counts is %v, want %v", got, test.want)
			}
			if spoilt(got, test.latest) != test.spoilt {
				t.Errorf("spoilt is %t", !test.spoilt)
			}
		})
	}
}

func TestRoundsTakeTheBestOfEach(t *testing.T) {
	var r rounds
	one := func(n int, slow, usual time.Duration) (s []time.Duration) {
		for range n {
			s = append(s, usual)
		}
		return append(s, slow, slow)
	}
	r.add(one(100, 90, 5))
	r.add(one(100, 70, 6))
	if r.median != 5 || r.p99 != 70 || r.samples != 204 {
		t.Errorf("median %d, p99 %d of %d samples; want 5, 70, 204", r.median, r.p99, r.samples)
	}
}

func TestARowIsComparedWithWhatItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bench.json")
	before := []row{
		{name: "handover_median", value: 2, budget: 4.5, rule: most},
		{name: "alone", value: 1, budget: .995, rule: least},
		{name: "mix_k4", value: 1, more: map[string]float64{"jobs": 4}},
		{name: "floor_wake", value: 1},
	}
	if err := writeJSON(path, before); err != nil {
		t.Fatal(err)
	}
	committed, err := readCommitted(path)
	if err != nil || committed["mix_k4"].more["jobs"] != 4 {
		t.Fatal(committed, err)
	}
	for _, r := range []row{before[0], before[1], {name: "missed", value: 3, budget: 2, rule: most}, {name: "too little", value: 1, budget: 2, rule: least}} {
		var got row
		data, err := json.Marshal(r)
		if err := errors.Join(err, json.Unmarshal(data, &got)); err != nil || got.rule != r.rule || got.budget != r.budget || got.pass() != r.pass() {
			t.Errorf("%+v was read as %+v: %v", r, got, err)
		}
	}
	for _, test := range []struct {
		row   row
		worse bool
	}{
		{row{name: "handover_median", value: 2 * 1.49, budget: 4.5, rule: most}, false},
		{row{name: "handover_median", value: 2 * 1.51, budget: 4.5, rule: most}, true},
		{row{name: "alone", value: .981, budget: .98, rule: least}, false},
		{row{name: "alone", value: .979, budget: .98, rule: least}, true},
		{row{name: "alone", value: 2, budget: .98, rule: least}, false},
		{row{name: "mix_k4", value: 1.2}, true},
		{row{name: "mix_k4", value: .2}, false},
		{row{name: "floor_wake", value: 100}, false},                      // not compared
		{row{name: "drain_p99", value: .9, budget: 1, rule: most}, false}, // not known
	} {
		r := test.row
		r.compare(committed)
		if r.worse() != test.worse {
			t.Errorf("%s = %v: worse is %t", r.name, r.value, r.worse())
		}
		if again := spoilt([]row{r}, []row{r}); again != (test.worse || !r.pass()) {
			t.Errorf("%s = %v: measured again is %t", r.name, r.value, again)
		}
		if err := verdict([]row{r}); (err != nil) != (test.worse || !r.pass()) {
			t.Errorf("%s = %v: %v", r.name, r.value, err)
		}
	}
}

func TestNoiseIsSaid(t *testing.T) {
	doc, err := os.ReadFile("../../docs/bench.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, part := range noise {
		if said := fmt.Sprintf("| `%s` | %.0f %% |", name, 100*part); !strings.Contains(string(doc), said) {
			t.Errorf("docs/bench.md does not say %q", said)
		}
	}
}
