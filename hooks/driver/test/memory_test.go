// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// limited is a vgpud whose only vGPU may use so much of its first GPU.
func limited(t testing.TB, limit uint64) *arbiter {
	t.Helper()
	a := newArbiter(t)
	a.auto.Store(true)
	a.ledger.set(0, limit)
	return a
}

// memory starts a test of memory.c.
func memory(t *testing.T, a *arbiter, test string) (*program, *client) {
	t.Helper()
	p := start(t, a, "fake.so", nil, "memory", test)
	p.Expect("ready")
	c := a.client()
	p.GoOn()
	return p, c
}

// shown waits until the program says this, and looks at its ledger.
func (p *program) shown(c *client, what string, used uint64) {
	p.t.Helper()
	p.Expect(what)
	c.used(0, used)
	p.GoOn()
}

// follow checks all that the program says: what it did, and the MiB of its
// first GPU that it then uses.
func (p *program) follow(c *client) {
	p.t.Helper()
	for line := p.Line(); line != "done"; line = p.Line() {
		what, number, ok := strings.Cut(line, ": ")
		used, err := strconv.ParseUint(number, 10, 64)
		if !ok || err != nil {
			p.t.Fatalf("the program said %q; stderr:\n%s", line, p.Stderr)
		}
		if got := c.uses(0); got != used*mib {
			p.t.Errorf("%s: the process uses %d bytes, want %d MiB", what, got, used)
		}
		p.GoOn()
	}
	if err := p.Cmd.Wait(); err != nil {
		p.t.Fatalf("%v; stderr:\n%s", err, p.Stderr)
	}
}

// Each is named after what users of other products complain about, or after the
// allocator; the number in its lines is what must be charged then.
func TestMemoryIsChargedAsLongAsItIsThere(t *testing.T) {
	for _, name := range []string{
		"vmm", "managed", "sizes", "arrays", "contexts", "given-out-again", "graphs", "graph-debt", "captured-alloc", "pool-threads", "pool-at-once",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, c := memory(t, limited(t, 64*mib), name)
			p.follow(c)
		})
	}
}

func TestMemoryDoesNotRunOutByAllocatingAndFreeing(t *testing.T) {
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		p, c := memory(t, limited(t, 64*mib), "cycles")
		p.shown(c, "freed", 0)
		p.shown(c, "full", 64)
		p.Done()
	})
	for _, name := range []string{"pool-cycles", "late-pool-cycles"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, c := memory(t, limited(t, 64*mib), name)
			p.shown(c, "kept", 40)
			p.shown(c, "reclaimed", 60)
			p.Done()
		})
	}
}

func TestPoolsAreChargedWhatTheyReserve(t *testing.T) {
	t.Parallel()
	p, c := memory(t, limited(t, 64*mib), "pool-growth")
	p.shown(c, "two blocks", 8)
	p.shown(c, "trimmed", 0)
	p.shown(c, "too much", 0)
	p.shown(c, "kept", 32)
	p.shown(c, "destroyed", 0)
	p.shown(c, "of the host", 0)
	p.Done()
}

func TestMemoryOfTheHostIsNotChargedAndNoContextIsNeeded(t *testing.T) {
	t.Parallel()
	p, c := memory(t, limited(t, 64*mib), "host-location")
	p.shown(c, "of the host", 0)
	p.shown(c, "of the device", 40)
	p.shown(c, "released", 0)
	p.Done()
}

func TestTotalIsTheLimitAndNeverMoreThanThereIs(t *testing.T) {
	t.Parallel()
	a := limited(t, 100*mib)
	p := start(t, a, "fake.so", nil, "memory", "info")
	p.Expect("without a context 100")
	for _, test := range []struct {
		limit uint64
		free  string
		total string
	}{
		{200, "free 190 of 200", "total 200"},
		{5, "free 0 of 5", "total 5"},          // less than is used
		{5000, "free 290 of 300", "total 300"}, // more than the GPU has
	} {
		a.ledger.set(0, test.limit*mib)
		p.GoOn()
		p.Expect(test.free)
		p.Expect(test.total)
	}
	p.Expect("Fake GPU (vGPU)")
	p.Expect("Fake GPU (v")
	p.Expect("Fake")
	p.Done()
}

