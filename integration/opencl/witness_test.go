// SPDX-License-Identifier: Apache-2.0

package opencl

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// ran is what testdata/witness.c says.
type ran struct {
	commands  []interval
	latencies []time.Duration
	took      time.Duration
	sum       uint64
}

// interval is when a command ran, in nanoseconds of CLOCK_MONOTONIC, which all containers
// of a machine share.
type interval struct{ start, end uint64 }

func parse(t *testing.T, output string) (r ran) {
	t.Helper()
	for sc := bufio.NewScanner(strings.NewReader(output)); sc.Scan(); {
		var i interval
		var us int64
		switch line := sc.Text(); {
		case scan(line, "command %d %d", &i.start, &i.end):
			r.commands = append(r.commands, i)
		case scan(line, "latency %d", &us):
			r.latencies = append(r.latencies, time.Duration(us)*time.Microsecond)
		case scan(line, "took %d", &us):
			r.took = time.Duration(us) * time.Microsecond
		default:
			scan(line, "sum %d", &r.sum)
		}
	}
	if len(r.commands) == 0 || len(r.commands) != 4*len(r.latencies) || r.sum == 0 {
		t.Fatalf("the witness says\n%s", output)
	}
	return r
}

func scan(line, format string, into ...any) bool {
	n, _ := fmt.Sscanf(line, format, into...)
	return n == len(into)
}

// overlaps counts the pairs of commands of two containers that ran at once.
func overlaps(all []ran) (pairs int) {
	for i, a := range all {
		for _, b := range all[i+1:] {
			for _, x := range a.commands {
				for _, y := range b.commands {
					if x.start < y.end && y.start < x.end {
						pairs++
					}
				}
			}
		}
	}
	return pairs
}

const rounds = 25

// witnesses runs the witness in so many containers at once, which begin together.
func (n node) witnesses(of int, arguments ...string) (all []ran, containers []*harness.Container) {
	n.T.Helper()
	meeting := n.T.TempDir()
	for i := range of {
		c := n.launch(harness.Spec{
			ID:     fmt.Sprintf("w%d-%d", of, i),
			Args:   append([]string{"/built/witness", "/meeting", fmt.Sprint(i), fmt.Sprint(of)}, arguments...),
			Mounts: []string{fmt.Sprintf("type=bind,src=%s,dst=/meeting,options=rbind:rw", meeting)},
		})
		containers = append(containers, c)
	}
	for _, c := range containers {
		all = append(all, parse(n.T, n.exits(c)))
	}
	return all, containers
}

// No two commands of different vGPUs run at once, as the implementation itself says;
// without the gate they do, in the same run. The results are those of one alone.
func TestCommandsOfContainersDoNotOverlap(t *testing.T) {
	gated, open := start(t, true), start(t, false)
	alone, _ := gated.witnesses(1, fmt.Sprint(rounds))
	for _, of := range []int{2, 4} {
		t.Run(fmt.Sprint(of), func(t *testing.T) {
			with, containers := node{gated.Sub(t), gated.rootfs}.witnesses(of, fmt.Sprint(rounds))
			without, _ := node{open.Sub(t), open.rootfs}.witnesses(of, fmt.Sprint(rounds))
			if n := overlaps(with); n != 0 {
				t.Errorf("%d pairs of commands of %d containers ran at once", n, of)
			}
			free := overlaps(without)
			if free == 0 {
				t.Error("without the gate no two commands ran at once either: this shows nothing")
			}
			for i, r := range slices.Concat(with, without) {
				if r.sum != alone[0].sum || len(r.commands) != 4*rounds {
					t.Errorf("container %d: sum %d of %d commands, alone %d", i, r.sum, len(r.commands), alone[0].sum)
				}
			}
			turns := 0
			for _, c := range containers {
				last := node{gated.Sub(t), gated.rootfs}.gone(c)
				// The bursts, the warm launch and the read.
				if last.Usage.Submissions != 4*rounds+2 || last.Usage.HeldNS == 0 || last.Ungated != 0 {
					t.Errorf("vgpu ps shows %+v of %s", last, c.ID)
				}
				turns += last.Usage.Turns
			}
			if !t.Failed() {
				table.Overlaps = append(table.Overlaps, overlapRow{of, 4 * rounds * of, overlaps(with), free})
			}
		})
	}
}

// p99 is the latency that one burst of a hundred exceeds.
func (r ran) p99() time.Duration {
	l := slices.Sorted(slices.Values(r.latencies))
	return l[(len(l)*99-1)/100]
}

// Bursts with pauses fit between each other, and an interactive program gets its turn
// beside one that never pauses. How well is written down and not judged: the
// implementation computes on the CPUs that all of this machine share.
func TestBurstsAndAHog(t *testing.T) {
	bursts := 200 // of so many the 99th percentile is not the worst
	if testing.Short() {
		bursts = 25
	}
	gated, open := start(t, true), start(t, false)
	whole := func(what string, want, got ran) {
		t.Helper()
		if got.sum != want.sum || len(got.latencies) != bursts {
			t.Errorf("%s: sum %d of %d bursts, alone %d of %d", what, got.sum, len(got.latencies), want.sum, bursts)
		}
	}
	first := gated.witness("first", fmt.Sprint(bursts), "10")
	second := gated.witness("second", fmt.Sprint(bursts), "10")
	whole("after another", first, second)
	table.Serial = first.took + second.took
	both, _ := gated.witnesses(2, fmt.Sprint(bursts), "10")
	for _, r := range both {
		whole("together", first, r)
		table.Together = max(table.Together, r.took)
	}

	beside := func(n node) time.Duration {
		t.Helper()
		meeting := t.TempDir()
		mount := []string{fmt.Sprintf("type=bind,src=%s,dst=/meeting,options=rbind:rw", meeting)}
		hog := n.launch(harness.Spec{ID: "hog", Args: []string{"/built/witness", "/meeting", "0", "2", "0"}, Mounts: mount})
		c := n.launch(harness.Spec{ID: "interactive", Args: []string{"/built/witness", "/meeting", "1", "2", fmt.Sprint(bursts), "20"}, Mounts: mount})
		r := parse(t, n.exits(c))
		if err := os.WriteFile(filepath.Join(meeting, "stop"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		parse(t, n.exits(hog))
		whole("beside a hog", first, r)
		return r.p99()
	}
	interactive := open.witness("interactive-alone", fmt.Sprint(bursts), "20")
	whole("without turns", first, interactive)
	table.Bursts, table.P99 = bursts, []time.Duration{interactive.p99(), beside(gated), beside(open)}
	t.Logf("one after another %v, together %v; p99 alone, beside a hog in turns, and without: %v", table.Serial, table.Together, table.P99)
}

// witness runs one, alone.
func (n node) witness(id string, arguments ...string) ran {
	n.T.Helper()
	return parse(n.T, n.exits(n.launch(harness.Spec{
		ID: id, Args: append([]string{"/built/witness", "/meeting", "0", "1"}, arguments...),
		Mounts: []string{fmt.Sprintf("type=bind,src=%s,dst=/meeting,options=rbind:rw", n.T.TempDir())},
	})))
}
