// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
)

func TestParseMonitor(t *testing.T) {
	const text = `count 2
uuid GPU-1
name NVIDIA H200
memory 100 30 70
use 5
processes 2
pid 17 20
pid 18 18446744073709551615
uuid GPU-2
name other
memory 1 2 3
processes 0`
	all := parseMonitor(strings.Split(text, "\n"))
	if len(all) != 2 || all[0].UUID != "GPU-1" || all[0].Name != "NVIDIA H200" || all[0].Total != 100 || all[0].Used != 30 || all[0].Free != 70 ||
		len(all[0].Processes) != 2 || all[0].Processes[17] != 20 || all[0].Processes[18] != unknownMemory || all[1].UUID != "GPU-2" {
		t.Errorf("%+v", all)
	}
}

func TestParseTruth(t *testing.T) {
	text := "device X\ninfo 90 100 101\ntaken 80 2\ninfo 1 100 101\nholds\ninfo 90 100 101\ndone"
	got, err := parseTruth(strings.Split(text, "\n"))
	want := talliedMemory{before: [3]uint64{90, 100, 101}, after: [3]uint64{1, 100, 101}, taken: 80, result: outOfMemory}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "info 90 100 101\ntaken 80 2", "info x"} {
		if got, err := parseTruth(strings.Split(bad, "\n")); err == nil {
			t.Errorf("%q is taken: %+v", bad, got)
		}
	}
}

func TestParseCosts(t *testing.T) {
	got := parseCosts([]string{"cost add 2071 10", "cost launch 180200 10", "costly thing", "done"})
	if len(got) != 2 || got["add"] != 2.071 || got["launch"] != 180.2 {
		t.Errorf("%v", got)
	}
}

func TestDifference(t *testing.T) {
	same := answered{said: "a\nb", status: "exit status 0", stderr: "one"}
	if d := difference(same, answered{said: "a\nb", status: "exit status 0", stderr: "two"}); d != "" {
		t.Error(d)
	}
	for _, other := range []answered{
		{said: "a\nc", status: "exit status 0"}, {said: "a", status: "exit status 0"}, {said: "a\nb", status: "signal: killed"},
	} {
		if d := difference(same, other); !strings.Contains(d, "line ") || !strings.Contains(d, other.status) {
			t.Errorf("%+v: %q", other, d)
		}
	}
}

func TestBases(t *testing.T) {
	got := bases([]string{"cuMemAlloc_v2", "cuMemAlloc", "cuLaunchKernel_ptsz", "cuMemcpyDtoH_v2_ptds", "cuStreamGetCaptureInfo_v3", "vgpu_x"})
	if want := []string{"cuLaunchKernel", "cuMemAlloc", "cuMemcpyDtoH", "cuStreamGetCaptureInfo"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestGroupOf(t *testing.T) {
	if g := groupOf("12 (a) b c) S 1 345 345 0"); g != 345 {
		t.Error(g)
	}
	if g := groupOf(""); g != -1 {
		t.Error(g)
	}
}
