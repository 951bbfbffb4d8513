// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// looks starts an observer in a process of the container name, and returns what it
// is told first.
func (n *node) looks(c *clientProcess, name string, bind bool) string {
	n.t.Helper()
	b := 0
	if bind {
		b = 1
	}
	return c.ask(fmt.Sprint("observe ", n.created[name], " ", b), "observed 0: ")
}

// usage is what an observer is told of a GPU.
type usageTold struct {
	code, limit, used, others, late, processes uint64
	list                                       []string // pid:bytes
}

func (c *clientProcess) usage(gpu string) (u usageTold) {
	c.t.Helper()
	line := c.ask("usage 0 "+gpu, "observed 0: usage ")
	if _, err := fmt.Sscanf(line, "code=%d limit=%d used=%d others=%d late=%d processes=%d", &u.code, &u.limit, &u.used, &u.others, &u.late, &u.processes); err != nil {
		c.t.Fatalf("%q: %v", line, err)
	}
	for last := u.processes == 0; !last; {
		rest := c.expect("observed 0: processes last=")
		last = rest[0] == '1'
		u.list = append(u.list, strings.Fields(rest[1:])...)
	}
	return u
}

func TestAnObserverIsToldWhatItsVGPUIs(t *testing.T) {
	n := newNode(t, settings{gpus: 4})
	n.create("a", "gpus=2")
	o := n.process("a")
	if got := n.looks(o, "a", false); got != "identity 2 " {
		t.Fatalf("before the bind: %q", got)
	}
	if s := n.vgpu("a").GetState(); s != "UNBOUND" {
		t.Errorf("who only looks has it %s", s)
	}
	a := n.client("a")
	want := "identity 2 " + strings.Join(n.vgpu("a").GetGpus(), " ")
	for _, bind := range []string{"0", "1"} {
		if got := o.ask("identity 0 "+bind, "observed 0: "); got != want {
			t.Errorf("%s: %q, want %q", bind, got, want)
		}
	}
	if c := n.vgpu("a").GetClients(); c != 1 {
		t.Errorf("%d clients", c)
	}
	a.ask("work", "work: passed") // beside it
}

func TestAnObserverBindsItsVGPUAndKeepsItThere(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	n.create("a")
	o := n.process("a")
	if got, want := n.looks(o, "a", true), "identity 1 "+gpuUUID(0); got != want {
		t.Fatalf("%q, want %q", got, want)
	}
	if v := n.vgpu("a"); v.GetObservers() != 1 || v.GetClients() != 0 {
		t.Errorf("%d observers, %d clients", v.GetObservers(), v.GetClients())
	}
	n.create("b")
	n.client("b") // where nobody is
	// A client comes and goes. The GPU that was told stays.
	a := n.client("a")
	a.kill()
	n.until("a has no client", func() bool { return n.vgpu("a").GetClients() == 0 })
	for range 3 {
		if g := n.vgpu("a").GetGpus(); len(g) != 1 || g[0] != gpuUUID(0) {
			t.Fatalf("a is on %v", g)
		}
	}
	o.ask("unobserve 0", "unobserve: ok")
	n.untilState("a", "UNBOUND")

	// So it is if the observer dies.
	n.looks(n.process("a"), "a", false)
	dies := n.process("a")
	n.looks(dies, "a", true)
	n.untilState("a", "IDLE")
	dies.kill()
	n.untilState("a", "UNBOUND")
}

func TestAnObserverWaitsForAGPUAsAClientDoes(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "memory=10Gi")
	n.create("b", "memory=10Gi")
	n.create("c", "memory=10Gi", "when-full=fail")
	a := n.client("a")
	b, c := n.process("b"), n.process("c")
	if got := n.looks(b, "b", true); !strings.HasPrefix(got, "wait 0 of 1 GPUs") {
		t.Fatal(got)
	}
	if got := n.looks(c, "c", true); !strings.HasPrefix(got, "refused 2 0 of 1 GPUs") {
		t.Fatal(got)
	}
	c.expect("observed 0: " + errHungUp.Error())
	// A client that asked too and gives up does not end the observer's wait.
	gives := n.process("b")
	gives.ask("start "+n.created["b"], "start: ")
	gives.tell("bind")
	gives.kill()
	n.until("it is gone", func() bool { return n.vgpu("b").GetClients() == 0 })
	a.kill()
	if got, want := b.expect("observed 0: identity "), "1 "+gpuUUID(0); got != want {
		t.Fatalf("%q, want %q", got, want)
	}
}

