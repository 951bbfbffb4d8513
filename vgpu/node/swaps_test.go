// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// TestQuantumFollowsWhatDoesNotFit: what two use beyond the GPU's 16 GiB moves at 400
// GiB a second, in and out, and is to be a hundredth of a turn.
func TestQuantumFollowsWhatDoesNotFit(t *testing.T) {
	n := newNode(t, settings{quantum: 20 * time.Millisecond, oversubscription: 1.9})
	n.create("a", "memory=15Gi")
	n.create("b", "memory=15Gi", "quantum=5s")
	a, b := n.client("a"), n.client("b")
	is := func(name string, quantum, swap time.Duration) {
		t.Helper()
		n.until(fmt.Sprintf("%s has a quantum of %v and a swap of %v", name, quantum, swap), func() bool {
			v := n.vgpu(name)
			return v.GetQuantum().AsDuration() == quantum && v.GetSwap().AsDuration() == swap
		})
	}
	a.takes(10 * gib)
	b.takes(6 * gib)
	is("a", 20*time.Millisecond, 0)
	b.takes(4 * gib)
	is("a", 2*time.Second, 20*time.Millisecond)
	is("b", 5*time.Second, 20*time.Millisecond) // longer anyway
	// No more than it has has to come back, however much does not fit.
	a.ask(fmt.Sprint("free 0 ", 9*gib), "free: ok")
	b.takes(5 * gib)
	is("a", 20*time.Millisecond, 0)
	a.takes(2 * gib)
	is("a", time.Second, 10*time.Millisecond)
	// What is freed is seen at the end of a turn at the latest.
	a.ask(fmt.Sprint("free 0 ", 3*gib), "free: ok")
	n.until("all fits, after some turns", func() bool {
		for _, c := range []*clientProcess{a, b} {
			c.ask("work", "work: passed")
			c.ask("done", "done: ")
		}
		return n.vgpu("a").GetSwap() == nil && n.vgpu("b").GetSwap() == nil
	})
	is("a", 20*time.Millisecond, 0)
	// So is the end of a process, though another of its vGPU lives.
	a2 := n.client("a")
	a2.takes(3 * gib)
	is("b", 5*time.Second, 10*time.Millisecond)
	a2.kill()
	is("b", 5*time.Second, 0)
}

// TestMemoryIsOversubscribedOnlyIfConfigured: who reserved nothing shares what is left
// of what may be reserved.
func TestMemoryIsOversubscribedOnlyIfConfigured(t *testing.T) {
	n := newNode(t, settings{oversubscription: 1.5})
	n.create("a", "memory=15Gi")
	n.create("b", "memory=5Gi")
	n.create("c")
	a, b, c := n.client("a"), n.client("b"), n.client("c")
	a.wants(15*gib, wire.OK, 15*gib, 0)
	b.wants(5*gib, wire.OK, 5*gib, 0)
	c.wants(4*gib, wire.OK, 4*gib, 0)
	n.create("e", "memory=5Gi", "when-full=fail")
	n.refuses("e", "20Gi of 24Gi of memory are reserved, 5Gi more are asked for")
	n = newNode(t, settings{})
	n.create("a", "memory=15Gi")
	n.create("b", "memory=5Gi", "when-full=fail")
	n.client("a")
	n.refuses("b", "15Gi of 16Gi of memory are reserved, 5Gi more are asked for")
}

// refuses: no process of a vGPU is bound, and why.
func (n *node) refuses(name, why string) {
	n.t.Helper()
	p := n.process(name)
	p.ask("start "+n.created[name], "start: ")
	if got := p.ask("bind", "bind: "); !strings.HasPrefix(got, "refused") || !strings.Contains(got, why) {
		n.t.Errorf("%s: %s; want %q", name, got, why)
	}
}
