// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
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

	libraries []*v1.DriverLibrary
	processes processList
	looking   sync.Mutex // guards told
	told      unmanaged
	claims    *claims

	state  *State
	dirs   string // of the vGPUs
	loop   *loop
	server *ttrpc.Server
	// nodeStore has set in it.
	nodeStore nodeStore
	listen    net.Listener
	ended     chan struct{} // the loop has ended

	mu  sync.RWMutex   // read-locked by alone; locked for a change of the node
	ids [64]sync.Mutex // by vGPU id
	set operatorSet    // what the operator set, as it stands in the store; guarded by mu
}

// alone begins a Create, Delete, Update or collection, of which there is one at a
// time for each vGPU: those of several wait for the store together. The returned
// function ends it.
func (d *Daemon) alone(id string) func() {
	one := &d.ids[crc32.ChecksumIEEE([]byte(id))%uint32(len(d.ids))]
	d.mu.RLock()
	one.Lock()
	return func() {
		one.Unlock()
		d.mu.RUnlock()
	}
}

// Build says which vgpud this is.
type Build struct{ Version, Commit string }

// New makes a vgpud from a configuration that Check has passed. It finds the
// vGPUs of an earlier vgpud again, and listens: on the control socket that it
// was given, or, if that is nil, on one that it makes and removes. It owns state
// and listen from now on, also on error. The inventory stays the caller's to
// close, after Serve.
func New(cfg Config, state *State, listen net.Listener, inventory gpu.Inventory, log *logrus.Entry, build Build) (_ *Daemon, retErr error) {
	d := &Daemon{
		told: make(unmanaged),
		cfg:  cfg, state: state, listen: listen, log: log, inventory: inventory, build: build, started: time.Now(),
		takeOver: gpu.TakeOver{CUDA: cfg.Library.CUDA, NVML: cfg.Library.NVML, OpenCL: cfg.Library.OpenCL, Dirs: cfg.Library.Dirs},
		dirs:     filepath.Join(state.dir, "c"),
		ended:    make(chan struct{}),
		claims:   newClaims(),
	}
	defer func() {
		if retErr != nil {
			d.close()
		}
	}()
	if _, err := d.takeOver.Edits(inventory.Driver(), d.dirs); err != nil {
		return nil, fmt.Errorf("the driver can not be taken over: %w", err)
	}
	if err := d.takeOver.CheckLibraries(); err != nil {
		return nil, err
	}
	d.takeOver.Musl = d.muslLibraries()
	d.libraries = d.driverLibraries()
	if err := privateDir(d.dirs); err != nil {
		return nil, err
	}
	if err := removeOldRecords(filepath.Join(state.dir, "v")); err != nil {
		log.WithError(err).Warn("old records are left")
	}
	st, err := openStore(filepath.Join(state.dir, storeFile), d.dirs, log)
	if err != nil {
		return nil, err
	}
	p, err := newPoller()
	if err != nil {
		st.close()
		return nil, err
	}
	boot := bootID()
	l := &loop{
		log: log, clock: newClock(), poller: p, store: st, boot: boot, accounts: openAccounts(filepath.Join(state.dir, accountsFile), boot, log),
		drain: time.Duration(cfg.Engine.DrainDeadline),
		queue: time.Duration(cfg.Engine.QueueBound), budget: time.Duration(cfg.Engine.DrainBudget),
		inventory: inventory, openCLOnCPU: cfg.Simulated.OpenCLCPU && strings.HasPrefix(inventory.Name(), "sim:"),
		absence: cfg.Engine.absence(), swapRate: cfg.Engine.swaps(),
		engine:  arbiter.New(cfg.Engine.arbiter()),
		vgpus:   make(map[arbiter.ID]*vgpu),
		current: make(map[string]*vgpu),
		leaving: make(map[arbiter.ID]*vgpu),
		gpus:    make(map[arbiter.UUID]*gpuState),
		pages:   make(map[uint64]*client),
		fateOf:  fateOf, lookPatience: lookPatience,
		nudging: wire.Msg{Type: wire.Nudge}.Marshal(make([]byte, wire.MsgSize)),
		events:  newEvents(), gpuWatchers: make(map[chan struct{}]struct{}), policy: cfg.Engine.arbiter().Policy,
	}
	// Also under another policy: an earlier vgpud may have left somebody frozen.
	if l.freezer, err = findFreezer(); err != nil && cfg.Engine.arbiter().Overrun == request.Freeze {
		st.close()
		p.close()
		return nil, fmt.Errorf("engine.overrun = freeze: %w", err)
	}
	p.fired, p.idle, p.between = l.timersFired, l.grownUp, l.answerBells
	d.loop, d.nodeStore = l, st
	for _, g := range inventory.GPUs() {
		if _, err := wire.ParseUUID(g.UUID); err != nil {
			return nil, fmt.Errorf("failed to use a GPU: %w", err)
		}
		gs := &gpuState{GPU: g}
		l.gpus[arbiter.UUID(g.UUID)] = gs
		l.order = append(l.order, gs)
		l.gpuUp(arbiter.UUID(g.UUID))
	}
	d.restoreSet()
	d.restoreClaims()
	d.restore()
	if err := d.listenControl(); err != nil {
		return nil, err
	}
	return d, nil
}

