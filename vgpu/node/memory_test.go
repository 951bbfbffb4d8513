// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

const (
	mib = uint64(1) << 20
	gib = uint64(1) << 30
)

// told is an answer about memory.
type told struct{ code, index, limit, used, others, number uint64 }

// memory asks for credit on a GPU of c's vGPU.
func (c *clientProcess) memory(index, need uint64, flags wire.MemoryFlag) (a told, text string) {
	c.t.Helper()
	line := c.ask(fmt.Sprint("memory ", index, " ", need, " ", uint64(flags)), "memory: ")
	if _, err := fmt.Sscanf(line, "code=%d index=%d limit=%d used=%d others=%d number=%d", &a.code, &a.index, &a.limit, &a.used, &a.others, &a.number); err != nil {
		c.t.Fatalf("%q: %v", line, err)
	}
	_, text, _ = strings.Cut(line, "number=7 ")
	return a, text
}

// wants asks for credit and fails unless the answer is this one.
func (c *clientProcess) wants(need uint64, want wire.Code, limit, used uint64) {
	c.t.Helper()
	got, text := c.memory(0, need, 0)
	got.others = 0
	if (got != told{uint64(want), 0, limit, used, 0, 7}) {
		c.t.Fatalf("%s asked for %d: %+v %s; want code %d, limit %d, used %d", c.name, need, got, text, want, limit, used)
	}
}

// takes allocates as the library does.
func (c *clientProcess) takes(bytes uint64) {
	c.t.Helper()
	if got, text := c.memory(0, bytes, 0); got.code != 0 {
		c.t.Fatalf("%s: %+v %s", c.name, got, text)
	}
	c.ask(fmt.Sprint("allocate 0 ", bytes), "allocate: ok")
}

func (c *clientProcess) ledger() (leased, credit uint64) {
	c.t.Helper()
	if _, err := fmt.Sscan(c.ask("ledger 0", "ledger: "), &leased, &credit); err != nil {
		c.t.Fatal(err)
	}
	return leased, credit
}

func (n *node) usedOf(name string) uint64 {
	n.t.Helper()
	m := n.vgpu(name).GetMemory()
	if len(m) != 1 {
		n.t.Fatalf("%s: %v", name, m)
	}
	return m[0].GetUsedBytes()
}

func TestMemoryIsLeasedInChunksUpToTheLimit(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "memory=200Mi")
	a := n.client("a")
	a.wants(0, wire.OK, 200*mib, 0)
	if leased, _ := a.ledger(); leased != 0 {
		t.Errorf("who only asks was leased %d", leased)
	}
	a.takes(mib)
	if leased, credit := a.ledger(); leased != 64*mib || credit != 63*mib {
		t.Errorf("leased %d, credit %d", leased, credit)
	}
	a.wants(63*mib, wire.OK, 200*mib, mib) // it has that
	a.takes(100 * mib)                     // more than a chunk
	a.takes(99 * mib)                      // the rest: less than a chunk is left
	if leased, credit := a.ledger(); leased != 200*mib || credit != 0 {
		t.Errorf("leased %d, credit %d", leased, credit)
	}
	got, text := a.memory(0, 1, 0)
	if (got != told{uint64(wire.ErrMemory), 0, 200 * mib, 200 * mib, 0, 7}) || !strings.Contains(text, "200Mi") {
		t.Errorf("%+v %s", got, text)
	}
	a.ask(fmt.Sprint("free 0 ", 50*mib), "free: ok")
	a.wants(50*mib, wire.OK, 200*mib, 150*mib)
	a.wants(math.MaxUint64, wire.ErrMemory, 200*mib, 150*mib)
	if m := n.vgpu("a").GetMemory(); len(m) != 1 || m[0].GetGpu() != gpuUUID(0) || m[0].GetLimitBytes() != 200*mib || m[0].GetUsedBytes() != 150*mib {
		t.Errorf("vgpud shows %v", m)
	}
	if g := n.gpu(0); g.GetMemoryUsedBytes() != 150*mib || g.GetMemoryReservedBytes() != 200*mib {
		t.Errorf("of the GPU vgpud shows %v", g)
	}
}

