// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"sync"
	"sync/atomic"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

const mib = 1 << 20

// ledger is vgpud's side of memory in a few lines: what the processes of one
// vGPU may use together on each GPU.
type ledger struct {
	mu      sync.Mutex
	limit   [wire.MaxUUIDs]uint64
	chunk   uint64             // leased at a time, where there is room
	others  uint64             // used of the limit by other vGPUs
	seen    uint64             // of own, at the last look
	clients map[uint64]*client // by their page's number
	silent  atomic.Bool        // nothing is answered
	removed atomic.Bool        // everything is refused
	asked   atomic.Int32       // questions
	told    atomic.Int32       // times that a process said that the driver's own use has changed
	toldOf  [wire.MaxUUIDs]atomic.Int32
	own     atomic.Uint64 // what the driver itself uses
	late    atomic.Bool   // a look that nobody waits for comes to no end
}

func newLedger() *ledger {
	l := &ledger{chunk: 64 * mib, clients: map[uint64]*client{}}
	for i := range l.limit {
		l.limit[i] = 1 << 40
	}
	return l
}

func (l *ledger) set(gpu int, limit uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit[gpu] = limit
}

// came and left: a process without a page has no lease. One that comes back with its
// page is the same, whether or not its connection before was found to have ended.
func (l *ledger) came(c *client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients[c.page.Client()] = c
}

func (l *ledger) left(c *client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id := c.page.Client(); l.clients[id] == c {
		delete(l.clients, id)
	}
}

func (l *ledger) sum(gpu uint64) (leased, used uint64) {
	for _, c := range l.clients {
		m := &c.page.Memory()[gpu]
		n := m.Leased.Load()
		leased += n
		used += n - m.Credit.Load()
	}
	return leased, used
}

// recall takes back what c does not use.
func recall(c *client, gpu uint64) {
	m := &c.page.Memory()[gpu]
	m.Leased.Add(-m.Credit.Swap(0))
}

func (l *ledger) recallAll(gpu uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.clients {
		recall(c, gpu)
	}
}

// lease gives c a credit of need; false if there is no room for it.
func (l *ledger) lease(c *client, gpu, need uint64) bool {
	m := &c.page.Memory()[gpu]
	for _, again := range []bool{false, true} {
		credit := m.Credit.Load()
		if credit >= need {
			return true
		}
		lack := need - credit
		leased, _ := l.sum(gpu)
		room := l.limit[gpu] - min(leased+l.seen, l.limit[gpu])
		if lack <= room {
			n := min(max(lack, l.chunk), room)
			m.Leased.Add(n)
			m.Credit.Add(n)
			return true
		}
		for _, other := range l.clients {
			if !again && other != c {
				recall(other, gpu)
			}
		}
	}
	return false
}

func (l *ledger) answer(c *client, m wire.Msg) {
	// First: who sees the count may make it silent for the questions after that.
	silent := l.silent.Load()
	looks := wire.MemoryFlag(m.A[2])&wire.MemoryDriver != 0
	if looks {
		l.told.Add(1)
		l.toldOf[m.A[0]].Add(1)
	} else {
		l.asked.Add(1)
	}
	if silent || looks && m.A[3] == 0 && l.late.Load() {
		return
	}
	if l.removed.Load() {
		c.send(wire.Msg{Type: wire.Refused, Code: wire.ErrRemoved})
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if looks {
		l.seen = l.own.Load()
	}
	gpu := m.A[0]
	if c.page.Over().Load()>>gpu&1 != 0 {
		recall(c, gpu)
	}
	w := wire.Msg{Type: wire.MemoryIs, Code: wire.OK, A: [4]uint64{gpu, l.limit[gpu], 0, m.A[3]}}
	if !l.lease(c, gpu, m.A[1]) {
		w.Code = wire.ErrMemory
	}
	_, used := l.sum(gpu)
	w.A[2] = used + l.seen
	w.Others = l.others
	c.send(w)
}

// uses is what the process uses of a GPU, by its page.
func (c *client) uses(gpu int) uint64 {
	m := &c.page.Memory()[gpu]
	return m.Leased.Load() - m.Credit.Load()
}

// used checks it, in MiB.
func (c *client) used(gpu int, want uint64) {
	c.t.Helper()
	if got := c.uses(gpu); got != want*mib {
		c.t.Errorf("the process uses %d bytes of GPU %d, want %d MiB", got, gpu, want)
	}
}
