// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

func TestCausesAreKeptApart(t *testing.T) {
	d := idle(t, 1)
	l, uuid := d.loop, arbiter.UUID(gpuUUID(0))
	for _, step := range []struct {
		cause                cause
		reason               string
		state, cordon, shown string
		told                 string // empty: nothing changed
	}{
		{causeMode, "exclusive", "CORDONED", "exclusive", "exclusive", "GPU_CORDONED exclusive"},
		{causeMode, "exclusive", "CORDONED", "exclusive", "exclusive", ""},
		{causeOperator, "repair", "CORDONED", "repair; exclusive", "repair; exclusive", "GPU_CORDONED repair; exclusive"},
		{causeRecovering, reasonRecovering, "CORDONED", "repair; exclusive", reasonRecovering + "; repair; exclusive", "GPU_DOWN " + reasonRecovering},
		{causeHealth, "fell off the bus", "UNHEALTHY", "repair; exclusive", "fell off the bus; " + reasonRecovering + "; repair; exclusive", "GPU_DOWN fell off the bus; " + reasonRecovering},
		{causeRecovering, "", "UNHEALTHY", "repair; exclusive", "fell off the bus; repair; exclusive", "GPU_DOWN fell off the bus"},
		{causeOperator, "", "UNHEALTHY", "exclusive", "fell off the bus; exclusive", "GPU_CORDONED exclusive"},
		{causeHealth, "", "CORDONED", "exclusive", "exclusive", "GPU_UP"},
		{causeHealth, "Xid 79", "UNHEALTHY", "exclusive", "Xid 79; exclusive", "GPU_DOWN Xid 79"},
		{causeMode, "", "UNHEALTHY", "", "Xid 79", "GPU_UNCORDONED"},
		{causeHealth, "", "FREE", "", "", "GPU_UP"},
	} {
		before := l.events.newest()
		l.setCause(uuid, step.cause, step.reason)
		g := l.gpuNow(uuid)
		if g.GetState() != step.state || g.GetCordon() != step.cordon || g.GetReason() != step.shown {
			t.Errorf("%d %q: %s, cordon %q, reason %q", step.cause, step.reason, g.GetState(), g.GetCordon(), g.GetReason())
		}
		if told := strings.Join(since(l.events, before), ", "); told != step.told {
			t.Errorf("%d %q: told %q, want %q", step.cause, step.reason, told, step.told)
		}
		if engine := l.engine.GPUs()[0]; engine.Down != l.gpus[uuid].causes.down() || engine.Cordon != step.cordon {
			t.Errorf("%d %q: the engine has %q, cordon %q", step.cause, step.reason, engine.Down, engine.Cordon)
		}
	}
	l.setCause("GPU-that-is-not-there", causeOperator, "x")
	if n := l.events.newest(); n == 0 || since(l.events, n) != nil {
		t.Error("told of a GPU that is not there")
	}
}

// Whatever comes and goes in whatever order: a reason stands exactly while its
// cause does.
func TestEachCauseIsLiftedAlone(t *testing.T) {
	l, uuid := idle(t, 1).loop, arbiter.UUID(gpuUUID(0))
	var stands [causes]bool
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		c := cause(random.IntN(int(causes)))
		if stands[c] = random.IntN(2) == 0; stands[c] {
			l.setCause(uuid, c, string(rune('a'+c)))
		} else {
			l.setCause(uuid, c, "")
		}
		var down, cordon []string
		for c := range causes {
			switch {
			case !stands[c]:
			case c == causeHealth || c == causeRecovering:
				down = append(down, string(rune('a'+c)))
			default:
				cordon = append(cordon, string(rune('a'+c)))
			}
		}
		if got := l.engine.GPUs()[0]; got.Down != strings.Join(down, "; ") || got.Cordon != strings.Join(cordon, "; ") {
			t.Fatalf("%v: the engine has %q, cordon %q", stands, got.Down, got.Cordon)
		}
	}
}