func TestCreditIsRecalledFromTheVGPUsOwnProcessesAlone(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "memory=100Mi")
	n.create("b", "memory=100Mi")
	a1, a2, b := n.client("a"), n.client("a"), n.client("b")
	b.takes(mib)
	a1.takes(mib)
	a1.ask(fmt.Sprint("free 0 ", mib), "free: ok")
	a2.takes(mib)
	// 64 are leased to a1, the rest of 36 to a2.
	a2.takes(90 * mib)
	if leased, credit := a1.ledger(); leased != 0 || credit != 0 {
		t.Errorf("a1 still has %d leased, credit %d", leased, credit)
	}
	if leased, credit := b.ledger(); leased != 64*mib || credit != 63*mib {
		t.Errorf("b has %d leased, credit %d", leased, credit)
	}
	a1.wants(10*mib, wire.ErrMemory, 100*mib, 91*mib)
	a1.takes(9 * mib)
	// What can not be had takes nothing away.
	a2.ask(fmt.Sprint("free 0 ", 20*mib), "free: ok")
	a1.wants(30*mib, wire.ErrMemory, 100*mib, 80*mib)
	if _, credit := a2.ledger(); credit != 20*mib {
		t.Errorf("a2 has credit %d", credit)
	}
	a2.kill()
	n.until("the memory of a2 is free", func() bool { return n.usedOf("a") == 9*mib })
	a1.takes(91 * mib)
}

func TestWithoutAKeyWhatOthersReservedIsNotThere(t *testing.T) {
	n := newNode(t, settings{})
	for name, annotations := range map[string][]string{"a": nil, "b": nil, "c": {"memory=10Gi"}} {
		n.create(name, annotations...)
	}
	a, b := n.client("a"), n.client("b")
	a.wants(0, wire.OK, gputest.MemoryBytes, 0)
	a.takes(gib)
	a.ask(fmt.Sprint("free 0 ", gib), "free: ok")
	b.takes(mib)
	c := n.client("c")
	// 6 GiB are left for both, of which credit is a part.
	a.wants(0, wire.OK, 6*gib, 0)
	b.takes(4 * gib)
	a.wants(2*gib, wire.ErrMemory, 6*gib, 0)
	// Nobody but c uses what c reserved.
	c.takes(10 * gib)
	c.wants(1, wire.ErrMemory, 10*gib, 10*gib)

	// A reservation that comes late takes back what nobody uses.
	n.create("d", "memory=1500Mi")
	if leased, _ := a.ledger(); leased != gib {
		t.Fatalf("a has %d leased", leased)
	}
	n.client("d")
	if leased, credit := a.ledger(); leased != 0 || credit != 0 {
		t.Errorf("a has %d leased, credit %d", leased, credit)
	}
}

// One that reserved nothing is told what others use of the limit that they share,
// and what they do not use any more is there for it.
func TestWhoSharesALimitDoesNotKeepWhatItFreed(t *testing.T) {
	n := newNode(t, settings{})
	for name, annotations := range map[string][]string{"a": nil, "b": nil, "c": {"memory=10Gi"}} {
		n.create(name, annotations...)
	}
	a, b, c := n.client("a"), n.client("b"), n.client("c")
	c.takes(gib)
	a.takes(5 * gib)
	if got, _ := b.memory(0, 0, 0); (got != told{0, 0, 6 * gib, 0, 5 * gib, 7}) {
		t.Errorf("b is told %+v", got)
	}
	if got, _ := c.memory(0, 0, 0); (got != told{0, 0, 10 * gib, gib, 0, 7}) {
		t.Errorf("c, which shares with nobody, is told %+v", got)
	}
	b.wants(2*gib, wire.ErrMemory, 6*gib, 0)
	a.ask(fmt.Sprint("free 0 ", 4*gib), "free: ok")
	b.takes(5 * gib)
	b.wants(1, wire.ErrMemory, 6*gib, 5*gib)
	if got, _ := a.memory(0, 0, 0); (got != told{0, 0, 6 * gib, gib, 5 * gib, 7}) {
		t.Errorf("a is told %+v", got)
	}
	n.looks(a, "a", true)
	if u := a.usage(gpuUUID(0)); u.used != gib || u.others != 5*gib {
		t.Errorf("who looks at a is told %+v", u)
	}
	// What c does not use of its own is not theirs.
	c.ask(fmt.Sprint("free 0 ", gib), "free: ok")
	a.wants(1, wire.ErrMemory, 6*gib, gib)
	if leased, _ := c.ledger(); leased != gib {
		t.Errorf("c has %d leased", leased)
	}
}