// The limit is the container's, over all its processes, and may change.
func TestFreeIsWhatOtherProcessesLeave(t *testing.T) {
	t.Parallel()
	a := limited(t, 100*mib)
	one, c1 := memory(t, a, "beside")
	one.Expect("free 100")
	two := startIn(t, a, nil, filepath.Join(built, "memory"), "beside")
	two.Expect("ready")
	c2 := a.client()
	two.GoOn()
	two.Expect("free 100")

	one.GoOn()
	one.Expect("0")
	two.GoOn()
	two.Expect("0")
	one.GoOn()
	one.Expect("free 20")
	one.GoOn()
	one.Expect("2") // out of memory, though this process uses 40 of 100
	c1.used(0, 40)

	a.ledger.set(0, 120*mib)
	two.GoOn()
	two.Expect("free 40")
	two.GoOn()
	two.Expect("0")
	c2.used(0, 80)
	a.ledger.set(0, 60*mib)
	one.GoOn()
	one.Expect("free 0")
	one.GoOn()
	one.Expect("2")
	c1.used(0, 40)
}

// Of a limit that others share, free is what these leave.
func TestFreeIsWhatOtherVGPUsLeave(t *testing.T) {
	t.Parallel()
	a := limited(t, 100*mib)
	a.ledger.others = 30 * mib
	p, _ := memory(t, a, "beside")
	p.Expect("free 70")
	p.GoOn()
	p.Expect("0")
	p.GoOn()
	p.Expect("free 30")
	a.ledger.mu.Lock()
	a.ledger.others = 90 * mib
	a.ledger.mu.Unlock()
	p.GoOn()
	p.Expect("0") // the fake vgpud lets it
	p.GoOn()
	p.Expect("free 0")
}

// After its limit was lowered below its use, a process does not allocate anew
// what it frees.
func TestWhatIsFreedBeyondALoweredLimitIsAskedFor(t *testing.T) {
	t.Parallel()
	a := limited(t, 100*mib)
	p, c := memory(t, a, "lowered")
	p.shown(c, "allocated", 80)
	p.Expect("lower it")
	a.ledger.set(0, 50*mib)
	c.page.Over().Store(1)
	a.ledger.recallAll(0)
	p.GoOn()
	p.shown(c, "freed and refused", 60)
	p.shown(c, "up to the limit", 50)
	p.Done()
}

func TestCreditIsRecalledWhileThreadsAllocate(t *testing.T) {
	t.Parallel()
	a := limited(t, 64*mib)
	a.ledger.chunk = 8 * mib
	p, c := memory(t, a, "recalled")
	for over := false; !over; {
		select {
		case line := <-p.Lines:
			if over = true; line != "exact" {
				t.Fatalf("the program said %q; stderr:\n%s", line, p.Stderr)
			}
		case <-time.After(200 * time.Microsecond):
			a.ledger.recallAll(0)
		}
	}
	a.ledger.recallAll(0)
	if m := &c.page.Memory()[0]; m.Leased.Load() != 0 || m.Credit.Load() != 0 {
		t.Errorf("%d bytes are leased, %d of them as credit, of which all were given back", m.Leased.Load(), m.Credit.Load())
	}
	if n := a.ledger.asked.Load(); n < 2 {
		t.Errorf("vgpud was asked %d times: nothing was recalled", n)
	}
	p.GoOn()
	p.Done()
}

