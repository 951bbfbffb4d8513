// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// work is an operation of a container, named, as the judge sees it.
type work struct {
	*operation
	box string // the container
}

// turn is one that vgpud has accounted.
type turn struct{ granted, ended time.Duration }

// span is a time between two instants.
type span struct{ from, to time.Duration }

// overrun is one that vgpud has declared, between two instants.
type overrun struct {
	span
	// astray: a process that did not come back after a restart of vgpud. Its word
	// may be open until it does; one that did not drain was closed, and submits
	// what its thread had in the gate, at most.
	astray bool
}

// judge holds the simulated GPUs' log against vgpud's. It knows invariants 1 and
// 2 of the design: exclusion, and no work outside of a turn.
//
// vgpud logs a turn when it has ended. There are turns of which it can not, or
// does not, say so, and judge has to find them out:
//
//   - the turn in which vgpud itself was killed. Its holder goes on until the
//     next vgpud has found it again;
//   - the last turn of a container that was killed, or removed, in it;
//   - a turn that was declared an overrun.
//
// Work outside of a logged turn must belong to one of these: from that work
// until that event nobody else was given the GPU.
type judge struct {
	ops      map[uint32][]work    // of each GPU
	turns    map[string][]turn    // of each container, in order
	outages  *[]span              // of vgpud: from its death until the next answers
	declared map[string][]overrun // of each container
	asked    map[string]time.Duration
	deaths   map[uint32]time.Duration

	held   map[heldThrough]string // who held a GPU through an outage
	inGate map[inGate]*operation  // what came late out of the gate
}

// inGate is a process in an overrun. The programs have one thread that submits: what it
// submits first may have been in the gate.
type inGate struct {
	overrun span
	proc    uint32
}

type heldThrough struct {
	gpu    uint32
	outage int
}

func newJudge(deaths map[uint32]time.Duration, outages *[]span) *judge {
	return &judge{
		ops: map[uint32][]work{}, turns: map[string][]turn{}, declared: map[string][]overrun{},
		inGate: map[inGate]*operation{},
		asked:  map[string]time.Duration{}, deaths: deaths, outages: outages, held: map[heldThrough]string{},
	}
}

// recovery is how long a new vgpud may wait for the processes of before, after
// it answers; generous.
const recovery = drain + 5*time.Second

// never is later than anything.
const never = time.Duration(math.MaxInt64)

// run judges what was submitted before the horizon, and forgets what is settled.
// What can not be said yet, because a turn may still last, is left for the next
// time; final says that there is none.
func (j *judge) run(horizon time.Duration, final bool) (violations []violation) {
	for _, gpu := range slices.Sorted(maps.Keys(j.ops)) {
		ops := j.ops[gpu]
		slices.SortStableFunc(ops, func(a, b work) int { return int(a.Submit - b.Submit) })
		n := len(ops)
		if !final {
			n, _ = slices.BinarySearchFunc(ops, horizon, func(w work, at time.Duration) int { return int(w.Submit - at) })
		}
		violations = append(violations, j.exclusion(gpu, ops[:n])...)
		settled, wrong := j.inTurns(gpu, ops[:n], final)
		violations = append(violations, wrong...)
		j.ops[gpu] = slices.Clone(ops[settled:])
	}
	return violations
}

// over is when an operation was over.
func (j *judge) over(w work) time.Duration {
	if w.End != 0 {
		return w.End
	}
	if at, dead := j.deaths[w.Proc]; dead {
		return max(at, w.Submit)
	}
	return never
}

// exclusion finds work of two containers that was in flight at once without
// having been declared.
func (j *judge) exclusion(gpu uint32, ops []work) (violations []violation) {
	var flying []work
	for _, b := range ops {
		flying = slices.DeleteFunc(flying, func(a work) bool { return j.over(a) <= b.Submit })
		for _, a := range flying {
			if a.box != b.box && !j.beside(a, b) {
				violations = append(violations, violation{"exclusion", fmt.Sprintf(
					"on GPU %d %s of %s, submitted at %d ns, was in flight when %s submitted %s at %d ns, and no overrun was declared",
					gpu, a.Name, a.box, a.Submit, b.box, b.Name, b.Submit)})
			}
		}
		flying = append(flying, b)
	}
	return violations
}

// beside says whether it was declared that b may be in flight beside a, which
// was submitted before.
func (j *judge) beside(a, b work) bool {
	for _, d := range j.declared[a.box] {
		if a.Submit <= d.to && d.from <= b.Submit {
			return true
		}
	}
	return j.late(a) != nil || j.late(b) != nil
}

// late finds the overrun that w belongs to, if it does: it was submitted after
// that was declared, and before the next turn of its container.
func (j *judge) late(w work) *overrun {
	for i := range j.declared[w.box] {
		d := &j.declared[w.box][i]
		if d.from <= w.Submit && !j.grantedIn(w.box, d.to, w.Submit) {
			return d
		}
	}
	return nil
}