func TestWhatAnObserverWasToldHoldsOverARestart(t *testing.T) {
	n := newProcessNode(t, settings{gpus: 2})
	n.create("a")
	o, later := n.process("a"), n.process("a")
	want := n.looks(o, "a", true)
	n.kill()
	o.expect("observed 0: " + errHungUp.Error())
	n.startProcess()
	n.create("b")
	b := n.client("b") // would have been bound where a is
	if g := n.vgpu("b").GetGpus(); "identity 1 "+g[0] == want {
		t.Errorf("b is on %v, where a is", g)
	}
	// Before the observer asks again, and to another one.
	if got := n.looks(later, "a", true); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := o.ask("observe "+n.created["a"]+" 1", "observed 1: "); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	b.kill()
	o.kill()
	later.kill()
	n.untilState("a", "UNBOUND")
}

func TestUsageIsTheVGPUsOwn(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	n.create("a", "memory=1Gi")
	n.create("b", "memory=1Gi")
	a1, a2, b := n.client("a"), n.client("a"), n.client("b")
	a1.takes(100 * mib)
	a2.takes(50 * mib)
	b.takes(200 * mib)
	n.looks(a1, "a", false)
	gpu := n.vgpu("a").GetGpus()[0]
	u := a1.usage(gpu)
	slices.Sort(u.list)
	want := []string{fmt.Sprint(a1.cmd.Process.Pid, ":", 100*mib), fmt.Sprint(a2.cmd.Process.Pid, ":", 50*mib)}
	slices.Sort(want)
	if u.code != 0 || u.limit != gib || u.used != 150*mib || u.late != 0 || !slices.Equal(u.list, want) {
		t.Errorf("%+v, want %v", u, want)
	}
	other := n.vgpu("b").GetGpus()[0]
	if u := a1.usage(other); u.code != uint64(wire.ErrNoGPU) || u.processes != 0 {
		t.Errorf("of a GPU that is not its own: %+v", u)
	}
}

func TestManyProcessesAreTold(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	all := make(map[string]bool)
	for range 35 {
		all[strconv.Itoa(n.client("a").cmd.Process.Pid)+":0"] = true
	}
	o := n.process("a")
	n.looks(o, "a", false)
	u := o.usage(gpuUUID(0))
	for _, p := range u.list {
		delete(all, p)
	}
	if u.processes != 35 || len(u.list) != 35 || len(all) != 0 {
		t.Errorf("%+v, without %v", u, all)
	}
}

// In its pid namespace a process sees the pids that hold there, and not those of
// processes outside.
func TestProcessesAreThoseThatTheAskerSees(t *testing.T) {
	n := newProcessNode(t, settings{}) // which may do no more than systemd lets it
	n.create("a", "memory=1Gi")
	inside := func(flags uintptr) *clientProcess {
		cmd := exec.Command("/proc/self/exe")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		c := n.started("a", cmd)
		c.ask("start "+n.created["a"], "start: ")
		c.ask("bind", "bind: GPU-")
		return c
	}
	in, other, out := inside(syscall.CLONE_NEWPID), inside(syscall.CLONE_NEWPID), n.client("a")
	in.takes(mib)
	other.takes(2 * mib)
	out.takes(3 * mib)
	n.looks(in, "a", false)
	n.looks(out, "a", false)
	if u := in.usage(gpuUUID(0)); !slices.Equal(u.list, []string{fmt.Sprint("1:", mib)}) || u.used != 6*mib {
		t.Errorf("inside: %+v", u)
	}
	want := []string{fmt.Sprint(in.cmd.Process.Pid, ":", mib), fmt.Sprint(other.cmd.Process.Pid, ":", 2*mib), fmt.Sprint(out.cmd.Process.Pid, ":", 3*mib)}
	u := out.usage(gpuUUID(0))
	slices.Sort(want)
	slices.Sort(u.list)
	if !slices.Equal(u.list, want) {
		t.Errorf("outside: %+v, want %v", u, want)
	}
}