func TestMemoryWhileVgpudIsAway(t *testing.T) {
	// until the program asks for what was not leased
	toQuestion := func(t *testing.T, a *arbiter) (*program, *client) {
		t.Helper()
		a.ledger.chunk = 20 * mib
		p, c := memory(t, a, "away")
		p.Expect("leased")
		a.away()
		p.GoOn()
		p.shown(c, "within", 20)
		p.Expect("asks")
		return p, c
	}
	t.Run("it waits, and asks again", func(t *testing.T) {
		t.Parallel()
		a := limited(t, 64*mib)
		p, _ := toQuestion(t, a)
		a.back()
		c := a.client() // with the same page
		p.Expect("0")
		c.used(0, 25)
		p.GoOn()
		p.shown(c, "freed", 5)
		p.Done()
	})
	t.Run("and is told that there is no more", func(t *testing.T) {
		t.Parallel()
		a := limited(t, 24*mib)
		p, _ := toQuestion(t, a)
		a.back()
		c := a.client()
		p.Expect("2")
		c.used(0, 20)
	})
	t.Run("a vGPU that was removed gets none", func(t *testing.T) {
		t.Parallel()
		a := limited(t, 64*mib)
		p, _ := toQuestion(t, a)
		a.gone.Store(true)
		a.back()
		p.Expect("2")
	})
	t.Run("nor one that is refused", func(t *testing.T) {
		t.Parallel()
		a := limited(t, 64*mib)
		p, _ := toQuestion(t, a)
		a.ledger.removed.Store(true)
		a.back()
		p.Expect("2")
	})
	t.Run("it goes on alone, as the node's policy says", func(t *testing.T) {
		t.Parallel()
		a := opening(t)
		a.ledger.set(0, 64*mib)
		p, c := toQuestion(t, a)
		p.Expect("0")
		c.used(0, 25)
		a.back()
		c = a.client()
		c.used(0, 25)
		p.GoOn()
		p.shown(c, "freed", 5)
		p.Done()
	})
	t.Run("but not beyond the limit that it knows", func(t *testing.T) {
		t.Parallel()
		a := opening(t)
		a.ledger.set(0, 24*mib)
		p, c := toQuestion(t, a)
		p.Expect("2")
		c.used(0, 20)
	})
}

// Nobody waits to hear again what vgpud has said, nor takes what others had then.
func TestQuestionsWhileVgpudIsAway(t *testing.T) {
	ask := func(t *testing.T, a *arbiter) (*program, *client) {
		t.Helper()
		a.ledger.set(0, 64*mib)
		a.ledger.chunk = mib
		other, c := memory(t, a, "asks-away") // has 20 MiB
		other.Expect("free 44 of 64")
		p := startIn(t, a, nil, filepath.Join(built, "memory"), "asks-away")
		p.Expect("ready")
		a.client()
		p.GoOn()
		p.Expect("free 24 of 64")
		a.away()
		p.GoOn()
		p.Expect("free 44 of 64")
		return p, c
	}
	t.Run("and is waited for", func(t *testing.T) {
		t.Parallel()
		a := limited(t, 0)
		p, _ := ask(t, a)
		told := a.ledger.told.Load()
		a.back()
		a.client()
		a.client().until("the context that was made meanwhile is told", func() bool { return a.ledger.told.Load() > told })
		p.GoOn()
		p.Expect("2") // another has 20
		p.GoOn()
		p.Expect("0")
	})
	t.Run("and is not waited for", func(t *testing.T) {
		t.Parallel()
		a := opening(t)
		p, _ := ask(t, a)
		p.GoOn()
		p.Expect("2") // another had 20
		p.GoOn()
		p.Expect("0")
	})
}

// A thread that waits for vgpud holds nothing up.
func TestThreadThatAsksForMemory(t *testing.T) {
	t.Run("is interrupted by a handler that allocates", func(t *testing.T) {
		t.Parallel()
		a := limited(t, 64*mib)
		a.ledger.silent.Store(true)
		p, c := memory(t, a, "interrupted")
		c.until("the question came", func() bool { return a.ledger.asked.Load() > 0 })
		p.GoOn()
		p.Expect("handled")
		a.ledger.silent.Store(false)
		a.hangUp()
		c = a.client()
		p.shown(c, "answered", 5)
		p.shown(c, "freed", 0)
		p.Done()
	})
	t.Run("is not inside the gate", func(t *testing.T) {
		t.Parallel()
		a := limited(t, 64*mib)
		a.ledger.silent.Store(true)
		p, c := memory(t, a, "asks-after-launch")
		c.until("the question came", func() bool { return a.ledger.asked.Load() > 0 })
		if !c.revoke() {
			t.Fatal("the turn was over before it was revoked")
		}
		c.expect(wire.Drained)
		a.ledger.silent.Store(false)
		a.hangUp()
		c = a.client()
		p.shown(c, "launched", 40)
		p.Done()
	})
	t.Run("keeps no process from its end", func(t *testing.T) {
		t.Parallel()
		a := limited(t, 64*mib)
		a.ledger.silent.Store(true)
		p, c := memory(t, a, "exits")
		c.until("the question came", func() bool { return a.ledger.asked.Load() > 0 })
		p.GoOn()
		p.Done()
	})
}

