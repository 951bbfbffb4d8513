// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"sync"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// lookPatience is how many looks in a row a GPU may owe before it counts as silent.
const lookPatience = 3

// prober is whom a watcher asks. Both calls may block for ever: each is made on
// a goroutine of its own.
type prober interface {
	// look asks how GPU number n is. What can not be told now is as before.
	look(n int, before reading) reading
	// listen tells events until ctx ends, or returns if there are none to be had.
	// It calls ready once it has registered for them.
	listen(ctx context.Context, ready func(), tell func(event))
}

// event is what NVML tells by itself.
type event struct {
	gpu int // number, or nobody
	xid uint64
	ecc bool // a double-bit error
}

const nobody = -1

func (e event) text() string {
	if e.ecc {
		return "uncorrectable (double-bit) ECC error"
	}
	return xidText(e.xid)
}

// watched is a GPU under a watcher.
type watched struct {
	uuid  string
	state state
	told  *gpu.Health // what was told last
	early []event     // of before the first look was over
	busy  bool        // a look is under way
	again bool        // another one is wanted after it
	owed  int         // looks that could not be begun because of it
}

// watcher turns looks and events into what is told. It runs on one goroutine
// that never asks the prober.
type watcher struct {
	prober  prober
	gpus    []watched
	found   chan found
	changes chan<- gpu.Health
	// patience is how many looks in a row a GPU may owe before it counts as silent.
	patience int
}

// found is what a look has found.
type found struct {
	gpu     int
	reading reading
}

// watch watches the GPUs with these UUIDs until ctx ends. At each tick it looks
// at all of them. One that owes as many looks as patience says counts as silent.
func watch(ctx context.Context, p prober, uuids []string, patience int, ticks <-chan time.Time, changes chan<- gpu.Health) {
	w := &watcher{prober: p, gpus: make([]watched, len(uuids)), changes: changes, patience: patience}
	// One look of a GPU at a time: who has looked never waits for us.
	w.found = make(chan found, len(uuids))
	for n, uuid := range uuids {
		w.gpus[n].uuid = uuid
	}
	events := make(chan event)
	ready := make(chan struct{})
	go p.listen(ctx, sync.OnceFunc(func() { close(ready) }), func(e event) {
		select {
		case events <- e:
		case <-ctx.Done():
		}
	})
	// What is told first may be relied on: later events are seen. Unless the
	// driver does not answer, then it must not keep us.
	select {
	case <-ready:
	case <-ticks:
	case <-ctx.Done():
		return
	}
	w.lookAtAll()
	for {
		ok := true
		select {
		case <-ctx.Done():
			return
		case <-ticks:
			ok = w.tick(ctx)
		case f := <-w.found:
			ok = w.take(ctx, f)
		case e := <-events:
			ok = w.hear(ctx, e)
		}
		if !ok {
			return
		}
	}
}

func (w *watcher) lookAtAll() {
	for n := range w.gpus {
		w.look(n)
	}
}

func (w *watcher) look(n int) {
	g := &w.gpus[n]
	if g.busy {
		g.again = true
		return
	}
	g.busy = true
	before := g.state.reading
	go func() { w.found <- found{n, w.prober.look(n, before)} }()
}

// tick begins a look at each GPU. One whose last look is not over owes one.
func (w *watcher) tick(ctx context.Context) bool {
	for n := range w.gpus {
		g := &w.gpus[n]
		if !g.busy {
			w.look(n)
			continue
		}
		if g.owed++; g.owed < w.patience || g.state.silent {
			continue
		}
		g.state.silent = true
		if !w.tell(ctx, n) {
			return false
		}
	}
	return true
}

// take takes what a look has found.
func (w *watcher) take(ctx context.Context, f found) bool {
	g := &w.gpus[f.gpu]
	again := g.again
	g.busy, g.again, g.owed = false, false, 0
	g.state = g.state.looked(f.reading)
	if again {
		w.look(f.gpu)
	}
	return w.tell(ctx, f.gpu)
}

// hear takes an event. It is told, and whatever it was, the GPU is looked at.
func (w *watcher) hear(ctx context.Context, e event) bool {
	if e.gpu == nobody {
		w.lookAtAll()
		return true
	}
	g := &w.gpus[e.gpu]
	g.state = g.state.struck(e.xid)
	g.early = append(g.early, e)
	w.look(e.gpu)
	return g.told == nil || w.tell(ctx, e.gpu)
}

// tell tells the state of a GPU if it has changed, and its events. It says
// whether there is still somebody to be told.
func (w *watcher) tell(ctx context.Context, n int) bool {
	g := &w.gpus[n]
	events := g.early
	g.early = nil
	for _, e := range events {
		h := g.state.health(g.uuid)
		h.Event, h.Xid = e.text(), e.xid
		if !w.send(ctx, g, h) {
			return false
		}
	}
	h := g.state.health(g.uuid)
	return g.told != nil && g.told.Same(h) || w.send(ctx, g, h)
}

func (w *watcher) send(ctx context.Context, g *watched, h gpu.Health) bool {
	select {
	case w.changes <- h:
		g.told = &h
		return true
	case <-ctx.Done():
		return false
	}
}
