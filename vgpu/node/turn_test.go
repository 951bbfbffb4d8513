// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

func TestFirstComeFirstServed(t *testing.T) {
	n := newNode(t, settings{})
	for _, name := range []string{"a", "b", "c"} {
		n.create(name)
	}
	a, b, c := n.client("a"), n.client("b"), n.client("c")
	a.ask("work", "work: passed")
	c.tell("work")
	n.untilState("c", "PENDING")
	b.tell("work")
	n.untilState("b", "PENDING")
	if b.passed() || c.passed() {
		t.Fatal("two hold the GPU")
	}
	a.ask("done", "done: ")
	c.expect("work: passed")
	n.untilState("a", "IDLE")
	if b.passed() {
		t.Fatal("b went before its turn, or beside c")
	}
	c.ask("done", "done: ")
	b.expect("work: passed")

	g := n.gpu(0)
	if g.GetState() != "HELD" || g.GetHolder() != n.vgpu("b").GetId() || g.GetTurns() != 2 || g.GetBound() != 3 {
		t.Errorf("GPU: %v", g)
	}
	if g.GetHandover().GetCount() == 0 || g.GetHandover().GetMedian().AsDuration() <= 0 {
		t.Errorf("no hand-over was measured: %v", g.GetHandover())
	}
	if u := n.vgpu("a").GetUsage(); u.GetTurns() != 1 || u.GetHeld().AsDuration() <= 0 || u.GetDrains() != 0 || u.GetSubmissions() != 1 {
		t.Errorf("usage of a: %v", u)
	}
	if u := n.vgpu("b").GetUsage(); u.GetTurns() != 0 {
		t.Errorf("usage of b: %v", u)
	}
}

func TestAnIdleHolderIsTakenFromWithoutBeingAsked(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	a.ask("done", "done: IDLE")
	a.pause()
	b.ask("work", "work: passed")
	a.signal(syscall.SIGCONT)
	if got := a.ask("word", "word: "); !strings.HasPrefix(got, "CLOSED") {
		t.Fatal(got)
	}
}

func TestAHolderThatNobodyWaitsBehindKeepsTheGPU(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	a := n.client("a")
	for range 3 {
		a.ask("work", "work: passed")
		a.ask("done", "done: IDLE")
	}
	if got := a.ask("word", "word: "); got != "IDLE wanted=0 waiting=0" {
		t.Fatal(got)
	}
	if u := n.vgpu("a").GetUsage(); u.GetTurns() != 0 {
		t.Fatalf("its turn ended: %v", u)
	}
}

func TestTheClientsThreadReleasesWhatNobodySynchronised(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	a.ask("silent", "silent: ok")
	b.expect("work: passed")
}

func TestAClientThatIsGrantedWhileOthersWaitIsToldToLook(t *testing.T) {
	n := newNode(t, settings{})
	for _, name := range []string{"a", "b", "c"} {
		n.create(name)
	}
	a, b, c := n.client("a"), n.client("b"), n.client("c")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	c.tell("work")
	n.untilState("c", "PENDING")
	a.ask("done", "done: ")
	b.expect("work: passed")
	b.ask("silent", "silent: ok")
	c.expect("work: passed")
	if u := n.vgpu("b").GetUsage(); u.GetDrains() != 0 {
		t.Errorf("it did not look before its quantum was over: %v", u)
	}
}

func TestTheQuantumEndsATurnWhenOthersWait(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond, stall: never})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	if s := n.vgpu("a").GetState(); s != "HOLDING" {
		t.Fatalf("a is %s though nobody waits", s)
	}
	b.tell("work")
	n.untilState("a", "DRAINING")
	// A thread of the vGPU that comes to the gate now waits for the next turn.
	a.tell("work")
	n.until("a thread of a waits", func() bool {
		return strings.Contains(a.ask("word", "word: "), "waiting=1")
	})
	if a.passed() || b.passed() {
		t.Fatal("work passed a closed gate")
	}
	if g := n.gpu(0); g.GetState() != "DRAINING" {
		t.Errorf("GPU is %s", g.GetState())
	}
	a.ask("silent", "silent: ok")
	b.expect("work: passed")
	n.untilState("a", "PENDING")
	if u := n.vgpu("a").GetUsage(); u.GetDrains() != 1 || u.GetOverruns() != 0 {
		t.Errorf("usage: %v", u)
	}
	b.ask("silent", "silent: ok")
	a.expect("work: passed")
}

