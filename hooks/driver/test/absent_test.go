// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Where no container was made for it the library does not load, as where there is
// no driver; the process goes on.
func TestLibraryAloneIsNoDriver(t *testing.T) {
	if _, err := os.Stat("/.vgpu"); err == nil {
		t.Fatal("this machine has a /.vgpu")
	}
	out, err := command(filepath.Base(compile(t, "absent", "testdata/traps/absent.c")), filepath.Join(built, "libvgpu-cuda.so")).CombinedOutput()
	said, rest, _ := strings.Cut(string(out), "\n")
	if err != nil || !strings.Contains(said, tools.real()) || rest != "goes on\n" {
		t.Errorf("%v: it says\n%s", err, out)
	}
}

// A process that went where its container's directory is not to be seen gets an
// error that says so, and nothing else of it is touched.
func TestWithoutADirectoryInitFails(t *testing.T) {
	a := newArbiter(t)
	// The leak check of a sanitizer needs /proc.
	p := start(t, a, "fake.so", []string{"ASAN_OPTIONS=detect_leaks=0"}, onFake(t, "traps/chrooted"), t.TempDir())
	p.Expect("cuInit: 802, again: 802, launch: 3")
	p.Done()
	if said := p.Stderr.String(); said != "vgpu: this process gets no GPU: /.vgpu: No such file or directory\n" {
		t.Errorf("stderr says %q", said)
	}
	if n := a.hellos.Load(); n != 0 {
		t.Errorf("%d processes said HELLO, want none", n)
	}
}

// cuInit waits for vgpud, for as long as it takes: the process is not let through
// without one. It says so, runs its signal handlers, and can be ended.
func TestInitThatWaitsForVgpudIsSaidAndCanBeEnded(t *testing.T) {
	program := onFake(t, "traps/waits_in_init")
	for _, test := range []struct {
		description string
		away        func(a *arbiter)
	}{
		{"nobody listens", func(a *arbiter) { a.away() }},
		{"nobody answers", func(a *arbiter) { a.deaf.Store(true) }},
	} {
		t.Run(test.description, func(t *testing.T) {
			t.Parallel()
			a := newArbiter(t)
			test.away(a)
			p := start(t, a, "fake.so", nil, program)
			p.Expect("begins")
			p.Says("vgpu: vgpud does not answer at /.vgpu/sock; waiting for it\n")
			if err := p.Cmd.Process.Signal(syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			p.Expect("handled")
			p.Silent()
			if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			p.Expect("")
			_ = p.Cmd.Wait()
			if status := p.Cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGTERM {
				t.Errorf("it ended with %v", p.Cmd.ProcessState)
			}
		})
	}
}
