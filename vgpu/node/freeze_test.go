// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// cgroup is one for a test, as a container has one.
type cgroup struct {
	t    *testing.T
	path string
}

// newCgroup makes a cgroup of a version. The test needs root.
func newCgroup(t *testing.T, version int) cgroup {
	t.Helper()
	f, err := findFreezer()
	if err != nil {
		t.Fatal(err)
	}
	root := f.v1
	if version == 2 {
		root = f.v2
	}
	if root == "" {
		t.Fatalf("no freezer of version %d is mounted: %+v", version, f)
	}
	c := cgroup{t, filepath.Join(root, fmt.Sprintf("vgpu-test-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-")))}
	if err := os.Mkdir(c.path, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Whoever was in it is dead, or on its way.
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			inner := os.Remove(filepath.Join(c.path, frozenGroup))
			if err := os.Remove(c.path); err == nil {
				return
			} else if time.Now().After(deadline) {
				t.Errorf("left: %v %v", err, inner)
				return
			}
		}
	})
	return c
}

func (c cgroup) add(p *clientProcess) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.path, "cgroup.procs"), []byte(strconv.Itoa(p.cmd.Process.Pid)), 0); err != nil {
		c.t.Fatal(err)
	}
}

// frozen says whether what we froze below it stands still.
func (c cgroup) frozen() bool {
	c.t.Helper()
	state, err := os.ReadFile(filepath.Join(c.path, frozenGroup, "freezer.state"))
	if errors.Is(err, os.ErrNotExist) {
		events, err := os.ReadFile(filepath.Join(c.path, frozenGroup, "cgroup.events"))
		return err == nil && strings.Contains(string(events), "frozen 1")
	}
	return strings.TrimSpace(string(state)) == "FROZEN"
}

// only leaves the freezer of one version.
func only(version int) func(*loop) {
	return func(l *loop) {
		if version == 1 {
			l.freezer.v2 = ""
		} else {
			l.freezer.v1 = ""
		}
	}
}

func forBothVersions(t *testing.T, test func(t *testing.T, version int)) {
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprint("cgroup version ", version), func(t *testing.T) { test(t, version) })
	}
}

// frozen has a container a that overran, in a cgroup of a version, and stands
// still, and b, which holds the GPU.
func (n *node) frozen(version int) (a, b *clientProcess, group cgroup) {
	n.t.Helper()
	n.create("a")
	n.create("b", "quantum=10s")
	group = newCgroup(n.t, version)
	a, b = n.client("a"), n.client("b")
	group.add(a)
	a.ask("work", "work: passed")
	b.ask("work", "work: passed")
	n.until("a is frozen", group.frozen)
	return a, b, group
}

// Its work never ends by itself: the process stands still while others have
// their turn, and runs in its own.
func TestAnOverrunStandsStillButInItsOwnTurns(t *testing.T) {
	forBothVersions(t, func(t *testing.T, version int) {
		n := newNode(t, settings{quantum: time.Millisecond, drain: 20 * time.Millisecond, overrun: "freeze", edit: only(version)})
		a, b, group := n.frozen(version)
		if s := n.vgpu("a").GetState(); s != "OVERRUN" {
			t.Errorf("a is %s", s)
		}
		// It waits for its turn, without a word.
		b.ask("done", "done: ")
		n.until("a runs", func() bool { return !group.frozen() })
		n.untilState("a", "HOLDING")
		if s := a.ask("word", "word: "); !strings.HasPrefix(s, "OPEN") {
			t.Errorf("its word is %s", s)
		}
		// And again.
		b.ask("work", "work: passed")
		n.until("a is frozen again", group.frozen)
		b.ask("done", "done: ")
		n.untilState("a", "HOLDING")
		a.ask("done", "done: ")
		b.ask("work", "work: passed")
		if group.frozen() {
			t.Error("a is frozen, with nothing in flight")
		}
		// More than two if b held for long: a is owed turns then, each an overrun.
		if u := n.vgpu("a").GetUsage(); u.GetOverruns() < 2 {
			t.Errorf("%v", u)
		}
	})
}

