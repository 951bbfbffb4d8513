// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
)

// patience bounds every wait for something that must happen soon. It is no
// measurement: it keeps a run from waiting for ever for what never comes.
const patience = 60 * time.Second

// drain is the deadline of a drain: vgpud's default.
const drain = 2 * time.Second

// soak is one run, under one containerd.
type soak struct {
	ctx    context.Context
	seed   uint64
	node   *harness.Node
	rootfs string
	begin  time.Duration

	work    sync.WaitGroup // everything that runs beside the faults
	leaving chan struct{}  // closed when no container is to be started any more

	daemonLog *daemonLog
	gpuLog    *gpuLog
	faults    *os.File

	asking     sync.Mutex
	mu         sync.Mutex
	boxes      map[string]*box
	order      []*box
	judge      *judge
	strange    []*operation // of containers that have not said yet who they are
	vgpud      daemon
	containerd daemon
	count      map[kind]int
	list       []string // of the faults
	violations []violation
	totals     totals
}

// daemon is one that is killed, and started again.
type daemon struct {
	name    string
	process *harness.Process
	outages []span // from its death until it answers again
	row     int    // outages without a rest between them
}

// A restarted vgpud does not know for how long somebody has waited: the low
// classes wait for their ageing again. So that they do not do so for ever, it is
// left alone for longer than that after so many restarts.
const (
	rest     = arbiter.DefaultAgeing + 3*time.Second
	inOneRow = 3
)

// mayLeave says whether it may be killed now.
func (d *daemon) mayLeave() bool {
	if d.away() {
		return false
	}
	if n := len(d.outages); n == 0 || now()-d.outages[n-1].to >= rest {
		d.row = 0
	}
	d.row++
	return d.row <= inOneRow
}

// leaves notes that it is about to be killed.
func (d *daemon) leaves() { d.outages = append(d.outages, span{now(), never}) }

// back notes that it answers again.
func (d *daemon) back(p *harness.Process) {
	d.process = p
	d.outages[len(d.outages)-1].to = now()
}

func (d *daemon) away() bool { return len(d.outages) > 0 && d.outages[len(d.outages)-1].to == never }

// awaySince says whether it was away at any time since an instant.
func (d *daemon) awaySince(t time.Duration) bool {
	return len(d.outages) > 0 && d.outages[len(d.outages)-1].to >= t
}

// violation is something that must not be.
type violation struct {
	topic string // as in docs/soak.md
	text  string
}

// totals are for the table at the end.
type totals struct {
	created, failedClosed                int
	vgpudRestarts, containerdRestarts    int
	forgottenShims                       int // by containerd 1.6, see endForgottenShims
	turns, overruns, drains, submissions uint64
	handovers                            uint64
	longestWait                          time.Duration
	longestWaitOf                        string
	lastOn                               map[uint32]string // who computed last on each GPU
}

// now is the time of CLOCK_MONOTONIC, the clock of both logs.
func now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every Linux has it
	}
	return time.Duration(t.Nano())
}

// start brings up the daemons.
func start(ctx context.Context, paths harness.Paths, version harness.Version, seed uint64, faults *os.File) (_ *soak, err error) {
	s := &soak{
		ctx: ctx, seed: seed, begin: now(), leaving: make(chan struct{}), faults: faults,
		boxes: map[string]*box{}, count: map[kind]int{}, totals: totals{lastOn: map[uint32]string{}},
	}
	s.node, err = harness.Start(ctx, paths, harness.Options{
		Version: version,
		Daemon:  harness.DaemonOptions{GPUs: "sim:2", LogLevel: "trace", Drain: drain, ContextMemory: contextMemory},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	s.rootfs = filepath.Join(s.node.Dir, "rootfs")
	if err := harness.BusyboxRootfs(paths, s.rootfs); err != nil {
		return nil, err
	}
	if s.gpuLog, err = openGPULog(s.node.Daemon.Machine); err != nil {
		return nil, err
	}
	if s.daemonLog, err = openDaemonLog(s.node.Daemon.Process().Log); err != nil {
		return nil, err
	}
	s.vgpud = daemon{name: "vgpud", process: s.node.Daemon.Process()}
	s.containerd = daemon{name: "containerd", process: s.node.Containerd.Process()}
	s.judge = newJudge(s.gpuLog.deaths, &s.vgpud.outages)
	return s, nil
}

// close ends the daemons and everything of the run that is still there.
func (s *soak) close() error {
	// The run's own context may be what ended.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if s.daemonLog != nil {
		s.daemonLog.close()
	}
	if s.gpuLog != nil {
		s.gpuLog.close()
	}
	return s.node.Close(ctx)
}

// wrong notes a violation.
func (s *soak) wrong(topic, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.violate(topic, format, args...)
}

// violate is wrong, for those that hold mu.
func (s *soak) violate(topic, format string, args ...any) {
	s.violations = append(s.violations, violation{topic, fmt.Sprintf("at %v: ", s.at(now())) + fmt.Sprintf(format, args...)})
}

// at is an instant as time since the beginning.
func (s *soak) at(t time.Duration) time.Duration { return (t - s.begin).Round(time.Millisecond) }

func (s *soak) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.violations) > 0
}