// The container's own CUDA_VISIBLE_DEVICES reorders the devices.
func TestDevicesAreToldApartByTheirUUIDs(t *testing.T) {
	t.Parallel()
	a := limited(t, 1<<40)
	a.gpus = [][16]byte{uuid(1), uuid(2)}
	p := start(t, a, "fake.so", []string{"CUDA_VISIBLE_DEVICES=1,0"}, "memory", "device-order")
	p.Expect("ready")
	c := a.client()
	p.GoOn()
	p.Expect("on the second GPU")
	c.used(0, 0)
	c.used(1, 10)
	p.GoOn()
	p.Expect("on the first GPU")
	c.used(0, 20)
	c.used(1, 10)
	p.GoOn()
	p.Done()
}

func TestVgpudIsToldWhenTheDriversOwnUseChanges(t *testing.T) {
	t.Parallel()
	a := limited(t, 64*mib)
	p, c := memory(t, a, "overhead")
	for i, what := range []string{
		"a context", "a module", "no module", "the primary context", "no primary context", "no context",
	} {
		p.Expect(what)
		c.until(what+" was told", func() bool { return a.ledger.told.Load() == int32(i+1) })
		p.GoOn()
	}
	p.Expect("many modules")
	c.until("the context was told", func() bool { return a.ledger.told.Load() == 7 })
	a.ledger.silent.Store(true)
	p.GoOn()
	p.Expect("loaded")
	c.until("the first was told", func() bool { return a.ledger.told.Load() == 8 })
	// What was not answered is told again, once for all.
	a.hangUp()
	c = a.client()
	c.until("it was told again", func() bool { return a.ledger.told.Load() == 9 })
	p.GoOn()
	p.Done()
	if n := a.ledger.told.Load(); n != 9 {
		t.Errorf("it was told %d times, want 9", n)
	}
}

// A vgpud that is stopped does not read, and the socket is full of bells. What it could not be
// told meanwhile it is told when it goes on, though the program does nothing any more.
func TestVgpudIsToldWhenTheSocketHasRoomAgain(t *testing.T) {
	t.Parallel()
	a := limited(t, 64*mib)
	a.auto.Store(true)
	p, c := memory(t, a, "bells")
	p.Expect("ready for work")
	c.until("the context was told", func() bool { return a.ledger.told.Load() == 1 })
	c.want(1)
	c.expect(wire.IdleMsg)
	a.stopped.Lock()
	p.GoOn()
	p.Expect("rung")
	p.GoOn()
	p.Expect("a module")
	a.stopped.Unlock()
	c.until("the module was told", func() bool { return a.ledger.told.Load() == 2 })
	if n := len(c.msgs); n == 0 || n >= 1000 {
		t.Errorf("%d of 1000 bells arrived: the socket was not full", n)
	}
	p.GoOn()
	p.Done()
}

// Who asks right after a module was unloaded is told of memory as it is now, and is refused
// none that the module had, however long vgpud's own look takes.
func TestWhatAModuleHadIsThereWhenItIsUnloaded(t *testing.T) {
	t.Parallel()
	a := limited(t, 64*mib)
	a.ledger.late.Store(true)
	p, _ := memory(t, a, "unloaded")
	for _, step := range []struct {
		said string
		own  uint64
	}{
		{"a module", 40 * mib}, {"no module", 0}, {"another module", 40 * mib}, {"it is gone", 0},
	} {
		p.Expect(step.said)
		a.ledger.own.Store(step.own)
		p.GoOn()
	}
	p.Done()
}

// The same on the simulated GPU.
func TestMemoryOfTheSimulatedGPU(t *testing.T) {
	t.Parallel()
	sim, err := simulated()
	if err != nil {
		t.Fatal(err)
	}
	a := limited(t, 64*mib)
	machine, gpu := newMachine(t, sim)
	a.gpus = [][16]byte{gpu}
	install(t, filepath.Join(sim, "lib", "libcuda.so.999.10"), filepath.Join(a.dir, "libcuda.so"))
	p := startIn(t, a, []string{"SIMGPU_MACHINE=" + machine}, filepath.Join(built, "memory"), "plain")
	c := a.client()
	p.shown(c, "left", 0)
	p.Done()
}
