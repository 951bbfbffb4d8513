// SPDX-License-Identifier: Apache-2.0

package node

import (
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// The transitions of a grant word that are the arbiter's. Each is a
// compare-and-swap of state and epoch (R1), tried again when an honest client
// was quicker. The client shares the page and can write anything into it, so no
// loop here depends on it: a word that never stands still is left after tries.
const tries = 64

// openWord opens a closed word: OPEN if threads wait now, else IDLE. The wake-up
// comes always and last. True if the word was closed.
func openWord(p *wire.Page) bool {
	for range tries {
		w := p.Word().Load()
		if wire.State(w) != wire.Closed {
			return false
		}
		state := wire.Idle
		if p.Waiting().Load() > 0 {
			state = wire.Open
		}
		if p.Word().CompareAndSwap(w, wire.MakeWord(state, wire.Epoch(w)+1)) {
			p.Wake()
			return true
		}
	}
	return false
}

// takeWord closes an idle word. False if it is not idle any more.
func takeWord(p *wire.Page) bool {
	w := p.Word().Load()
	return wire.State(w) == wire.Idle && p.Word().CompareAndSwap(w, wire.MakeWord(wire.Closed, wire.Epoch(w)))
}

// revokeWord closes an idle word and tells the client to drain an open one. The
// arbiter does it itself, so that a client in CLOSING can not miss it.
func revokeWord(p *wire.Page) {
	for range tries {
		w := p.Word().Load()
		to := wire.Draining
		switch wire.State(w) {
		case wire.Closed, wire.Draining:
			return
		case wire.Idle:
			to = wire.Closed
		}
		if p.Word().CompareAndSwap(w, wire.MakeWord(to, wire.Epoch(w))) {
			return
		}
	}
	// Nobody honest changes a word this often.
	p.Word().Store(wire.MakeWord(wire.Draining, wire.Epoch(p.Word().Load())))
}

// resumeWord opens a word that was revoked. The epoch rises: the client's thread
// may be about to close the word because of what it saw before.
func resumeWord(p *wire.Page) {
	for range tries {
		w := p.Word().Load()
		if wire.State(w) != wire.Draining {
			break
		}
		if p.Word().CompareAndSwap(w, wire.MakeWord(wire.Open, wire.Epoch(w)+1)) {
			p.Wake()
			return
		}
	}
	openWord(p)
}

func state(p *wire.Page) uint32 { return wire.State(p.Word().Load()) }

func waiting(p *wire.Page) bool { return p.Waiting().Load() > 0 }