// Under version 1 what is frozen does not take SIGKILL.
func TestAFrozenProcessCanBeKilled(t *testing.T) {
	forBothVersions(t, func(t *testing.T, version int) {
		n := newNode(t, settings{quantum: time.Millisecond, drain: 20 * time.Millisecond, overrun: "freeze", edit: only(version)})
		a, b, _ := n.frozen(version)
		a.kill() // waits for it
		n.untilState("a", "UNBOUND")
		b.ask("done", "done: ")
	})
}

// A container can have vgpud wait to close a file of its own, for hours.
func TestAContainerCanNotHoldUpItsFreeze(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond, drain: 20 * time.Millisecond, overrun: "freeze"})
	n.create("a")
	n.create("b", "quantum=10s")
	group := newCgroup(t, 1)
	a, b := n.client("a"), n.client("b")
	group.add(a)
	held := make(chan struct{})
	defer close(held)
	if err := n.daemon.call(func(l *loop) {
		for _, v := range l.vgpus {
			v.chores.add(func() { <-held })
		}
	}); err != nil {
		t.Fatal(err)
	}
	a.ask("work", "work: passed")
	b.ask("work", "work: passed")
	n.until("a is frozen", group.frozen)
	b.ask("done", "done: ")
	n.until("a runs", func() bool { return !group.frozen() })
}

// Else it would never come to its gate, and so never be granted and thawed.
func TestNobodyIsLeftFrozenWithNothingInFlight(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond, drain: 20 * time.Millisecond, overrun: "freeze", edit: only(2)})
	n.create("a")
	n.create("b", "quantum=10s")
	group := newCgroup(t, 2)
	a, idle, b := n.client("a"), n.client("a"), n.client("b")
	group.add(a)
	group.add(idle)
	a.ask("work", "work: passed")
	b.ask("work", "work: passed")
	n.until("a is frozen", group.frozen)
	a.kill()
	n.until("the other process runs", func() bool { return !group.frozen() })
	idle.ask("word", "word: CLOSED")
}

// Under version 1 it could not even be killed any more.
func TestARemovedContainerIsNotFrozen(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond, drain: 200 * time.Millisecond, overrun: "freeze"})
	n.create("a")
	n.create("b", "quantum=10s")
	group := newCgroup(t, 1)
	a, b := n.client("a"), n.client("b")
	group.add(a)
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("a", "DRAINING")
	id, v := n.vgpu("a").GetId(), (*vgpu)(nil)
	if err := n.daemon.call(func(l *loop) { v = l.current[id] }); err != nil {
		t.Fatal(err)
	}
	n.delete("a")
	b.expect("work: passed") // beside the overrun
	n.until("it is gone", func() bool { return n.vgpu("a") == nil })
	if err := n.daemon.call(func(*loop) {
		if v.cold {
			t.Error("it is about to stand still, and nobody is left to thaw it")
		}
	}); err != nil {
		t.Fatal(err)
	}
}

func TestAFrozenContainerCanBeRemoved(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond, drain: 20 * time.Millisecond, overrun: "freeze"})
	_, _, group := n.frozen(1)
	n.delete("a")
	n.until("a runs", func() bool { return !group.frozen() })
}

// What is executed in the container, such as a probe, is not in the cgroup that
// is frozen, and neither is what does not use the GPU.
func TestOthersInTheContainerOfAFrozenProcessRun(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond, drain: 20 * time.Millisecond, overrun: "freeze"})
	n.create("a")
	n.create("b", "quantum=10s")
	group := newCgroup(t, 1)
	a, b, probe := n.client("a"), n.client("b"), n.process("a")
	group.add(a)
	group.add(probe)
	a.ask("work", "work: passed")
	b.ask("work", "work: passed")
	n.until("a is frozen", group.frozen)
	probe.ask("start "+n.created["a"], "start: ")
	if self, err := os.ReadFile(filepath.Join(group.path, "freezer.state")); err != nil || strings.TrimSpace(string(self)) != "THAWED" {
		t.Errorf("the container's own cgroup is %s, %v", self, err)
	}
}

