// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
)

// A process uses more of a GPU than it allocates: its context, its modules, what
// the driver rounds up. The driver knows how much in all. vgpud looks there when
// a process says that it made or ended a context or module, and now and again,
// and charges the difference as overhead.

// Between two looks at the processes of a GPU.
const (
	processesPause = 10 * time.Millisecond // at least, however often it is asked for
	processesEvery = time.Second           // for those that ask for memory and nothing else
)

// processLook is a look at how much the processes on one GPU use.
type processLook struct {
	running    bool // a goroutine is at it; a bad driver can keep it for ever
	began      time.Duration
	late       timer
	then, next []func()       // of this look; of the one after it
	seen       map[int]uint64 // bytes by pid, as it was seen last
}

// lookAtProcesses asks the driver how much the processes on a GPU use now, charges
// it, and then calls then in the loop: also if the driver does not say.
func (l *loop) lookAtProcesses(uuid arbiter.UUID, then func()) {
	g := l.gpus[uuid]
	switch {
	case g == nil || g.look.running && g.look.late.at == 0: // it is late already
		then()
	case g.look.running: // it may have looked before what then is about
		g.look.next = append(g.look.next, then)
	default:
		l.beginLook(g, then)
	}
}

// lookNowAndAgain looks at the processes on a GPU if that was not done lately.
func (l *loop) lookNowAndAgain(uuid arbiter.UUID) {
	if g := l.gpus[uuid]; g != nil && !g.look.running && (g.look.began == 0 || l.now() >= g.look.began+processesEvery) {
		l.beginLook(g)
	}
}

func (l *loop) beginLook(g *gpuState, then ...func()) {
	k, uuid := &g.look, arbiter.UUID(g.UUID)
	now := l.now()
	wait := time.Duration(0)
	if k.began != 0 {
		wait = max(0, k.began+processesPause-now)
	}
	k.running, k.began, k.then = true, now+wait, then
	l.eachOn(uuid, func(c *client, i int) { c.leases[i].before = c.allocated(i) })
	k.late.fire = func() {
		l.log.WithField("gpu", g.UUID).Warn("the driver does not say which process uses how much memory; what it needs for each is not counted")
		l.lookedAtProcesses(k)
		l.arm(&k.late, 0)
		next := k.next
		k.next = nil
		for _, fn := range next {
			fn()
		}
	}
	l.arm(&k.late, now+wait+lookPatience)
	inventory := l.inventory
	go func() {
		time.Sleep(wait)
		used, err := inventory.Processes(g.UUID)
		l.poller.post(func() {
			k.running = false
			l.arm(&k.late, 0)
			if err != nil {
				l.log.WithField("gpu", g.UUID).WithError(err).Debug("who uses how much of its memory is not known")
			} else {
				k.seen = used
				l.chargeOverhead(uuid, len(k.then) > 0)
			}
			l.lookedAtProcesses(k)
			if len(k.next) > 0 {
				next := k.next
				k.next = nil
				l.beginLook(g, next...)
			}
		})
	}()
}

func (l *loop) lookedAtProcesses(k *processLook) {
	then := k.then
	k.then = nil
	for _, fn := range then {
		fn()
	}
}

// eachOn calls fn for each client of each vGPU on a GPU, with the number that the
// GPU has there.
func (l *loop) eachOn(uuid arbiter.UUID, fn func(*client, int)) {
	for _, v := range l.vgpus {
		if i := slices.Index(v.bound, uuid); i >= 0 {
			for _, c := range v.clients {
				fn(c, i)
			}
		}
	}
}

// chargeOverhead charges what was seen on a GPU. Who allocates or frees meanwhile
// is between two numbers: the larger counts as allocated, so that nothing is
// charged twice. What was seen in passing (said is false) lowers an overhead only
// if it was seen twice in a row: credit can be taken long before the driver's call.
func (l *loop) chargeOverhead(uuid arbiter.UUID, said bool) {
	g := l.gpus[uuid]
	var raised []*vgpu
	l.eachOn(uuid, func(c *client, i int) {
		k := &c.leases[i]
		over := minus(min(g.look.seen[c.PID], g.MemoryBytes), max(k.before, c.allocated(i)))
		last := k.over
		k.over = over
		if !said && over < k.overhead {
			over = min(k.overhead, max(over, last))
		}
		if over == k.overhead {
			return
		}
		if over > k.overhead && !slices.Contains(raised, c.v) {
			raised = append(raised, c.v)
		}
		c.charge(i, over)
	})
	// What its own processes do not use makes up for it, and nobody else's.
	for _, v := range raised {
		l.settleMemory([]*vgpu{v}, uuid)
	}
}
