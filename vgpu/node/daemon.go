// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/ttrpc"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/request"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// Daemon is a vgpud.
type Daemon struct {
	cfg       Config
	log       *logrus.Entry
	inventory gpu.Inventory
	takeOver  gpu.TakeOver
	build     Build
	started   time.Time

	lock   *os.File
	dirs   string // of the vGPUs
	loop   *loop
	server *ttrpc.Server
	listen net.Listener
	ended  chan struct{} // the loop has ended

	mu sync.Mutex // one Create, Delete or collection at a time
}

// Build says which vgpud this is.
type Build struct{ Version, Commit string }

// New makes a vgpud from a configuration that Check has passed. It takes the
// state directory, finds the vGPUs of an earlier vgpud again, and listens. The
// inventory stays the caller's to close, after Serve.
func New(cfg Config, inventory gpu.Inventory, log *logrus.Entry, build Build) (_ *Daemon, retErr error) {
	d := &Daemon{
		cfg: cfg, log: log, inventory: inventory, build: build, started: time.Now(),
		takeOver: gpu.TakeOver{Library: cfg.Library.CUDA, Dirs: cfg.Library.Dirs},
		dirs:     filepath.Join(cfg.State, "c"),
		ended:    make(chan struct{}),
	}
	defer func() {
		if retErr != nil {
			d.close()
		}
	}()
	if _, err := d.takeOver.Edits(inventory.Driver(), d.dirs); err != nil {
		return nil, fmt.Errorf("the driver can not be taken over: %w", err)
	}
	if err := privateDir(cfg.State); err != nil {
		return nil, err
	}
	if err := privateDir(d.dirs); err != nil {
		return nil, err
	}
	if err := d.takeLock(); err != nil {
		return nil, err
	}
	st, err := openStore(filepath.Join(cfg.State, "v"))
	if err != nil {
		return nil, err
	}
	p, err := newPoller()
	if err != nil {
		st.close()
		return nil, err
	}
	l := &loop{
		log: log, clock: newClock(), poller: p, store: st, boot: bootID(),
		quantum: time.Duration(cfg.Engine.Quantum), drain: time.Duration(cfg.Engine.DrainDeadline),
		engine: arbiter.New(arbiter.Config{
			Quantum: time.Duration(cfg.Engine.Quantum), DrainDeadline: time.Duration(cfg.Engine.DrainDeadline),
		}),
		vgpus:   make(map[arbiter.ID]*vgpu),
		current: make(map[string]*vgpu),
		gpus:    make(map[arbiter.UUID]*gpuState),
		pages:   make(map[uint64]*client),
		nudging: wire.Msg{Type: wire.Nudge}.Marshal(make([]byte, wire.MsgSize)),
	}
	p.fired = l.timersFired
	d.loop = l
	for _, g := range inventory.GPUs() {
		if _, err := wire.ParseUUID(g.UUID); err != nil {
			return nil, fmt.Errorf("failed to use a GPU: %w", err)
		}
		gs := &gpuState{GPU: g}
		l.gpus[arbiter.UUID(g.UUID)] = gs
		l.order = append(l.order, gs)
		l.gpuUp(arbiter.UUID(g.UUID))
	}
	d.restore()
	if err := d.listenControl(); err != nil {
		return nil, err
	}
	return d, nil
}

func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("failed to make a state directory: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("failed to close a state directory to others: %w", err)
	}
	return nil
}

// takeLock makes sure that no other vgpud uses the state directory.
func (d *Daemon) takeLock() error {
	path := filepath.Join(d.cfg.State, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("failed to open the lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("another vgpud runs on %s: stop it, or give this one its own --state", d.cfg.State)
		}
		return fmt.Errorf("failed to lock %s: %w", path, err)
	}
	d.lock = f
	return nil
}

// restore takes in what an earlier vgpud left.
func (d *Daemon) restore() {
	records, kept, faults := d.loop.store.load()
	for _, err := range faults {
		d.log.WithError(err).Error("a record can not be used and is left where it is; the container it is about has no vGPU")
	}
	// Of two records of one container the newer counts; the other was being
	// removed when vgpud went away.
	slices.SortFunc(records, func(a, b stored) int { return b.Created.Compare(a.Created) })
	used := make(map[string]bool)
	for _, s := range records {
		if err := d.restoreOne(s, used); err != nil {
			d.log.WithField("vgpu", s.ID).WithError(err).Error("failed to find a vGPU again")
		}
	}
	d.loop.startRecovery()
	d.sweep(used, kept)
}

