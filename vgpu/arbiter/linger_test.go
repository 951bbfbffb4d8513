// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// job is a program that shares the GPU: bursts of work with gaps between them, in
// which its CPU has something to do. A burst is made of pieces of at most a
// millisecond, after each of which it can be revoked.
type job struct {
	id     ID
	trace  pattern
	random *rand.Rand
	bursts int // left

	thinks  time.Duration // until then; 0: it has work
	left    time.Duration // of the burst
	gap     time.Duration // after it
	runs    time.Duration // until then a piece of it runs; 0: none does
	open    bool
	revoked bool
	wanted  bool
	linger  time.Duration
	due     time.Duration // its deadline
	free    time.Duration // when the switch to it is over
	last    time.Duration // when its last piece of this turn ended
	idle    time.Duration // in this turn
	gaps    Gaps
	done    time.Duration // when its last burst was complete; 0: not yet
}

// sharing is how one GPU fared.
type sharing struct {
	lost time.Duration // nothing ran although somebody had work
	mean time.Duration // after which a job was done
}

const switchCost = DefaultSwitchCost

// shareGPU plays jobs on one GPU until all are done.
func shareGPU(linger Linger, jobs []*job) sharing {
	e := New(Config{Linger: linger, SwitchCost: switchCost})
	e.Step(0, Event{Kind: GPUUp, GPU: "g"})
	var now time.Duration
	var on *job // that had the GPU last
	var result sharing
	byID := make(map[ID]*job)
	step := func(ev Event) {
		for _, a := range slices.Clone(e.Step(now, ev)) {
			j := byID[a.VGPU]
			if j == nil {
				continue
			}
			switch a.Kind {
			case Grant:
				if !j.open {
					j.open, j.idle, j.gaps, j.last = true, 0, Gaps{}, now
					if j.free = now; on != j {
						on, j.free = j, now+switchCost
					}
				}
			case Take:
				j.wanted, j.linger = true, a.Linger
			case Keep:
				j.wanted = false
			case Revoke:
				j.open, j.revoked, j.wanted = false, true, false
			case Arm:
				j.due = a.At
			}
		}
	}
	end := func(j *job, kind Kind) {
		gaps := j.gaps
		ev := Event{Kind: kind, VGPU: j.id, LastWork: j.last, Idle: j.idle, Gaps: &gaps, Waiting: j.thinks == 0 && j.done == 0}
		j.open, j.revoked, j.wanted = false, false, false
		step(ev)
	}
	for _, j := range jobs {
		byID[j.id] = j
		step(Event{Kind: Added, VGPU: j.id, Request: request.Request{Count: 1}})
		step(Event{Kind: Bind, VGPU: j.id})
		j.thinks = 1 + time.Duration(j.random.Int64N(int64(10*time.Millisecond)))
	}
	for {
		// What is to be done now, until nothing is.
		for again := true; again; {
			again = false
			for _, j := range jobs {
				did := true
				switch {
				case j.thinks != 0 && j.thinks <= now && j.done == 0:
					j.thinks = 0
					j.left, j.gap = j.trace(j.random)
					if j.open {
						if gap := now - j.last; gap > 0 {
							j.idle += gap
							j.gaps[min(bits.Len64(uint64(gap))-1, 31)]++
						}
					} else if !j.revoked {
						step(Event{Kind: Pending, VGPU: j.id})
					}
				case j.runs != 0 && j.runs <= now:
					j.runs, j.last = 0, now
					if j.left == 0 {
						if j.thinks = now + max(j.gap, 1); j.gap < 0 { // until the next frame
							j.thinks = (now/-j.gap + 1) * -j.gap
						}
						if j.bursts--; j.bursts == 0 {
							j.done = now
						}
					}
				case j.revoked && j.runs == 0:
					end(j, Drained)
				case j.open && j.thinks == 0 && j.done == 0 && j.runs == 0 && j.free <= now:
					piece := min(j.left, time.Millisecond)
					j.left -= piece
					j.runs = now + piece
				case j.open && j.wanted && j.runs == 0 && (j.done != 0 || j.thinks != 0 && j.last+j.linger <= now):
					end(j, Complete)
				case j.due != 0 && j.due <= now:
					j.due = 0
					step(Event{Kind: Deadline, VGPU: j.id, Waiting: j.thinks == 0})
				default:
					did = false
				}
				again = again || did
			}
		}
		next, running, ready := time.Duration(0), false, false
		at := func(t time.Duration) {
			if t > now && (next == 0 || t < next) {
				next = t
			}
		}
		for _, j := range jobs {
			at(j.runs)
			at(j.due)
			running = running || j.runs != 0
			if j.done != 0 {
				continue
			}
			at(j.thinks)
			ready = ready || j.thinks == 0 && j.runs == 0
			if j.open {
				at(j.free)
				if j.wanted {
					at(j.last + j.linger)
				}
			}
		}
		if !slices.ContainsFunc(jobs, func(j *job) bool { return j.done == 0 }) {
			break
		}
		if ready && !running {
			result.lost += next - now
		}
		now = next
	}
	for _, j := range jobs {
		result.mean += j.done / time.Duration(len(jobs))
	}
	return result
}