func TestAnIdleHolderIsRevokedWithoutADrain(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond})
	n.create("a")
	n.create("b")
	a1, a2, b := n.client("a"), n.client("a"), n.client("b")
	a1.ask("work", "work: passed")
	a2.ask("work", "work: passed")
	a2.ask("done", "done: IDLE")
	b.tell("work")
	n.untilState("a", "DRAINING")
	if got := a2.ask("word", "word: "); !strings.HasPrefix(got, "CLOSED") {
		t.Fatal(got)
	}
	a1.ask("silent", "silent: ok")
	b.expect("work: passed")
}

func TestKillingTheHolderFreesTheGPU(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	a.kill()
	b.expect("work: passed")
	n.untilState("a", "UNBOUND") // no process is left that knows its GPU
}

func TestKillingTheHolderFreesTheGPUInADrain(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("a", "DRAINING")
	a.kill()
	b.expect("work: passed")
}

func TestKillingAWaiterLosesNobodysTurn(t *testing.T) {
	n := newNode(t, settings{})
	for _, name := range []string{"a", "b", "c"} {
		n.create(name)
	}
	a, b, c := n.client("a"), n.client("b"), n.client("c")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	c.tell("work")
	n.untilState("c", "PENDING")
	b.kill()
	a.ask("done", "done: ")
	c.expect("work: passed")
	n.untilState("b", "UNBOUND")
}

// Nobody is left of it when it is granted. A drain of its GPU waited for it for ever.
func TestAWaiterThatWasKilledIsBoundToNoGPU(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	b.kill()
	n.until("b has no client", func() bool { return n.vgpu("b").GetClients() == 0 })
	a.ask("done", "done: ")
	n.untilState("b", "UNBOUND")
	if on := n.gpu(0).GetVgpus(); len(on) != 1 || on[0] != n.vgpu("a").GetId() {
		t.Errorf("on the GPU are %v", on)
	}
}

func TestAHangUpReleasesNothing(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	a.ask("leave", "leave: ok")
	n.until("a has hung up", func() bool { return n.vgpu("a").GetClients() == 0 })
	if s := n.vgpu("a").GetState(); s != "HOLDING" || b.passed() {
		t.Fatalf("a is %s though its process lives", s)
	}
	a.kill()
	b.expect("work: passed")
}

func TestAStoppedHolderIsAnOverrunAndComesBack(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond, drain: 50 * time.Millisecond})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	a.pause()
	b.ask("work", "work: passed")
	if v := n.vgpu("a"); v.GetState() != "OVERRUN" || v.GetUsage().GetOverruns() != 1 {
		t.Fatalf("a: %v", v)
	}
	a.signal(syscall.SIGCONT)
	a.ask("silent", "silent: ok")
	n.untilState("a", "IDLE")
	b.ask("done", "done: ")
	a.ask("work", "work: passed")
}

// tied is a node where a1 of the vGPU a has work in flight, and b waits for its turn. A
// resume lasts for so long that whoever stands at the gate is awake before it is over.
func tied(t *testing.T) (n *node, a1, a2, b *clientProcess) {
	t.Helper()
	n = newNode(t, settings{quantum: 50 * time.Millisecond, drain: time.Minute, stall: 5 * time.Millisecond})
	n.create("a")
	n.create("b")
	a1, a2, b = n.client("a"), n.client("a"), n.client("b")
	a1.ask("work", "work: passed")
	b.tell("work")
	return n, a1, a2, b
}

