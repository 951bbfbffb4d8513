// SPDX-License-Identifier: Apache-2.0

package simgpu

import "testing"

// TestArraysGraphsAndParts runs the programs for arrays, boxes, graphs and green contexts.
func TestArraysGraphsAndParts(t *testing.T) {
	for _, name := range []string{
		"arrays", "boxes", "batches", "graph_shape", "graph_change", "graph_memory", "graph_events", "graph_capture",
		"user_objects", "green",
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, "--gpus", "1", "--memory", "256Mi")
			m.run(name)
			for _, r := range m.log() {
				if r.class == "work" && (r.endNS == 0 || r.startNS < r.submitNS || r.endNS < r.startNS) {
					t.Errorf("times out of order: %+v", r)
				}
			}
		})
	}
}

// TestCopiesOfBoxesAreWork: whatever the shape, a copy is in the log and takes time.
func TestCopiesOfBoxesAreWork(t *testing.T) {
	m := newMachine(t, "--gpus", "1", "--memory", "256Mi")
	m.run("boxes")
	m.run("batches")
	seen := map[string]int{}
	for _, r := range m.log() {
		if r.class != "work" {
			continue
		}
		seen[r.name]++
		if r.endNS-r.startNS < 2000 {
			t.Errorf("%s took %d ns: less than any copy", r.name, r.endNS-r.startNS)
		}
	}
	for name, n := range map[string]int{
		"cuMemcpy2D": 3, "cuMemcpy3D": 1, "cuMemcpy3DAsync": 2, "cuMemcpyHtoA": 1, "cuMemcpyAtoA": 1, "cuMemcpyAtoD": 1,
		"cuMemcpyDtoA": 1, "cuMemcpyAtoH": 1, "cuMemcpyBatchAsync": 2, "cuMemcpy3DBatchAsync": 1,
	} {
		if seen[name] != n {
			t.Errorf("%d records of %s, want %d", seen[name], name, n)
		}
	}
}

// TestCooperativeLaunchOnTwoDevices: its streams wait for each other.
func TestCooperativeLaunchOnTwoDevices(t *testing.T) {
	m := newMachine(t, "--gpus", "2", "--memory", "256Mi")
	m.run("many")
}
