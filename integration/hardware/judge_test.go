// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

func TestOverlap(t *testing.T) {
	for _, test := range []struct {
		description string
		spans       []span
		n           int
		longest     time.Duration
	}{
		{"none", nil, 0, 0},
		{"one's own work overlaps", []span{{0, 10, 0}, {5, 15, 0}}, 0, 0},
		{"end and begin in one instant", []span{{0, 10, 0}, {10, 20, 1}}, 0, 0},
		{"begins before the other ends", []span{{0, 10, 0}, {9, 20, 1}}, 1, 1},
		{"lies within", []span{{0, 100, 0}, {10, 30, 1}, {40, 50, 1}}, 2, 20},
		{"a longer one before shorter ones of the same", []span{{0, 100, 0}, {10, 20, 0}, {50, 60, 1}}, 1, 10},
		{"an instant within", []span{{0, 100, 0}, {50, 50, 1}}, 1, 1},
		{"four", []span{{0, 10, 0}, {10, 20, 1}, {20, 30, 2}, {30, 40, 3}, {35, 45, 0}}, 1, 5},
	} {
		if n, longest := overlap(test.spans); n != test.n || longest != test.longest {
			t.Errorf("%s: %d, %v, want %d, %v", test.description, n, longest, test.n, test.longest)
		}
	}
}

func TestRunsAndSwitches(t *testing.T) {
	runs := runsOf(allSpans([]job{
		{spans: []span{{0, 10, 0}, {10, 20, 0}, {60, 70, 0}}},
		{spans: []span{{25, 35, 1}, {36, 50, 1}, {69, 80, 1}}},
	}))
	want := []run{{0, 0, 20, 2}, {1, 25, 50, 2}, {0, 60, 70, 1}, {1, 69, 80, 1}}
	if len(runs) != len(want) {
		t.Fatalf("%v", runs)
	}
	for i := range want {
		if runs[i] != want[i] {
			t.Errorf("run %d: %v, want %v", i, runs[i], want[i])
		}
	}
	if gaps := switches(runs); len(gaps) != 2 || gaps[0] != 5 || gaps[1] != 10 {
		t.Errorf("switches: %v", gaps)
	}
}

// The GPU's clock is 1000 ahead and runs a hundredth slow.
func TestOutside(t *testing.T) {
	j := job{
		clock: []calibration{{gpu: 1000, cpu: 0, off: 3}, {gpu: 100000, cpu: 100000, off: 2}},
		spans: []span{{from: 1000 + 9900, to: 1000 + 19800}},
	}
	if at, off := j.onCPU(1000 + 49500); at != 50000 || off != 3 {
		t.Errorf("at %v, off by %v", at, off)
	}
	for _, test := range []struct {
		description string
		turns       []harness.Turn
		n           int
		worst       time.Duration
	}{
		{"within", []harness.Turn{{VGPU: "a", Granted: 9000, Ended: 21000}}, 0, 0},
		{"within what the clocks are off", []harness.Turn{{VGPU: "a", Granted: 10002, Ended: 21000}}, 0, 0},
		{"begins too early", []harness.Turn{{VGPU: "a", Granted: 10013, Ended: 21000}}, 1, 10},
		{"ends too late", []harness.Turn{{VGPU: "a", Granted: 0, Ended: 19900}}, 1, 97},
		{"over two turns", []harness.Turn{{VGPU: "a", Granted: 0, Ended: 15000}, {VGPU: "a", Granted: 15100, Ended: 30000}}, 1, 4997},
	} {
		if n, worst := outside(j, test.turns, "a"); n != test.n || worst != test.worst {
			t.Errorf("%s: %d, %v, want %d, %v", test.description, n, worst, test.n, test.worst)
		}
	}
	if n, _ := outside(j, []harness.Turn{{VGPU: "b", Granted: 0, Ended: 30000}}, "a"); n != 1 {
		t.Errorf("another vGPU's turn counts")
	}
}

func TestParseJob(t *testing.T) {
	const text = "clock 5 6 7\nready\nbegan 10\nfirst 20\nended 30\nclock 15 16 1\nspan 1 2\nspan 2 5\nlost 1\ndone"
	j, err := parseJob(strings.Split(text, "\n"), 3)
	if err != nil || j.began != 10 || j.first != 20 || j.ended != 30 || j.lost != 1 || len(j.clock) != 2 ||
		len(j.spans) != 2 || j.spans[1] != (span{2, 5, 3}) {
		t.Errorf("%+v, %v", j, err)
	}
	for _, bad := range []string{"", "began 10\nended 20\nclock 1 2 3", text + "\nspan 9 8", text + "\nspan x 8"} {
		if j, err := parseJob(strings.Split(bad, "\n"), 0); err == nil {
			t.Errorf("%q is taken: %+v", bad, j)
		}
	}
	alone := []job{{began: 0, ended: 10}, {began: 20, ended: 35}}
	if m, s := makespan(alone), oneAfterAnother(alone); m != 35 || s != 25 {
		t.Errorf("makespan %v, one after another %v", m, s)
	}
}
