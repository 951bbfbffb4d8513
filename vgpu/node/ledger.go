// SPDX-License-Identifier: Apache-2.0

package node

import (
	"math"
	"slices"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
)

// lease is what one process may have of the memory of one GPU, in bytes.
//
// vgpud keeps its own number beside that in the page, which the process can
// write: what the page says of credit counts only up to what was leased, and
// what it says of leased only where vgpud has no number of its own (believe). So
// a process that lies gets no more than one that goes around the ledger, and no
// sum of ours can wrap.
type lease struct {
	bytes    uint64 // all of it; what is used of it and what is not
	overhead uint64 // of it, what the driver needs for the process, see look.go

	over    uint64 // the overhead as it was seen last
	sure    uint64 // the lesser of the last two
	settled bool   // the last two were the same
	before  uint64 // allocated when the look at the driver began
}

// credit is what c may still allocate on its vGPU's GPU number i.
func (c *client) credit(i int) uint64 {
	k := &c.leases[i]
	return min(c.page.Memory()[i].Credit.Load(), k.bytes-k.overhead)
}

// used is what c uses there, overhead included.
func (c *client) used(i int) uint64 { return c.leases[i].bytes - c.credit(i) }

// allocated is what c uses there without the overhead.
func (c *client) allocated(i int) uint64 { return c.used(i) - c.leases[i].overhead }

// lend gives c more credit: leased is raised before it, so that no moment shows
// more credit than was leased.
func (c *client) lend(i int, bytes uint64) {
	c.setLeased(i, plus(c.leases[i].bytes, bytes))
	c.page.Memory()[i].Credit.Add(bytes)
}

// recall takes back what c does not use. It gives it up without being asked: a
// thread of it that allocates finds no credit, and asks for some.
func (c *client) recall(i int) {
	k := &c.leases[i]
	got := min(c.page.Memory()[i].Credit.Swap(0), k.bytes-k.overhead)
	c.setLeased(i, k.bytes-got)
}

// askFirst says whether c must ask before it takes of its credit.
func (c *client) askFirst(i int, yes bool) {
	bit := uint32(1) << i
	if yes {
		c.page.Over().Or(bit)
	} else {
		c.page.Over().And(^bit)
	}
}

// charge makes the overhead of c what it is.
func (c *client) charge(i int, overhead uint64) {
	k := &c.leases[i]
	bytes := plus(k.bytes-k.overhead, overhead)
	k.overhead = overhead
	c.page.Overhead()[i].Store(overhead)
	c.setLeased(i, bytes)
}

func (c *client) setLeased(i int, bytes uint64) {
	c.leases[i].bytes = bytes
	c.page.Memory()[i].Leased.Store(bytes)
}

// believe takes in what the page of a process says that came back. To a vgpud
// that was restarted it is all that is known. To one that knew the process, it
// may have gone on without vgpud if that is the policy: then it has more.
func (l *loop) believe(c *client, known bool) {
	for i, uuid := range c.v.bound {
		g := l.gpus[uuid]
		if g == nil {
			continue
		}
		k := &c.leases[i]
		said := min(c.page.Memory()[i].Leased.Load(), g.MemoryBytes) // no process has more than all
		switch {
		case !known:
			k.bytes = said
			k.overhead = min(c.page.Overhead()[i].Load(), said)
			k.over, k.sure = k.overhead, k.overhead
		case l.absence > 0:
			k.bytes = max(k.bytes, said)
		}
		c.setLeased(i, k.bytes)
	}
}

// memoryOn is what all processes of v were leased on a GPU, and what they use of
// it. Of one that vgpud gave up after a restart, the driver's number counts.
func (l *loop) memoryOn(v *vgpu, uuid arbiter.UUID) (leased, used uint64) {
	i := slices.Index(v.bound, uuid)
	if i < 0 {
		return 0, 0
	}
	for _, c := range v.clients {
		leased, used = plus(leased, c.leases[i].bytes), plus(used, c.used(i))
	}
	if g := l.gpus[uuid]; g != nil {
		for n, x := range v.expected {
			if v.hasPage(x.PID) || slices.ContainsFunc(v.expected[:n], func(y *expected) bool { return y.PID == x.PID }) {
				continue // counted with another page of the process
			}
			bytes := g.look.seen[x.PID]
			leased, used = plus(leased, bytes), plus(used, bytes)
		}
	}
	return leased, used
}

func (v *vgpu) hasPage(pid int) bool {
	return slices.ContainsFunc(v.clients, func(c *client) bool { return c.PID == pid })
}

