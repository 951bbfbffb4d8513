// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"sync"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
)

// The types of events; vgpu.proto says what each means.
const (
	eventResync = "RESYNC"

	eventCreated     = "CREATED"
	eventRemoved     = "REMOVED"
	eventChanged     = "CHANGED"
	eventBound       = "BOUND"
	eventUnbound     = "UNBOUND"
	eventBindWaits   = "BIND_WAITS"
	eventBindRefused = "BIND_REFUSED"
	eventOverrun     = "OVERRUN"
	eventResumed     = "RESUMED"
	eventFrozen      = "FROZEN"
	eventThawed      = "THAWED"
	eventKilled      = "KILLED"

	eventGPUUp         = "GPU_UP"
	eventGPUDown       = "GPU_DOWN"
	eventGPUCordoned   = "GPU_CORDONED"
	eventGPUUncordoned = "GPU_UNCORDONED"
	eventGPUXid        = "GPU_XID"
	eventGPUNote       = "GPU_NOTE"

	eventUnmanaged     = "UNMANAGED"
	eventUnmanagedGone = "UNMANAGED_GONE"

	eventPolicy = "POLICY"
)

// maxEvents is how many events are kept for readers that are behind.
const maxEvents = 4096

// eventBatch is how many of them a reader takes at once.
const eventBatch = 64

// maxEventReason bounds what an event says, in bytes: the whole of it is in the
// list.
const maxEventReason = 1024

// events are the newest events. Any goroutine may use it. It waits for no
// reader: one that is slower than the ring is told that it missed something.
type events struct {
	epoch string

	// mu is held for moments only: the loop takes it, too.
	mu      sync.Mutex
	ring    [maxEvents]*v1.Event // number n at n%maxEvents; what is in it is not changed any more
	last    uint64               // number of the newest; 0: there is none yet
	dropped uint64               // that readers missed
	bells   map[chan struct{}]struct{}
}

func newEvents() *events {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	return &events{epoch: hex.EncodeToString(b[:]), bells: make(map[chan struct{}]struct{})}
}

func (e *events) add(ev *v1.Event) {
	if len(ev.GetReason()) > maxEventReason {
		ev.Reason = strings.ToValidUTF8(ev.GetReason()[:maxEventReason], "") + "..."
	}
	ev.At, ev.Epoch = timestamppb.Now(), e.epoch
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last++
	ev.Sequence = e.last
	e.ring[e.last%maxEvents] = ev
	for bell := range e.bells {
		ring(bell)
	}
}

// newest is the number of the newest event.
func (e *events) newest() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

// kept is the number before the oldest event that is kept. It has e.mu.
func (e *events) kept() uint64 {
	if e.last < maxEvents {
		return 0
	}
	return e.last - maxEvents
}

// after returns the next events behind number n, none if there are none yet. The
// first one says so if what came right behind n is not kept any more.
func (e *events) after(n uint64) (batch []*v1.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if kept := e.kept(); n < kept {
		e.dropped += kept - n
		n = kept
		batch = append(batch, e.resync(n))
	}
	for n < e.last && len(batch) < eventBatch {
		n++
		batch = append(batch, e.ring[n%maxEvents])
	}
	return batch
}

// restart is the first event for a reader of which nothing is known but that it
// knows no event of this epoch. Those that are kept come behind it.
func (e *events) restart() *v1.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.resync(e.kept())
}

func (e *events) resync(n uint64) *v1.Event {
	return &v1.Event{Type: eventResync, Epoch: e.epoch, Sequence: n, At: timestamppb.Now()}
}

// join returns a bell that rings when there are new events, until leave.
func (e *events) join() chan struct{} {
	bell := make(chan struct{}, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bells[bell] = struct{}{}
	return bell
}

func (e *events) leave(bell chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.bells, bell)
}

// counts are how many events readers missed, and how many readers there are.
func (e *events) counts() (dropped uint64, readers int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dropped, len(e.bells)
}

// ring makes sure that whoever waits for a bell of capacity 1 looks again.
func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default: // it was rung and not heard yet
	}
}

// tell records what happened to v.
func (l *loop) tell(what string, v *vgpu, reason string) { l.events.add(v.event(what, reason)) }

func (v *vgpu) event(what, reason string) *v1.Event {
	ev := &v1.Event{
		Type: what, Vgpu: v.rec.ID, Reason: reason, Container: v.container(),
	}
	for _, uuid := range v.bound {
		ev.Gpus = append(ev.Gpus, string(uuid))
	}
	return ev
}

// tellChanged records what was changed of what v asked for.
func (l *loop) tellChanged(v *vgpu, changes map[string]string) {
	ev := v.event(eventChanged, "")
	ev.Changes = changes
	l.events.add(ev)
}

// tellBind records that v can not be bound, once for each reason: its processes
// can ask as often as they like. True if it was told now.
func (l *loop) tellBind(what string, v *vgpu, reason string) bool {
	said := what + reason
	if v.bindSaid == said {
		return false
	}
	v.bindSaid = said
	l.tell(what, v, reason)
	return true
}

// tellBound records that v was bound, as clients are told.
func (l *loop) tellBound(v *vgpu) {
	v.bindSaid = ""
	l.tell(eventBound, v, "")
}

// tellGPU records what happened to a GPU.
func (l *loop) tellGPU(what string, uuid arbiter.UUID, reason string) {
	l.events.add(&v1.Event{Type: what, Gpus: []string{string(uuid)}, Reason: reason})
}