// Memory that is freed while more is in use than a lowered limit allows is not
// there again: the process is told to ask, and gets nothing until it uses less.
func TestWhatIsFreedBeyondALoweredLimitIsNotCredit(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "memory=1Gi")
	one, two := n.client("a"), n.client("a")
	one.takes(500 * mib)
	two.takes(100 * mib)
	asksFirst := func(want bool) {
		t.Helper()
		for _, c := range []*clientProcess{one, two} {
			if got := c.ask("asks", "asks: "); got != fmt.Sprint(want) {
				t.Errorf("that %s asks first is %s, want %v", c.name, got, want)
			}
		}
	}
	set := func(memory string) {
		t.Helper()
		if _, err := n.control.Update(t.Context(), &v1.UpdateRequest{
			Id: n.vgpu("a").GetId(), Annotations: map[string]string{"vgpu-shim.dev/memory": memory},
		}); err != nil {
			t.Fatal(err)
		}
	}
	asksFirst(false)
	set("200Mi")
	asksFirst(true)
	one.ask(fmt.Sprint("free 0 ", 300*mib), "free: ok")
	one.wants(1, wire.ErrMemory, 200*mib, 300*mib)
	if leased, credit := one.ledger(); leased != 200*mib || credit != 0 {
		t.Errorf("leased %d, credit %d", leased, credit)
	}
	asksFirst(true)
	one.ask(fmt.Sprint("free 0 ", 150*mib), "free: ok")
	one.takes(50 * mib)
	one.wants(1, wire.ErrMemory, 200*mib, 200*mib)
	asksFirst(false)
}

func TestALimitThatIsSetHoldsAtOnce(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "memory=1Gi")
	a := n.client("a")
	a.takes(100 * mib)
	a.ask(fmt.Sprint("free 0 ", 50*mib), "free: ok")
	set := func(memory string) {
		t.Helper()
		if _, err := n.control.Update(t.Context(), &v1.UpdateRequest{
			Id: n.vgpu("a").GetId(), Annotations: map[string]string{"vgpu-shim.dev/memory": memory},
		}); err != nil {
			t.Fatal(err)
		}
	}
	set("60Mi")
	if leased, credit := a.ledger(); leased != 50*mib || credit != 0 {
		t.Errorf("leased %d, credit %d", leased, credit)
	}
	a.wants(20*mib, wire.ErrMemory, 60*mib, 50*mib)
	set("2Gi")
	a.wants(gib, wire.OK, 2*gib, 50*mib)
	set("")
	a.wants(3*gib, wire.OK, gputest.MemoryBytes, 50*mib)
}

func TestAPageThatLiesAboutMemoryHarmsNobodyElse(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "memory=1Gi")
	n.create("b", "memory=1Gi")
	n.create("c")
	a, b, c := n.client("a"), n.client("b"), n.client("c")
	a.takes(100 * mib)
	const top = uint64(math.MaxUint64)
	rest := gputest.MemoryBytes - 2*gib
	for _, lie := range [][2]uint64{{0, 0}, {top, top}, {top, 0}, {0, top}, {1 << 63, 1<<63 + 1}, {mib, gib}} {
		a.ask(fmt.Sprint("scribble 0 ", lie[0], " ", lie[1]), "scribble: ok")
		if used := n.usedOf("a"); used > gib {
			t.Errorf("%x: a uses %d of %d", lie, used, gib)
		}
		a.memory(0, 0, 0)
		a.memory(0, gib, wire.MemoryDriver)
		a.memory(0, top, 0)
		c.memory(0, 0, 0)
		if g := n.gpu(0); g.GetMemoryUsedBytes() > gib {
			t.Errorf("%x: of the GPU %d are in use", lie, g.GetMemoryUsedBytes())
		}
	}
	b.wants(gib, wire.OK, gib, 0)
	c.wants(rest, wire.OK, rest, 0)

	// Nor does what is taken back from one that lies make room, or take any, for
	// those that share a limit with it.
	n.create("d")
	c2 := n.client("c")
	c.ask(fmt.Sprint("scribble 0 ", top, " ", top), "scribble: ok")
	c2.wants(gib, wire.OK, rest, 0)
	if leased, credit := c2.ledger(); leased != rest && leased != gib || credit != leased {
		t.Errorf("c2 has %d leased, credit %d", leased, credit)
	}
	c2.ask(fmt.Sprint("allocate 0 ", gib), "allocate: ok")
	other := n.client("d")
	other.wants(rest-gib, wire.OK, rest, 0)
	other.wants(rest-gib+1, wire.ErrMemory, rest, 0)
	b.wants(gib, wire.OK, gib, 0)
}

