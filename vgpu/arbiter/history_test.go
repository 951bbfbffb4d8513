// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// Random histories, shrunk where they fail: a million moves with
// -rapid.checks=8500. It is an error if something that can happen never does.
func TestRandomHistoriesKeepTheInvariants(t *testing.T) {
	seen := make(map[string]int)
	histories, moves := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		move := rapid.Custom(func(t *rapid.T) [moveBytes]byte {
			var m [moveBytes]byte
			for i := range m {
				m[i] = rapid.Byte().Draw(t, "byte")
			}
			return m
		})
		h := rapid.SliceOfN(rapid.Byte(), headBytes, headBytes).Draw(t, "head")
		for _, m := range rapid.SliceOfN(move, 100, 300).Draw(t, "moves") {
			h = append(h, m[:]...)
			moves++
		}
		histories++
		if said := play(h, seen, nil); said != "" {
			var trace strings.Builder
			play(h, nil, &trace)
			t.Fatalf("%s%s\nas bytes: %q", &trace, said, h)
		}
	})
	t.Logf("%d histories of %d moves: %v", histories, moves, seen)
}

// What must occur in some hundred histories.
var occurs = []string{
	"event added", "event removed", "event changed", "event bind", "event unused", "event pending", "event complete",
	"event drained", "event deadline", "event gpu-up", "event gpu-down", "event cordon", "event gpu-memory",
	"event set-policy", "event promised", "event adopted", "event swaps", "a quantum was raised", "memory oversubscribed",
	"action bound", "action bind-waits", "action unbindable", "action grant", "action take", "action keep",
	"action revoke", "action resume", "a turn ends early for a brief one", "action arm", "action overrun", "action account",
	"bound to what others reserved", "bound to what was promised", "bound beside what was promised", "promised what was reserved", "a gang waited with two", "a gang waits behind itself", "adopted in a turn", "adopted a gang in a turn",
	"change of a gang", "change refused", "grant of a gang", "late account", "late grant", "native ends", "native grant",
	"overrun of a gang", "overrun by its own policy", "policy refused", "restart", "resume of a gang", "take with linger", "thawed",
}

// The same from a generator that costs less than rapid's, and does not shrink:
// what all of them together do not do is not shown by them.
func TestHistoriesReachEverything(t *testing.T) {
	seen := make(map[string]int)
	for seed := range uint64(600) {
		if h := randomHistory(seed, 200); play(h, seen, nil) != "" {
			var trace strings.Builder
			t.Fatalf("seed %d\n%s%s", seed, &trace, play(h, nil, &trace))
		}
	}
	for _, what := range occurs {
		if seen[what] < 3 {
			t.Errorf("%q occurred %d times", what, seen[what])
		}
	}
	t.Log(seen)
}

func randomHistory(seed uint64, moves int) []byte {
	r := rand.New(rand.NewPCG(seed, 0))
	h := make([]byte, headBytes+moves*moveBytes)
	for i := range h {
		h[i] = byte(r.Uint32())
	}
	return h
}

// The bytes of a history are its whole input, so the fuzzer can look for those
// that reach more of the engine.
func FuzzHistory(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(randomHistory(seed, 40))
	}
	f.Fuzz(func(t *testing.T, h []byte) {
		h = h[:min(len(h), headBytes+400*moveBytes)]
		if said := play(h, nil, nil); said != "" {
			var trace strings.Builder
			play(h, nil, &trace)
			t.Fatalf("%s%s", &trace, said)
		}
	})
}