func TestAnObserverThatSpeaksOutOfTurnIsHungUp(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	a := n.client("a")
	identity := packet(wire.Msg{Type: wire.Identity})
	for name, say := range map[string][][]byte{
		"USAGE before IDENTITY": {packet(wire.Msg{Type: wire.Usage})},
		"HELLO after it":        {identity, packet(wire.Msg{Type: wire.Hello})},
		"MEMORY":                {identity, packet(wire.Msg{Type: wire.Memory})},
		"BIND":                  {identity, packet(wire.Msg{Type: wire.Bind})},
	} {
		p := n.connect("a")
		for _, b := range say {
			p.send(b)
		}
		for hung := false; !hung; {
			_, _, hung = p.recv()
		}
		t.Log(name)
	}
	n.until("none of them is left", func() bool {
		left := -1
		_ = n.daemon.call(func(l *loop) { left = len(l.current[n.idOf("a")].observers) })
		return left == 0
	})
	a.ask("work", "work: passed")
}

// idOf is the id of the vGPU of a container.
func (n *node) idOf(name string) string {
	return vgpuID("/run/containerd/containerd.sock", "test", name)
}

// All observers of a vGPU together get an answer each observerShare, however many
// they are, and wait for no longer than a question may take in the library.
func TestObserversShareWhatAVGPUGets(t *testing.T) {
	for n := 1; n <= maxObservers; n++ {
		asks := 1
		for !observerMustRest(n, asks) {
			asks++
		}
		window := observerWindow(n, asks)
		if window > observerPause || window < observerShare*time.Duration(n*asks) {
			t.Errorf("%d observers ask %d times each in %s", n, asks, window)
		}
	}
	// A question about many processes is many questions.
	if one, many := askCost(0), askCost(maxConns); one != 1 || !observerMustRest(1, many) || observerWindow(1, many) < maxConns/16*observerShare {
		t.Errorf("%d and %d", one, many)
	}
}

// However often observers ask, vgpud reads them only so often, and takes so many.
func TestObserversThatAskInALoopWait(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.client("a")
	p := n.connect("a")
	p.send(packet(wire.Msg{Type: wire.Identity}))
	p.recv()
	rests := 0
	if err := n.daemon.call(func(l *loop) {
		v := l.current[n.idOf("a")]
		o := v.observers[0]
		for range 10 * observerBurst {
			if l.observerRests(o.conn, 1) > 0 {
				rests++
				o.since = l.now() - observerPause // it has rested
			} else {
				o.since = l.now() + never // no rest while this loop is held up
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	if rests != 10 {
		t.Errorf("it rested %d times", rests)
	}

	var all []*plain
	for range maxObservers {
		p := n.connect("a")
		p.send(packet(wire.Msg{Type: wire.Identity}))
		all = append(all, p)
	}
	refused := 0
	for _, p := range all {
		if m, _, _ := p.recv(); m.Type == wire.Refused {
			refused++
		}
	}
	if refused != 1 { // one is there from before
		t.Errorf("%d were refused", refused)
	}
	n.client("a") // there is room for clients
}

func TestHeldOfLateIsThatOfTheLastSecond(t *testing.T) {
	n := newNode(t, settings{gpus: 1})
	n.create("a")
	a := n.client("a")
	var now time.Duration
	// All in one go of the loop, so that nothing else moves what is made up here.
	try := func(what string, want uint64, prepare func(l *loop, v *vgpu)) {
		t.Helper()
		var got uint64
		if err := n.daemon.call(func(l *loop) {
			v := l.current[n.idOf("a")]
			now = l.now()
			v.late = ofLate{}
			prepare(l, v)
			got = l.heldOfLate(v, now)
		}); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s: %d, want %d", what, got, want)
		}
	}
	at := func(ago, less time.Duration, l *loop, v *vgpu) sample {
		return sample{now - ago, l.heldSoFar(v, now) - less}
	}
	try("nothing is known", 0, func(*loop, *vgpu) {})
	try("a quarter", 250_000, func(l *loop, v *vgpu) {
		v.late.samples = [2]sample{{}, at(800*time.Millisecond, 200*time.Millisecond, l, v)}
	})
	try("the newer sample is too young", 500_000, func(l *loop, v *vgpu) {
		v.late.samples = [2]sample{at(900*time.Millisecond, 450*time.Millisecond, l, v), at(100*time.Millisecond, 0, l, v)}
	})
	try("its last turn ended long ago", 0, func(l *loop, v *vgpu) {
		v.late.samples = [2]sample{{}, at(10*time.Second, 5*time.Second, l, v)}
		v.late.ended = now - 5*time.Second
	})
	a.ask("work", "work: passed")
	try("a turn that goes on for long", 1_000_000, func(l *loop, v *vgpu) {
		v.turn.granted = now - time.Minute
		v.late.samples = [2]sample{{}, {now - time.Minute, l.heldSoFar(v, now) - time.Minute}}
	})
}
