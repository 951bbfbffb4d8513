// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// job is a program (integration/workload/burst.c) with a fixed amount of work, on
// the simulated GPU.
type job struct {
	name   string
	args   string
	bursts int     // in a run of full size, of about two seconds alone; 0: it is a hog
	times  float64 // as much as others have to do; 0: once
}

// The jobs that share a GPU. What a CPU does between two bursts is time that
// passes: there are fewer CPUs here than there are jobs.
var (
	train    = job{name: "train", args: "--launches 8 --gpu-us 8000 --rest-us 2000", bursts: 200} // long bursts, short gaps
	token    = job{name: "token", args: "--launches 40 --gpu-us 800 --rest-us 3000", bursts: 500} // many kernels of 20 us
	notebook = job{name: "notebook", args: "--launches 4 --gpu-us 20000 --rest-us 180000", bursts: 10}
	video    = job{name: "video", args: "--launches 2 --gpu-us 4000 --period-us 16667", bursts: 120} // at a fixed rate
	hog      = job{name: "hog"}                                                                      // its queue is full until it ends
	half     = job{name: "half", args: "--launches 10 --gpu-us 10000 --rest-us 10000", bursts: 100}  // on the GPU for half of its time

	profiles = []job{train, token, notebook, video, hog}
)

// hogLaunches are those of a hog of full size, of a millisecond each. It never
// waits for one but the last.
const hogLaunches = 2000

// mixed is so many jobs, of each kind in turn.
func mixed(k int) (jobs []job) {
	for i := range k {
		jobs = append(jobs, profiles[i%len(profiles)])
	}
	return jobs
}

// same is so many of a kind.
func same(j job, k int) []job { return slices.Repeat([]job{j}, k) }

// arguments are the program's, for a part of the full size.
func (j job) arguments(part float64) []string {
	if j.times > 0 {
		part *= j.times
	}
	if j.bursts == 0 {
		n := max(int(hogLaunches*part), 1)
		return append([]string{"--bursts", "1", "--launches", fmt.Sprint(n), "--gpu-us", fmt.Sprint(n * 1000), "--sync-every", fmt.Sprint(n)}, strings.Fields(j.args)...)
	}
	return append([]string{"--bursts", fmt.Sprint(max(int(float64(j.bursts)*part), 2))}, strings.Fields(j.args)...)
}

// sharing is how jobs come by the GPU: how the program of the i-th of them is
// started, and where the machine is that keeps the log.
type sharing interface {
	command(ctx context.Context, i int, args ...string) (*exec.Cmd, error)
	machine() string
	stop() error
}

// bare is a simulated GPU without anybody between: the hardware slices, and pays
// for each switch. preload is another library that shares GPUs, if any.
type bare struct {
	paths   harness.Paths
	dir     string
	preload string
}

func (b *bench) startBare(ctx context.Context, preload string, options ...string) (sharing, error) {
	b.vgpuds++
	dir := filepath.Join(b.dir, fmt.Sprint(b.vgpuds))
	_, err := harness.Simgpu(ctx, b.paths, append(append([]string{"create", "--gpus", "1"}, options...), dir)...)
	return &bare{b.paths, dir, preload}, err
}

func (s *bare) command(ctx context.Context, _ int, args ...string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "SIMGPU_MACHINE="+s.dir, "LD_LIBRARY_PATH="+filepath.Join(s.paths.Simulated, "lib"))
	if s.preload != "" {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+s.preload)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

func (s *bare) machine() string { return s.dir }
func (s *bare) stop() error     { return os.RemoveAll(s.dir) }

// arbited is a vgpud with a vGPU for each job.
type arbited struct {
	b *bench
	*node
}

func (b *bench) startArbited(ctx context.Context, o harness.DaemonOptions, vgpus []map[string]string) (sharing, error) {
	n, err := b.startUnpinned(ctx, o, vgpus)
	return &arbited{b, n}, err
}

