// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// load is a container that always has work: it launches kernels of one length
// for as long as its gate is open, and stops at the end of the kernel that runs
// when it is revoked. One that is idle never comes to the gate.
type load struct {
	req    request.Request
	kernel time.Duration
	idle   bool
	want   float64 // of the GPU's time
}

// shares plays loads on one GPU for so long and returns the part of the time
// that each held it, by the engine's own accounts.
func shares(t *testing.T, cfg Config, loads []load, long time.Duration) []float64 {
	t.Helper()
	e := New(cfg)
	e.Step(0, Event{Kind: GPUUp, GPU: "g"})
	ids := make([]ID, len(loads))
	ends := make(map[ID]time.Duration) // when what is in flight after a revoke is complete
	due := make(map[ID]time.Duration)
	kernel := make(map[ID]time.Duration)
	began := make(map[ID]time.Duration)
	var now time.Duration
	step := func(ev Event) {
		for _, a := range append([]Action(nil), e.Step(now, ev)...) {
			switch a.Kind {
			case Grant:
				began[a.VGPU] = now
			case Arm:
				if due[a.VGPU] = a.At; a.At == 0 {
					delete(due, a.VGPU)
				}
			case Revoke:
				k := kernel[a.VGPU]
				ends[a.VGPU] = began[a.VGPU] + (now-began[a.VGPU]+k-1)/k*k
			}
		}
	}
	for i, l := range loads {
		ids[i] = ID('a' + rune(i))
		kernel[ids[i]] = l.kernel
		l.req.Count = 1
		step(Event{Kind: Added, VGPU: ids[i], Request: l.req})
		step(Event{Kind: Bind, VGPU: ids[i]})
	}
	for i, l := range loads {
		if !l.idle {
			step(Event{Kind: Pending, VGPU: ids[i]})
		}
	}
	for now < long {
		next, who, drained := time.Duration(math.MaxInt64), ID(""), false
		for _, id := range ids {
			if at, ok := ends[id]; ok && at < next {
				next, who, drained = at, id, true
			}
			if at, ok := due[id]; ok && at < next {
				next, who, drained = at, id, false
			}
		}
		if next == math.MaxInt64 {
			now = long // the one that holds has the GPU to itself
			break
		}
		now = max(now, next)
		if drained {
			delete(ends, who)
			step(Event{Kind: Drained, VGPU: who, LastWork: now, Waiting: true})
		} else {
			delete(due, who)
			step(Event{Kind: Deadline, VGPU: who})
		}
	}
	got := make([]float64, len(loads))
	for i, id := range ids {
		s, _ := e.VGPU(id)
		held := s.Usage.Held
		if s.State == Holding || s.State == Draining {
			held += now - s.Since
		}
		got[i] = float64(held) / float64(now)
	}
	return got
}

// A turn that overran for hours: the product of its debt overflowed, and the
// debt was forgiven.
func TestCapRemembersADebtOfHours(t *testing.T) {
	e := New(Config{Window: time.Hour})
	e.Step(0, Event{Kind: GPUUp, GPU: "g"})
	e.Step(0, Event{Kind: Added, VGPU: "a", Request: request.Request{Count: 1, MaxShare: .000001}})
	e.Step(0, Event{Kind: Bind, VGPU: "a"})
	e.Step(0, Event{Kind: Pending, VGPU: "a"})
	now := 100 * time.Hour
	e.Step(time.Minute, Event{Kind: Deadline, VGPU: "a"})
	for _, a := range e.Step(now, Event{Kind: Drained, VGPU: "a", LastWork: now, Waiting: true}) {
		if a.Kind == Grant {
			t.Error("granted again at once, after 100 hours with a cap of a millionth")
		}
	}
}

