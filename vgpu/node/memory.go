// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/request"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// memoryChunk is how much is leased at a time, if there is room: a process with
// small allocations seldom has to ask.
const memoryChunk = 64 << 20

// maxAsks bounds the asks of one connection that wait for an answer. A process has
// one question at a time, which a reconnection may double, and tells once of each
// GPU.
const maxAsks = 2 + wire.MaxUUIDs

// ask is one for memory, as it came.
type ask struct {
	conn   *conn
	index  uint64
	need   uint64 // credit
	number uint64 // the client's own
	looks  int    // how often the driver has said what is in use since
}

// memoryAsked answers a MEMORY message, now or later: later if the driver is to be
// asked first, or if a restarted vgpud does not know yet what is in use.
func (l *loop) memoryAsked(c *conn, m *wire.Msg) {
	a := ask{conn: c, index: m.A[0], need: m.A[1], number: m.A[3]}
	v := c.v
	switch {
	case len(v.bound) == 0:
		l.refuseMemory(&a, "this vGPU is not bound to a GPU yet")
	case a.index >= uint64(len(v.bound)):
		l.refuseMemory(&a, fmt.Sprintf("there is no GPU number %d, this vGPU has %d", a.index, len(v.bound)))
	case c.asks >= maxAsks:
		l.refuseMemory(&a, "too many asks of this process wait for an answer")
	case wire.MemoryFlag(m.A[2])&wire.MemoryDriver != 0:
		l.leaseLooked(&a, true)
	default:
		l.lookNowAndAgain(v.bound[a.index])
		l.lease(&a)
	}
}

// leaseLooked leases what is asked for once the driver has said how much is in
// use. said is for lookAtProcesses.
func (l *loop) leaseLooked(a *ask, said bool) {
	a.conn.asks++
	l.lookAtProcesses(a.conn.v.bound[a.index], said, func() {
		a.conn.asks--
		a.looks++
		l.lease(a)
	})
}

// refuseMemory answers an ask that makes no sense.
func (l *loop) refuseMemory(a *ask, why string) {
	m := wire.Msg{Type: wire.MemoryIs, Code: wire.ErrInternal, A: [4]uint64{a.index, 0, 0, a.number}}
	m.SetText(why)
	l.send(a.conn, &m, -1)
}

// lease leases what is asked for if there is room, and says how it stands.
func (l *loop) lease(a *ask) {
	c := a.conn.client
	if c == nil || c.conn != a.conn || a.index >= uint64(len(c.v.bound)) {
		return // it hung up meanwhile, and asks again when it is back
	}
	v, i := c.v, int(a.index)
	uuid := v.bound[i]
	if l.memoryUnknown(v, uuid) {
		a.conn.asks++
		l.asks = append(l.asks, a)
		return
	}
	if len(v.expected) > 0 && a.looks == 0 {
		l.leaseLooked(a, true) // the driver alone knows what a process has that did not come back
		return
	}
	m := wire.Msg{Type: wire.MemoryIs}
	l.settleMemory([]*vgpu{v}, uuid)
	if !l.leaseTo(c, i, a.need) {
		if a.looks < 2 && l.overheadUnsure(v, uuid) {
			l.leaseLooked(a, false) // nothing is refused for what was only seen once
			return
		}
		m.Code = wire.ErrMemory
	}
	limit := l.memoryLimit(v, uuid)
	_, used := l.memoryOn(v, uuid)
	m.Others = l.memoryOfOthers(v, uuid)
	if m.Code != wire.OK {
		m.SetText(fmt.Sprintf("%s of memory are asked for; of its limit of %s on %s this vGPU uses %s",
			request.FormatBytes(a.need), request.FormatBytes(limit), uuid, request.FormatBytes(used)))
	}
	m.A = [4]uint64{a.index, limit, used, a.number}
	l.send(a.conn, &m, -1)
	l.lookAtSwapsIn(l.gpus[uuid], swapsSoon)
}

// leaseTo makes the credit of c as large as it needs. Where there is too little
// room, the other processes that share its limit give back what they do not use,
// if that helps. False: there is no such credit, and nothing was changed.
func (l *loop) leaseTo(c *client, i int, need uint64) bool {
	have := c.credit(i)
	if need <= have {
		return true
	}
	more, uuid := need-have, c.v.bound[i]
	room := l.memoryRoom(c.v, uuid)
	if room < more {
		if !l.recallFor(c, i, more) {
			return false
		}
		if room = l.memoryRoom(c.v, uuid); room < more {
			return false // a process was quicker to use what it had
		}
	}
	c.lend(i, min(room, max(more, memoryChunk)))
	return true
}

// recallFor takes credit back from the other processes that share the limit of c,
// those of its own vGPU first, until there is room for more. False: there would
// not be enough.
func (l *loop) recallFor(c *client, i int, more uint64) bool {
	uuid := c.v.bound[i]
	sharers := l.memorySharers(c.v, uuid)
	// What is leased beyond the limit gives no room when it comes back.
	limit, leased, back := l.memoryLimit(c.v, uuid), uint64(0), uint64(0)
	for _, v := range sharers {
		n, _ := l.memoryOn(v, uuid)
		leased = plus(leased, n)
		v.eachOn(uuid, func(other *client, i int) {
			if other != c {
				back = plus(back, other.credit(i))
			}
		})
	}
	if minus(limit, minus(leased, back)) < more {
		return false
	}
	for _, v := range sharers {
		v.eachOn(uuid, func(other *client, i int) {
			if other != c && l.memoryRoom(c.v, uuid) < more {
				other.recall(i)
			}
		})
	}
	return true
}

// memoryUnknown says whether a restarted vgpud does not know yet how much of the
// limit of v is in use: a process is missing that may have some of it.
func (l *loop) memoryUnknown(v *vgpu, uuid arbiter.UUID) bool {
	if l.recovery == nil {
		return false
	}
	if !v.adopted {
		return true
	}
	// What is left for those that reserved nothing depends on all.
	for _, other := range l.vgpus {
		if !other.adopted && (v.req.MemoryBytes == 0 || v.sharesMemory(other)) && slices.Contains(l.mayUse(other), uuid) {
			return true
		}
	}
	return false
}

// leaseAgain answers those that waited for processes to come back, if they can be
// answered now.
func (l *loop) leaseAgain() {
	asks := l.asks
	l.asks = nil
	for _, a := range asks {
		a.conn.asks--
		l.lease(a)
	}
}