func (n *node) cordon(i int, reason string) *v1.GPU {
	n.t.Helper()
	resp, err := n.control.CordonGPU(n.t.Context(), &v1.CordonGPURequest{Uuid: gpuUUID(i), Reason: reason})
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.GetGpu()
}

func (n *node) uncordon(i int) *v1.GPU {
	n.t.Helper()
	resp, err := n.control.UncordonGPU(n.t.Context(), &v1.UncordonGPURequest{Uuid: gpuUUID(i)})
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.GetGpu()
}

func TestTheOperatorsCordonSurvivesARestart(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	restart := func() {
		t.Helper()
		n.stop()
		n.start()
	}
	for range 2 { // it is idempotent
		if g := n.cordon(1, "fan is loud"); g.GetState() != "CORDONED" || g.GetCordon() != "cordoned by the operator: fan is loud" {
			t.Fatalf("%v", g)
		}
	}
	restart()
	if g := n.gpu(1); g.GetState() != "CORDONED" || g.GetReason() != "cordoned by the operator: fan is loud" || n.gpu(0).GetState() != "FREE" {
		t.Fatalf("%v", g)
	}
	if g := n.cordon(1, ""); g.GetCordon() != "cordoned by the operator: fan is loud" { // it has one
		t.Errorf("%v", g)
	}
	if g := n.cordon(1, "fan fell off"); g.GetCordon() != "cordoned by the operator: fan fell off" { // the newest one counts
		t.Errorf("%v", g)
	}
	restart()
	if g := n.gpu(1); g.GetCordon() != "cordoned by the operator: fan fell off" {
		t.Errorf("%v", g)
	}
	for range 2 {
		if g := n.uncordon(1); g.GetState() != "FREE" || g.GetCordon() != "" {
			t.Errorf("%v", g)
		}
	}
	restart()
	if g := n.gpu(1); g.GetState() != "FREE" {
		t.Errorf("%v", g)
	}
}

func TestThoseOnACordonedGPUGetTheirTurns(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	n.cordon(0, "")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	if g := n.gpu(0); g.GetState() != "CORDONED" || g.GetHolder() != n.vgpu("a").GetId() {
		t.Errorf("%v", g)
	}
	a.ask("done", "done: ")
	b.expect("work: passed")
}

func TestACordonedGPUTakesNoBind(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.cordon(0, "repair")
	w := n.watch(&v1.WatchRequest{After: n.info().GetSequence()})
	a := n.process("a")
	a.ask("start "+n.created["a"], "start: ")
	a.tell("bind")
	if ev := w.next(); ev.GetType() != eventBindWaits || ev.GetVgpu() != n.vgpu("a").GetId() || !strings.Contains(ev.GetReason(), "repair") {
		t.Errorf("%v", ev)
	}
	n.uncordon(0)
	a.expect("bind: GPU-")
}

func TestAnUncordonLeavesTheDriversCordon(t *testing.T) {
	n := newNode(t, settings{})
	n.gpus.SetHealth(gpu.Health{UUID: gpuUUID(0), Cordon: "MIG is on"})
	n.until("the driver's cordon is shown", func() bool { return n.gpu(0).GetCordon() != "" })
	n.cordon(0, "mine")
	if g := n.uncordon(0); g.GetState() != "CORDONED" || g.GetCordon() != "MIG is on" {
		t.Errorf("%v", g)
	}
}

func TestADrainTellsWhoIsLeft(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	drain := func(i int) *v1.GPU {
		t.Helper()
		resp, err := n.control.DrainGPU(t.Context(), &v1.DrainGPURequest{Uuid: gpuUUID(i), Reason: "repair"})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetGpu()
	}
	n.create("a", "gpus=2")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	ids := []string{n.vgpu("a").GetId(), n.vgpu("b").GetId()}
	slices.Sort(ids)
	on := slices.IndexFunc([]*v1.GPU{n.gpu(0), n.gpu(1)}, func(g *v1.GPU) bool { return g.GetBound() == 2 })
	for range 2 {
		if g := drain(on); !slices.Equal(g.GetVgpus(), ids) || g.GetCordon() != "cordoned by the operator: repair" {
			t.Errorf("%v", g)
		}
	}
	a.ask("work", "work: passed") // nothing was ended
	a.kill()
	b.kill()
	n.until("nobody is left", func() bool { return len(n.gpu(on).GetVgpus()) == 0 })
	if g := drain(on); g.GetState() != "CORDONED" || len(g.GetVgpus()) > 0 {
		t.Errorf("%v", g)
	}
}