func TestAnAskThatMakesNoSenseIsAnswered(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	n.create("a", "gpus=2", "memory=1Gi")
	a := n.process("a")
	a.ask("start "+n.created["a"], "start: ")
	if got, text := a.memory(0, 1, 0); got.code != uint64(wire.ErrInternal) || !strings.Contains(text, "not bound") {
		t.Errorf("%+v %s", got, text)
	}
	a.ask("bind", "bind: GPU-")
	for _, index := range []uint64{2, 16, 1 << 63, math.MaxUint64} {
		if got, text := a.memory(index, 1, 0); got.code != uint64(wire.ErrInternal) || got.index != index || !strings.Contains(text, "no GPU number") {
			t.Errorf("%d: %+v %s", index, got, text)
		}
	}
	// Each GPU has its own ledger.
	if got, text := a.memory(1, gib, 0); got.code != 0 || got.limit != gib {
		t.Errorf("%+v %s", got, text)
	}
	a.wants(gib, wire.OK, gib, 0)
}

func TestWhatTheDriverNeedsForAProcessIsCharged(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "memory=1Gi")
	a := n.client("a")
	pid := a.cmd.Process.Pid
	a.takes(100 * mib)
	uses := func(bytes, want uint64) {
		t.Helper()
		n.gpus.SetUsed(gpuUUID(0), pid, bytes)
		if got, text := a.memory(0, 0, wire.MemoryDriver); got.code != 0 || got.used != want {
			t.Fatalf("%+v %s; want %d used", got, text, want)
		}
	}
	uses(400*mib, 400*mib)
	if leased, credit := a.ledger(); leased != 400*mib || credit != 0 {
		t.Errorf("leased %d, credit %d", leased, credit)
	}
	uses(50*mib, 100*mib) // less than it allocated: no overhead
	uses(2*gib, 2*gib)    // forced, beyond the limit
	a.wants(1, wire.ErrMemory, gib, 2*gib)
	uses(300*mib, 300*mib)
	a.takes(700 * mib)
	a.ask(fmt.Sprint("free 0 ", 700*mib), "free: ok")

	// It is there after a restart, and gets less again when the driver says so.
	n.stop()
	gpus := n.gpus
	n.start()
	a.expect("reconnected")
	n.until("a is back", func() bool { return n.usedOf("a") == 300*mib })
	n.gpus.SetUsed(gpuUUID(0), pid, 300*mib)
	uses(100*mib, 100*mib)
	_ = gpus
}

// A driver that does not say who uses what keeps an ask for a while, and the
// turns of nobody.
func TestADriverThatHangsKeepsNoAskForEver(t *testing.T) {
	n := newNode(t, settings{edit: func(l *loop) { l.lookPatience = lookPatience }})
	n.create("a", "memory=1Gi")
	a := n.client("a")
	end := n.gpus.Hang()
	defer end()
	a.tell(fmt.Sprint("memory 0 ", mib, " 1"))
	a.tell(fmt.Sprint("memory 0 ", mib, " 1"))
	a.ask("work", "work: passed") // the loop goes on
	for range 2 {
		if line := a.expect("memory: "); !strings.HasPrefix(line, "code=0 ") {
			t.Fatal(line)
		}
	}
	// Meanwhile it is known to hang: who asks now does not wait.
	if got, text := a.memory(0, 2*mib, wire.MemoryDriver); got.code != 0 {
		t.Fatalf("%+v %s", got, text)
	}
	end()
	n.gpus.SetUsed(gpuUUID(0), a.cmd.Process.Pid, 10*mib)
	n.until("the driver is asked again", func() bool {
		got, _ := a.memory(0, 0, wire.MemoryDriver)
		return got.used == 10*mib
	})
}

// A process that asks for memory just when its module was loaded is looked at again
// while another look is due: both are told.
func TestWhoLooksAgainIsNotForgottenForWhoWaits(t *testing.T) {
	n := newNode(t, settings{gpus: 1})
	uuid := arbiter.UUID(n.gpu(0).GetUuid())
	told := make(chan string, 2)
	if err := n.daemon.call(func(l *loop) {
		l.lookAtProcesses(uuid, true, func() {
			l.lookAtProcesses(uuid, false, func() { told <- "who looked again" })
		})
		l.lookAtProcesses(uuid, true, func() { told <- "who waited for the next look" })
	}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case <-told:
		case <-time.After(time.Minute):
			t.Fatal("one of them is forgotten")
		}
	}
}