// A container may choose to be treated worse than the node's overruns are, and never
// better.
func TestTheStricterOverrunPolicyIsInForce(t *testing.T) {
	for _, tc := range []struct{ node, own, want string }{
		{"corun", "freeze", "freeze"},
		{"freeze", "corun", "freeze"},
		{"freeze", "", "freeze"},
		{"freeze", "kill", "kill"},
		{"kill", "freeze", "kill"},
		{"corun", "corun", "corun"},
	} {
		t.Run(fmt.Sprintf("%s of a node with %s", tc.own, tc.node), func(t *testing.T) {
			n := newNode(t, settings{quantum: time.Millisecond, drain: 50 * time.Millisecond, overrun: tc.node})
			var own []string
			if tc.own != "" {
				own = append(own, "overrun="+tc.own)
			}
			n.create("a", own...)
			n.create("b", "quantum=10s")
			if got := n.vgpu("a").GetOverrun(); got != tc.want {
				t.Errorf("it says %s, want %s", got, tc.want)
			}
			group := newCgroup(t, 1)
			a, b := n.client("a"), n.client("b")
			group.add(a)
			a.ask("work", "work: passed")
			b.ask("work", "work: passed")
			switch tc.want {
			case "freeze":
				n.until("a is frozen", group.frozen)
				a.signal(syscall.SIGKILL)
			case "kill":
				n.until("a is dead", func() bool { return n.vgpu("a").GetClients() == 0 })
			case "corun":
				a.ask("done", "done: ")
			}
			n.until("its turn is over", func() bool { return n.vgpu("a").GetState() != "OVERRUN" })
		})
	}
}

func TestFreezeIsRefusedWhereNothingCanBe(t *testing.T) {
	n := newNode(t, settings{edit: func(l *loop) { l.freezer = freezer{} }})
	_, err := n.control.Create(t.Context(), n.request("a", "overrun=freeze"))
	if err == nil || !strings.Contains(err.Error(), "vgpu-shim.dev/overrun=freeze: no cgroup freezer is mounted") {
		t.Errorf("created: %v", err)
	}
	n.create("b", "overrun=kill")
	if _, err := n.daemon.update(n.vgpu("b").GetId(), map[string]string{"vgpu-shim.dev/overrun": "freeze"}); err == nil {
		t.Error("b was changed to freeze")
	}
}

func TestARestartedVgpudThawsWhatItLeftFrozen(t *testing.T) {
	n := newProcessNode(t, settings{quantum: time.Millisecond, drain: 50 * time.Millisecond, overrun: "freeze"})
	a, b, group := n.frozen(1)
	n.kill()
	n.settings.overrun = "corun"
	n.startProcess()
	n.until("a runs", func() bool { return !group.frozen() })
	a.ask("silent", "silent: ok")
	b.ask("done", "done: ")
	a.ask("work", "work: passed")
}

// A vgpud that is killed before it has thawed them leaves that to the next.
func TestWhatIsFrozenStaysInTheRecordUntilItIsThawed(t *testing.T) {
	d := idle(t, 1)
	l := d.loop
	l.freezer = freezer{v2: t.TempDir()}
	group := filepath.Join(l.freezer.v2, frozenGroup)
	const dir = "0123456789abcdef-0123456789abcdef"
	if err := os.Mkdir(filepath.Join(d.dirs, dir), 0o755); err != nil {
		t.Fatal(err)
	}
	d.restoreOne(record{Version: recordVersion, ID: dir[:16], Dir: dir, Container: "a", Boot: l.boot, Frozen: []string{group}}, map[string]bool{})
	v := l.vgpus[dir]
	if got := v.record().Frozen; len(got) != 1 || got[0] != group {
		t.Errorf("the record has %q", got)
	}
	if !l.runs(func() bool { return len(v.record().Frozen) == 0 }) {
		t.Errorf("it is thawed, and the record has %q", v.record().Frozen)
	}
}