// What is in flight ends only when more was submitted: as a collective whose other
// rank stands at the gate.
func TestADrainThatDependsOnAGatedThreadIsResumed(t *testing.T) {
	n, a1, a2, b := tied(t)
	n.untilState("a", "DRAINING")
	a2.ask("work", "work: passed") // its drain would end never else
	a1.ask("silent", "silent: ok")
	a2.ask("silent", "silent: ok")
	b.expect("work: passed")
	if u := n.vgpu("a").GetUsage(); u.GetOverruns() != 0 || u.GetTurns() != 1 {
		t.Errorf("%v", u)
	}
}

// Each resume helps, and cuts off the next piece in the same way: as of ranks that
// compute one collective after another. The fourth was an overrun, whose policy may be
// to kill.
func TestADrainThatEachResumeHelpsIsNoOverrun(t *testing.T) {
	n, a1, a2, b := tied(t)
	for range 5 {
		n.untilState("a", "DRAINING")
		a2.ask("work", "work: passed")
		a1.ask("done", "done: ")
		a1, a2 = a2, a1
	}
	n.untilState("a", "DRAINING")
	a1.ask("silent", "silent: ok")
	a2.ask("silent", "silent: ok")
	b.expect("work: passed")
	if u := n.vgpu("a").GetUsage(); u.GetOverruns() != 0 || u.GetTurns() != 1 {
		t.Errorf("%v", u)
	}
}

// After some tries it is an overrun, and its next turn begins although it did not
// drain.
func TestADrainThatDependsOnMoreIsAnOverrunInTheEnd(t *testing.T) {
	n, a1, a2, b := tied(t)
	// Each try lets a thread pass once, unless it wakes up when that try is over.
	waits, passes := false, 0
	n.until("b has its turn", func() bool {
		if waits && a2.passed() {
			waits = false
			passes++
		}
		if !waits && n.vgpu("a").GetState() == "DRAINING" {
			a2.tell("work")
			waits = true
		}
		return b.passed()
	})
	if passes < 1 || passes > 3 {
		t.Errorf("it was let go on %d times", passes)
	}
	b.ask("done", "done: ")
	a2.expect("work: passed")
	if u := n.vgpu("a").GetUsage(); u.GetOverruns() != 1 {
		t.Errorf("%v", u)
	}
	a1.ask("silent", "silent: ok")
	a2.ask("silent", "silent: ok")
	b.ask("work", "work: passed")
}

// Its drain may never end: what is in flight can depend on that very thread.
func TestAThreadThatComesAfterAnOverrunHasItsTurn(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond, drain: 20 * time.Millisecond})
	n.create("a")
	n.create("b", "quantum=10s")
	a1, a2, b := n.client("a"), n.client("a"), n.client("b")
	a1.ask("work", "work: passed")
	b.ask("work", "work: passed")
	n.untilState("a", "OVERRUN")
	a2.tell("work")
	b.ask("done", "done: ")
	a2.expect("work: passed")
	a1.ask("silent", "silent: ok")
	a2.ask("silent", "silent: ok")
}

func TestAGangIsGrantedTogether(t *testing.T) {
	n := newNode(t, settings{gpus: 2, quantum: time.Millisecond})
	n.create("r0", "gang=job")
	n.create("r1", "gang=job")
	n.create("b0", "uuid="+gpuUUID(0))
	n.create("b1", "uuid="+gpuUUID(1))
	r0, r1, b0, b1 := n.client("r0"), n.client("r1"), n.client("b0"), n.client("b1")
	if n.vgpu("r0").GetGpus()[0] == n.vgpu("r1").GetGpus()[0] {
		t.Fatal("both members are on one GPU")
	}
	b0.ask("work", "work: passed")
	b1.ask("work", "work: passed")
	r0.tell("work")
	n.untilState("b0", "DRAINING")
	n.untilState("b1", "DRAINING") // though nobody stands at the gate of r1
	b0.ask("silent", "silent: ok")
	n.untilState("b0", "IDLE")
	if s := n.vgpu("r0").GetState(); s != "PENDING" {
		t.Errorf("r0 is %s with one GPU of its gang", s)
	}
	b1.ask("silent", "silent: ok")
	r0.expect("work: passed")
	n.until("r1 may begin", func() bool { return strings.HasPrefix(r1.ask("word", "word: "), "IDLE") })
	r1.ask("work", "work: passed")
}

