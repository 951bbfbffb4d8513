// SPDX-License-Identifier: Apache-2.0

// Command bench holds arbiter and shim against their budgets (docs/design.md,
// section 11) on this machine. docs/bench.md says what each row is; make bench builds and
// runs it.
//
// Wherever it can, it measures in units of the same run: what one wake-up of
// another process, one locked add and one round trip over a socket take here. It
// starts vgpud as a process of its own, with simulated GPUs, and clients as
// processes with the real gate (hooks/gate) and without a GPU: their work is time
// that passes. For the shim it starts a real containerd. All that it started is gone when it ends. It needs root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

func main() {
	// The processes that it starts die with the thread that started them.
	runtime.LockOSThread()
	if len(os.Args) > 1 && os.Args[1] == inside {
		fmt.Fprintln(os.Stderr, enter(os.Args[2], os.Args[3], os.Args[4:]))
		os.Exit(125)
	}
	out := flag.String("out", "", "write the rows to `FILE` as JSON, too")
	short := flag.Bool("short", false, "fewer samples and shorter windows, in a hundred seconds")
	only := flag.String("only", "", "measure one `GROUP` alone, after the floor; see docs/bench.md")
	against := flag.String("against", "", "compare with the rows in `FILE`, and fail if one is worse by more than noise")
	docs := flag.String("report", "", "measure nothing: write performance.md, its plots and its bench.json anew, in the `DIRECTORY` docs, from the rows of a whole run")
	rows := flag.String("rows", "", "the `FILE` with these rows; docs/performance/bench.json if empty")
	profiles := flag.String("flames", "", "measure nothing: draw where the CPU time of vgpud and of the engine goes, as flame graphs, in the `DIRECTORY` docs/performance")
	flag.Parse()
	if *profiles != "" {
		if err := flames(*profiles); err != nil {
			fmt.Fprintln(os.Stderr, "bench: failed:", err)
			os.Exit(1)
		}
		return
	}
	if *docs != "" {
		if err := report(*docs, *rows); err != nil {
			fmt.Fprintln(os.Stderr, "bench: failed:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(*out, *short, *only, *against); err != nil {
		fmt.Fprintln(os.Stderr, "bench: failed:", err)
		os.Exit(1)
	}
}

// limit is when something hangs.
const limit = 15 * time.Minute

// group is what is measured together. Its name is for -only; rows are what the full form
// has of it, and without which a run is not whole.
type group struct {
	name    string
	measure func(*bench, context.Context) error
	rows    []string
}

var groups = []group{
	{"floor", (*bench).floor, []string{"floor_wake", "floor_add", "floor_round_trip"}},
	{"handover", (*bench).handover, []string{"handover_median", "handover_p99"}},
	{"first", (*bench).first, []string{"first_grant", "first_grant_kept"}},
	{"rate", (*bench).rate, []string{"handovers_per_second"}},
	{"engine", (*bench).engine, []string{"engine_step_512_ns", "engine_step_512", "engine_growth_1_gpus", "engine_growth_8_gpus"}},
	{"scale", (*bench).scale, []string{"scale_p99_256"}},
	{"curve", (*bench).curve, []string{"growth_1_gpus", "growth_8_gpus"}},
	{"share", (*bench).share, []string{"share_error", "jain"}},
	{"many", (*bench).many, []string{"daemon_memory_512", "idle_cpu"}},
	{"drain", (*bench).drain, []string{"drain_p99"}},
	{"accounting", (*bench).accounting, []string{"accounting_error"}},
	{"high", (*bench).high, []string{"high_p99"}},
	{"workloads", (*bench).workloads, slices.Concat([]string{"alone", "makespan_hw", "jain_bursty"}, sharedSets)},
	{"oversubscribed", (*bench).oversubscribed, []string{"oversubscribed", "oversubscribed_steps"}},
	{"gate", (*bench).gate, []string{"gate_overhead", "gate_legacy", "gate_per_thread", "gate_launch", "library_start"}},
	{"container", (*bench).container, []string{
		"container_start_driver", "container_delete_driver", "container_start", "container_start_plain", "container_delete", "container_delete_plain",
		"shim_rss", "container_many",
	}},
}

// chosen are the groups to measure: all, or the one of that name; the floor in any case.
func chosen(only string) ([]group, error) {
	if only == "" {
		return groups, nil
	}
	for _, g := range groups[1:] {
		if g.name == only {
			return []group{groups[0], g}, nil
		}
	}
	var names []string
	for _, g := range groups[1:] {
		names = append(names, g.name)
	}
	return nil, fmt.Errorf("there is no group %q, but %s", only, strings.Join(names, ", "))
}

func run(out string, short bool, only, against string) error {
	among, err := chosen(only)
	if err != nil {
		return err
	}
	var committed map[string]row
	if against != "" {
		if committed, err = readCommitted(against); err != nil {
			return err
		}
	}
	// Whatever becomes of this run, the rows of an earlier one are not taken for its own.
	if err := os.Remove(out); out != "" && err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("failed to remove the rows of an earlier run: %w", err)
	}
	ctx, stop := untilLimit()
	defer stop()
	b, err := newBench(full)
	if err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if short {
		b.size = brief
	}
	b.committed = committed
	describe(short)
	var failed error
	for _, g := range among {
		if err := b.hold(ctx, g); err != nil {
			failed = fmt.Errorf("%s: %w", g.name, errors.Join(err, context.Cause(ctx)))
			break
		}
	}
	if out != "" { // what was measured before a failure, too
		if err := writeJSON(out, b.rows); err != nil {
			return errors.Join(failed, err)
		}
	}
	return errors.Join(failed, verdict(b.rows))
}

// untilLimit ends with a signal, or when something hangs.
func untilLimit() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New("the benchmark took too long"))
	return ctx, func() { cancel(); stop() }
}

