// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

const (
	alone      = "queue=50000 drain=2000"
	outclassed = "queue=2000 drain=2000"
)

// has fails unless the page says so.
func (c *clientProcess) has(want string) {
	c.t.Helper()
	if got := c.ask("page", "page: "); got != want {
		c.t.Errorf("%s: %s, want %s", c.name, got, want)
	}
}

// Whoever waited is expected back for a second: so long the other one's queue is short.
func TestWhoeverWaitedIsExpectedBack(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	a.ask("done", "done: ")
	a.ask("expected", "expected: 0")
	clock := newClock()
	before := clock.now()
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	after := clock.now()
	until, err := strconv.ParseInt(a.ask("expected", "expected: "), 10, 64)
	if at := time.Duration(until); err != nil || at < before+time.Second || at > after+time.Second {
		t.Errorf("b came between %v and %v and is expected until %v, want a second later: %v", before, after, at, err)
	}
	b.ask("expected", "expected: 0")
	a.ask("done", "done: ")
	b.expect("work: passed")
}

// It counts from when it waited last, not from when it came.
func TestWhoeverGaveUpWaitingIsExpectedFromThenOn(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	clock := newClock()
	before := clock.now()
	n.delete("b")
	n.until("nobody waits", func() bool { return strings.Contains(a.ask("word", "word: "), "wanted=0") })
	until, err := strconv.ParseInt(a.ask("expected", "expected: "), 10, 64)
	if at := time.Duration(until); err != nil || at < before+time.Second {
		t.Errorf("b waited until %v at least and is expected until %v, want a second later: %v", before, at, err)
	}
}

func TestTheQueueIsShortBesideAHigherClass(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	first := "uuid=" + gpuUUID(0)
	n.create("normal", first)
	n.create("low", first, "priority=low")
	n.create("high", first, "priority=high")
	n.create("elsewhere", "uuid="+gpuUUID(1))
	normal, elsewhere := n.client("normal"), n.client("elsewhere")
	normal.has(alone)
	low := n.client("low")
	low.has(outclassed)
	normal.has(alone)

	high := n.client("high") // bound
	high.has(alone)
	normal.has(outclassed)
	low.has(outclassed)
	elsewhere.has(alone)
	n.client("normal").has(outclassed) // a process that comes later

	set := func(name, priority string) {
		t.Helper()
		if _, err := n.control.Update(t.Context(), &v1.UpdateRequest{
			Id: n.vgpu(name).GetId(), Annotations: map[string]string{"vgpu-shim.dev/priority": priority},
		}); err != nil {
			t.Fatal(err)
		}
	}
	set("high", "normal") // live update
	normal.has(alone)
	low.has(outclassed)
	set("high", "high")
	normal.has(outclassed)

	policy := func(name string) {
		t.Helper()
		if _, err := n.control.SetPolicy(t.Context(), &v1.SetPolicyRequest{Policy: name}); err != nil {
			t.Fatal(err)
		}
	}
	policy("fair") // under which there are no classes
	normal.has(alone)
	low.has(alone)
	policy("default")
	normal.has(outclassed)

	high.kill() // unbound
	n.untilState("high", "UNBOUND")
	normal.has(alone)
	n.client("high")
	normal.has(outclassed)
	n.delete("high") // removed
	n.until("it is gone", func() bool { return n.vgpu("high") == nil })
	normal.has(alone)
}

// A member of a gang runs when the gang does, in the class of its strongest.
func TestTheClassOfAGangIsThatOfItsStrongest(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	first := "uuid=" + gpuUUID(0)
	n.create("a", first, "gang=g")
	n.create("other", first)
	n.create("b", "uuid="+gpuUUID(1), "gang=g", "priority=high")
	a, other := n.client("a"), n.client("other")
	a.has(alone)
	other.has(outclassed)
	n.delete("b")
	n.until("it is gone", func() bool { return n.vgpu("b") == nil })
	other.has(alone)
}

func TestTheQueueIsBoundedAgainAfterARestart(t *testing.T) {
	n := newProcessNode(t, settings{})
	n.create("normal")
	n.create("high", "priority=high")
	normal, high := n.client("normal"), n.client("high")
	normal.has(outclassed)
	n.kill()
	n.startProcess()
	normal.expect("reconnected")
	high.expect("reconnected")
	n.untilState("high", "IDLE")
	normal.has(outclassed)
	high.has(alone)
}
