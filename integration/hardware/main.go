// SPDX-License-Identifier: Apache-2.0

// Command hardware looks at vgpu on a machine with an NVIDIA GPU, without containerd
// and without a network, and writes one JSON file. docs/hardware.md says what each
// check and measure means; run.sh builds and starts it. With --simulate it does the
// same on the simulated driver, so that it is known to work.
//
// Each stage is on its own, bounded in time, and records what it finds; a program
// that does not end is looked at, killed and told. It needs root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// hardware is one run.
type hardware struct {
	*report
	paths    harness.Paths
	built    string // directory of what the Makefile made
	dir      string // temporary
	simulate bool
	noMounts bool // the take-over does without them
	python   string
	size     size

	driver    driver // that programs get here
	simulated driver
	loops     string // of the stamp kernel in a microsecond
	gpus      int
	undo      func() // what the take-over has left

	mu      sync.Mutex
	daemons int
	told    bool     // vgpud must be told where the driver is
	hung    []string // programs that did not end
}

// size is how much is done.
type size struct {
	together time.Duration // programs with full queues
	bursts   int
	program  time.Duration // until a program is given up
	rounds   int           // of costs
}

var (
	onHardware  = size{together: 1500 * time.Millisecond, bursts: 30, program: 45 * time.Second, rounds: 60}
	onSimulator = size{together: 500 * time.Millisecond, bursts: 8, program: 60 * time.Second, rounds: 10}
)

// stage is what is looked at together, and how long it may take.
type stage struct {
	name  string
	limit time.Duration
	run   func(*hardware, context.Context) error
}

var stages = []stage{
	{"machine", 60 * time.Second, (*hardware).machine},
	{"driver file", 60 * time.Second, (*hardware).driverFile},
	{"take-over", 90 * time.Second, (*hardware).tookOver},
	{"exclusion", 60 * time.Second, (*hardware).exclusion},
	{"memory", 60 * time.Second, (*hardware).memory},
	{"costs", 60 * time.Second, (*hardware).costs},
	{"hand-over", 40 * time.Second, (*hardware).handOver},
	{"makespan", 60 * time.Second, (*hardware).makespans},
	{"frameworks", 150 * time.Second, (*hardware).frameworks},
	{"traps", 110 * time.Second, (*hardware).traps},
	{"programs", 100 * time.Second, (*hardware).programs},
	{"checkpoint", 40 * time.Second, (*hardware).checkpoint},
}

func main() {
	enterIfJailed()
	h := &hardware{
		report: &report{Facts: map[string]any{}, Machine: map[string]any{}, Date: time.Now()},
		size:   onHardware, loops: "1000", gpus: 1,
	}
	root, only := "", ""
	budget := flag.Duration("budget", 8*time.Minute, "how long it may take in all")
	flag.StringVar(&h.path, "out", "", "the JSON `FILE` (default: result.json among what was built)")
	flag.StringVar(&h.built, "built", "", "the `DIR`ectory of what was built (default: this program's own)")
	flag.StringVar(&h.python, "python", "python3", "the `PROGRAM` that has PyTorch")
	flag.BoolVar(&h.simulate, "simulate", false, "use the simulated driver")
	flag.BoolVar(&h.noMounts, "no-mounts", false, "take over without mounts, as where they are not allowed")
	flag.StringVar(&root, "driver-root", "", "the `DIR`ectory below which the driver is (default: where programs find it)")
	flag.StringVar(&h.Commit, "commit", "", "what is tested")
	flag.StringVar(&only, "only", "", "one `STAGE` alone, after the first three")
	flag.Parse()
	if err := h.prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "hardware: failed:", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, *budget)
	h.all(ctx, root, only)
	cancel()
	stop()
	passed, failed := h.count()
	if err := h.write(); err != nil {
		fmt.Fprintln(os.Stderr, "hardware: failed:", err)
		failed++
	}
	if h.undo != nil {
		h.undo()
	}
	_ = os.RemoveAll(h.dir) // mounts in it went with the programs
	fmt.Printf("results: %s\n", h.path)
	fmt.Printf("hardware: %d checks passed, %d failed\n", passed, failed)
	if failed > 0 || passed == 0 {
		os.Exit(1)
	}
}

