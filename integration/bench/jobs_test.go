// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

func TestTimeTheGPURan(t *testing.T) {
	op := func(start, end time.Duration) harness.Operation {
		return harness.Operation{Class: harness.ClassWork, Start: start, End: end}
	}
	log := []harness.Operation{
		op(70, 80), op(10, 20), op(15, 30), op(16, 18), // in any order, beside and within each other
		{Class: harness.ClassWork, Submit: 90},                      // never ran
		{Class: harness.ClassOrder, Start: 100, End: 200},           // no work
		{Class: harness.ClassSetup, Start: 0, End: 1000},            //
		{Class: harness.ClassWork, Submit: 5, Start: 20, End: 25},   // waited before
		{Class: harness.ClassWork, Submit: 300, Start: 300, End: 0}, // its process died
	}
	if got := ran(log); got != 30 {
		t.Errorf("the GPU ran for %d, want 30", got)
	}
}

// went is an outcome in each mode.
func went(hardware, vgpu outcome) map[string]outcome {
	return map[string]outcome{byHardware: hardware, byVGPU: vgpu}
}

func TestBoundIsTheLargerOfComputingAndTheLongestJob(t *testing.T) {
	alone := []*set{
		{name: "half", went: went(outcome{makespan: 100, busy: 50}, outcome{})},
		{name: "video", went: went(outcome{makespan: 170, busy: 10}, outcome{})},
	}
	for _, test := range []struct {
		jobs          []job
		bound, serial time.Duration
	}{
		{same(half, 2), 100, 200},
		{same(half, 4), 200, 400},
		{[]job{video, half, half}, 170, 370},
	} {
		if bound, serial := bound(test.jobs, alone); bound != test.bound || serial != test.serial {
			t.Errorf("the bound of %v is %d and in turn they take %d, want %d and %d", test.jobs, bound, serial, test.bound, test.serial)
		}
	}
}

func TestWorkloadsAreJudged(t *testing.T) {
	alone := []*set{
		{name: "half", went: went(outcome{makespan: 1000, busy: 500}, outcome{makespan: 1001})},
		{name: "train", went: went(outcome{makespan: 1000, busy: 800}, outcome{makespan: 1010})},
		{name: "token", went: went(outcome{makespan: 1000, busy: 210}, outcome{makespan: 1000})},
	}
	bursty := []*set{
		{name: "k2", jobs: same(half, 2), went: went(
			outcome{makespan: 1500}, outcome{makespan: 1040, took: []time.Duration{time.Second, time.Second}})},
		{name: "k4", jobs: same(half, 4), went: went(
			outcome{makespan: 2100}, outcome{makespan: 2200, took: []time.Duration{time.Second, time.Second, time.Second, 2 * time.Second}})},
	}
	mixes := []*set{{name: "k4", jobs: []job{train, token, train, token}, went: went(outcome{makespan: 2000}, outcome{makespan: 2040})}, {name: "k2", jobs: []job{train, token}, went: went(
		outcome{makespan: 1100, busy: 1010},
		outcome{makespan: 1111, busy: 1010, bursts: map[string][]time.Duration{"token": {time.Millisecond, 3 * time.Millisecond}}},
	)}}
	rows := append(judgeBursty(bursty, alone, full), judgeMixes(mixes, alone, full)...)
	rows = append(rows, judgeAlone(alone, full))
	want := map[string]struct {
		value float64
		pass  bool
	}{
		"makespan_bound_k2": {1.04, true},
		"makespan_bound_k4": {1.1, false},
		"makespan_hw":       {2200. / 2100, false},
		"jain_bursty":       {3.5 * 3.5 / (4 * 3.25), false}, // speeds 1, 1, 1, 1/2
		"mix_k2":            {1.01, true},
		"mix_k4":            {1.02, false},
		"alone":             {1000. / 1010, false},
	}
	for _, r := range rows {
		w, ok := want[r.name]
		if !ok || math.Abs(r.value-w.value) > 1e-9 || r.pass() != w.pass {
			t.Errorf("%s is %.4f, pass %t; want %.4f, %t", r.name, r.value, r.pass(), w.value, w.pass)
		}
		delete(want, r.name)
	}
	if len(want) > 0 {
		t.Errorf("rows that are missing: %v", want)
	}
	more := rows[len(rows)-2].more
	if more["vgpu_token_p50_ms"] != 3 || more["bound_ms"] != .00101 || more["jobs"] != 2 {
		t.Errorf("numbers of the mix: %v", more)
	}
}

func TestJobsAreOfTheirSize(t *testing.T) {
	for _, test := range []struct {
		job  job
		part float64
		want string
	}{
		{half, 1, "--bursts 100 --launches 10"},
		{half, .25, "--bursts 25 --launches 10"},
		{notebook, .01, "--bursts 2 "},
		{hog, .25, "--bursts 1 --launches 500 --gpu-us 500000 --sync-every 500"},
	} {
		if got := strings.Join(test.job.arguments(test.part), " "); !strings.HasPrefix(got, test.want) {
			t.Errorf("%s, %v of it: %q, want %q", test.job.name, test.part, got, test.want)
		}
	}
}