func (d *Daemon) restoreOne(s stored, used map[string]bool) error {
	l := d.loop
	req, err := request.Parse(s.Annotations, "", 0)
	if err != nil {
		used[s.Dir] = true
		return err
	}
	v := &vgpu{key: arbiter.ID(s.Dir), name: s.name, rec: s.record, req: req, listen: -1}
	v.rec.GPUs, v.rec.Pages = nil, nil
	for _, uuid := range s.GPUs {
		v.bound = append(v.bound, arbiter.UUID(uuid))
	}
	v.leaving = l.current[s.ID] != nil
	if _, err := os.Stat(filepath.Join(d.dirs, s.Dir)); errors.Is(err, os.ErrNotExist) {
		v.leaving = true
	}
	if !v.leaving {
		used[s.Dir] = true
		if v.listen, err = listenIn(filepath.Join(d.dirs, s.Dir)); err != nil {
			return err
		}
	}
	l.expect(v, s.Pages)
	v.rec.Boot = l.boot
	if v.leaving && len(v.expected) == 0 {
		l.store.remove(s.name, nil)
		return nil
	}
	return l.add(v)
}

// sweep removes directories without a record.
func (d *Daemon) sweep(used map[string]bool, kept []string) {
	entries, err := os.ReadDir(d.dirs)
	if err != nil {
		d.log.WithError(err).Warn("failed to look for directories that were left")
		return
	}
	for _, e := range entries {
		if used[e.Name()] || slices.ContainsFunc(kept, func(id string) bool { return strings.HasPrefix(e.Name(), id) }) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(d.dirs, e.Name())); err != nil {
			d.log.WithError(err).Warn("failed to remove a directory that was left")
		}
	}
}

func (d *Daemon) listenControl() error {
	// The lock is ours, so a socket that is there is a dead one's.
	if err := os.Remove(d.cfg.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("failed to remove the old control socket: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(d.cfg.Socket), 0o700); err != nil {
		return fmt.Errorf("failed to make the control socket's directory: %w", err)
	}
	server, err := ttrpc.NewServer(ttrpc.WithServerHandshaker(ttrpc.UnixCredentialsFunc(onlyRoot)))
	if err != nil {
		return fmt.Errorf("failed to make the control server: %w", err)
	}
	listen, err := net.Listen("unix", d.cfg.Socket)
	if err != nil {
		return fmt.Errorf("failed to listen on the control socket: %w", err)
	}
	if err := os.Chmod(d.cfg.Socket, 0o600); err != nil {
		listen.Close()
		return fmt.Errorf("failed to close the control socket to others: %w", err)
	}
	v1.RegisterControlService(server, d)
	d.server, d.listen = server, listen
	return nil
}

// onlyRoot refuses peers that are not root, or the user that vgpud runs as.
func onlyRoot(c *unix.Ucred) error {
	if c.Uid != 0 && int(c.Uid) != os.Geteuid() {
		return fmt.Errorf("uid %d may not use vgpud's control socket", c.Uid)
	}
	return nil
}

// Serve runs until ctx is done. vGPUs and their containers stay as they are
// then, for the next vgpud to find.
func (d *Daemon) Serve(ctx context.Context) error {
	defer d.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	failed := make(chan error, 2)
	go func() {
		defer close(d.ended)
		failed <- d.loop.poller.run()
	}()
	go func() {
		if err := d.server.Serve(ctx, d.listen); !errors.Is(err, ttrpc.ErrServerClosed) {
			failed <- fmt.Errorf("failed to serve the control socket: %w", err)
		}
	}()
	collected := make(chan struct{})
	go func() {
		defer close(collected)
		d.collectEvery(ctx, 10*time.Second)
	}()

	var err error
	loopEnded := false
	select {
	case <-ctx.Done():
	case err = <-failed:
		loopEnded = true
	}
	cancel()
	d.listen.Close()
	stop, done := context.WithTimeout(context.Background(), time.Second)
	if d.server.Shutdown(stop) != nil {
		d.server.Close()
	}
	done()
	<-collected
	d.loop.poller.quit()
	if !loopEnded || err == nil {
		<-d.ended
	}
	return err
}

// close gives everything back; the loop does not run (any more).
func (d *Daemon) close() {
	if l := d.loop; l != nil {
		for _, v := range l.vgpus {
			l.closeListener(v)
			for c := range v.conns {
				l.hangUp(c)
			}
			for _, c := range v.clients {
				unix.Close(c.pidfd)
				c.page.Close()
			}
			for _, x := range v.expected {
				l.forget(x)
			}
		}
		l.store.close()
		l.poller.close()
	}
	if d.listen != nil {
		d.listen.Close()
	}
	if d.lock != nil {
		d.lock.Close()
	}
}

// call runs fn in the loop and waits for it.
func (d *Daemon) call(fn func(*loop)) error {
	done := make(chan struct{})
	if !d.loop.poller.post(func() { fn(d.loop); close(done) }) {
		return errStopping
	}
	select {
	case <-done:
		return nil
	case <-d.ended:
		return errStopping
	}
}
