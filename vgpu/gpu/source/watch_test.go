// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// puppet answers what a test says: each look waits for a reading. What still
// waits at the end of a test is let go.
type puppet struct {
	readings []chan reading
	events   chan event
	heard    chan struct{} // the watcher has taken an event
	deaf     bool          // never becomes ready
	done     chan struct{}
}

func newPuppet(n int) *puppet {
	p := &puppet{events: make(chan event), heard: make(chan struct{}), done: make(chan struct{})}
	for range n {
		p.readings = append(p.readings, make(chan reading))
	}
	return p
}

func (p *puppet) look(n int, _ reading) reading { return <-p.readings[n] }

func (p *puppet) listen(ctx context.Context, ready func(), tell func(event)) {
	defer close(p.done)
	if p.deaf {
		<-ctx.Done()
		return
	}
	ready()
	for {
		select {
		case e := <-p.events:
			tell(e)
			select {
			case p.heard <- struct{}{}:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// stage is a watch of puppets.
type stage struct {
	*testing.T
	*puppet
	ticks   chan time.Time
	changes chan gpu.Health
}

func play(t *testing.T, p *puppet) *stage {
	s := &stage{t, p, make(chan time.Time), make(chan gpu.Health)}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	var uuids []string
	for n := range p.readings {
		uuids = append(uuids, string(rune('A'+n)))
	}
	go func() {
		watch(ctx, p, uuids, lookPatience, s.ticks, s.changes)
		close(over)
	}()
	t.Cleanup(func() {
		cancel()
		<-over   // whatever the puppets do
		<-p.done // and nobody is left
		for _, r := range p.readings {
			close(r)
		}
	})
	return s
}

func (s *stage) next() gpu.Health {
	s.Helper()
	select {
	case h := <-s.changes:
		return h
	case <-time.After(20 * time.Second):
		s.Fatal("nothing is told")
		panic("unreachable")
	}
}

// event lets an event come, and returns when the watcher has it.
func (s *stage) event(e event) {
	s.events <- e
	<-s.heard
}

// quiet makes sure that what was found tells nothing: a later event is the next.
func (s *stage) quiet(n int) {
	s.Helper()
	s.event(event{gpu: n, xid: 13})
	if h := s.next(); h.Xid != 13 {
		s.Fatalf("told %+v", h)
	}
	s.readings[n] <- reading{} // the look after the event
}

func TestEachGPUIsToldFirstAndThenWhatChanges(t *testing.T) {
	s := play(t, newPuppet(2))
	s.readings[1] <- reading{mig: true}
	if h := s.next(); h.UUID != "B" || h.Cordon == "" {
		t.Fatalf("%+v", h)
	}
	s.readings[0] <- reading{}
	if h := s.next(); !h.Same(gpu.Health{UUID: "A"}) || h.Event != "" {
		t.Fatalf("%+v", h)
	}
	s.ticks <- time.Time{}
	s.readings[0] <- reading{}
	s.quiet(0)
	s.readings[1] <- reading{}
	if h := s.next(); !h.Same(gpu.Health{UUID: "B"}) {
		t.Fatalf("%+v", h)
	}
}

func TestAnEventIsToldAndLookedAfter(t *testing.T) {
	s := play(t, newPuppet(1))
	s.readings[0] <- reading{}
	s.next()
	s.event(event{gpu: 0, xid: 31})
	if h := s.next(); h.Xid != 31 || h.Event != "Xid 31: GPU memory page fault" || h.Down != "" {
		t.Fatalf("%+v", h)
	}
	s.readings[0] <- reading{mig: true} // without a tick
	if h := s.next(); h.Cordon == "" {
		t.Fatalf("%+v", h)
	}
	s.event(event{gpu: 0, xid: 119})
	if h := s.next(); h.Xid != 119 || h.Down != "Xid 119: GSP RPC timeout" {
		t.Fatalf("%+v", h)
	}
	// One that comes during a look is looked after too.
	s.event(event{gpu: 0, ecc: true})
	if h := s.next(); h.Event == "" || h.Xid != 0 || h.Down == "" {
		t.Fatalf("%+v", h)
	}
	s.readings[0] <- reading{recovery: nvml.GPU_RECOVERY_ACTION_GPU_RESET}
	if h := s.next(); h.Event != "" {
		t.Fatalf("%+v", h)
	}
	s.readings[0] <- reading{}
	if h := s.next(); h.Down != "" {
		t.Fatalf("%+v", h)
	}
}

func TestAnEventOfAnUnknownGPUMakesUsLookAtAll(t *testing.T) {
	s := play(t, newPuppet(2))
	for n := range 2 {
		s.readings[n] <- reading{}
		s.next()
	}
	s.event(event{gpu: nobody, xid: 79})
	for n := range 2 {
		s.readings[n] <- reading{lost: "gone"}
		if h := s.next(); h.Down != "gone" {
			t.Fatalf("%+v", h)
		}
	}
}

func TestAnEventBeforeTheFirstLookIsNotLost(t *testing.T) {
	s := play(t, newPuppet(1))
	s.event(event{gpu: 0, xid: 62})
	s.readings[0] <- reading{mps: true}
	if h := s.next(); h.Xid != 62 || h.Down == "" || h.Cordon == "" {
		t.Fatalf("%+v", h)
	}
}

// GPU A does not answer. B is told all the same, and A is cordoned until it does.
func TestAGPUThatDoesNotAnswerHoldsUpNobody(t *testing.T) {
	s := play(t, newPuppet(2))
	for look := range lookPatience {
		s.readings[1] <- reading{uncorrected: uint64(look)}
		if h := s.next(); h.UUID != "B" {
			t.Fatalf("%+v", h)
		}
		s.ticks <- time.Time{}
	}
	if h := s.next(); h.UUID != "A" || h.Cordon != "the driver does not answer for this GPU" {
		t.Fatalf("%+v", h)
	}
	s.readings[0] <- reading{}
	if h := s.next(); !h.Same(gpu.Health{UUID: "A"}) {
		t.Fatalf("%+v", h)
	}
}

func TestADriverThatDoesNotRegisterHoldsUpNobody(t *testing.T) {
	p := newPuppet(1)
	p.deaf = true
	s := play(t, p)
	s.ticks <- time.Time{}
	s.readings[0] <- reading{}
	if h := s.next(); h.UUID != "A" {
		t.Fatalf("%+v", h)
	}
}

// Nobody takes what is told: the watch ends all the same (see play).
func TestAReceiverThatIsGoneHoldsUpNobody(t *testing.T) {
	s := play(t, newPuppet(1))
	s.readings[0] <- reading{}
	s.events <- event{gpu: 0, xid: 13} // it is being told by now, or will be
}
