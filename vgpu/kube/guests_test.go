// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"
	"time"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// More is told at once, but once in a second; less when it was so for ten. When to look
// again is said as long as what was told is not what is.
func TestGuestsAreTold(t *testing.T) {
	k := guests{}
	start := time.Now()
	for _, step := range []struct {
		at    time.Duration
		bytes [2]uint64 // that guests reserve of two GPUs
		told  [2]uint64 // in mebibytes
		again time.Duration
	}{
		{0, [2]uint64{0, 0}, [2]uint64{0, 0}, 0},
		{0, [2]uint64{1, 0}, [2]uint64{1, 0}, 0},                                       // of a part the whole
		{time.Second / 4, [2]uint64{5 << 20, 0}, [2]uint64{1, 0}, 3 * time.Second / 4}, // too soon
		{time.Second / 2, [2]uint64{5 << 20, 7 << 20}, [2]uint64{1, 0}, time.Second / 2},
		{time.Second, [2]uint64{5 << 20, 7 << 20}, [2]uint64{5, 7}, 0},
		{5 * time.Second, [2]uint64{2 << 20, 7 << 20}, [2]uint64{5, 7}, 10 * time.Second},
		{9 * time.Second, [2]uint64{0, 7 << 20}, [2]uint64{5, 7}, 10 * time.Second}, // still going
		{10 * time.Second, [2]uint64{0, 8 << 20}, [2]uint64{5, 8}, 9 * time.Second},
		{12 * time.Second, [2]uint64{5 << 20, 8 << 20}, [2]uint64{5, 8}, 0}, // back again
		{13 * time.Second, [2]uint64{0, 0}, [2]uint64{5, 8}, 10 * time.Second},
		{22 * time.Second, [2]uint64{0, 0}, [2]uint64{5, 8}, time.Second},
		{23 * time.Second, [2]uint64{0, 0}, [2]uint64{0, 0}, 0},
	} {
		gpus := []*v1.GPU{{Uuid: "a", MemoryGuestBytes: step.bytes[0]}, {Uuid: "b", MemoryGuestBytes: step.bytes[1]}}
		again := k.see(gpus, start.Add(step.at))
		if got := [2]uint64{k.told["a"], k.told["b"]}; got != step.told || again != step.again {
			t.Errorf("after %v, with guests of %v: told %v, again after %v; want %v, %v", step.at, step.bytes, got, again, step.told, step.again)
		}
	}
	if k.see(nil, start.Add(time.Minute)); len(k.told) != 0 {
		t.Errorf("of GPUs that are gone is told %v", k.told)
	}
}