// newBench makes a run's directory, which its caller removes.
func newBench(size size) (*bench, error) {
	paths, err := harness.DefaultPaths()
	if err != nil {
		return nil, err
	}
	b := &bench{paths: paths, programs: filepath.Join(paths.Root, "build", "bench"), size: size}
	if b.cpus, err = splitCPUs(); err != nil {
		return nil, err
	}
	b.dir, err = os.MkdirTemp("", "vgpu-bench")
	return b, err
}

// tries is how often a group is measured at most, and no more than there is time for
// what is measured again.
const tries = 8

// hold measures a group, and once more, beside a floor of that moment, if other
// programs may have spoilt what it missed.
func (b *bench) hold(ctx context.Context, g group) error {
	for try := 1; ; try++ {
		before, began := len(b.rows), time.Now()
		if err := g.measure(b, ctx); err != nil {
			return err
		}
		measured := b.rows[before:]
		if err := finite(measured); err != nil {
			b.rows = b.rows[:before]
			return err
		}
		b.rows = best(b.rows)
		took := time.Since(began)
		if try > 1 {
			b.again += took
		}
		if try == tries || b.again+took > b.size.again || !spoilt(b.rows, measured) {
			return nil
		}
		fmt.Printf("%s: measured again, as the machine may have been busy (%d of %d); the best of each row counts\n", g.name, try+1, tries)
		if err := b.floor(ctx); err != nil {
			return err
		}
		b.rows = best(b.rows)
	}
}

// bench is one run.
type bench struct {
	paths    harness.Paths
	dir      string // temporary
	programs string // where the C programs are
	size     size
	cpus     cpus
	rows     []row

	committed map[string]row // to compare with; may be nil

	vgpuds int           // started so far
	again  time.Duration // that went into what was measured again

	// The floor of this run.
	wake, roundTrip time.Duration
}

// size is how much is measured.
type size struct {
	again        time.Duration // for what is measured again, all together
	floorSamples int
	rounds       int // of hand-overs; the best counts
	handovers    int // in a round
	firsts       int
	kept         int
	rate         time.Duration
	engineRuns   int
	window       time.Duration // of the shares
	windows      int           // that begin one second after the other
	shareBudget  float64
	scaleBudget  float64
	idle         time.Duration
	drains       time.Duration // of each container's work
	account      time.Duration // likewise
	gate         bool
	containers   int // starts of each kind; 0: those are not measured
	many         int // containers at once

	part          float64 // of each job's work
	jobRounds     int     // the best counts
	aloneRounds   int     // likewise, of each job alone: what is held there is less than what a round is off by
	bursty, mixes []int   // how many jobs share a GPU
	aloneBudget   float64
	mixBudget     float64 // of unlike jobs, over hardware slicing
	accountBudget float64
	highRounds    int
	fixedQuanta   bool // where memory is oversubscribed: compare with some

	curve time.Duration // of each measurement; 0: it is not measured
}

var full = size{
	again:        2 * time.Minute,
	floorSamples: 20000, rounds: 10, handovers: 2000, firsts: 5000, kept: 100000, rate: 5 * time.Second,
	engineRuns: 31, window: 10 * time.Second, windows: 11, shareBudget: .01, scaleBudget: 2, idle: 20 * time.Second, drains: 30 * time.Second, account: 20 * time.Second, gate: true,
	containers: 100, many: 200,
	part: 1, jobRounds: 2, aloneRounds: 4, bursty: []int{2, 4, 8}, mixes: []int{1, 2, 4, 8}, aloneBudget: .995, mixBudget: 1.01, accountBudget: .005, highRounds: 3, fixedQuanta: true,
	curve: 2 * time.Second,
}

// One turn more or less weighs more in a shorter window: the budget grows as it
// shrinks. So does that of a ratio of two 99th percentiles, each of few samples. vgpud looks for leaks every 10 s, and two such looks are not to fall into as little as that.
var brief = size{
	again:        8 * time.Minute,
	floorSamples: 5000, rounds: 4, handovers: 1000, firsts: 1000, kept: 10000, rate: time.Second,
	engineRuns: 11, window: 5 * time.Second, windows: 2, shareBudget: .02, scaleBudget: 3, idle: 15 * time.Second, drains: 10 * time.Second, account: 4 * time.Second,
	many: 50,
	part: .25, jobRounds: 1, aloneRounds: 1, bursty: []int{2, 4}, mixes: []int{4}, aloneBudget: .98, mixBudget: 1.05, accountBudget: .0075, highRounds: 1,
}
