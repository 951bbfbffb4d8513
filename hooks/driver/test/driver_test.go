// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
	"golang.org/x/sys/unix"
)

func TestClosedGateHoldsALaunchUntilItIsGranted(t *testing.T) {
	for _, driver := range []string{"fake.so", "fake-symbolic.so"} {
		t.Run(driver, func(t *testing.T) {
			a := newArbiter(t)
			p := start(t, a, driver, nil, "submit", "launch")
			p.Expect("ready")
			c := a.client()
			c.is("CLOSED")
			p.GoOn()
			c.expect(wire.Pending)
			if n := c.page.Waiting().Load(); n != 1 {
				t.Errorf("waiting is %d, want 1", n)
			}
			p.Silent()
			c.grant()
			p.Expect("launched")
			c.is("OPEN")
			if n := c.page.Waiting().Load(); n != 0 {
				t.Errorf("waiting is %d after the launch, want 0", n)
			}
			p.GoOn()
			p.Expect("synced")
			c.is("IDLE")
			if n := c.page.Submitted().Load(); n != 1 {
				t.Errorf("submitted is %d, want 1", n)
			}
			p.GoOn()
			p.Done()
		})
	}
}

func TestWorkIsSeenCompleteOnlyWhenItIs(t *testing.T) {
	for _, test := range []struct{ driver, program, name string }{
		{"fake.so", "submit", "explicit"},
		{"fake.so", "submit", "legacy"},
		{"fake.so", "submit", "per-thread"},
		{"fake.so", "submit", "destroyed-stream"},
		{"fake.so", "submit", "ended-thread"},
		{"fake.so", "capture", "watched"},
		{"fake.so", "capture", "abandoned"},
		{"fake.so", "capture", "other-thread"},
		{"fake.so", "capture", "other-thread-again"},
		{"fake.so", "capture", "ended-thread"},
		{"fake-old.so", "submit", "per-thread"},
		{"fake-old.so", "submit", "ended-thread"},
		{"fake-old.so", "capture", "watched"},
		{"fake-old.so", "capture", "other-thread"},
		{"fake-old.so", "capture", "other-thread-again"},
	} {
		t.Run(test.driver+" "+test.program+" "+test.name, func(t *testing.T) {
			t.Parallel()
			a := newArbiter(t)
			a.auto.Store(true)
			p := start(t, a, test.driver, nil, test.program, test.name)
			p.Expect("ready")
			c := a.client()
			p.GoOn()
			p.Expect("launched")
			c.is("OPEN")
			c.want(1)
			p.GoOn()
			p.Expect("looked")
			c.is("OPEN")
			p.GoOn()
			p.Expect("released")
			c.expect(wire.IdleMsg)
			p.GoOn()
			p.Done()
		})
	}
}

func TestRevokedTurnDrains(t *testing.T) {
	a := newArbiter(t)
	a.auto.Store(true)
	p := start(t, a, "fake.so", nil, "submit", "explicit")
	p.Expect("ready")
	c := a.client()
	p.GoOn()
	p.Expect("launched")
	if !c.revoke() {
		t.Fatal("the turn was over before it was revoked")
	}
	p.GoOn()
	p.Expect("looked")
	c.is("DRAINING")
	p.GoOn()
	p.Expect("released")
	c.expect(wire.Drained)
	c.is("CLOSED")
	p.GoOn()
	p.Done()
}

func TestSynchronisingCallsProveWhatTheyCan(t *testing.T) {
	a := newArbiter(t)
	a.auto.Store(true)
	p := start(t, a, "fake.so", nil, "submit", "proofs")
	p.Expect("ready")
	c := a.client()
	p.GoOn()
	for {
		line := p.Line()
		if line == "done" {
			break
		}
		want, why, ok := strings.Cut(line, ": ")
		if !ok {
			t.Fatalf("the program said %q; stderr:\n%s", line, p.Stderr)
		}
		if want = map[string]string{"busy": "OPEN", "idle": "IDLE"}[want]; c.state() != want {
			t.Errorf("%s: the word is %s, want %s", why, c.state(), want)
		}
		p.GoOn()
	}
}

