// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/request"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// Those that reserved nothing share what is left: what one of them freed is there
// for the others, as cuMemGetInfo says.
func TestCreditOfASharedLimitIsRecalledFromOtherVGPUs(t *testing.T) {
	n := newNode(t, settings{})
	for name, annotations := range map[string][]string{"a": nil, "b": nil, "c": {"memory=8Gi"}} {
		n.create(name, annotations...)
	}
	a, b, c := n.client("a"), n.client("b"), n.client("c")
	c.takes(mib)
	a.takes(6 * gib)
	a.ask(fmt.Sprint("free 0 ", 6*gib), "free: ok")
	b.takes(8 * gib)
	if leased, credit := a.ledger(); leased != 0 || credit != 0 {
		t.Errorf("a has %d leased, credit %d", leased, credit)
	}
	if leased, _ := c.ledger(); leased != 64*mib {
		t.Errorf("c has %d leased: what is reserved is nobody else's", leased)
	}
	a.wants(1, wire.ErrMemory, 8*gib, 0)
}

// ownPage is a page of this very process.
type ownPage struct {
	*wire.Page
	sock int
}

func (n *node) page(name string) ownPage {
	n.t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { unix.Close(fd) })
	if err := connectIn(fd, n.created[name]); err != nil {
		n.t.Fatal(err)
	}
	if _, err := unix.SendmsgN(fd, packet(wire.Msg{Type: wire.Hello, Protocol: wire.Protocol}), nil, nil, unix.MSG_NOSIGNAL); err != nil {
		n.t.Fatal(err)
	}
	m, pageFD, err := recvMsg(fd)
	if err != nil || m.Type != wire.Welcome {
		n.t.Fatalf("%v, message %d", err, m.Type)
	}
	defer unix.Close(pageFD)
	p, err := wire.MapPage(pageFD)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { p.Close() })
	return ownPage{Page: p, sock: fd}
}

// ask waits for the answer about the first GPU.
func (p ownPage) ask(t *testing.T, need uint64, flags wire.MemoryFlag) wire.Msg {
	t.Helper()
	p.tell(t, need, flags)
	return p.answer(t)
}

func (p ownPage) tell(t *testing.T, need uint64, flags wire.MemoryFlag) {
	t.Helper()
	m := wire.Msg{Type: wire.Memory, A: [4]uint64{0, need, uint64(flags), 1}}
	if _, err := unix.SendmsgN(p.sock, packet(m), nil, nil, unix.MSG_NOSIGNAL); err != nil {
		t.Fatal(err)
	}
}

func (p ownPage) answer(t *testing.T) wire.Msg {
	t.Helper()
	for {
		m, _, err := recvMsg(p.sock)
		if err != nil {
			t.Fatal(err)
		}
		if m.Type == wire.MemoryIs {
			return m
		}
	}
}

// The driver knows processes. One can have two pages: a copy of the library in a
// namespace of its own is a second client.
func TestAProcessWithTwoPagesHasOneOverhead(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "memory=4Gi")
	n.client("a") // binds it
	one, two := n.page("a"), n.page("a")
	for _, p := range []ownPage{one, two} {
		if m := p.ask(t, 100*mib, 0); m.Code != wire.OK {
			t.Fatalf("%+v", m)
		}
		p.Memory()[0].Credit.Add(^(100*mib - 1))
	}
	// One context of 300 MiB.
	n.gpus.SetUsed(gpuUUID(0), os.Getpid(), 500*mib)
	for _, p := range []ownPage{one, two, one} {
		if m := p.ask(t, 0, wire.MemoryDriver); m.Code != wire.OK || m.A[2] != 500*mib {
			t.Errorf("code %d, %d MiB are used, want 500", m.Code, m.A[2]/mib)
		}
	}
	unix.Close(one.sock)
	if m := two.ask(t, 0, wire.MemoryDriver); m.A[2] != 500*mib {
		t.Errorf("%d MiB are used after one hung up, want 500", m.A[2]/mib)
	}
}

