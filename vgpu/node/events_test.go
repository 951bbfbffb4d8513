// SPDX-License-Identifier: Apache-2.0

package node

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

func numbers(batch []*v1.Event) (all []uint64) {
	for _, ev := range batch {
		all = append(all, ev.GetSequence())
	}
	return all
}

func TestEventsAreKeptInOrderAndBounded(t *testing.T) {
	e := newEvents()
	if got := e.after(0); got != nil {
		t.Fatalf("%v", got)
	}
	for range maxEvents {
		e.add(&v1.Event{Type: eventCreated})
	}
	// All are there, a batch at a time.
	for n := uint64(0); n < maxEvents; {
		batch := e.after(n)
		for i, ev := range batch {
			if ev.GetSequence() != n+uint64(i)+1 || ev.GetType() != eventCreated || ev.GetEpoch() != e.epoch {
				t.Fatalf("behind %d came %v", n, ev)
			}
		}
		if len(batch) == 0 || len(batch) > eventBatch {
			t.Fatalf("%d events behind %d", len(batch), n)
		}
		n += uint64(len(batch))
	}
	// One more takes the place of the oldest.
	e.add(&v1.Event{Type: eventRemoved})
	batch := e.after(0)
	if batch[0].GetType() != eventResync || batch[0].GetSequence() != 1 || batch[1].GetSequence() != 2 {
		t.Errorf("%v", numbers(batch))
	}
	if dropped, _ := e.counts(); dropped != 1 {
		t.Errorf("%d events were missed", dropped)
	}
	if batch := e.after(1); batch[0].GetType() == eventResync {
		t.Error("who missed nothing is told that it did")
	}
	if batch := e.after(maxEvents); len(batch) != 1 || batch[0].GetType() != eventRemoved {
		t.Errorf("%v", batch)
	}
	if again := e.restart(); again.GetType() != eventResync || again.GetSequence() != 1 {
		t.Errorf("%v", again)
	}
}

func TestWhatAnEventSaysIsBounded(t *testing.T) {
	e := newEvents()
	e.add(&v1.Event{Reason: strings.Repeat("ä", maxEventReason)})
	if got := e.after(0)[0].GetReason(); len(got) > maxEventReason+3 || !strings.HasSuffix(got, "ä...") {
		t.Errorf("%d bytes, %q", len(got), got[len(got)-8:])
	}
}

// idle makes a daemon that does not run, so that a test can be its loop.
func idle(t *testing.T, gpus int) *Daemon {
	t.Helper()
	cfg := settings{}.config(filepath.Join(t.TempDir(), "vgpu"))
	if err := cfg.Check(); err != nil {
		t.Fatal(err)
	}
	d, err := newDaemon(cfg, gputest.New(gpus), discard())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	return d
}

// since is the events behind a number, as "TYPE reason".
func since(e *events, n uint64) (all []string) {
	for _, ev := range e.after(n) {
		all = append(all, strings.TrimSpace(ev.GetType()+" "+ev.GetReason()))
	}
	return all
}

// A container can ask to be bound as often as it likes.
func TestABindThatWaitsIsToldOncePerReason(t *testing.T) {
	l := idle(t, 1).loop
	var log lines
	l.log.Logger.SetOutput(&log)
	v := &vgpu{key: "a", rec: record{ID: "a", Container: "a"}, listen: -1, adopted: true, req: request.Request{Count: 2}}
	l.add(v)
	for range 3 {
		l.event(arbiter.Event{Kind: arbiter.Bind, VGPU: v.key})
	}
	if got := log.above(t, "level=debug"); got != 1 {
		t.Errorf("%d lines in the log", got)
	}
	if got := since(l.events, 0); len(got) != 1 || !strings.HasPrefix(got[0], "BIND_WAITS 1 of 2 GPUs") {
		t.Fatalf("%q", got)
	}
	for range 3 {
		l.unbindable(v, "too late")
	}
	l.tellBound(v)
	l.unbindable(v, "too late")
	if got := since(l.events, 1); !slices.Equal(got, []string{"BIND_REFUSED too late", "BOUND", "BIND_REFUSED too late"}) {
		t.Errorf("%q", got)
	}
}