// The paths of a hand-over allocate nothing: between two vGPUs, with a gang of
// two, a cap, a guarantee and gaps to learn from, through a revoke, a resume and
// an overrun.
func TestHandOverAllocatesNothing(t *testing.T) {
	e := New(Config{Binding: Spread, Quantum: 10, DrainDeadline: 30, Stall: 8, MinTurn: 2, Window: 1000})
	for _, g := range []UUID{"g0", "g1"} {
		e.Step(0, Event{Kind: GPUUp, GPU: g})
	}
	add := func(id ID, name string, r request.Request) {
		r.Count = 1
		e.Step(0, Event{Kind: Added, VGPU: id, Gang: name, Request: r})
		e.Step(0, Event{Kind: Bind, VGPU: id})
	}
	add("a", "", request.Request{})
	add("b", "", request.Request{})
	add("x0", "x", request.Request{})
	add("x1", "x", request.Request{})
	add("capped", "", request.Request{MaxShare: .9})
	add("owed", "", request.Request{MinShare: .1})
	ids := e.IDs()
	gaps := &Gaps{4: 2}
	now := time.Duration(1)
	grants, resumes, overruns, lingers := 0, 0, 0, 0
	step := func(ev Event) {
		now++
		for _, a := range e.Step(now, ev) {
			switch {
			case a.Kind == Grant:
				grants++
			case a.Kind == Resume:
				resumes++
			case a.Kind == Overrun:
				overruns++
			case a.Kind == Take && a.Linger > 0:
				lingers++
			}
		}
	}
	turn := func() {
		for _, id := range ids {
			step(Event{Kind: Pending, VGPU: id})
		}
		for range 3 {
			for _, id := range ids {
				now += 40
				step(Event{Kind: Deadline, VGPU: id, Waiting: true})
				step(Event{Kind: Complete, VGPU: id, LastWork: now, Gaps: gaps, Waiting: true})
				step(Event{Kind: Deadline, VGPU: id, Waiting: true})
				step(Event{Kind: Deadline, VGPU: id, Waiting: id < "x"})
				step(Event{Kind: Drained, VGPU: id, LastWork: now, Gaps: gaps})
			}
		}
	}
	for range 10 { // until the slices have their size
		turn()
	}
	if n := testing.AllocsPerRun(100, turn); n != 0 {
		t.Errorf("%v allocations in so many turns", n)
	}
	if grants == 0 || resumes == 0 || overruns == 0 || lingers == 0 {
		t.Errorf("%d grants, %d resumes, %d overruns, %d takes with a linger: not all was tried", grants, resumes, overruns, lingers)
	}
	t.Log(grants, resumes, overruns, lingers)
}

// One hand-over among so many vGPUs that always wait. integration/bench plots how it grows,
// and has budgets for 512 on 8 GPUs.
func BenchmarkHandOver(b *testing.B) {
	for _, gpus := range []int{1, 8} {
		for _, vgpus := range []int{2, 8, 16, 64, 256, 512, 1024} {
			if vgpus >= gpus {
				b.Run(fmt.Sprintf("gpus=%d/vgpus=%d", gpus, vgpus), func(b *testing.B) { handOver(b, gpus, vgpus) })
			}
		}
	}
}

func handOver(b *testing.B, gpus, vgpus int) {
	e := New(Config{})
	for i := range gpus {
		e.Step(0, Event{Kind: GPUUp, GPU: UUID(fmt.Sprint("g", i))})
	}
	for i := range vgpus {
		id := ID(fmt.Sprint("v", i))
		e.Step(0, Event{Kind: Added, VGPU: id, Request: request.Request{Count: 1}})
		e.Step(0, Event{Kind: Bind, VGPU: id})
		e.Step(0, Event{Kind: Pending, VGPU: id})
	}
	holders := make([]ID, gpus)
	for i, g := range e.GPUs() {
		holders[i] = g.Holder
	}
	b.ReportAllocs()
	now := time.Duration(0)
	for i := 0; b.Loop(); i++ {
		now++
		for _, a := range e.Step(now, Event{Kind: Complete, VGPU: holders[i%gpus], LastWork: now, Waiting: true}) {
			if a.Kind == Grant {
				holders[i%gpus] = a.VGPU
			}
		}
	}
}