// What was allocated when the driver was asked, and freed before it was charged,
// looks like overhead. Nothing is refused for that, nor for more looks than two.
func TestNothingIsRefusedForWhatWasSeenOnce(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "memory=1Gi")
	a, other := n.client("a"), n.client("a")
	pid := a.cmd.Process.Pid
	n.gpus.SetUsed(gpuUUID(0), pid, 100*mib)
	a.takes(100 * mib)
	// Whoever takes some makes vgpud look, and look again in a while if two looks differ:
	// that is over when these are.
	for range 2 {
		if got, text := a.memory(0, 0, wire.MemoryDriver); got.used != 100*mib {
			t.Fatalf("%+v %s", got, text)
		}
	}
	n.gpus.SetUsed(gpuUUID(0), pid, 150*mib)
	n.gpus.SetUsedOnce(gpuUUID(0), pid, 600*mib)
	if got, text := a.memory(0, 0, wire.MemoryDriver); got.used != 600*mib {
		t.Fatalf("%+v %s", got, text)
	}
	other.wants(800*mib, wire.OK, gib, 150*mib)
	other.ask(fmt.Sprint("allocate 0 ", 800*mib), "allocate: ok")
	other.wants(100*mib, wire.ErrMemory, gib, 950*mib)
	// The overhead that is there stays, however often it is looked at.
	for range 3 {
		other.wants(75*mib, wire.ErrMemory, gib, 950*mib)
	}
	other.wants(74*mib, wire.OK, gib, 950*mib)
}

// A look while an allocation is between the ledger and the driver takes it for
// less overhead. Nobody has to ask for memory for that to be seen again.
func TestAnOverheadThatWasSeenTooLowIsLookedAtAgain(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "memory=1Gi")
	a := n.client("a")
	a.takes(100 * mib)
	for _, used := range []uint64{150 * mib, 100 * mib} {
		n.gpus.SetUsed(gpuUUID(0), a.cmd.Process.Pid, used)
		if got, text := a.memory(0, 0, wire.MemoryDriver); got.used != used {
			t.Fatalf("%+v %s", got, text)
		}
	}
	n.gpus.SetUsed(gpuUUID(0), a.cmd.Process.Pid, 150*mib)
	n.until("the overhead is back", func() bool { return n.vgpu("a").GetMemory()[0].GetUsedBytes() == 150*mib })
}

// A process that floods vgpud spoils its own asks alone.
func TestAsksOfOneProcessAreBoundedForItAlone(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "memory=1Gi")
	n.client("a") // binds it
	flood, one := n.page("a"), n.page("a")
	end := n.gpus.Hang()
	defer end()
	tell := packet(wire.Msg{Type: wire.Memory, A: [4]uint64{0, 0, uint64(wire.MemoryDriver), 0}})
	for i := range 1100 {
		if _, err := unix.SendmsgN(flood.sock, tell, nil, nil, unix.MSG_NOSIGNAL); err != nil {
			t.Fatal(err)
		}
		if i < maxAsks {
			continue // it waits for the driver
		}
		m, _, err := recvMsg(flood.sock)
		if err != nil {
			t.Fatal(err)
		}
		if m.Code != wire.ErrInternal || !strings.Contains(m.TextString(), "too many") {
			t.Fatalf("ask %d got code %d: %s", i, m.Code, m.TextString())
		}
	}
	one.tell(t, mib, wire.MemoryDriver)
	n.until("one's ask waits beside those of the other", func() bool {
		var waiting []int
		_ = n.daemon.call(func(l *loop) {
			for _, c := range l.current[n.idOf("a")].clients {
				if c.conn != nil {
					waiting = append(waiting, c.conn.asks)
				}
			}
		})
		slices.Sort(waiting)
		return slices.Equal(waiting, []int{0, 1, maxAsks})
	})
	end()
	if m := one.answer(t); m.Code != wire.OK {
		t.Errorf("code %d: %s", m.Code, m.TextString())
	}
}