func TestShares(t *testing.T) {
	const ms = time.Millisecond
	r := func(f func(*request.Request)) request.Request {
		var q request.Request
		f(&q)
		return q
	}
	weight := func(w int) request.Request { return r(func(q *request.Request) { q.Weight = w }) }
	maximum := func(s float64) request.Request { return r(func(q *request.Request) { q.MaxShare = s }) }
	for _, tc := range []struct {
		description string
		loads       []load
	}{
		{"equal weights share equally, whatever the kernels' length", []load{
			{kernel: 1 * ms, want: 1. / 3}, {kernel: 7 * ms, want: 1. / 3}, {kernel: 19 * ms, want: 1. / 3},
		}},
		{"weights 1:2:4:8 with unequal kernels", []load{
			{req: weight(100), kernel: 3 * ms, want: 1. / 15},
			{req: weight(200), kernel: 1 * ms, want: 2. / 15},
			{req: weight(400), kernel: 11 * ms, want: 4. / 15},
			{req: weight(800), kernel: 2 * ms, want: 8. / 15},
		}},
		// What users of cGPU, XGPU and qGPU know, as settings: 20 slots,
		// containers of 5 %, 5 % and 10 %.
		{"preemptive: equal parts of what is there", []load{
			{kernel: ms, want: 1. / 3}, {kernel: ms, want: 1. / 3}, {kernel: ms, want: 1. / 3},
		}},
		{"weighted preemptive: 25, 25, 50", []load{
			{req: weight(100), kernel: ms, want: .25},
			{req: weight(100), kernel: ms, want: .25},
			{req: weight(200), kernel: ms, want: .5},
		}},
		{"weighted weak with the third idle: 50, 50, 0", []load{
			{req: weight(100), kernel: ms, want: .5},
			{req: weight(100), kernel: ms, want: .5},
			{req: weight(200), kernel: ms, idle: true, want: 0},
		}},
		{"average of 20 slots: 5 each, on a GPU that is idle otherwise", []load{
			{req: maximum(.05), kernel: ms, want: .05},
			{req: maximum(.05), kernel: ms, want: .05},
			{req: maximum(.05), kernel: ms, want: .05},
		}},
		{"fixed: 5, 5, 10", []load{
			{req: maximum(.05), kernel: ms, want: .05},
			{req: maximum(.05), kernel: 3 * ms, want: .05},
			{req: maximum(.1), kernel: ms, want: .1},
		}},
		{"hybrid: one fixed at 30, two share the rest", []load{
			{req: r(func(q *request.Request) { q.MinShare, q.MaxShare = .3, .3 }), kernel: ms, want: .3},
			{kernel: ms, want: .35},
			{kernel: ms, want: .35},
		}},
		{"a guarantee holds against any weight", []load{
			{req: r(func(q *request.Request) { q.MinShare, q.Weight = .4, 1 }), kernel: 2 * ms, want: .4},
			{req: weight(10000), kernel: 5 * ms, want: .6},
		}},
		{"a guarantee holds against a higher class", []load{
			{req: r(func(q *request.Request) { q.MinShare, q.Priority = .25, request.Low }), kernel: 2 * ms, want: .25},
			{req: r(func(q *request.Request) { q.Priority = request.High }), kernel: 2 * ms, want: .75},
		}},
		{"a guarantee holds against a long quantum", []load{
			{req: r(func(q *request.Request) { q.MinShare = .4 }), kernel: 2 * ms, want: .4},
			{req: r(func(q *request.Request) { q.Quantum, q.Weight = 10*time.Second, 10000 }), kernel: 2 * ms, want: .6},
		}},
		{"guarantees of all: 30, 30, 40 against weights that say otherwise", []load{
			{req: r(func(q *request.Request) { q.MinShare, q.Weight = .3, 1 }), kernel: ms, want: .3},
			{req: r(func(q *request.Request) { q.MinShare, q.Weight = .3, 10000 }), kernel: ms, want: .3},
			{req: r(func(q *request.Request) { q.MinShare = .4 }), kernel: ms, want: .4},
		}},
		{"online beside offline: the higher class has it all while it wants it", []load{
			{req: r(func(q *request.Request) { q.Priority = request.High }), kernel: ms, want: 1},
			{req: r(func(q *request.Request) { q.Priority = request.Low }), kernel: ms, want: 0},
		}},
	} {
		t.Run(tc.description, func(t *testing.T) {
			got := shares(t, Config{}, tc.loads, 60*time.Second)
			for i, l := range tc.loads {
				if math.Abs(got[i]-l.want) > .01 {
					t.Errorf("%d: %.4f of the time, want %.4f; all %.4f", i, got[i], l.want, got)
				}
			}
			t.Logf("%.4f", got)
		})
	}
}