func (s *soak) over() bool {
	select {
	case <-s.leaving:
		return true
	case <-s.ctx.Done():
		return true
	default:
		return false
	}
}

// live keeps a slot of the population filled: whenever its container ends,
// another one is started.
func (s *soak) live(slot int) {
	r := rand.New(rand.NewPCG(s.seed, uint64(slot)+1))
	for n := 0; !s.over(); n++ {
		p := newProfile(r, slot)
		b := s.newBox(fmt.Sprintf("s%02d-%d", slot, n), p)
		s.run(b, harness.Spec{ID: b.id, Rootfs: s.rootfs, Annotations: p.annotations, Args: []string{"sh", "-c", p.script()}})
	}
}

func (s *soak) newBox(id string, p profile) *box {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &box{id: id, profile: p, launched: now(), over: make(chan struct{})}
	s.boxes[id] = b
	s.order = append(s.order, b)
	return b
}

// run starts a container, waits until its end is asked for or comes, and removes
// it.
func (s *soak) run(b *box, spec harness.Spec) {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	container, err := s.node.Containerd.Launch(ctx, spec)
	if err != nil {
		s.notStarted(b, err)
		return
	}
	s.mu.Lock()
	b.container = container
	s.totals.created++
	s.mu.Unlock()
	select {
	case <-b.over:
	case <-s.leaving:
	case <-s.ctx.Done():
	}
	s.remove(b)
}

// notStarted accounts for a container that could not be started: somebody that
// it takes was away.
func (s *soak) notStarted(b *box, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.end()
	b.asked = b.launched // it may have run for a moment, before ctr was cut off
	b.removed = now()
	b.cutOff = s.containerd.awaySince(b.launched)
	switch {
	case s.ctx.Err() != nil:
	case s.vgpud.awaySince(b.launched) || b.cutOff:
		s.totals.failedClosed++
		s.note("%s was not started: %s", b.id, commandSaid(err))
	default:
		s.violate("containers", "%s could not be started though vgpud and containerd ran: %v", b.id, err)
	}
}

// commandSaid is what a command of ctr that failed has said, without the command.
func commandSaid(err error) string {
	var failed *harness.CommandError
	if errors.As(err, &failed) {
		return strings.TrimSpace(failed.Output)
	}
	return err.Error()
}

// remove removes a box's container.
func (s *soak) remove(b *box) {
	s.mu.Lock()
	b.end()
	s.mu.Unlock()
	// Once more than what one outage may take from its patience.
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	err := b.container.Remove(ctx)
	if err != nil {
		err = b.container.Remove(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b.removed = now()
	if err != nil {
		s.violate("containers", "%v", err)
	}
}

// choose picks one of the boxes that fit.
func (s *soak) choose(pick uint64, fits func(*box) bool) *box {
	var all []*box
	for _, b := range s.order {
		if b.running() && !b.ends && fits(b) {
			all = append(all, b)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[pick%uint64(len(all))]
}

// note adds a line to the list of faults. It is called with mu held.
func (s *soak) note(format string, args ...any) {
	line := fmt.Sprintf("%10.3fs  ", (now()-s.begin).Seconds()) + fmt.Sprintf(format, args...)
	s.list = append(s.list, line)
	fmt.Fprintln(s.faults, line)
}
