// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"slices"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// After a restart beside an overrun two vGPUs compute on one GPU. A third was
// granted when one of them was done, though the other still computed.
func TestNobodyIsGrantedBesideWhoeverWasFoundBesideTheHolder(t *testing.T) {
	for _, late := range []bool{false, true} {
		e := New(Config{})
		e.Step(0, Event{Kind: GPUUp, GPU: "g"})
		for _, id := range []ID{"a", "b", "c"} {
			e.Step(0, Event{Kind: Added, VGPU: id, Request: request.Request{Count: 1}})
			e.Step(0, Event{Kind: Adopted, VGPU: id, GPUs: []UUID{"g"}, Holding: id != "c", Waiting: id == "c"})
		}
		granted := func(actions []Action) bool {
			return slices.ContainsFunc(actions, func(a Action) bool { return a.Kind == Grant && a.VGPU == "c" })
		}
		if granted(e.Step(time.Second, Event{Kind: Complete, VGPU: "a"})) {
			t.Fatal("c is granted beside b")
		}
		if late {
			if !granted(e.Step(time.Hour, Event{Kind: Deadline, VGPU: "b"})) {
				t.Error("c is not granted beside the overrun of b")
			}
		} else if !granted(e.Step(time.Minute, Event{Kind: Drained, VGPU: "b"})) {
			t.Error("c is not granted when b is done")
		}
	}
}

// After a restart one vGPU of a gang was found beside the holder of a GPU, and was
// deleted. The gang went on elsewhere, and nobody was granted on that GPU any more.
func TestAGPUIsFreeWhenWhoeverWasBesideItsHolderIsDeleted(t *testing.T) {
	e := New(Config{})
	for _, g := range []UUID{"g", "other"} {
		e.Step(0, Event{Kind: GPUUp, GPU: g})
	}
	for _, id := range []ID{"a", "x0", "x1"} {
		e.Step(0, Event{Kind: Added, VGPU: id, Gang: map[ID]string{"x0": "x", "x1": "x"}[id], Request: request.Request{Count: 1}})
	}
	e.Step(0, Event{Kind: Adopted, VGPU: "a", GPUs: []UUID{"g"}, Holding: true})
	e.Step(0, Event{Kind: Adopted, VGPU: "x0", GPUs: []UUID{"other"}, Holding: true})
	e.Step(0, Event{Kind: Adopted, VGPU: "x1", GPUs: []UUID{"g"}, Holding: true})
	e.Step(1, Event{Kind: Removed, VGPU: "x1"})
	e.Step(2, Event{Kind: Complete, VGPU: "a"})
	e.Step(3, Event{Kind: Pending, VGPU: "a"})
	if a, _ := e.VGPU("a"); a.State != Holding {
		t.Errorf("a is %s: nobody else is on its GPU", a.State)
	}
}
