// SPDX-License-Identifier: Apache-2.0

// Package pagetest has the arbiter's moves on the page of one process (docs/grant-word.md),
// for tests in which a vgpud of a few lines does what the test says. Who is told of a move
// by a message is told by the caller.
package pagetest

import (
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// State is the name of the grant word's state.
func State(p *wire.Page) string { return wire.StateName(wire.State(p.Word().Load())) }

// Open grants: CLOSED(e) becomes OPEN(e+1), or IDLE(e+1) if no thread waits. Nothing is
// done in another state.
func Open(p *wire.Page) {
	w := p.Word().Load()
	if wire.State(w) != wire.Closed {
		return
	}
	to := wire.Open
	if p.Waiting().Load() == 0 {
		to = wire.Idle
	}
	p.Word().CompareAndSwap(w, wire.MakeWord(to, wire.Epoch(w)+1))
	p.Wake()
}

// Revoke takes the grant, or begins to. changed: it did, and a nudge is due; drains: the
// process has to drain first.
func Revoke(p *wire.Page) (changed, drains bool) {
	for {
		w := p.Word().Load()
		to := wire.Draining
		switch wire.State(w) {
		case wire.Closed, wire.Draining:
			return false, wire.State(w) == wire.Draining
		case wire.Idle:
			to = wire.Closed
		}
		if p.Word().CompareAndSwap(w, wire.MakeWord(to, wire.Epoch(w))) {
			return true, to == wire.Draining
		}
	}
}

// Resume gives a turn that is being drained back: DRAINING(e) becomes OPEN(e+1). It returns
// false if the drain is over.
func Resume(p *wire.Page) bool {
	w := p.Word().Load()
	if wire.State(w) != wire.Draining || !p.Word().CompareAndSwap(w, wire.MakeWord(wire.Open, wire.Epoch(w)+1)) {
		return false
	}
	p.Wake()
	return true
}

// Until waits for something in the page, and fails the test if it does not come to be in
// patience.
func Until(t testing.TB, p *wire.Page, patience time.Duration, what string, ok func() bool) {
	t.Helper()
	looks := time.NewTicker(100 * time.Microsecond)
	defer looks.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-looks.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s; the word is %s, waiting %d", what, State(p), p.Waiting().Load())
		}
	}
}