// restore takes in what an earlier vgpud left.
func (d *Daemon) restore() {
	records, unusable := d.loop.store.load()
	dirs, dirErr := os.ReadDir(d.dirs)
	if dirErr != nil {
		d.log.WithError(dirErr).Error("failed to look for vGPUs' directories")
	}
	for dir, why := range unusable {
		records = append(records, d.rebuild(dir, why))
	}
	// Of two records of one container the newer counts; the other was being
	// removed when vgpud went away.
	slices.SortFunc(records, func(a, b record) int { return b.Created.Compare(a.Created) })
	used := make(map[string]bool)
	for _, r := range records {
		d.restoreOne(r, used)
	}
	d.loop.accounts.releaseRest()
	d.loop.startRecovery()
	if dirErr == nil {
		d.sweep(dirs, used)
	}
}

// rebuild makes a record for a vGPU whose own can not be used, from its
// directory. What is there is kept beside the new one.
func (d *Daemon) rebuild(dir string, why error) record {
	id, _, _ := strings.Cut(dir, "-")
	d.log.WithField("vgpu", id).WithField("record", dir).WithError(why).
		Error("a record can not be used; nothing is granted until its processes had time to come back, and what its container asked for is unknown")
	r := record{Version: recordVersion, ID: id, Dir: dir, Boot: d.loop.boot, Lost: true}
	if info, err := os.Stat(filepath.Join(d.dirs, dir)); err == nil {
		r.Created = info.ModTime().UTC()
	}
	d.loop.store.keep(dir)
	d.loop.store.save(&r, nil)
	return r
}

// restoreOne takes in the vGPU of one record. Whatever goes wrong, what its
// processes hold is respected.
func (d *Daemon) restoreOne(s record, used map[string]bool) {
	l := d.loop
	log := d.log.WithField("vgpu", s.ID)
	dir := filepath.Join(d.dirs, s.Dir)
	v := &vgpu{key: arbiter.ID(s.Dir), rec: s, listen: -1}
	v.lost = s.Lost && s.Boot == l.boot
	v.rec.GPUs, v.rec.Pages, v.rec.Frozen, v.rec.Observers = nil, nil, nil, nil
	for _, uuid := range s.GPUs {
		v.bound = append(v.bound, arbiter.UUID(uuid))
	}
	if s.Boot == l.boot {
		// Whatever the policy is now. It is frozen anew if it overruns again.
		v.frozen = s.Frozen
		l.thaw(v)
	}
	l.expect(v, s.Pages)
	v.rec.Boot = l.boot
	_, err := os.Stat(dir)
	v.leaving = l.current[s.ID] != nil || errors.Is(err, os.ErrNotExist)
	if v.leaving && !v.missing() {
		l.store.remove(s.Dir, nil)
		return
	}
	v.req, err = request.Parse(s.Annotations, "", 0)
	if err != nil {
		log.WithError(err).Error("what a vGPU's container asked for can not be used any more")
	}
	if err != nil || s.Container == "" {
		v.req = request.Request{Count: described(dir)}
	}
	if err := l.accounts.reserve(); err != nil {
		log.WithError(err).Error("a vGPU's account will not outlive this vgpud")
	}
	l.accounts.account(v, l.now())
	l.add(v)
	l.expectObservers(v, s.Observers)
	if v.leaving {
		return
	}
	used[s.Dir] = true
	fd, err := listenIn(dir)
	if err == nil {
		if err = l.listenOn(v, fd); err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		log.WithError(err).Error("a vGPU can not be reached by its processes; tried again later")
	}
}

// deaf are the vGPUs without a socket.
func (d *Daemon) deaf() (all []*vgpu) {
	_ = d.call(func(l *loop) {
		for _, v := range l.current {
			if v.listen < 0 {
				all = append(all, v)
			}
		}
	})
	return all
}

