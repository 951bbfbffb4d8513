// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// overruns makes each turn that does not drain soon an overrun, under a policy.
// Nobody ages, so that a high class is alone for as long as it has work.
func overruns(policy string) harness.DaemonOptions {
	return harness.DaemonOptions{Engine: fmt.Sprintf("overrun = %q\ndrain_deadline = \"1s\"\nstall = \"50ms\"\nageing = \"1h\"\n", policy)}
}

// long is a container whose child has a kernel that runs until it is let go.
type long struct {
	*harness.Container
	child int
	word  string // the file in which it waits for another rank
}

// long starts one. It ends with status 7 if all went well.
func (n *node) long(id string) long {
	n.T.Helper()
	l := long{word: n.meeting(id, 1)}
	l.Container = n.Launch(harness.Spec{
		ID:     id,
		Args:   []string{"sh", "-c", "rank --meet /meet --ranks 2 --rounds 1 && exit 7; exit 1"},
		Mounts: []string{"type=bind,src=" + l.word + ",dst=/meet,options=rbind:rw"},
	})
	l.child = n.child(l.Container)
	n.In(id, "HOLDING", "DRAINING")
	return l
}

// let ends the kernel: the other rank is there.
func (l long) let(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(l.word, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write([]byte{2, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
}

// meeting makes a file in which ranks meet, of which so many count as ready.
func (n *node) meeting(name string, ready byte) string {
	n.T.Helper()
	path := filepath.Join(n.Dir, "meet-"+name)
	page := make([]byte, 4096)
	page[4] = ready // the second word, on a little-endian machine
	if err := os.WriteFile(path, page, 0o600); err != nil {
		n.T.Fatal(err)
	}
	return path
}

// endsWith waits for the end of a container with a status.
func (n *node) endsWith(c *harness.Container, want int) {
	n.T.Helper()
	ctx, cancel := context.WithTimeout(n.Ctx, patience)
	defer cancel()
	if status, err := c.Wait(ctx); err != nil || status != want {
		n.T.Errorf("container %s ended with %d (%v), want %d; it says %q", c.ID, status, err, want, c.Output())
	}
}

// kill ends a container, as containerd does.
func (n *node) kill(c *harness.Container) {
	n.T.Helper()
	if err := c.Kill(n.Ctx, syscall.SIGKILL); err != nil {
		n.T.Fatal(err)
	}
	n.endsWith(c, 128+int(syscall.SIGKILL))
}

// high starts a container that keeps the GPU for itself once its turn has come. Its
// kernels are long: of short ones so few are in flight while another waits that the
// queue is empty when the program does not get a CPU for some milliseconds. Those in
// flight are over before the deadline of a drain.
func (n *node) high(id string) *harness.Container {
	n.T.Helper()
	c := n.Launch(harness.Spec{
		ID: id, Args: []string{"hog", "--ms", "0", "--kernel-us", "300000", "--depth", "2"},
		Annotations: map[string]string{"vgpu-shim.dev/priority": "high", "vgpu-shim.dev/quantum": longestQuantum.String()},
	})
	n.Says(c, "running")
	return c
}

// Policy freeze: who overruns stands still while others have their turns, and
// that is all that is seen of it.
func TestFrozenOverrun(t *testing.T) {
	t.Parallel()
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: overruns("freeze")})
	events := n.follow()

	t.Run("probes work, and so do pause and resume", func(t *testing.T) {
		n := n.sub(t)
		a := n.long("probed")
		b := n.high("probed-b")
		n.becomes(a.child, true)
		before := ticks(t, a.child)
		if out, err := a.Exec(n.Ctx, "echo", "here"); err != nil || out != "here\n" {
			t.Errorf("a probe said %q, %v", out, err)
		}
		if err := a.Pause(n.Ctx); err != nil {
			t.Error(err)
		}
		if state, err := a.TaskState(n.Ctx); err != nil || state != "PAUSED" {
			t.Errorf("once paused, the task is %s, %v", state, err)
		}
		if err := a.Resume(n.Ctx); err != nil {
			t.Error(err)
		}
		if state, err := a.TaskState(n.Ctx); err != nil || state != "RUNNING" {
			t.Errorf("once resumed, the task is %s, %v", state, err)
		}
		if is, err := frozen(a.child); err != nil || !is {
			t.Errorf("pause and resume made it run: frozen is %v, %v", is, err)
		}
		if after := ticks(t, a.child); after != before {
			t.Errorf("it computed while it was frozen: %s, before %s", after, before)
		}
		n.kill(b)
		a.let(t)
		n.endsWith(a.Container, 7)
	})

	t.Run("it has turns of its own", func(t *testing.T) {
		n := n.sub(t)
		a := n.long("own")
		b := n.Launch(harness.Spec{ID: "own-b", Args: burstArgs(1_000_000)})
		theirs := n.tenant(b)
		events.wait("FROZEN", "own", 3)
		n.GoOn(map[harness.Tenant]*harness.Container{theirs: b}, n.Submissions())
		a.let(t)
		n.endsWith(a.Container, 7)
		events.wait("THAWED", "own", 3)
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", a.child)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("its process is still there: %v", err)
		}
		n.kill(b)
	})

	t.Run("it can be killed", func(t *testing.T) {
		n := n.sub(t)
		a := n.long("killed")
		b := n.high("killed-b")
		n.becomes(a.child, true)
		if err := a.Kill(n.Ctx, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		n.endsWith(a.Container, 128+int(syscall.SIGKILL))
		if err := a.Remove(n.Ctx); err != nil {
			t.Error(err)
		}
		n.GoOn(map[harness.Tenant]*harness.Container{n.tenant(b): b}, n.Submissions())
		n.kill(b)
	})

	t.Run("a vgpud that comes back lets it run", func(t *testing.T) {
		n := n.sub(t)
		a := n.long("left")
		b := n.high("left-b")
		n.becomes(a.child, true)
		if err := n.Daemon.Process().Kill(); err != nil {
			t.Fatal(err)
		}
		if is, err := frozen(a.child); err != nil || !is {
			t.Errorf("frozen is %v, %v", is, err)
		}
		if err := b.Kill(n.Ctx, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := n.Daemon.Start(n.Ctx); err != nil {
			t.Fatal(err)
		}
		a.let(t)
		n.endsWith(a.Container, 7)
		n.endsWith(b, 128+int(syscall.SIGKILL))
	})
}

// ticks are how long a process has computed so far.
func ticks(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The name, in parentheses, may hold anything; utime and stime are fields 14 and 15.
	fields := strings.Fields(string(b)[strings.LastIndexByte(string(b), ')')+1:])
	return fields[11] + "+" + fields[12]
}

// Policy kill: the container of who overruns ends, as containerd sees, and others
// go on.
func TestKilledOverrun(t *testing.T) {
	t.Parallel()
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: overruns("kill")})
	events := n.follow()
	a := n.Launch(harness.Spec{ID: "a", Args: []string{"burst", "--launches", "1", "--gpu-us", "3600000000"}})
	n.In("a", "HOLDING")
	b := n.Launch(harness.Spec{ID: "b", Args: burstArgs(5)})
	n.endsWith(a, 128+int(syscall.SIGKILL))
	n.Finish(b)
	events.wait("KILLED", "a", 1)
	if events.count("KILLED", "a") != 1 || events.count("KILLED", "") != 1 {
		t.Errorf("one process of a should have been killed: %+v", events.all())
	}
}