// grantedIn says whether a turn of the container began between two instants.
func (j *judge) grantedIn(box string, from, to time.Duration) bool {
	i, _ := slices.BinarySearchFunc(j.turns[box], from, func(t turn, at time.Duration) int { return int(t.granted - at) })
	return i < len(j.turns[box]) && j.turns[box][i].granted <= to
}

func (j *judge) inTurn(w work) bool {
	turns := j.turns[w.box]
	i, found := slices.BinarySearchFunc(turns, w.Submit, func(t turn, at time.Duration) int { return int(t.granted - at) })
	if !found {
		i--
	}
	return i >= 0 && w.Submit <= turns[i].ended
}

// inTurns finds work that was submitted outside of every turn of its container.
// It returns how many of ops are settled.
func (j *judge) inTurns(gpu uint32, ops []work, final bool) (settled int, violations []violation) {
	next := j.nextOfOthers(ops)
	settled = len(ops)
	for i, w := range ops {
		if j.over(w) == never {
			settled = min(settled, i) // exclusion must see it again
		}
		if j.inTurn(w) {
			continue
		}
		o := j.late(w)
		if o != nil {
			who := inGate{o.span, w.Proc}
			if j.inGate[who] == nil {
				j.inGate[who] = w.operation
			}
			if j.inGate[who] == w.operation || o.astray {
				continue
			}
			// More than its thread had in the gate: of the next turn, which was not
			// logged yet, or wrong.
		}
		asked := j.asked[w.box]
		if next[i] == never && asked == 0 && !final {
			settled = min(settled, i) // its turn may still last
			continue
		}
		switch {
		case j.excused(gpu, w, next[i]):
		case o != nil:
			before := j.inGate[inGate{o.span, w.Proc}]
			violations = append(violations, violation{"turns", fmt.Sprintf(
				"on GPU %d a process of %s, which was declared an overrun by %d ns, submitted %s at %d ns and %s at %d ns",
				gpu, w.box, o.to, before.Name, before.Submit, w.Name, w.Submit)})
		default:
			violations = append(violations, violation{"turns", fmt.Sprintf(
				"on GPU %d %s submitted %s at %d ns outside of its turns (%s); the next to compute there did so at %d ns",
				gpu, w.box, w.Name, w.Submit, j.around(w), next[i])})
		}
	}
	return settled, violations
}

// nextOfOthers tells for each operation when somebody else next submitted in a
// turn of his own.
func (j *judge) nextOfOthers(ops []work) []time.Duration {
	next := make([]time.Duration, len(ops))
	// The next two submissions of different containers, seen from the end.
	first, second := struct {
		box string
		at  time.Duration
	}{at: never}, never
	for i := len(ops) - 1; i >= 0; i-- {
		w := ops[i]
		if j.late(w) == nil {
			if w.box != first.box {
				second = first.at
			}
			first.box, first.at = w.box, w.Submit
		}
		if w.box == first.box {
			next[i] = second
		} else {
			next[i] = first.at
		}
	}
	return next
}

// excused says whether work that is in no logged turn was in one that could not
// be logged: nobody else was given the GPU before the turn's end.
func (j *judge) excused(gpu uint32, w work, next time.Duration) bool {
	lasts := func(until time.Duration) bool {
		return until <= next && !j.grantedIn(w.box, w.Submit, until-1)
	}
	// Its container was killed in it.
	if asked := j.asked[w.box]; asked != 0 && lasts(max(asked, w.Submit)) {
		return true
	}
	// It was declared an overrun.
	for _, d := range j.declared[w.box] {
		if w.Submit <= d.to && lasts(max(d.from, w.Submit)) {
			return true
		}
	}
	// vgpud was killed in it. One turn on each GPU can be so.
	for i, o := range *j.outages {
		if w.Submit-recovery > o.to || !lasts(max(o.from, w.Submit)) {
			continue
		}
		who := heldThrough{gpu, i}
		if j.held[who] == "" {
			j.held[who] = w.box
		}
		if j.held[who] == w.box {
			return true
		}
	}
	return false
}

// around tells of the container's logged turns before and after w.
func (j *judge) around(w work) string {
	turns := j.turns[w.box]
	i, _ := slices.BinarySearchFunc(turns, w.Submit, func(t turn, at time.Duration) int { return int(t.granted - at) })
	text := "none before"
	if i > 0 {
		text = fmt.Sprintf("the last before: %d to %d ns", turns[i-1].granted, turns[i-1].ended)
	}
	if i < len(turns) {
		return fmt.Sprintf("%s, the next: %d to %d ns", text, turns[i].granted, turns[i].ended)
	}
	return text + ", none after"
}
