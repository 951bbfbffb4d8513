// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/hooks/driver/test/cases"
	"github.com/vgpu-shim/vgpu/hooks/driver/test/jail"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// turns grants every process that comes, whenever it waits, and revokes as soon
// as it can, until the test ends.
func turns(a *arbiter) {
	for {
		select {
		case c := <-a.clients:
			go c.turns()
		case <-a.t.Context().Done():
			return
		}
	}
}

func (c *client) turns() {
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for {
		select {
		case _, ok := <-c.msgs:
			if !ok {
				return
			}
		case <-tick.C:
			c.revoke()
		}
		if c.state() == "CLOSED" && c.page.Waiting().Load() > 0 {
			c.page.Wanted().Store(1)
			c.grant()
			c.send(wire.Msg{Type: wire.Nudge})
		}
	}
}

// trap builds the program of a trap, against the simulated driver.
func trap(t *testing.T, sim, name string, args ...string) string {
	t.Helper()
	args = append([]string{filepath.Join("testdata/traps", name+".c")}, args...)
	args = append(args, filepath.Join(sim, "lib", "libcuda.so.999.10"), "-ldl")
	return compile(t, "trap-"+name, append(args, strings.Fields(os.Getenv("VGPU_TEST_CFLAGS"))...)...)
}

// bare runs a program with nothing but the simulated driver.
func bare(t *testing.T, sim, machine string, env []string, args ...string) (said string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	args = slices.Concat(tools.runner, args)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(append(os.Environ(), "SIMGPU_MACHINE="+machine, "LD_LIBRARY_PATH="+filepath.Join(sim, "lib")), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || stderr.Len() > 0 || ctx.Err() != nil {
		t.Fatalf("without our library: %v\n%s", err, &stderr)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// onMachine is a fake vgpud and a simulated machine whose GPU it gives out.
func onMachine(t *testing.T, sim string, options ...string) (a *arbiter, machine string) {
	t.Helper()
	a = newArbiter(t)
	machine, gpu := newMachine(t, sim, options...)
	a.gpus = [][16]byte{gpu}
	install(t, filepath.Join(sim, "lib", "libcuda.so.999.10"), filepath.Join(a.dir, "libcuda.so"))
	return a, machine
}

// same runs a program without our library and with it, and compares.
func same(t *testing.T, sim string, clients int32, env []string, args ...string) {
	t.Helper()
	a, machine := onMachine(t, sim)
	want, status := bare(t, sim, machine, env, args...)
	go turns(a)
	p := startIn(t, a, append(env, "SIMGPU_MACHINE="+machine), args...)
	said := p.rest()
	_ = p.Cmd.Wait()
	if n := a.hellos.Load(); n != clients {
		t.Errorf("%d clients said HELLO, want %d", n, clients)
	}
	if got := p.Cmd.ProcessState.ExitCode(); said != want || got != status || p.Stderr.String() != "" {
		t.Errorf("with our library it says\n%s(exit status %d)\nwithout it\n%s(exit status %d); stderr:\n%s", said, got, want, status, p.Stderr)
	}
}

// rest is all that a program says until it ends.
func (p *program) rest() (said string) {
	p.t.Helper()
	for line := p.Line(); line != ""; line = p.Line() {
		said += line + "\n"
	}
	return said
}

// A program that does something odd behaves as without us, and in turns that are
// as short as can be.
func TestTraps(t *testing.T) {
	sim, err := simulated()
	if err != nil {
		t.Fatal(err)
	}
	compiled := map[string]string{}
	for _, trapped := range cases.Traps() {
		if compiled[trapped.Program] == "" {
			compiled[trapped.Program] = trap(t, sim, trapped.Program)
		}
		args := []string{compiled[trapped.Program]}
		if trapped.Plugin != "" {
			args = append(args, compile(t, "trap-"+trapped.Plugin+".so", "-shared", "-fPIC", "-Wl,--as-needed",
				"testdata/traps/"+trapped.Plugin+".c", filepath.Join(sim, "lib", "libcuda.so.999.10")))
		}
		t.Run(trapped.Name, func(t *testing.T) {
			t.Parallel()
			same(t, sim, trapped.Clients, trapped.Env, append(args, trapped.Args...)...)
		})
	}
}

// Then the loader trusts nothing of the environment, and the process is another
// user's. All that it needs is where every user can go: in the jail's root.
func TestSetuidProgram(t *testing.T) {
	sim, err := simulated()
	if err != nil {
		t.Fatal(err)
	}
	const nobody, inJail = 65534, "/.vgpu"
	program := trap(t, sim, "setuid", "-Wl,-rpath,/"+jail.Libraries)
	said := map[string]string{}
	for _, library := range []string{filepath.Join(sim, "lib", "libcuda.so.999.10"), filepath.Join(built, "libvgpu-cuda.so")} {
		a, machine := onMachine(t, sim)
		inside, own := filepath.Join(a.dir, "machine"), filepath.Join(a.dir, "setuid")
		if err := os.Rename(machine, inside); err != nil {
			t.Fatal(err)
		}
		install(t, program, own)
		if err := errors.Join(
			os.Chown(own, nobody, nobody),
			os.Chmod(own, os.ModeSetuid|0o755),
			os.Chmod(inside, 0o755),
			os.Chmod(filepath.Join(inside, "machine"), 0o666),
			os.Chmod(filepath.Join(inside, "log"), 0o666),
			os.Chmod(filepath.Join(a.dir, wire.Socket), 0o666),
		); err != nil {
			t.Fatal(err)
		}
		go turns(a)
		p := startIn(t, a, []string{"SIMGPU_MACHINE=" + inJail + "/machine", jail.LibraryVariable + "=" + library}, inJail+"/setuid")
		if said[filepath.Base(library)] = p.rest(); p.Cmd.Wait() != nil {
			t.Errorf("with %s: %v; stderr:\n%s", library, p.Cmd.ProcessState, p.Stderr)
		}
	}
	want := "secure: 1, user another\ncomputes\n"
	for library, got := range said {
		if got != want {
			t.Errorf("with %s it says\n%swant\n%s", library, got, want)
		}
	}
}

// A program is compiled and linked in the container, with -lcuda.
func TestLinkingInTheContainer(t *testing.T) {
	sim, err := simulated()
	if err != nil {
		t.Fatal(err)
	}
	source, err := filepath.Abs("testdata/traps/exec_thread.c")
	if err != nil {
		t.Fatal(err)
	}
	const script = `cc -pthread -o "$0" "$1" -L"$LD_LIBRARY_PATH" -lcuda && exec "$0"`
	same(t, sim, 2, nil, "/bin/sh", "-c", script, filepath.Join(t.TempDir(), "linked"), source)
}

func TestCrowdOfProcessesStartsAtOnce(t *testing.T) {
	const crowd = 300
	sim, err := simulated()
	if err != nil {
		t.Fatal(err)
	}
	program := trap(t, sim, "crowd")
	a, machine := onMachine(t, sim, "--context-memory", "1Mi") // room for all their contexts
	a.auto.Store(true)
	began := time.Now()
	p := startIn(t, a, []string{"SIMGPU_MACHINE=" + machine}, program, strconv.Itoa(crowd))
	var clients []*client
	for range crowd {
		clients = append(clients, a.client())
	}
	p.Expect(strconv.Itoa(crowd) + " processes computed")
	t.Logf("%d processes in %v", crowd, time.Since(began))
	for _, c := range clients {
		if n := c.page.Submitted().Load(); n != 1 {
			t.Errorf("a process has submitted %d times, want once", n)
		}
	}
	if n := a.hellos.Load(); n != crowd {
		t.Errorf("%d processes said HELLO, want %d", n, crowd)
	}
}

func TestAbortInTheMiddleOfATurn(t *testing.T) {
	sim, err := simulated()
	if err != nil {
		t.Fatal(err)
	}
	a, machine := onMachine(t, sim)
	env := []string{"SIMGPU_MACHINE=" + machine}
	first := startIn(t, a, env, trap(t, sim, "abort"))
	holder := a.client()
	holder.expect(wire.Pending)
	holder.grant()
	first.Expect("launched")
	second := startIn(t, a, env, trap(t, sim, "crowd"))
	next := a.client()
	next.expect(wire.Pending)
	second.Silent()
	first.GoOn()
	for range holder.msgs { // until the connection ends
	}
	next.grant()
	second.Expect("1 processes computed")
	_ = first.Cmd.Wait()
	if status := first.Cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGABRT {
		t.Errorf("the first program ended with %v", first.Cmd.ProcessState)
	}
}

func TestDaemonThatClosesEveryDescriptor(t *testing.T) {
	compile(t, "trap-daemon", "testdata/traps/daemon.c", filepath.Join(built, "fake.so"))
	a := newArbiter(t)
	p := start(t, a, "fake.so", nil, "trap-daemon")
	p.Expect("closed")
	c := a.client()
	p.GoOn()
	c.expect(wire.Pending)
	c.grant()
	p.Expect("launched")
	c.is("IDLE")
	c.revoke()
	p.GoOn()
	c.expect(wire.Pending)
	c.grant()
	p.Expect("launched again")
	if n := a.hellos.Load(); n != 1 {
		t.Errorf("the process said HELLO %d times, want 1", n)
	}
}