func TestTwoProcessesOfOneContainerShareItsTurn(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a1, a2, b := n.client("a"), n.client("a"), n.client("b")
	a1.ask("work", "work: passed")
	a2.ask("work", "work: passed") // beside the first
	b.tell("work")
	n.untilState("b", "PENDING")
	a1.ask("done", "done: IDLE")
	// The second one still works: nothing may be taken.
	n.until("a1 keeps or regains its turn", func() bool { return strings.HasPrefix(a1.ask("word", "word: "), "IDLE wanted=1") })
	a1.ask("work", "work: passed")
	a2.ask("done", "done: ")
	if b.passed() {
		t.Fatal("b passed beside a")
	}
	a1.ask("done", "done: ")
	b.expect("work: passed")
	if u := n.vgpu("a").GetUsage(); u.GetTurns() != 1 || u.GetSubmissions() != 3 {
		t.Errorf("usage: %v", u)
	}
}

func TestAProcessThatConnectsWhileItsContainerHoldsIsLetIn(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	first := n.client("a")
	first.ask("work", "work: passed")
	second := n.client("a")
	if got := second.ask("word", "word: "); got != "IDLE wanted=0 waiting=0" {
		t.Fatal(got)
	}
	second.ask("work", "work: passed")
	first.kill()
	n.untilState("a", "HOLDING")
	second.ask("work", "work: passed")
}

func TestTwoGPUsServeTwoContainersAtOnce(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.ask("work", "work: passed")
	if x, y := n.vgpu("a").GetGpus(), n.vgpu("b").GetGpus(); cmp.Equal(x, y) {
		t.Fatalf("both on %v", x)
	}
}

func TestAContainerWithTwoGPUsHoldsBothOrNone(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	n.create("one")
	n.create("both", "gpus=2")
	one, both := n.client("one"), n.process("both")
	both.ask("start "+n.created["both"], "start: ")
	if got := both.ask("bind", "bind: "); got != gpuUUID(0)+" "+gpuUUID(1) && got != gpuUUID(1)+" "+gpuUUID(0) {
		t.Fatal(got)
	}
	one.ask("work", "work: passed")
	both.tell("work")
	n.untilState("both", "PENDING")
	for i := range 2 {
		if h := n.gpu(i).GetHolder(); h == n.vgpu("both").GetId() {
			t.Errorf("GPU %d is held by half", i)
		}
	}
	one.ask("done", "done: ")
	both.expect("work: passed")
}

// All pods of a node are in one namespace of containerd's.
func TestAGangIsOfItsPodsNamespace(t *testing.T) {
	n := newNode(t, settings{})
	n.createInPod("a", &v1.Pod{Namespace: "ml", Name: "a"}, "gang=job")
	n.createInPod("b", &v1.Pod{Namespace: "ml", Name: "b"}, "gang=job")
	n.createInPod("other", &v1.Pod{Namespace: "web", Name: "a"}, "gang=job")
	n.create("bare", "gang=job")
	a, b, other, bare := n.client("a"), n.client("b"), n.client("other"), n.client("bare")
	a.ask("work", "work: passed")
	b.ask("work", "work: passed") // with a: they are of one gang
	other.tell("work")
	bare.tell("work")
	n.untilState("other", "PENDING")
	n.untilState("bare", "PENDING")
	if other.passed() || bare.passed() {
		t.Error("who only has the gang's name was granted with it")
	}
	a.ask("done", "done: ")
	b.ask("done", "done: ")
}