func TestAStoppedVgpudLeavesNobodyFrozen(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond, drain: 20 * time.Millisecond, overrun: "freeze"})
	_, _, group := n.frozen(1)
	n.stop()
	if group.frozen() {
		t.Error("a is frozen")
	}
}

func TestAProcessWithoutACgroupOfItsOwnIsNotFrozen(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond, drain: 20 * time.Millisecond, overrun: "freeze"})
	start, err := startTime(1)
	if err != nil {
		t.Fatal(err)
	}
	if group, err := n.daemon.loop.freezer.group(process{1, start}); err == nil || errors.Is(err, errGone) {
		t.Errorf("process 1 would be put into %s", group)
	}
	n.create("a")
	n.create("b", "quantum=10s")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.ask("work", "work: passed") // beside it
	a.ask("done", "done: ")
}

// The number of a process that died meanwhile may be anybody's.
func TestAnotherProcessWithTheSameNumberIsNotFrozen(t *testing.T) {
	f := freezer{v2: t.TempDir()}
	group := filepath.Join(f.v2, frozenGroup)
	start, err := startTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []process{{os.Getpid(), start - 1}, {os.Getpid(), start}} {
		if err := f.freeze(group, []process{p}); err != nil {
			t.Fatal(err)
		}
		put, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
		if want := p.Start == start; string(put) == strconv.Itoa(p.PID) != want {
			t.Errorf("%v is put into it: %q %v", p, put, err)
		}
		if _, err := f.group(p); errors.Is(err, errGone) != (p.Start != start) {
			t.Errorf("%v: %v", p, err)
		}
	}
}

// What it computes beside others is accounted.
func TestAProcessThatCanNotBeFrozenPaysForIt(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond, drain: 20 * time.Millisecond, overrun: "freeze"})
	n.create("a")
	n.create("b", "quantum=10s")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.ask("work", "work: passed")
	n.until("it is known that a runs", func() (runs bool) {
		if err := n.daemon.call(func(l *loop) {
			for _, v := range l.vgpus {
				runs = runs || v.runs
			}
		}); err != nil {
			t.Fatal(err)
		}
		return runs
	})
	held := n.vgpu("a").GetUsage().GetHeld().AsDuration()
	n.until("a is charged", func() bool { return n.vgpu("a").GetUsage().GetHeld().AsDuration() > held })
	turns := n.vgpu("a").GetUsage().GetTurns()
	a.ask("silent", "silent: ok")
	n.untilState("a", "IDLE")
	if u := n.vgpu("a").GetUsage(); u.GetHeld().AsDuration() <= held || u.GetTurns() != turns {
		t.Errorf("%v", u)
	}
}

// A container could kill a process of its own now and again, so that the others
// run on.
func TestAKilledProcessThawsTheOthersForItsDeathOnly(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond, drain: 20 * time.Millisecond, overrun: "freeze"})
	n.create("a")
	n.create("b", "quantum=10s")
	group := newCgroup(t, 1)
	a1, a2, b := n.client("a"), n.client("a"), n.client("b")
	group.add(a1)
	group.add(a2)
	a1.ask("work", "work: passed")
	b.ask("work", "work: passed")
	n.until("a is frozen", group.frozen)
	a2.kill() // waits for it
	n.until("a is frozen again", group.frozen)
	a1.kill()
	n.untilState("a", "UNBOUND")
}

func TestAnOverrunIsKilledIfThatIsThePolicy(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond, drain: 20 * time.Millisecond, overrun: "kill"})
	n.create("a")
	n.create("b", "quantum=10s")
	a1, a2, b := n.client("a"), n.client("a"), n.client("b")
	a1.ask("work", "work: passed")
	b.ask("work", "work: passed")
	a1.dead = true
	err := a1.cmd.Wait()
	status, ok := a1.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || status.Signal() != syscall.SIGKILL {
		t.Errorf("%v", err)
	}
	b.ask("done", "done: ")
	a2.ask("work", "work: passed") // it had drained
}