func TestDeadContextsHoldNothing(t *testing.T) {
	for _, test := range []struct{ name, busy, gone string }{
		{"destroyed-context", "launched", "destroyed"},
		{"released-primary", "released once", "destroyed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := newArbiter(t)
			a.auto.Store(true)
			p := start(t, a, "fake.so", nil, "submit", test.name)
			p.Expect("ready")
			c := a.client()
			p.GoOn()
			p.Expect(test.busy)
			c.is("OPEN")
			p.GoOn()
			p.Expect(test.gone)
			c.is("IDLE")
			p.GoOn()
			p.Done()
		})
	}
	t.Run("sticky error", func(t *testing.T) {
		a := newArbiter(t)
		a.auto.Store(true)
		p := start(t, a, "fake.so", nil, "submit", "sticky")
		p.Expect("ready")
		c := a.client()
		p.GoOn()
		p.Expect("launched")
		c.want(1)
		c.expect(wire.IdleMsg)
		p.GoOn()
		p.Done()
	})
}

func TestWholeContextIsManyStreams(t *testing.T) {
	a := newArbiter(t)
	a.auto.Store(true)
	p := start(t, a, "fake.so", nil, "submit", "multi")
	p.Expect("ready")
	c := a.client()
	p.GoOn()
	p.Expect("launched")
	c.is("OPEN")
	p.GoOn()
	p.Expect("synced")
	c.is("IDLE")
	p.GoOn()
	p.Done()
}

func TestStreamsThatComeAndGoLeaveNothing(t *testing.T) {
	a := newArbiter(t)
	a.auto.Store(true)
	p := start(t, a, "fake.so", nil, "submit", "churn")
	p.Expect("ready")
	c := a.client()
	p.GoOn()
	p.Expect("churned")
	c.want(1)
	c.expect(wire.IdleMsg)
	p.GoOn()
	p.Done()
}

func TestThreadsUnderRevokes(t *testing.T) {
	for _, test := range []struct{ program, name string }{{"submit", "threads"}, {"capture", "storm"}} {
		t.Run(test.name, func(t *testing.T) { underRevokes(t, test.program, test.name) })
	}
}

func underRevokes(t *testing.T, program, name string) {
	a := newArbiter(t)
	flight := witness(t, a)
	p := start(t, a, "fake.so", nil, program, name)
	p.Expect("ready")
	c := a.client()
	p.GoOn()
	turns := 0
	for working := true; working; {
		select {
		case line := <-p.Lines:
			if line != "worked" {
				_ = p.Cmd.Wait()
				t.Fatalf("the program said %q; %v; stderr:\n%s", line, p.Cmd.ProcessState, p.Stderr)
			}
			working = false
		case <-c.msgs:
		default:
			if c.state() != "CLOSED" {
				c.revoke()
			} else if n := flight.Load(); n != 0 {
				t.Fatalf("%d pieces of work are in flight behind the closed gate", n)
			} else if c.page.Waiting().Load() > 0 {
				turns++
				c.grant()
			}
			runtime.Gosched()
		}
	}
	for c.revoke() {
		c.expect(wire.Drained) // maybe one of an earlier turn
	}
	if n := flight.Load(); n != 0 {
		t.Errorf("%d pieces of work are in flight after the end", n)
	}
	if turns < 10 {
		t.Errorf("only %d turns", turns)
	}
	p.GoOn()
	p.Done()
}