// relisten makes the sockets that could not be made before.
func (d *Daemon) relisten() {
	if len(d.deaf()) == 0 {
		return // Creates need not wait for each other
	}
	d.mu.Lock() // the directories stay
	defer d.mu.Unlock()
	for _, v := range d.deaf() {
		fd, err := listenIn(filepath.Join(d.dirs, string(v.key)))
		if err != nil {
			continue // it was said
		}
		used := false
		_ = d.call(func(l *loop) { used = l.listenOn(v, fd) == nil })
		if !used {
			v.chores.close(fd)
		}
	}
}

// sweep removes directories without a record: a crash came before it was
// written, or after it was removed.
func (d *Daemon) sweep(dirs []os.DirEntry, used map[string]bool) {
	for _, e := range dirs {
		if used[e.Name()] || !dirName.MatchString(e.Name()) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(d.dirs, e.Name())); err != nil {
			d.log.WithError(err).Warn("failed to remove a directory that was left")
		}
	}
}

func (d *Daemon) listenControl() error {
	server, err := ttrpc.NewServer(ttrpc.WithServerHandshaker(ttrpc.UnixCredentialsFunc(onlyRoot)))
	if err != nil {
		return fmt.Errorf("failed to make the control server: %w", err)
	}
	if d.listen == nil {
		if d.listen, err = makeSocket(d.cfg.Socket, "control socket", "--socket"); err != nil {
			return err
		}
	}
	v1.RegisterControlService(server, d)
	d.server = server
	return nil
}

// makeSocket makes a socket for root alone, in the place of one that an earlier
// vgpud left. What it is and where it is set is for the errors.
func makeSocket(path, what, set string) (net.Listener, error) {
	if err := removeDeadSocket(path, what, set); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("failed to make the directory of the %s: %w", what, err)
	}
	listen, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("failed to listen on the %s: %w", what, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		listen.Close()
		return nil, fmt.Errorf("failed to close the %s to others: %w", what, err)
	}
	return listen, nil
}

// removeDeadSocket makes room for a socket: it removes one on which nobody
// listens any more, and nothing else.
func removeDeadSocket(path, what, set string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("failed to look for an old %s: %w", what, err)
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("the %s can not be made: %s is there and is no socket; name another with %s", what, path, set)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return fmt.Errorf("the %s %s is in use by another program; name another with %s", what, path, set)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("the %s may be in use by another program: %w; name another with %s", what, err, set)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("failed to remove the old %s: %w", what, err)
	}
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
	go d.watchHealth(ctx)
	measured := make(chan struct{})
	go func() {
		defer close(measured)
		d.serveMetrics(ctx)
	}()
	tended := make(chan struct{})
	go func() {
		defer close(tended)
		d.tend(ctx, 10*time.Second)
	}()

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	cancel()
	d.listen.Close()
	stop, done := context.WithTimeout(context.Background(), time.Second)
	if d.server.Shutdown(stop) != nil {
		d.server.Close()
	}
	done()
	<-tended
	<-measured
	d.loop.poller.quit()
	<-d.ended // close takes away what the loop uses
	return err
}

// close gives everything back; the loop does not run (any more).
func (d *Daemon) close() {
	if l := d.loop; l != nil {
		for _, v := range l.vgpus {
			if len(v.frozen) > 0 { // nobody will be here to do it
				done := make(chan struct{})
				v.freezing.add(func() { l.thawGroups(v, v.frozen); close(done) })
				select {
				case <-done:
				case <-time.After(time.Second):
				}
			}
			l.closeListener(v)
			for c := range v.conns {
				v.chores.close(c.fd)
			}
			for _, c := range v.clients {
				unix.Close(c.pidfd)
				c.page.Close()
			}
			for _, x := range v.expected {
				l.forget(x)
			}
			for _, o := range v.observers {
				unix.Close(o.pidfd)
			}
		}
		l.store.close()
		l.accounts.close()
		l.poller.close()
	}
	if d.listen != nil {
		d.listen.Close()
	}
	d.state.Close()
}

// Status is how a vgpud stands.
type Status struct {
	VGPUs, GPUs int
	Recovering  bool // processes of before a restart have not all come back
}

// Status asks the loop, and nothing else: it returns once the loop has answered,
// or has ended. While the loop is stuck it does not. It may be called before
// Serve.
func (d *Daemon) Status() (s Status, err error) {
	err = d.call(func(l *loop) {
		s = Status{VGPUs: len(l.current), GPUs: len(l.gpus), Recovering: l.recovery != nil}
	})
	return s, err
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
	}
	select {
	case <-done: // just before the end
		return nil
	default:
		return errStopping
	}
}