func (s *arbited) command(ctx context.Context, i int, args ...string) (*exec.Cmd, error) {
	return s.b.command(ctx, filepath.Join(s.daemon.Dir, fmt.Sprint("job", i)), s.edits[i], args...)
}

func (s *arbited) machine() string { return s.daemon.Machine }

// outcome is how jobs went.
type outcome struct {
	makespan time.Duration              // from when they could begin to the end of the last
	busy     time.Duration              // of it, a kernel or a copy ran
	took     []time.Duration            // each of them
	bursts   map[string][]time.Duration // from first launch to completion, by the job's name
}

// together runs jobs at once, to their end.
func (b *bench) together(ctx context.Context, s sharing, jobs []job) (outcome, error) {
	ctx, cancel := context.WithCancel(ctx) // ends what runs if one fails
	defer cancel()
	var running []*started
	var err error
	for i, j := range jobs {
		var r *started
		if r, err = b.start(ctx, s, i, j); err != nil {
			break
		}
		running = append(running, r)
	}
	for _, r := range running {
		err = errors.Join(err, r.ready())
	}
	if err != nil {
		cancel()
	}
	for _, r := range running { // all at once: none does anything before its stdin ends
		r.in.Close()
	}
	o := outcome{bursts: make(map[string][]time.Duration)}
	first, last := time.Duration(1<<62), time.Duration(0)
	for i, r := range running {
		said, ended := r.end()
		if err = errors.Join(err, ended); err != nil {
			cancel()
			continue
		}
		first, last = min(first, said.Ready), max(last, said.End)
		o.took = append(o.took, said.End-said.Ready)
		for _, us := range said.Bursts {
			o.bursts[jobs[i].name] = append(o.bursts[jobs[i].name], us*time.Microsecond)
		}
	}
	if err != nil {
		return o, err
	}
	o.makespan = last - first
	log, err := harness.MachineLog(ctx, b.paths, s.machine())
	o.busy = ran(log)
	return o, err
}

// ran is for how long any work ran, by the simulated GPU's own log. Each is alone
// on its GPU.
func ran(log []harness.Operation) (busy time.Duration) {
	log = slices.DeleteFunc(log, func(op harness.Operation) bool { return op.Class != harness.ClassWork || op.Start == 0 })
	slices.SortFunc(log, func(a, b harness.Operation) int { return cmp.Compare(a.Start, b.Start) })
	until := time.Duration(0)
	for _, op := range log {
		busy += max(op.End-max(op.Start, until), 0)
		until = max(until, op.End)
	}
	return busy
}

// started is a job that was started.
type started struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

func (b *bench) start(ctx context.Context, s sharing, i int, j job) (*started, error) {
	args := append([]string{filepath.Join(b.paths.Workload, "burst"), "--kernels", b.paths.Kernels, "--await", "1", "--cpu-us", "0"}, j.arguments(b.size.part)...)
	cmd, err := s.command(ctx, i, args...)
	if err != nil {
		return nil, err
	}
	r := &started{cmd: cmd}
	cmd.Stderr = os.Stderr
	if r.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.lines = bufio.NewScanner(out)
	r.lines.Buffer(nil, 1<<20)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("failed to start a job: %w", err)
	}
	return r, nil
}

func (r *started) ready() error {
	if !r.lines.Scan() || r.lines.Text() != "ready" {
		return fmt.Errorf("a job did not get ready: %q", r.lines.Text())
	}
	return nil
}

// said is what the program prints at its end.
type said struct {
	Ready  time.Duration   `json:"ready_ns"`
	End    time.Duration   `json:"end_ns"`
	Bursts []time.Duration `json:"burst_us"`
}

func (r *started) end() (s said, err error) {
	if r.lines.Scan() {
		err = json.Unmarshal(r.lines.Bytes(), &s)
	}
	for r.lines.Scan() { // until it is gone
	}
	if err := errors.Join(err, r.cmd.Wait()); err != nil {
		return s, fmt.Errorf("a job failed: %w", err)
	}
	return s, nil
}