// witness maps the fake driver's own count of what is in flight.
func witness(t *testing.T, a *arbiter) *atomic.Int32 {
	t.Helper()
	f, err := os.Create(filepath.Join(a.dir, "flight"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return (*atomic.Int32)(unsafe.Pointer(&mem[0]))
}

func TestCapturedCallsPassTheClosedGate(t *testing.T) {
	a := newArbiter(t)
	p := start(t, a, "fake.so", nil, "capture", "passes")
	p.Expect("ready")
	c := a.client()
	p.GoOn()
	p.Expect("captured")
	c.is("CLOSED")
	p.GoOn()
	c.expect(wire.Pending)
	p.Silent()
	c.grant()
	p.Expect("launched")
	p.GoOn()
	p.Done()
}

func TestDriversOwnCallsPass(t *testing.T) {
	for _, driver := range []string{"fake.so", "fake-symbolic.so"} {
		t.Run(driver, func(t *testing.T) {
			a := newArbiter(t)
			p := start(t, a, driver, nil, "submit", "self-calls")
			p.Expect("ready")
			c := a.client()
			p.GoOn()
			p.Expect("loaded")
			c.is("CLOSED")
			p.GoOn()
			p.Done()
		})
	}
}

func TestEveryWayToLoadLeadsToUs(t *testing.T) {
	a := newArbiter(t)
	start(t, a, "fake-extra.so", nil, "loaded", "names").Done()
	start(t, a, "fake-extra.so", nil, "unknown").Done()
	start(t, a, "fake-old.so", nil, "loaded", "lacking").Done()
	start(t, a, "fake-symbolic.so", nil, "process", "before-init").Expect("passed")
}

func TestGetProcAddressIsTranslated(t *testing.T) {
	for _, driver := range []string{"fake.so", "fake-symbolic.so"} {
		t.Run(driver, func(t *testing.T) {
			a := newArbiter(t)
			p := start(t, a, driver, nil, "loaded", "addresses")
			p.Expect("ready")
			c := a.client()
			c.expect(wire.Stats)
			if c.last.A[0] != 1 || c.last.A[1] != 2 {
				t.Errorf("unhooked %d and unknown %d, want 1 and 2", c.last.A[0], c.last.A[1])
			}
			p.GoOn()
			c.expect(wire.Pending)
			c.grant()
			p.Expect("launched")
			p.GoOn()
			p.Done()
		})
	}
}

func TestHookStandsOverAnUnknownAddress(t *testing.T) {
	for name, unhooked := range map[string]uint64{"hidden": 0, "hidden-version": 1} {
		t.Run(name, func(t *testing.T) {
			a := newArbiter(t)
			p := start(t, a, "fake-hidden.so", nil, "loaded", name)
			p.Expect("ready")
			c := a.client()
			c.expect(wire.Stats)
			if c.last.A[0] != unhooked {
				t.Errorf("unhooked %d, want %d", c.last.A[0], unhooked)
			}
			p.GoOn()
			c.expect(wire.Pending)
			p.Silent()
			c.grant()
			p.Expect("launched")
			p.GoOn()
			p.Done()
		})
	}
}

func TestVisibleDevicesAreTheBoundOnes(t *testing.T) {
	gpu := func(b byte) string { return wire.FormatUUID(uuid(b)) }
	for _, test := range []struct {
		description string
		env         []string
		driver      string // what the real cuInit saw
		process     string // what the process sees afterwards
	}{
		{"not set", nil, "0 driver: " + gpu(1) + "," + gpu(2), "(unset)"},
		{"indexes", []string{"CUDA_VISIBLE_DEVICES=1,0"}, "0 driver: " + gpu(2) + "," + gpu(1), "1,0"},
		{"a UUID", []string{"CUDA_VISIBLE_DEVICES=" + gpu(2)}, "0 driver: " + gpu(2), gpu(2)},
		{"a UUID of another GPU", []string{"CUDA_VISIBLE_DEVICES=" + gpu(9)}, "100 driver: ", gpu(9)},
		{"empty", []string{"CUDA_VISIBLE_DEVICES="}, "100 driver: ", ""},
	} {
		t.Run(test.description, func(t *testing.T) {
			t.Parallel()
			a := newArbiter(t)
			a.gpus = [][16]byte{uuid(1), uuid(2)}
			p := start(t, a, "fake.so", test.env, "process", "visible")
			p.Expect(test.driver)
			p.Expect("process: " + test.process)
			p.Done()
		})
	}
}

func TestVisibleListsAreReadAsTheDriverReadsThem(t *testing.T) {
	one, two := wire.FormatUUID(uuid(1)), wire.FormatUUID(uuid(2))
	for _, test := range []struct{ own, want string }{
		{"0", one},
		{" 1 , 0 ", two + "," + one},
		{"0,7,1", one},
		{"-1", ""},
		{"0,-1,1", one},
		{"0,0", ""},
		{"GPU-01", one},
		{strings.ToLower(two), two},
		{"GPU-0", ""}, // fits both
		{"1x", ""},
		{"MIG-" + one, ""},
		{"none", ""},
		{"1,", two},
	} {
		out, err := command("showing", "2", test.own).Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != test.want {
			t.Errorf("%q shows %q, want %q (%v)", test.own, got, test.want, err)
		}
	}
}

func TestRefusedProcessIsTold(t *testing.T) {
	for _, test := range []struct {
		description string
		code        wire.Code
		result      string
	}{
		{"no GPU fits", wire.ErrNoGPU, "100"},
		{"anything else", wire.ErrInternal, "802"},
	} {
		t.Run(test.description, func(t *testing.T) {
			a := newArbiter(t)
			a.refuse = &wire.Msg{Type: wire.Refused, Code: test.code}
			a.refuse.SetText("because the test says so")
			p := start(t, a, "fake.so", nil, "process", "result")
			p.Expect(test.result)
			p.Done()
			if lines := strings.Count(p.Stderr.String(), "\n"); lines != 1 || !strings.Contains(p.Stderr.String(), "because the test says so") {
				t.Errorf("stderr says %q", p.Stderr)
			}
		})
	}
}

func TestInitTwiceIsOneClient(t *testing.T) {
	a := newArbiter(t)
	p := start(t, a, "fake.so", nil, "process", "twice")
	p.Expect("ready")
	p.GoOn()
	p.Done()
	if n := a.hellos.Load(); n != 1 {
		t.Errorf("%d processes said HELLO, want 1", n)
	}
}

func TestThreadCancelledInInitLeavesNoLock(t *testing.T) {
	a := newArbiter(t)
	a.slow.Store(true)
	p := start(t, a, "fake.so", nil, "process", "init-cancelled")
	c := a.client()
	c.expect(wire.Bind)
	p.GoOn()
	p.Expect("cancelled")
	c.send(bound(a))
	p.Expect("works")
	p.Done()
}

func TestFork(t *testing.T) {
	t.Run("before any call each is a client", func(t *testing.T) {
		a := newArbiter(t)
		a.auto.Store(true)
		p := start(t, a, "fake.so", nil, "process", "fork-first")
		p.Expect("both")
		if n := a.hellos.Load(); n != 2 {
			t.Errorf("%d processes said HELLO, want 2", n)
		}
		p.GoOn()
		p.Done()
	})
	t.Run("after cuInit the child goes straight to the driver", func(t *testing.T) {
		a := newArbiter(t)
		a.auto.Store(true)
		p := start(t, a, "fake.so", nil, "process", "fork-after")
		p.Expect("parent works")
		a.client().is("IDLE")
		if n := a.hellos.Load(); n != 1 {
			t.Errorf("%d processes said HELLO, want 1", n)
		}
		p.GoOn()
		p.Done()
	})
	t.Run("the thread that forked ends in the child", func(t *testing.T) {
		a := newArbiter(t)
		a.auto.Store(true)
		p := start(t, a, "fake.so", nil, "process", "fork-ends")
		p.Expect("ended")
		p.Done()
	})
	t.Run("a refused process gains nothing", func(t *testing.T) {
		a := newArbiter(t)
		a.refuse = &wire.Msg{Type: wire.Refused, Code: wire.ErrNoGPU}
		p := start(t, a, "fake.so", nil, "process", "fork-refused")
		p.Expect("refused")
		p.Done()
	})
}

// Invariant 10.
func TestProcessWithoutCUDACallDoesNothing(t *testing.T) {
	a := newArbiter(t)
	install(t, filepath.Join(built, "fake.so"), filepath.Join(a.dir, "libcuda.so"))
	trace := filepath.Join(t.TempDir(), "trace")
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal("strace is needed")
	}
	// The leak check of a sanitizer can not run under strace.
	p := startIn(t, a, []string{"ASAN_OPTIONS=detect_leaks=0"}, strace, "-f", "-o", trace, "-e", "trace=network,clone,clone3,fork,vfork,eventfd2,futex,?open,openat,mmap",
		filepath.Join(built, "process"), "inert")
	p.Done()
	data, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if !strings.Contains(text, tools.searched()+"/libcuda.so.1") || !strings.Contains(text, tools.real()) {
		t.Fatalf("the library was not loaded:\n%s", text)
	}
	for _, call := range []string{"socket(", "connect(", "clone(", "clone3(", "eventfd2(", "/.vgpu/sock"} {
		if strings.Contains(text, call) {
			t.Errorf("a process without a CUDA call did %s\n%s", call, text)
		}
	}
	if n := a.hellos.Load(); n != 0 {
		t.Errorf("%d processes said HELLO, want none", n)
	}
}