// prepare finds what was built.
func (h *hardware) prepare() (err error) {
	if os.Geteuid() != 0 {
		return errors.New("mount namespaces take root: run this as root")
	}
	if h.built == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		h.built = filepath.Dir(self)
	}
	if h.built, err = filepath.Abs(h.built); err != nil {
		return err
	}
	if h.path == "" {
		h.path = filepath.Join(h.built, "result.json")
	}
	h.paths = harness.Paths{
		Root:      h.built,
		Bin:       filepath.Join(h.built, "bin"),
		Library:   filepath.Join(h.built, "lib", "libvgpu-cuda.so"),
		NVML:      filepath.Join(h.built, "lib", "libvgpu-nvml.so"),
		Musl:      filepath.Join(h.built, "musl"),
		Simulated: filepath.Join(h.built, "simgpu"),
		Kernels:   filepath.Join(h.built, "kernels"),
	}
	if path, err := exec.LookPath(h.python); err == nil { // in a jail nothing is looked up
		h.python = path
	}
	if h.simulate {
		h.size = onSimulator
	}
	// Short, as a socket's path has 107 bytes at most.
	h.dir, err = os.MkdirTemp("/tmp", "vgpu-hw")
	return err
}

// program is the path of one of our own.
func (h *hardware) program(name string) string { return filepath.Join(h.built, "programs", name) }

// all runs the stages.
func (h *hardware) all(ctx context.Context, root, only string) {
	stages[0].run = func(h *hardware, ctx context.Context) error { return errors.Join(h.find(ctx, root), h.machine(ctx)) }
	for i, s := range stages {
		if i > 2 && only != "" && only != s.name {
			continue
		}
		err := h.stage(ctx, s)
		if err := h.write(); err != nil {
			fmt.Fprintln(os.Stderr, "hardware: failed to write what was found so far:", err)
		}
		if err != nil && h.driver.cuda == "" {
			return // there is nothing to look at
		}
	}
	hung := h.hangs()
	h.check("nothing hangs", len(hung) == 0, "%d programs did not end in time%s", len(hung), strings.Join(append([]string{""}, hung...), "\n"))
}

// stage runs one. What it can not do is a failed check; so is a panic.
func (h *hardware) stage(ctx context.Context, s stage) (err error) {
	if ctx.Err() != nil {
		h.check(s.name, false, "not looked at: the time for all is over")
		return ctx.Err()
	}
	fmt.Printf("==> %s (at %.0f s, up to %v)\n", s.name, time.Since(h.Date).Seconds(), s.limit)
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	// A stage that hangs itself, in a call to vgpud or the kernel, is left behind.
	ended := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				ended <- fmt.Errorf("panic: %v\n%s", r, debug.Stack())
			}
		}()
		ended <- s.run(h, limited)
	}()
	select {
	case err = <-ended:
	case <-limited.Done():
		select {
		case err = <-ended:
		case <-time.After(15 * time.Second):
			err = errors.New("it does not end although it was told to")
		}
	}
	if cut := limited.Err(); cut != nil {
		err = errors.Join(fmt.Errorf("cut after %v: %w", s.limit, cut), err)
	}
	r := &stageReport{Name: s.name, Seconds: time.Since(began).Seconds()}
	if err != nil {
		r.Error = err.Error()
		h.check(s.name, false, "%v", err)
	}
	h.report.mu.Lock()
	h.Stages = append(h.Stages, r)
	h.report.mu.Unlock()
	fmt.Printf("    %s took %.1f s\n", s.name, r.Seconds)
	return err
}