// While a restarted vgpud waits for a process, the vGPU counts as there.
func TestADrainDoesNotForgetThoseThatDidNotComeBackYet(t *testing.T) {
	n := newProcessNode(t, settings{})
	n.create("a")
	a := n.client("a")
	a.pause()
	n.cordon(0, "repair")
	n.kill()
	n.startProcess()
	if g := n.gpu(0); g.GetState() != "CORDONED" || !slices.Equal(g.GetVgpus(), []string{n.vgpu("a").GetId()}) ||
		g.GetReason() != reasonRecovering+"; cordoned by the operator: repair" {
		t.Errorf("%v", g)
	}
	a.signal(syscall.SIGCONT)
	a.expect("reconnected")
	n.until("the recovery is over", func() bool { return n.gpu(0).GetReason() == "cordoned by the operator: repair" })
	if g := n.gpu(0); g.GetState() != "CORDONED" || len(g.GetVgpus()) != 1 {
		t.Errorf("%v", g)
	}
}

// brokenStore is a disk that is full.
type brokenStore struct{ nodeStore }

var errFull = errors.New("the disk is full")

func (brokenStore) saveNode(_ string, _ []byte, then func(error)) { go then(errFull) }

// broken puts a full disk under the daemon until the test has done what it does.
func (n *node) broken(do func()) {
	d := n.daemon
	swap := func(s nodeStore) (old nodeStore) {
		d.mu.Lock()
		defer d.mu.Unlock()
		old, d.nodeStore = d.nodeStore, s
		return old
	}
	old := swap(brokenStore{})
	do()
	swap(old)
}

func TestACordonThatCanNotBeKeptChangesNothing(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	n.cordon(1, "")
	n.broken(func() {
		if _, err := n.control.CordonGPU(t.Context(), &v1.CordonGPURequest{Uuid: gpuUUID(0)}); err == nil || !strings.Contains(err.Error(), errFull.Error()) {
			t.Errorf("%v", err)
		}
		if _, err := n.control.UncordonGPU(t.Context(), &v1.UncordonGPURequest{Uuid: gpuUUID(1)}); err == nil {
			t.Error("lifted, and the next vgpud does not know it")
		}
	})
	if n.gpu(0).GetState() != "FREE" || n.gpu(1).GetState() != "CORDONED" {
		t.Errorf("%v %v", n.gpu(0), n.gpu(1))
	}
	n.stop()
	n.start()
	if n.gpu(0).GetState() != "FREE" || n.gpu(1).GetState() != "CORDONED" {
		t.Errorf("%v %v", n.gpu(0), n.gpu(1))
	}
}

func TestWhatTheOperatorSetAndCanNotBeReadIsKeptBeside(t *testing.T) {
	for _, content := range []string{"", "{", `{"version":2,"cordons":{}}`} {
		n := newNode(t, settings{})
		n.cordon(0, "")
		if err := saveNode(n.daemon.nodeStore, operatorKey, []byte(content)); err != nil {
			t.Fatal(err)
		}
		n.stop()
		n.start()
		if n.gpu(0).GetState() != "FREE" {
			t.Errorf("%q: %v", content, n.gpu(0))
		}
		if was, err := n.daemon.nodeStore.loadNode(operatorKey + keptSuffix); err != nil || string(was) != content {
			t.Errorf("%q: %q %v", content, was, err)
		}
		n.cordon(0, "again")
	}
}