func TestALyingClientHarmsOnlyItself(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond, drain: 50 * time.Millisecond})
	n.create("liar")
	n.create("b")
	liar, b := n.client("liar"), n.client("b")
	for _, word := range []string{"0xff", "0x2ff", "0xffffffffffffff00", "0xffffffffffffff01", "0", "3", "4"} {
		liar.ask("lie", "lie: ok")
		liar.tell("work")
		n.until("the liar is known", func() bool { return n.vgpu("liar").GetState() != "UNBOUND" })
		liar.ask("poke "+word, "poke: ok")
		b.ask("work", "work: passed")
		b.ask("done", "done: ")
	}
	u := n.vgpu("liar").GetUsage()
	if held := u.GetHeld().AsDuration(); held < 0 || held > patience {
		t.Errorf("held %s", held)
	}
	liar.kill()
	b.ask("work", "work: passed")
	b.ask("done", "done: ")
	if u := n.vgpu("b").GetUsage(); u.GetHeld().AsDuration() > patience {
		t.Errorf("b is charged %v", u)
	}
}

// Many processes of several containers in short bursts: no two containers are
// ever on the GPU together, and everybody finishes.
func TestManyBurstsExcludeEachOther(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond, stall: never})
	path := filepath.Join(t.TempDir(), "witness")
	w, err := openWitness(path)
	if err != nil {
		t.Fatal(err)
	}
	const containers, processes, bursts = 4, 2, 150
	var all []*clientProcess
	for i := range containers {
		n.create(fmt.Sprint("c", i))
		for range processes {
			all = append(all, n.client(fmt.Sprint("c", i)))
		}
	}
	for i, c := range all {
		c.tell(fmt.Sprintf("burst %d %d %s", i/processes+1, bursts, path))
	}
	for _, c := range all {
		c.expect("burst: finished")
	}
	if v := w.violations.Load(); v != 0 {
		t.Errorf("%d times two containers were on the GPU together", v)
	}
	if d := w.done.Load(); d != containers*processes*bursts {
		t.Errorf("%d operations, want %d", d, containers*processes*bursts)
	}
	for i := range containers {
		if u := n.vgpu(fmt.Sprint("c", i)).GetUsage(); u.GetSubmissions() != processes*bursts || u.GetOverruns() != 0 {
			t.Errorf("c%d: %v", i, u)
		}
	}
	t.Log(n.gpu(0))
}

// A process that computed for a moment, then did nothing for a while and ended:
// the moment is charged, although nobody waited and its turn ended by its death.
func TestAProcessThatEndsIdleIsNotChargedForItsIdleTime(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	start := time.Now()
	a := n.client("a")
	a.ask("work", "work: passed")
	a.ask("done", "done: IDLE")
	busy := time.Since(start)
	n.until("it idles for longer than it worked", func() bool { return time.Since(start) > 4*busy })
	a.kill()
	n.until("its turn has ended", func() bool { return n.vgpu("a").GetUsage().GetTurns() == 1 })
	if held := n.vgpu("a").GetUsage().GetHeld().AsDuration(); held <= 0 || held > busy {
		t.Errorf("held %v, of which it worked for less than %v", held, busy)
	}
}

// One that keeps its turn because nobody waits, and has nothing in flight, is
// shown as what it is: idle, on a GPU that is free.
func TestAnIdleHolderIsShownAsIdle(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	a := n.client("a")
	a.ask("work", "work: passed")
	if v, g := n.vgpu("a").GetState(), n.gpu(0).GetState(); v != "HOLDING" || g != "HELD" {
		t.Errorf("with work in flight: vGPU %s, GPU %s", v, g)
	}
	a.ask("done", "done: IDLE")
	if v, g := n.vgpu("a").GetState(), n.gpu(0).GetState(); v != "IDLE" || g != "FREE" {
		t.Errorf("with nothing in flight: vGPU %s, GPU %s", v, g)
	}
}
