// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
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