// Nobody but the driver knows what others use, who come and go at any time.
func TestFreeMemoryIsShownAsItIsNow(t *testing.T) {
	n := newNode(t, settings{})
	for _, bytes := range []uint64{5 << 30, 0, 7 << 30} {
		n.gpus.SetFree(gpuUUID(0), bytes)
		if g := n.gpu(0); g.MemoryFreeBytes == nil || g.GetMemoryFreeBytes() != bytes {
			t.Errorf("%d bytes are free, and shown is %v", bytes, g)
		}
	}
}

func TestGetTellsWhatListTells(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b", "gang=ranks", "model=test", "uuid="+gpuUUID(0), "when-full=fail")
	v := n.vgpu("b")
	if v.GetGang() != "ranks" || v.GetModel() != "test" || !slices.Equal(v.GetUuids(), []string{gpuUUID(0)}) ||
		v.GetBind() != "late" || v.GetWhenFull() != "fail" {
		t.Errorf("%v", v)
	}
	if a := n.vgpu("a"); a.GetGang() != "" || len(a.GetUuids()) > 0 || a.GetWhenFull() != "wait" {
		t.Errorf("%v", a)
	}
	resp, err := n.control.Get(t.Context(), &v1.GetRequest{Id: v.GetId()})
	if err != nil || resp.GetVgpu().GetContainer().GetId() != "b" || v.GetPolicy() == "" || v.GetUsage().GetLingered() == nil {
		t.Errorf("%v %v", resp, err)
	}
	n.delete("b")
	if _, err := n.control.Get(t.Context(), &v1.GetRequest{Id: v.GetId()}); !errdefs.IsNotFound(errgrpc.ToNative(err)) {
		t.Errorf("%v", err)
	}
}

func TestStatsCount(t *testing.T) {
	n := newNode(t, settings{gpus: 2, quantum: 0})
	n.create("a", "gpus=2")
	n.create("b", "gpus=2")
	a, b := n.client("a"), n.client("b")
	for range 3 {
		a.ask("work", "work: passed")
		b.tell("work")
		n.untilState("b", "PENDING")
		a.ask("done", "done: ")
		b.expect("work: passed")
		a.tell("work")
		n.untilState("a", "PENDING")
		b.ask("done", "done: ")
		a.expect("work: passed")
		a.ask("done", "done: ")
	}
	s, err := n.control.Stats(t.Context(), &v1.StatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	// A turn on two GPUs is one turn.
	want := n.vgpu("a").GetUsage().GetTurns() + n.vgpu("b").GetUsage().GetTurns()
	if s.GetVgpus() != 2 || s.GetClients() != 2 || s.GetGpus() != 2 || s.GetTurns() != want || want < 6 || s.GetDrains() != 0 || s.GetOverruns() != 0 {
		t.Errorf("%v, want %d turns", s, want)
	}
	if s.GetEpoch() != n.info().GetEpoch() || s.GetUptime().AsDuration() <= 0 || s.GetRssBytes() < 1<<20 || s.GetGoroutines() == 0 ||
		s.GetEvents() != 4 || s.GetStoreWrites() < 4 || s.GetStoreFailures() != 0 || s.LogLinesDropped != nil {
		t.Errorf("%v", s)
	}
	for i, g := range s.GetGpuStats() {
		if shown := n.gpu(i); g.GetUuid() != shown.GetUuid() || g.GetHandover().GetCount() != shown.GetHandover().GetCount() || g.GetHandover().GetCount() == 0 {
			t.Errorf("%v", g)
		}
	}
}

// lossy is a log that drops lines, as vgpud's own.
type lossy struct{ io.Writer }

func (lossy) Dropped() uint64 { return 7 }

func TestStatsTellOfDroppedLogLines(t *testing.T) {
	n := newNode(t, settings{})
	n.stop()
	n.log = lossy{io.Discard}
	n.start()
	if s, err := n.control.Stats(t.Context(), &v1.StatsRequest{}); err != nil || s.LogLinesDropped == nil || s.GetLogLinesDropped() != 7 {
		t.Errorf("%v %v", s, err)
	}
}
