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
	again      timer          // two looks in a row did not see the same
	then, next []func()       // of this look; of the one after it
	said       bool           // a process said that its overhead has changed
	nextSaid   bool           // likewise, since this look began
	seen       map[int]uint64 // bytes by pid, as it was seen last
}

// lookAtProcesses asks the driver how much the processes on a GPU use now, charges
// it, and then calls then in the loop: also if the driver does not say. said: a
// process has made or ended a context or module.
func (l *loop) lookAtProcesses(uuid arbiter.UUID, said bool, then func()) {
	g := l.gpus[uuid]
	switch {
	case g == nil || g.look.running && g.look.late.at == 0: // it is late already
		then()
	case g.look.running: // it may have looked before what then is about
		g.look.next = append(g.look.next, then)
		g.look.nextSaid = g.look.nextSaid || said
	default:
		l.beginLook(g, said, then)
	}
}

// lookNowAndAgain looks at the processes on a GPU if that was not done lately.
func (l *loop) lookNowAndAgain(uuid arbiter.UUID) {
	if g := l.gpus[uuid]; g != nil && !g.look.running && (g.look.began == 0 || l.now() >= g.look.began+processesEvery) {
		l.beginLook(g, false)
	}
}

func (l *loop) beginLook(g *gpuState, said bool, then ...func()) {
	k, uuid := &g.look, arbiter.UUID(g.UUID)
	now := l.now()
	wait := time.Duration(0)
	if k.began != 0 {
		wait = max(0, k.began+processesPause-now)
	}
	k.running, k.began, k.then, k.said, k.nextSaid = true, now+wait, then, said, false
	l.eachOn(uuid, func(c *client, i int) { c.leases[i].before = c.allocated(i) })
	k.late.fire = func() {
		l.log.WithField("gpu", g.UUID).Warn("the driver does not say which process uses how much memory; what it needs for each is not counted")
		k.said = false // what it says in the end is of any time
		l.lookedAtProcesses(k)
		l.arm(&k.late, 0)
		next := k.next
		k.next = nil
		for _, fn := range next {
			fn()
		}
	}
	l.arm(&k.late, now+wait+l.lookPatience)
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
				l.chargeOverhead(uuid, k.said)
				l.lookUntilSettled(g)
			}
			// The next one begins first: who is called now may ask for one more.
			then, next := k.then, k.next
			k.then, k.next = nil, nil
			if len(next) > 0 {
				l.beginLook(g, k.nextSaid, next...)
			}
			for _, fn := range then {
				fn()
			}
		})
	}()
}

// lookUntilSettled looks again in a while if a look saw another overhead than the
// one before: an allocation under way counted for one of them, and nobody may ask
// for memory any more.
func (l *loop) lookUntilSettled(g *gpuState) {
	uuid, settled := arbiter.UUID(g.UUID), true
	l.eachOn(uuid, func(c *client, i int) { settled = settled && c.leases[i].settled })
	at := time.Duration(0)
	if !settled {
		g.look.again.fire = func() { l.lookNowAndAgain(uuid) }
		at = l.now() + processesEvery
	}
	l.arm(&g.look.again, at)
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
		v.eachOn(uuid, fn)
	}
}

func (v *vgpu) eachOn(uuid arbiter.UUID, fn func(*client, int)) {
	if i := slices.Index(v.bound, uuid); i >= 0 {
		for _, c := range v.clients {
			fn(c, i)
		}
	}
}

// chargeOverhead charges what was seen on a GPU. Who allocates or frees meanwhile
// is between two numbers: the larger counts as allocated, so that nothing is
// charged twice. What was seen in passing (said is false) lowers an overhead only
// if it was seen twice in a row: credit can be taken long before the driver's call.
//
// The driver knows processes, not pages: of a process with two of them, the first
// is charged what both need.
func (l *loop) chargeOverhead(uuid arbiter.UUID, said bool) {
	g := l.gpus[uuid]
	allocated := make(map[int]uint64)
	l.eachOn(uuid, func(c *client, i int) {
		allocated[c.PID] = plus(allocated[c.PID], max(c.leases[i].before, c.allocated(i)))
	})
	charged := make(map[int]bool)
	raised := false
	l.eachOn(uuid, func(c *client, i int) {
		k := &c.leases[i]
		over := uint64(0)
		if !charged[c.PID] {
			over = minus(min(g.look.seen[c.PID], g.MemoryBytes), allocated[c.PID])
		}
		charged[c.PID] = true
		last := k.over
		k.over, k.sure, k.settled = over, min(over, last), over == last
		if !said && over < k.overhead {
			over = min(k.overhead, max(over, last))
		}
		if over == k.overhead {
			return
		}
		raised = raised || over > k.overhead
		c.charge(i, over)
	})
	if raised {
		l.trimMemory(uuid) // what nobody uses makes up for it
	}
}

// overheadUnsure says whether one that shares the limit of v is charged what was
// not seen twice in a row: memory that was allocated, seen and freed during one
// look counts as overhead until the next.
func (l *loop) overheadUnsure(v *vgpu, uuid arbiter.UUID) bool {
	unsure := false
	for _, other := range l.memorySharers(v, uuid) {
		other.eachOn(uuid, func(c *client, i int) {
			unsure = unsure || c.leases[i].overhead > c.leases[i].sure
		})
	}
	return unsure
}
