// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
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
// Its bind waited for another process of its container to come back.
func TestMemoryIsLookedAtBeforeABindAfterARestart(t *testing.T) {
	n := newNode(t, settings{edit: func(l *loop) {
		l.inventory.(*gputest.Inventory).SetFree(gpuUUID(0), 1<<30)
	}})
	n.create("a", "memory=2Gi")
	a1, a2 := n.process("a"), n.process("a")
	a1.ask("start "+n.created["a"], "start: ")
	a2.ask("start "+n.created["a"], "start: ")
	a1.pause()
	n.stop()
	n.start()
	a2.expect("reconnected")
	a2.tell("bind")
	n.until("it has asked", func() (asked bool) {
		if err := n.daemon.call(func(l *loop) {
			for _, v := range l.vgpus {
				asked = len(v.binders) > 0
			}
		}); err != nil {
			t.Fatal(err)
		}
		return asked
	})
	a1.signal(syscall.SIGCONT)
	a1.expect("reconnected")
	n.until("it waits", func() bool { return strings.Contains(n.vgpu("a").GetReason(), "are free in the driver's count") })
}

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
	n := newNode(t, settings{edit: func(l *loop) { l.inventory, l.lookPatience = hangs{l.inventory}, lookPatience }})
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

// late is a vGPU that is bound late, in a daemon whose loop the test is.
func late(l *loop) *vgpu {
	v := &vgpu{
		key: "v", listen: -1, adopted: true, req: request.Request{Count: 1},
		rec: record{Version: recordVersion, ID: "0123456789abcdef", Dir: "0123456789abcdef-0123456789abcdef", Container: "v"},
	}
	l.add(v)
	return v
}

// told runs what is posted until an event was told.
func (l *loop) told(what string) bool {
	was := func() bool { return slices.Contains(since(l.events, 0), what) }
	return l.runs(func() bool { return was() || l.store.writes.Load() > 100 }) && was()
}

// runs runs what is posted, as soon as it is, until ok; false if that does not come.
func (l *loop) runs(ok func() bool) bool {
	posted := []unix.PollFd{{Fd: int32(l.poller.wake), Events: unix.POLLIN}}
	for deadline := time.Now().Add(patience); !ok(); l.poller.runPosted() {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		_, _ = unix.Poll(posted, int(left.Milliseconds()))
	}
	return true
}

// Between the choice and the answer, while it is written into the store.
func TestAGPULostBeforeTheAnswerIsNotAnswered(t *testing.T) {
	l := idle(t, 2).loop
	v := late(l)
	l.event(arbiter.Event{Kind: arbiter.Bind, VGPU: v.key})
	l.health(gpu.Health{UUID: gpuUUID(0), Down: "lost"})
	if !l.told(eventBound) || !slices.Equal(v.bound, []arbiter.UUID{arbiter.UUID(gpuUUID(1))}) {
		t.Errorf("bound to %v", v.bound)
	}
}

// Likewise, but a thread of it stands at the gate before it knows its GPU, so it
// stays where it is.
func TestAGPULostBeforeTheAnswerIsAnsweredWhereAThreadWaits(t *testing.T) {
	l := idle(t, 2).loop
	v := late(l)
	l.event(arbiter.Event{Kind: arbiter.Bind, VGPU: v.key})
	l.health(gpu.Health{UUID: gpuUUID(0), Down: "lost"})
	l.event(arbiter.Event{Kind: arbiter.Pending, VGPU: v.key})
	if !l.told(eventBound) {
		t.Fatalf("not answered after %d writes of its record", l.store.writes.Load())
	}
	if !slices.Equal(v.bound, []arbiter.UUID{arbiter.UUID(gpuUUID(0))}) {
		t.Errorf("bound to %v", v.bound)
	}
}

// It is bound anew before it was told that it was bound.
func TestABindIsAnsweredOnceItsOwnRecordIsWritten(t *testing.T) {
	l := idle(t, 2).loop
	v := late(l)
	l.event(arbiter.Event{Kind: arbiter.Bind, VGPU: v.key})
	stuck, release := make(chan struct{}), make(chan struct{})
	l.store.saveNode("stuck", []byte("{}"), func(error) { close(stuck); <-release })
	<-stuck // behind the first record
	l.unused(v)
	l.setCause(arbiter.UUID(gpuUUID(0)), causeOperator, "repair")
	l.event(arbiter.Event{Kind: arbiter.Bind, VGPU: v.key})
	l.poller.runPosted()
	if got := since(l.events, 1); len(got) > 0 { // behind the cordon
		t.Errorf("told %q before it is in the store", got)
	}
	close(release)
	if !l.told(eventBound) || !slices.Equal(v.bound, []arbiter.UUID{arbiter.UUID(gpuUUID(1))}) {
		t.Errorf("bound to %v", v.bound)
	}
}