func TestTheLedgerOutlivesVgpud(t *testing.T) {
	n := newProcessNode(t, settings{})
	n.create("a", "memory=100Mi")
	a1, a2 := n.client("a"), n.client("a")
	a1.takes(40 * mib)
	a2.takes(30 * mib)
	n.kill()
	a1.ask(fmt.Sprint("free 0 ", 10*mib), "free: ok") // vgpud is away
	n.startProcess()
	a1.expect("reconnected")
	a2.expect("reconnected")
	n.until("both are back", func() bool { return n.usedOf("a") == 60*mib })
	a2.wants(41*mib, wire.ErrMemory, 100*mib, 60*mib)
	a2.takes(40 * mib)
	a1.wants(1, wire.ErrMemory, 100*mib, 100*mib)
}

// What a process has that is not back is not known, so nothing is leased.
func TestNothingIsLeasedBeforeAllProcessesAreBack(t *testing.T) {
	n := newProcessNode(t, settings{})
	n.create("a", "memory=100Mi")
	n.create("b")
	n.create("c", "memory=1Gi")
	a1, a2, b, c := n.client("a"), n.client("a"), n.client("b"), n.client("c")
	a1.takes(80 * mib)
	n.kill()
	a1.pause()
	n.startProcess()
	for _, p := range []*clientProcess{a2, b, c} {
		p.expect("reconnected")
	}
	a2.tell(fmt.Sprint("memory 0 ", 50*mib, " 0"))
	c.wants(gib, wire.OK, gib, 0) // it shares with nobody
	for range 2 {                 // the driver is asked twice: it does not know either
		c.memory(0, 0, wire.MemoryDriver)
	}
	select {
	case line := <-a2.lines:
		t.Fatalf("a was answered before all of it was back: %s", line)
	default:
	}
	a1.signal(syscall.SIGCONT)
	a1.expect("reconnected")
	if line := a2.expect("memory: "); !strings.HasPrefix(line, fmt.Sprintf("code=%d index=0 limit=%d used=%d ", wire.ErrMemory, 100*mib, 80*mib)) {
		t.Fatal(line)
	}
	b.wants(gib, wire.OK, gputest.MemoryBytes-gib-100*mib, 0)
}

// A process that went on without vgpud, as the policy allows, has more than vgpud
// leased. Under the other policy it has not.
func TestWhatAProcessTookWhileVgpudWasAwayCountsIfItMay(t *testing.T) {
	for _, tc := range []struct {
		absence time.Duration
		used    uint64
	}{{0, 0}, {time.Minute, 500 * mib}} {
		n := newNode(t, settings{edit: func(l *loop) { l.absence = tc.absence }})
		n.create("a", "memory=1Gi")
		a := n.client("a")
		a.wants(mib, wire.OK, gib, 0)
		a.ask(fmt.Sprint("scribble 0 ", 564*mib, " ", 64*mib), "scribble: ok")
		a.tell("raw 00")
		a.expect("reconnected")
		a.wants(0, wire.OK, gib, tc.used)
		if leased, _ := a.ledger(); leased != tc.used+64*mib {
			t.Errorf("absence %v: leased %d", tc.absence, leased)
		}
	}
}

// Of a process that is given up after a restart, the driver knows what it has.
func TestOfAProcessThatIsGivenUpTheDriversNumberCounts(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "memory=100Mi")
	a1, a2 := n.client("a"), n.client("a")
	a1.takes(80 * mib)
	n.stop()
	a1.pause()
	n.start()
	a2.expect("reconnected")
	a2.tell(fmt.Sprint("memory 0 ", 50*mib, " 0"))
	n.until("the driver was asked in passing", func() bool {
		seen := false
		_ = n.daemon.call(func(l *loop) { seen = l.order[0].look.began > 0 && !l.order[0].look.running })
		return seen
	})
	n.gpus.SetUsed(gpuUUID(0), a1.cmd.Process.Pid, 90*mib)
	n.waitsNoLonger()
	if line := a2.expect("memory: "); !strings.HasPrefix(line, fmt.Sprintf("code=%d index=0 limit=%d used=%d ", wire.ErrMemory, 100*mib, 90*mib)) {
		t.Fatal(line)
	}
	a2.takes(10 * mib)
	if used := n.usedOf("a"); used != 100*mib {
		t.Errorf("%d are in use", used)
	}
	n.gpus.SetUsed(gpuUUID(0), a1.cmd.Process.Pid, 80*mib)
	a1.signal(syscall.SIGCONT)
	a1.expect("reconnected")
	n.until("a1 is back with what it has", func() bool { return n.usedOf("a") == 90*mib })
}
