// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A sequence is what testdata/sequence takes, and whether vgpud takes back all
// the time what it leased.
type sequence struct {
	seed, operations, threads int
	recalls                   bool
}

func (s sequence) String() string {
	return fmt.Sprintf("seed=%d operations=%d threads=%d recalls=%t", s.seed, s.operations, s.threads, s.recalls)
}

// sequences are the ones to try: a few, or as many as VGPU_SEQUENCES says. Each
// third has several threads, and each second a vgpud that recalls.
func sequences(t *testing.T) []sequence {
	first, n := 1, 45
	for name, to := range map[string]*int{"VGPU_SEQUENCES": &n, "VGPU_FIRST_SEQUENCE": &first} {
		if text := os.Getenv(name); text != "" {
			var err error
			if *to, err = strconv.Atoi(text); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	var out []sequence
	for seed := first; seed < first+n; seed++ {
		s := sequence{seed, 500, 1, seed%2 == 0}
		if seed%3 == 0 {
			s = sequence{seed, 250, 4, seed%2 == 0}
		}
		out = append(out, s)
	}
	return out
}

// recallAlways takes back again and again what the process was leased and does not
// use, so that each allocation finds a credit that is gone, or goes meanwhile. It
// leases no more than is asked for.
func recallAlways(a *arbiter) {
	a.ledger.mu.Lock()
	a.ledger.chunk = 0
	a.ledger.mu.Unlock()
	tick := time.NewTicker(50 * time.Microsecond)
	defer tick.Stop()
	for {
		select {
		case <-a.t.Context().Done():
			return
		case <-tick.C:
			a.ledger.recallAll(0)
		}
	}
}

// A random sequence of calls, many of them wrong, shows the same results, errors
// and contents of memory on the driver alone and through the library, whatever
// turns there are.
func TestRandomSequencesShowNoDifference(t *testing.T) {
	sim, err := simulated()
	if err != nil {
		t.Fatal(err)
	}
	kernels, err := filepath.Abs("../../../integration/kernels")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/sequence/*.c")
	if err != nil {
		t.Fatal(err)
	}
	bin := compile(t, "sequence", slices.Concat([]string{"-rdynamic"}, files,
		[]string{filepath.Join(sim, "lib", "libcuda.so.999.10"), "-ldl"}, strings.Fields(os.Getenv("VGPU_TEST_CFLAGS")))...)
	for _, s := range sequences(t) {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			arg := []string{"sequence", kernels, strconv.Itoa(s.seed), strconv.Itoa(s.operations), strconv.Itoa(s.threads)}
			machine, gpu := newMachine(t, sim)
			alone := command(slices.Clone(arg)...)
			alone.Env = append(os.Environ(), "SIMGPU_MACHINE="+machine, "LD_LIBRARY_PATH="+filepath.Join(sim, "lib"))
			out, err := alone.Output()
			if err != nil {
				t.Fatalf("alone: %v\n%s", err, out)
			}
			want := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")

			a := newArbiter(t)
			a.gpus = [][16]byte{gpu}
			install(t, filepath.Join(sim, "lib", "libcuda.so.999.10"), filepath.Join(a.dir, "libcuda.so"))
			turns := make(chan int, 1)
			go shortTurns(a, turns)
			if s.recalls {
				go recallAlways(a)
			}
			arg[0] = bin
			p := startIn(t, a, []string{"SIMGPU_MACHINE=" + machine}, arg...)
			for i, line := range want {
				if got := p.Line(); got != line {
					t.Fatalf("line %d is %q through the library, %q alone, after:\n%s\nstderr:\n%s",
						i+1, got, line, strings.Join(want[max(0, i-15):i], "\n"), p.Stderr)
				}
			}
			p.Expect("")
			if err := p.Cmd.Wait(); err != nil {
				t.Fatalf("%v; stderr:\n%s", err, p.Stderr)
			}
			t.Logf("%d lines, %d turns", len(want), <-turns)
		})
	}
}