// pattern gives the next burst and the gap after it; a gap below 0 ends with the
// next frame of that length.
type pattern func(r *rand.Rand) (burst, gap time.Duration)

// A trace is one kind of program, as its GPU sees it.
type trace struct {
	name   string
	bursts int
	next   func(nth int) pattern
}

func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)))
}

var (
	// A step is a dozen bursts with the gaps of a Python loop between them; then
	// the data loader is waited for.
	training = trace{"training", 4000, func(int) pattern {
		n := 0
		return func(r *rand.Rand) (burst, gap time.Duration) {
			if n++; n%12 != 0 {
				return between(r, time.Millisecond, 3*time.Millisecond), between(r, 10*time.Microsecond, 50*time.Microsecond)
			}
			if r.IntN(10) == 0 {
				return 2 * time.Millisecond, between(r, 5*time.Millisecond, 30*time.Millisecond)
			}
			return 2 * time.Millisecond, between(r, 500*time.Microsecond, 3*time.Millisecond)
		}
	}}
	// Tokens, with the sampling on the CPU between them: 20 to 200 us, most of
	// them short. After 64 of them the next request is waited for.
	inference = trace{"inference", 4000, func(int) pattern {
		n := 0
		return func(r *rand.Rand) (burst, gap time.Duration) {
			gap = between(r, 20*time.Microsecond, 40*time.Microsecond) << r.IntN(3)
			if r.IntN(8) == 0 {
				gap = between(r, 100*time.Microsecond, 200*time.Microsecond)
			}
			if n++; n%64 == 0 {
				gap = between(r, 5*time.Millisecond, 50*time.Millisecond)
			}
			return between(r, 500*time.Microsecond, 1500*time.Microsecond), gap
		}
	}}
	// A cell is some bursts with gaps of half a millisecond; then a person reads.
	notebook = trace{"notebook", 400, func(int) pattern {
		n := 0
		return func(r *rand.Rand) (burst, gap time.Duration) {
			if n++; n%20 == 0 {
				return 2 * time.Millisecond, between(r, time.Second, 10*time.Second)
			}
			return between(r, 500*time.Microsecond, 20*time.Millisecond), between(r, 200*time.Microsecond, time.Millisecond)
		}
	}}
	// 60 frames a second: two bursts a frame, then the next frame is waited for.
	video = trace{"video", 3000, func(nth int) pattern {
		n := 0
		frame := time.Second/60 + time.Duration(nth)*10*time.Microsecond // no two clocks agree
		return func(r *rand.Rand) (burst, gap time.Duration) {
			if n++; n%2 != 0 {
				return 3 * time.Millisecond, between(r, 30*time.Microsecond, 60*time.Microsecond)
			}
			return 2 * time.Millisecond, -frame
		}
	}}
)

// The learned linger is about as good as the best other for each kind of program,
// and better than any other for all of them: no fixed one is right for two kinds.
// docs/linger.md has the table of the first seed.
func TestLearnedLingerIsWorthIt(t *testing.T) {
	sets := []struct {
		name   string
		traces []trace
	}{
		{"training", []trace{training, training}},
		{"inference", []trace{inference, inference}},
		{"notebook", []trace{notebook, notebook}},
		{"video", []trace{video, video}},
		{"one of each", []trace{training, inference, notebook, video}},
	}
	others := []Linger{NeverLinger, Linger(50 * time.Microsecond), Linger(200 * time.Microsecond), Linger(time.Millisecond), Linger(5 * time.Millisecond)}
	for seed := range uint64(3) {
		sums := make(map[Linger]time.Duration)
		for _, s := range sets {
			fares := func(l Linger) sharing {
				var jobs []*job
				for i, tr := range s.traces {
					jobs = append(jobs, &job{
						id: ID(fmt.Sprint(tr.name, i)), trace: tr.next(i), bursts: tr.bursts, random: rand.New(rand.NewPCG(seed, uint64(i))),
					})
				}
				got := shareGPU(l, jobs)
				sums[l] += got.lost
				t.Logf("%d %-11s %-7v lost %6.1f ms, done after %v", seed, s.name, l, got.lost.Seconds()*1000, got.mean.Round(time.Millisecond))
				return got
			}
			learned := fares(LearnedLinger)
			for _, l := range others {
				other := fares(l)
				if float64(learned.lost) > 1.05*float64(other.lost) {
					t.Errorf("%s: %v of GPU time lost, %v with linger %v", s.name, learned.lost, other.lost, l)
				}
				if float64(learned.mean) > 1.02*float64(other.mean) {
					t.Errorf("%s: done after %v, after %v with linger %v", s.name, learned.mean, other.mean, l)
				}
			}
		}
		for _, l := range others {
			t.Logf("%d %v: %.2f times the GPU time lost", seed, l, float64(sums[l])/float64(sums[LearnedLinger]))
			if float64(sums[l]) < 1.1*float64(sums[LearnedLinger]) {
				t.Errorf("all together lose %v, %v with linger %v", sums[LearnedLinger], sums[l], l)
			}
		}
	}
}