// world is a loop without sockets, whose processes are a few numbers: what each
// has allocated, and what the driver needs for it.
type world struct {
	l         *loop
	processes []*inWorld
	made      int
}

type inWorld struct {
	c                   *client
	allocated, overhead uint64
}

const (
	worldMemory = 1000
	worldGPU    = arbiter.UUID("GPU-0")
)

func newWorld() *world {
	log := logrus.New()
	log.SetLevel(logrus.PanicLevel)
	g := &gpuState{GPU: gpu.GPU{UUID: string(worldGPU), MemoryBytes: worldMemory}}
	l := &loop{
		log: logrus.NewEntry(log), engine: arbiter.New(arbiter.Config{Quantum: 1, DrainDeadline: 1}),
		vgpus: map[arbiter.ID]*vgpu{}, gpus: map[arbiter.UUID]*gpuState{worldGPU: g}, order: []*gpuState{g},
		pages: map[uint64]*client{}, clock: newClock(), stepping: true, // nothing is due
	}
	l.engine.Step(1, arbiter.Event{Kind: arbiter.GPUUp, GPU: worldGPU, MemoryBytes: worldMemory})
	return &world{l: l}
}

// add makes a vGPU, if there is room for what it reserves. Those of one name reserve
// together.
func (w *world) add(reserves uint64, with string) {
	w.made++
	v := &vgpu{
		key: arbiter.ID(fmt.Sprint("v", w.made)), adopted: true, req: request.Request{Count: 1, MemoryBytes: reserves},
		rec: record{Reservation: with},
	}
	w.l.engine.Step(1, arbiter.Event{Kind: arbiter.Added, VGPU: v.key, Request: v.req, Reservation: with})
	w.l.vgpus[v.key] = v
	// The engine also asks the driver: what is in use is not reserved.
	if len(w.l.memorySharers(v, worldGPU)) > 1 || w.l.memoryUsed(worldGPU)+reserves <= worldMemory {
		w.l.engine.Step(1, arbiter.Event{Kind: arbiter.Bind, VGPU: v.key})
	}
	if s, _ := w.l.engine.VGPU(v.key); len(s.GPUs) == 0 {
		w.l.engine.Step(1, arbiter.Event{Kind: arbiter.Removed, VGPU: v.key})
		delete(w.l.vgpus, v.key)
		return
	}
	v.bound = []arbiter.UUID{worldGPU}
	w.l.trimMemory(worldGPU)
}

func (w *world) start(v *vgpu) error {
	page, fd, err := wire.NewPage(1)
	if err != nil {
		return err
	}
	unix.Close(fd)
	w.made++
	c := &client{v: v, page: page, process: process{PID: w.made}}
	v.clients = append(v.clients, c)
	w.processes = append(w.processes, &inWorld{c: c})
	return nil
}

func (w *world) die(i int) {
	p := w.processes[i]
	p.c.v.clients = slices.DeleteFunc(p.c.v.clients, func(c *client) bool { return c == p.c })
	p.c.page.Close()
	w.processes = slices.Delete(w.processes, i, i+1)
}

// used is what those that share the limit of v really use.
func (w *world) used(v *vgpu) (sum uint64) {
	for _, p := range w.processes {
		if slices.Contains(w.l.memorySharers(v, worldGPU), p.c.v) {
			sum += p.c.used(0)
		}
	}
	return sum
}

// restart is another vgpud with the same pages.
func (w *world) restart() {
	for _, p := range w.processes {
		p.c.leases = [wire.MaxUUIDs]lease{}
		w.l.believe(p.c, false)
	}
	w.l.gpus[worldGPU].look = processLook{}
}

