// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

func TestALostGPUIsGrantedToNobody(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	n.create("a", "uuid="+gpuUUID(0))
	n.create("b", "uuid="+gpuUUID(0))
	n.create("c")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	n.gpus.SetHealth(gpu.Health{UUID: gpuUUID(0), Down: "lost: fell off the bus", Event: "Xid 79: GPU has fallen off the bus", Xid: 79})
	n.until("the GPU is shown as lost", func() bool { return n.gpu(0).GetState() == "UNHEALTHY" })
	if r := n.gpu(0).GetReason(); !strings.Contains(r, "fell off the bus") {
		t.Errorf("for %q", r)
	}
	// Who lives there stays, and gets no turn; who does not goes elsewhere.
	b.tell("work")
	n.untilState("b", "PENDING")
	a.ask("done", "done: ")
	c := n.client("c")
	if got := n.vgpu("c").GetGpus(); len(got) != 1 || got[0] != gpuUUID(1) {
		t.Errorf("c is bound to %v", got)
	}
	c.ask("work", "work: passed")
	if s := n.vgpu("b").GetState(); s != "PENDING" {
		t.Errorf("b is %s", s)
	}
	n.gpus.SetHealth(gpu.Health{UUID: gpuUUID(0)})
	b.expect("work: passed")
}

func TestADriversCordonKeepsNewOnesAway(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.process("b")
	n.gpus.SetHealth(gpu.Health{UUID: gpuUUID(0), Cordon: "compute mode is EXCLUSIVE_PROCESS", Notes: []string{"clocks are held down: thermal"}})
	n.until("the GPU is shown as cordoned", func() bool { return n.gpu(0).GetState() == "CORDONED" })
	if got := n.gpu(0).GetNotes(); len(got) != 1 {
		t.Errorf("notes: %v", got)
	}
	b.ask("start "+n.created["b"], "start: ")
	b.tell("bind")
	n.until("why b waits is shown", func() bool { return strings.Contains(n.vgpu("b").GetReason(), "EXCLUSIVE_PROCESS") })
	a.ask("work", "work: passed") // it lives there
	n.gpus.SetHealth(gpu.Health{UUID: gpuUUID(0)})
	if got := b.expect("bind: "); got != gpuUUID(0) {
		t.Errorf("bound to %s", got)
	}
}

// Others than vgpud's containers use the GPU too.
func TestMemoryIsAdmittedByWhatTheDriverSaysIsFree(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	n.gpus.SetFree(gpuUUID(0), 1<<30)
	n.create("a", "memory=2Gi")
	n.client("a")
	if got := n.vgpu("a").GetGpus(); len(got) != 1 || got[0] != gpuUUID(1) {
		t.Errorf("a is bound to %v", got)
	}
	n.gpus.SetFree(gpuUUID(1), 3<<30)
	n.create("b", "memory=4Gi", "when-full=fail")
	b := n.process("b")
	b.ask("start "+n.created["b"], "start: ")
	if got := b.ask("bind", "bind: "); !strings.Contains(got, "are free in the driver's count") {
		t.Error(got)
	}
	n.gpus.SetFree(gpuUUID(0), 5<<30)
	if got := b.ask("bind", "bind: "); got != gpuUUID(0) {
		t.Errorf("b is bound to %s", got)
	}
}

// It gave memory back that vgpud knows nothing of.
func TestWhoWaitsForMemoryIsBoundWhenAStrangerGivesItBack(t *testing.T) {
	n := newNode(t, settings{})
	n.gpus.SetFree(gpuUUID(0), 1<<30)
	n.create("a", "memory=2Gi")
	a := n.process("a")
	a.ask("start "+n.created["a"], "start: ")
	a.tell("bind")
	n.until("a waits", func() bool { return n.vgpu("a").GetReason() != "" })
	n.gpus.SetFree(gpuUUID(0), 3<<30)
	if err := n.daemon.call((*loop).lookForWaiting); err != nil {
		t.Fatal(err)
	}
	if got := a.expect("bind: "); got != gpuUUID(0) {
		t.Errorf("a is bound to %s", got)
	}
}

// hangs is a driver that does not answer.
type hangs struct{ gpu.Inventory }

func (hangs) Free(string) (uint64, error) { select {} }

func TestADriverThatHangsHoldsUpNoBind(t *testing.T) {
	n := newNode(t, settings{edit: func(l *loop) { l.inventory = hangs{l.inventory} }})
	n.create("a", "memory=2Gi")
	n.create("b", "memory=2Gi")
	for _, name := range []string{"a", "b"} { // the second finds the first look still there
		c := n.process(name)
		c.ask("start "+n.created[name], "start: ")
		if got := c.ask("bind", "bind: "); got != gpuUUID(0) {
			t.Errorf("%s is bound to %s", name, got)
		}
	}
}

// Between the choice and the answer, while it is written into the store.
func TestAGPULostBeforeTheAnswerIsNotAnswered(t *testing.T) {
	d := idle(t, 2)
	l := d.loop
	v := &vgpu{
		key: "v", listen: -1, adopted: true, req: request.Request{Count: 1},
		rec: record{Version: recordVersion, ID: "0123456789abcdef", Dir: "0123456789abcdef-0123456789abcdef", Container: "v"},
	}
	answer := make(chan []arbiter.UUID, 1)
	v.early = func(error) { v.early = nil; answer <- v.bound }
	l.add(v)
	l.bindLooked(v)
	l.health(gpu.Health{UUID: gpuUUID(0), Down: "lost"})
	ended := make(chan error, 1)
	go func() { ended <- l.poller.run() }() // what the store has to say comes only now
	got := <-answer
	l.poller.quit()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(got) != 1 || got[0] != arbiter.UUID(gpuUUID(1)) {
		t.Errorf("bound to %v", got)
	}
}
