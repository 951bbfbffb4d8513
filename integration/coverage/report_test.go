// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"strings"
	"testing"
)

// Two objects hold parts of one file; a third is a copy of another, and a fourth
// a program of the tests.
func TestCountsOfOneFileAreAddedUp(t *testing.T) {
	r := newReport("/tree", "/out/gate")
	for _, json := range []string{
		`{"current_working_directory":"/tree/hooks/driver/test","files":[{"file":"../init.c",
			"functions":[{"name":"one","execution_count":2}],"lines":[{"line_number":1,"count":2}]},
			{"file":"../real.c","functions":[],"lines":[{"line_number":1,"count":1}]},
			{"file":"testdata/alone.c","functions":[],"lines":[{"line_number":1,"count":0}]}]}`,
		`{"current_working_directory":"/tree/hooks/driver","files":[{"file":"init.c",
			"functions":[{"name":"one","execution_count":0},{"name":"two","execution_count":0}],
			"lines":[{"line_number":1,"count":0},{"line_number":2,"count":0},{"line_number":3,"count":0}]}]}`,
		`{"current_working_directory":"/tree/hooks/gate/explore","files":[{"file":"/out/gate/thread.c",
			"functions":[],"lines":[{"line_number":7,"count":1}]}]}`,
		`{"current_working_directory":"/tree/hooks/driver","files":[{"file":"gen/hooks.inc",
			"functions":[{"name":"cuInit","execution_count":0}],"lines":[{"line_number":1,"count":0}]}]}`,
		`{"current_working_directory":"/tree/hooks/opencl","files":[{"file":"queue.c",
			"functions":[{"name":"drop","execution_count":0}],"lines":[{"line_number":3,"count":0}]}]}`,
	} {
		if err := r.add([]byte(json)); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	want := map[string]total{"hooks/driver": {lines: 4, run: 2}, "hooks/gate": {lines: 1, run: 1}, "hooks/opencl": {lines: 1}}
	if sums := r.print(&out); !maps.Equal(sums, want) {
		t.Errorf("the sums are %+v, want %+v:\n%s", sums, want, &out)
	}
	for _, want := range []string{"hooks/gate/thread.c", "never run in hooks/driver/init.c: two\n", "never run in hooks/opencl/queue.c: drop\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &out)
		}
	}
	for _, not := range []string{"alone.c", "cuInit"} {
		if strings.Contains(out.String(), not) {
			t.Errorf("the table has %q:\n%s", not, &out)
		}
	}
}

// Each directory has a floor of its own, whatever the others have.
func TestEachDirectoryHasItsFloor(t *testing.T) {
	sums := map[string]total{}
	for dir, percent := range least {
		sums[dir] = total{100, int(percent)}
	}
	if err := enough(sums); err != nil {
		t.Errorf("at its floor each is enough, and it says %v", err)
	}
	for dir, percent := range least {
		for other := range least {
			sums[other] = total{1000, 1000}
		}
		sums[dir] = total{100, int(percent) - 1}
		if err := enough(sums); err == nil || !strings.Contains(err.Error(), "the lines of "+dir+" were run") {
			t.Errorf("with too little of %s it says %v", dir, err)
		}
		delete(sums, dir)
		if err := enough(sums); err == nil || !strings.Contains(err.Error(), "nothing of "+dir+" ") {
			t.Errorf("without %s it says %v", dir, err)
		}
	}
}