// memoryUsed is what all vGPUs use of a GPU.
func (l *loop) memoryUsed(uuid arbiter.UUID) (sum uint64) {
	for _, v := range l.vgpus {
		_, used := l.memoryOn(v, uuid)
		sum = plus(sum, used)
	}
	return sum
}

// memoryLimit is how much memory of a GPU v may use, with those that share it
// (memorySharers): what it reserved. One that reserved nothing shares what is neither
// reserved nor promised with all others that did not.
func (l *loop) memoryLimit(v *vgpu, uuid arbiter.UUID) uint64 {
	if v.req.MemoryBytes > 0 {
		return v.req.MemoryBytes
	}
	g := l.gpus[uuid]
	if g == nil {
		return 0
	}
	s, _ := l.engine.GPU(uuid)
	return min(minus(s.Memory, s.Promised+s.Guests), g.MemoryBytes)
}

// memorySharers are the vGPUs that share a limit with v on a GPU, v the first of
// them.
func (l *loop) memorySharers(v *vgpu, uuid arbiter.UUID) []*vgpu {
	all := []*vgpu{v}
	for _, other := range l.vgpus {
		if other != v && v.sharesMemory(other) && slices.Contains(l.livesOn(other), uuid) {
			all = append(all, other)
		}
	}
	return all
}

// sharesMemory says whether two vGPUs share a limit on each GPU on which both are.
func (v *vgpu) sharesMemory(other *vgpu) bool {
	if v.req.MemoryBytes == 0 || other.req.MemoryBytes == 0 {
		return v.req.MemoryBytes == other.req.MemoryBytes
	}
	return v.rec.Reservation != "" && v.rec.Reservation == other.rec.Reservation
}

// livesOn are the GPUs on which v is, or may be while a restarted vgpud does not
// know better.
func (l *loop) livesOn(v *vgpu) []arbiter.UUID {
	if v.adopted {
		return v.bound
	}
	return l.mayUse(v)
}

// memoryOfOthers is what others use of the limit that v shares with them.
func (l *loop) memoryOfOthers(v *vgpu, uuid arbiter.UUID) (sum uint64) {
	for _, other := range l.memorySharers(v, uuid) {
		if other != v {
			_, used := l.memoryOn(other, uuid)
			sum = plus(sum, used)
		}
	}
	return sum
}

// memoryRoom is how much more can be leased to v on a GPU.
func (l *loop) memoryRoom(v *vgpu, uuid arbiter.UUID) uint64 {
	room := l.memoryLimit(v, uuid)
	for _, other := range l.memorySharers(v, uuid) {
		leased, _ := l.memoryOn(other, uuid)
		room = minus(room, leased)
	}
	return room
}

// trimMemory takes credit back on a GPU, as far as more is leased than its limits:
// they got lower, or the driver needed more. What is in use stays.
func (l *loop) trimMemory(uuid arbiter.UUID) {
	settled := make(map[*vgpu]bool)
	for _, v := range l.vgpus {
		if settled[v] || !v.adopted || !slices.Contains(v.bound, uuid) {
			continue
		}
		together := slices.DeleteFunc(l.memorySharers(v, uuid), func(o *vgpu) bool { return !o.adopted })
		for _, o := range together {
			settled[o] = true
		}
		l.settleMemory(together, uuid)
	}
}

// memoryOver is how much more is leased than the limit of v allows.
func (l *loop) memoryOver(v *vgpu, uuid arbiter.UUID) uint64 {
	var leased uint64
	for _, other := range l.memorySharers(v, uuid) {
		n, _ := l.memoryOn(other, uuid)
		leased = plus(leased, n)
	}
	return minus(leased, l.memoryLimit(v, uuid))
}

// settleMemory takes credit back from vGPUs with the same limit as far as more is
// leased. If more is in use as well, what they free becomes credit beyond the
// limit: so they ask from then on before they take any, and are settled again.
func (l *loop) settleMemory(of []*vgpu, uuid arbiter.UUID) {
	over := l.memoryOver(of[0], uuid)
	for _, v := range of {
		i := slices.Index(v.bound, uuid)
		for _, c := range v.clients {
			// Before credit is taken back: what is freed then is not overlooked.
			c.askFirst(i, over > 0)
			if over > 0 {
				before := c.leases[i].bytes
				c.recall(i)
				over = minus(over, before-c.leases[i].bytes)
			}
		}
	}
}

// plus is a sum that stays at the top where it would wrap.
func plus(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

// minus is a difference that stays at 0 where it would wrap.
func minus(a, b uint64) uint64 { return a - min(a, b) }