// Whatever happens in whatever order: the ledger says what is so, no credit comes
// from nothing and none is lost, nothing is leased beyond the limit but what was in
// use before it got lower and what the driver took by itself, and what is refused
// was not there.
func TestTheLedgerIsExactWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		defer func() {
			for len(w.processes) > 0 {
				w.die(0)
			}
		}()
		w.add(0, "")
		w.add(300, "")
		w.add(200, "claim")
		some := func(most uint64) uint64 { return rapid.Uint64Range(1, most).Draw(t, "bytes") }
		anyVGPU := func() *vgpu {
			keys := make([]arbiter.ID, 0, len(w.l.vgpus))
			for key := range w.l.vgpus {
				keys = append(keys, key)
			}
			slices.Sort(keys)
			return w.l.vgpus[rapid.SampledFrom(keys).Draw(t, "vgpu")]
		}
		one := func() int {
			if len(w.processes) == 0 {
				if err := w.start(anyVGPU()); err != nil {
					t.Fatal(err)
				}
			}
			return rapid.IntRange(0, len(w.processes)-1).Draw(t, "process")
		}
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(*rapid.T) { w.add(some(500), "") },
			"beside":  func(*rapid.T) { w.add(0, "") },
			"claim":   func(*rapid.T) { w.add(200, "claim") },
			"start": func(t *rapid.T) {
				if err := w.start(anyVGPU()); err != nil {
					t.Fatal(err)
				}
			},
			"die":     func(*rapid.T) { w.die(one()) },
			"restart": func(*rapid.T) { w.restart() },
			"allocate": func(t *rapid.T) {
				p, need := w.processes[one()], some(400)
				m := &p.c.page.Memory()[0].Credit
				v := p.c.v
				if m.Load() < need && !w.l.leaseTo(p.c, 0, need) {
					if used, limit := w.used(v), w.l.memoryLimit(v, worldGPU); used+need <= limit {
						t.Fatalf("%d are refused, of %d only %d are in use", need, limit, used)
					}
					return
				}
				if m.Load() < need {
					t.Fatalf("the credit is %d, %d were leased", m.Load(), need)
				}
				m.Add(^(need - 1))
				p.allocated += need
			},
			"free": func(*rapid.T) {
				p := w.processes[one()]
				if p.allocated > 0 {
					n := some(p.allocated)
					p.allocated -= n
					p.c.page.Memory()[0].Credit.Add(n)
				}
			},
			"driver": func(*rapid.T) { w.processes[one()].overhead = some(50) },
			"look": func(t *rapid.T) {
				said := rapid.Bool().Draw(t, "said")
				look := &w.l.gpus[worldGPU].look
				look.seen = map[int]uint64{}
				for _, p := range w.processes {
					p.c.leases[0].before = p.c.allocated(0)
					look.seen[p.c.PID] = p.allocated + p.overhead
				}
				w.l.chargeOverhead(worldGPU, said)
				for _, p := range w.processes {
					if got := p.c.leases[0].overhead; got < p.overhead || said && got > p.overhead {
						t.Fatalf("the overhead is %d, charged is %d", p.overhead, got)
					}
				}
			},
			"": func(t *rapid.T) {
				for _, p := range w.processes {
					m, k := &p.c.page.Memory()[0], &p.c.leases[0]
					if m.Leased.Load() != k.bytes || m.Credit.Load() > k.bytes-k.overhead || p.c.allocated(0) != p.allocated {
						t.Fatalf("leased %d, in the page %d, credit %d, overhead %d, allocated %d, really %d", k.bytes,
							m.Leased.Load(), m.Credit.Load(), k.overhead, p.c.allocated(0), p.allocated)
					}
				}
				w.l.trimMemory(worldGPU)
				for _, v := range w.l.vgpus {
					limit, leased := w.l.memoryLimit(v, worldGPU), uint64(0)
					for _, other := range w.l.memorySharers(v, worldGPU) {
						n, _ := w.l.memoryOn(other, worldGPU)
						leased += n
					}
					if leased > max(limit, w.used(v)) {
						t.Fatalf("%s: %d are leased, %d used, of %d", v.key, leased, w.used(v), limit)
					}
				}
			},
		})
	})
}
