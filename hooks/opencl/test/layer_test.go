// SPDX-License-Identifier: Apache-2.0

package opencl_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/hooks/driver/test/jail"
)

// A process becomes a client when it asks for devices, and not before.
func TestProcessBecomesAClientWhenItAsksForDevices(t *testing.T) {
	a := newArbiter(t)
	p := start(t, a, "inert")
	p.Expect("platform")
	if n := a.hellos.Load(); n != 0 {
		t.Fatalf("%d clients before any device was asked for", n)
	}
	p.GoOn()
	c := a.client()
	p.Expect("context")
	if w := c.page.Waiting().Load(); w != 0 || c.state() != "CLOSED" {
		t.Errorf("a context waits at the gate: %d, %s", w, c.state())
	}
	p.GoOn()
	p.Done()
}

func TestWorkWaitsForItsGrantAndEndsTheTurn(t *testing.T) {
	a := newArbiter(t)
	p := start(t, a, "waits")
	c := a.client()
	p.Expect("begins")
	c.until("a thread at the gate", func() bool { return c.page.Waiting().Load() == 1 })
	p.Silent()
	c.grant()
	p.Expect("enqueued")
	p.Expect("finished")
	// clFinish proved it: nobody had to ask.
	c.becomes("IDLE")
	p.GoOn()
	p.Done()
}

// Every kind of work passes the gate, and each call once.
func TestAllWorkPassesTheGate(t *testing.T) {
	for _, c := range []struct{ name, said string }{{"data", "all of it is right"}, {"kernels", "sum 5145800"}, {"order", "in order"}} {
		t.Run(c.name, func(t *testing.T) {
			a := newArbiter(t)
			p := start(t, a, c.name)
			a.gatesEachOnce(p, c.said)
		})
	}
}

// Debian 12's loader finds the layer by the variable, Debian 13's by the file too; asked for
// it twice, each has it once.
func TestLoadersFindTheLayer(t *testing.T) {
	const ours = "/" + jail.Libraries + "/" + layer
	file := t.TempDir()
	if err := os.MkdirAll(filepath.Join(file, "etc/OpenCL/layers"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(file, "etc/OpenCL/layers/vgpu.lay"), []byte(ours+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const nothing = "OPENCL_LAYERS="
	for _, c := range []struct {
		name, trees, variable string
		finds                 bool
	}{
		{"2.3.1/variable", tools, layers, true},
		{"2.3.1/variable twice", tools, layers + ":" + ours, true},
		{"2.3.1/file", file + ":" + tools, nothing, false},
		{"2.3.1/both", file + ":" + tools, layers, true},
		{"2.3.3/variable", newer + ":" + tools, layers, true},
		{"2.3.3/variable twice", newer + ":" + tools, layers + ":" + ours, true},
		{"2.3.3/file", newer + ":" + file + ":" + tools, nothing, true},
		{"2.3.3/both", newer + ":" + file + ":" + tools, layers, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newArbiter(t)
			p := jail.Begin(t, command(t, a.dir, []string{toolsVariable + "=" + c.trees, c.variable}, "kernels"))
			if c.finds {
				a.gatesEachOnce(p, "sum 5145800")
				return
			}
			p.Expect("sum 5145800")
			p.Expect("203 calls")
			p.Done()
			if n := a.hellos.Load(); n != 0 {
				t.Errorf("%d clients said HELLO", n)
			}
		})
	}
}

// Those loaders see by themselves that they have the layer. Another one, or a second one in
// the process, may ask again: the layer of the first goes on.
func TestLayerIsMadeOnce(t *testing.T) {
	a := newArbiter(t)
	p := start(t, a, "again")
	p.Expect("again -59") // CL_INVALID_OPERATION
	a.gatesEachOnce(p, "sum 5145800")
}

// gatesEachOnce grants a program its one turn, and holds its count of calls that are work
// against the gate's.
func (a *arbiter) gatesEachOnce(p *jail.Program, said string) {
	a.t.Helper()
	c := a.client()
	c.grant()
	p.Expect(said)
	p.Expect(fmt.Sprintf("%d calls", c.page.Submitted().Load()))
	p.Done()
}

func TestRevokedTurnEndsWithItsWork(t *testing.T) {
	a := newArbiter(t)
	p := start(t, a, "drains")
	c := a.client()
	c.grant()
	p.Expect("runs")
	c.revoke()
	looks := time.NewTicker(100 * time.Microsecond)
	defer looks.Stop()
	for range 200 { // the library's thread looks more often than that
		if c.state() != "DRAINING" {
			t.Fatalf("the word is %s while a kernel runs", c.state())
		}
		<-looks.C
	}
	p.GoOn()
	p.Expect("goes")
	c.becomes("CLOSED")
	p.GoOn()
	p.Done()
}

// An implementation need not begin what nobody flushed: a drain flushes.
func TestDrainFlushes(t *testing.T) {
	a := newArbiter(t)
	p := jail.Begin(t, command(t, a.dir, []string{aboveAnother()}, "unflushed"))
	c := a.client()
	c.grant()
	p.Expect("enqueued")
	if said := p.Stderr.String(); said != "" {
		t.Fatalf("before the drain there was a flush: %q", said)
	}
	c.revoke()
	p.Says("flushed")
	c.becomes("CLOSED")
	p.GoOn()
	p.Done()
}

// aboveAnother asks for testdata/tells.c, and then for our layer: the first is the
// innermost, and sees what ours does.
func aboveAnother() string {
	return strings.Replace(layers, "=", "="+filepath.Join(built, "tells.so")+":", 1)
}

// What waits for a user event keeps no turn, and runs in none but its own.
func TestHeldWorkIsNotInFlight(t *testing.T) {
	for _, name := range []string{"held", "held_by_barrier", "held_by_old_barrier", "held_by_wait_for_events"} {
		t.Run(name, func(t *testing.T) {
			a := newArbiter(t)
			p := jail.Begin(t, command(t, a.dir, []string{aboveAnother()}, name))
			c := a.client()
			c.grant()
			p.Expect("held")
			c.revoke()
			c.becomes("CLOSED") // though it was enqueued and is not over
			p.GoOn()
			if name == "held" {
				p.Expect("sets")
			}
			c.until("who sets the event at the gate", func() bool { return c.page.Waiting().Load() == 1 })
			p.Silent()
			c.grant()
			p.Expect("set")
			p.Expect("ran")
			c.becomes("IDLE")
			p.GoOn()
			p.Done()
		})
	}
}

// A call that blocks for what a thread at the gate must do is not inside of the gate.
func TestBlockingCallWaitsOutsideOfTheGate(t *testing.T) {
	a := newArbiter(t)
	p := start(t, a, "blocking")
	c := a.client()
	p.Expect("reads")
	c.grant()
	c.until("the read is enqueued", func() bool { return c.page.Waiting().Load() == 0 })
	c.revoke()
	c.becomes("CLOSED")
	p.GoOn()
	c.grant()
	got := []string{p.Line(), p.Line()} // of two threads
	if got[0]+got[1] != "setread" && got[0]+got[1] != "readset" {
		t.Fatalf("it said %q", got)
	}
	c.becomes("IDLE")
	p.GoOn()
	p.Done()
}

// What a callback does at a closed gate is done by somebody else when it opens.
func TestCallbackNeverWaits(t *testing.T) {
	for _, c := range []struct {
		name  string
		turn  bool // it has one before
		said  []string
		gates string
	}{
		{"callback", false, []string{"called", "enqueued", "returned"}, "its work at the gate"},
		{"callback_sets", true, []string{"set", "returned"}, "the user event at the gate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newArbiter(t)
			p := start(t, a, c.name)
			client := a.client()
			if c.turn {
				client.grant()
			}
			p.Expect("begins")
			client.revoke()
			client.becomes("CLOSED")
			p.GoOn()
			for _, said := range c.said {
				p.Expect(said)
			}
			client.until(c.gates, func() bool { return client.page.Waiting().Load() == 1 })
			p.GoOn()
			p.Expect("waits")
			p.Silent()
			client.grant()
			p.Expect("ran")
			client.becomes("IDLE")
			p.GoOn()
			p.Done()
		})
	}
}

// A queue that stands still gets room after room: what it waits for may be what waits.
func TestFullQueueThatStandsStillGetsRoom(t *testing.T) {
	a := newArbiter(t)
	p := start(t, a, "bound")
	c := a.client()
	c.grant()
	p.Expect("runs")
	p.Expect("enqueued")
	p.GoOn()
	p.Expect("ran")
	c.becomes("IDLE")
	p.GoOn()
	p.Done()
}

func TestMemoryIsOnTheLedger(t *testing.T) {
	a := newArbiter(t)
	a.limit = 64 << 20
	p := start(t, a, "memory")
	c := a.client()
	for _, step := range []struct {
		said string
		used uint64
	}{
		{"buffer", 40 << 20},
		{"part", 40 << 20},
		{"refused", 40 << 20},
		{"image", 44 << 20},
		{"svm", 48 << 20},
		{"part of it is in use", 40 << 20},
		{"freed", 0},
	} {
		p.Expect(step.said)
		if used := c.used(); used != step.used {
			t.Errorf("%s: %d bytes are charged, want %d", step.said, used, step.used)
		}
		p.GoOn()
	}
	p.Done()
}

// Real drivers tell which GPU a device is by its UUID, its place on the PCI bus, or both.
// Those that are bound are seen; NVIDIA's others are not, also one that vgpud did not name.
func TestDevicesAreTheBoundGPUs(t *testing.T) {
	uuid := func(first byte) string { return fmt.Sprintf("GPU-%02x000000-0000-0000-0000-000000000000", first) }
	a := newArbiter(t)
	a.uuids = [][16]byte{{1}, {2}, {3}, {4}}
	a.names(uuid(1)+" 00000000:40:00.0", uuid(2)+" 00000000:41:02.1", uuid(3)+" 00000000:42:03.1", uuid(4)+" 00000005:42:03.1",
		uuid(8)+" 00000000:49:00.0", uuid(9)+" 00000000:50:00.0")
	p := jail.Begin(t, command(t, a.dir, []string{layers, "OCL_ICD_VENDORS=" + filepath.Join(built, "devices.so")}, "names"))
	for _, want := range []string{
		"bound, by its UUID", "bound, by cl_khr_pci_bus_info", "bound, by NVIDIA's attributes", "bound, by NVIDIA's attributes with the domain",
		"left alone, of another vendor",
	} {
		p.Expect(want)
	}
	p.Done()
}

func TestRefusedProcessHasNoDevice(t *testing.T) {
	a := newArbiter(t)
	a.refuse = true
	p := start(t, a, "waits")
	p.Says("this process gets no GPU: no GPU: there is none")
	p.Says("returned -1") // CL_DEVICE_NOT_FOUND
}

func TestForkedChildOfAClientHasNoDevice(t *testing.T) {
	a := newArbiter(t)
	p := start(t, a, "child")
	p.Expect("the child 42")
	p.Done()
}

// Submitting functions that the loader does not know are given out by name, and counted.
func TestUnknownSubmittersAreCounted(t *testing.T) {
	a := newArbiter(t)
	p := start(t, a, "by_name")
	c := a.client()
	p.Expect("there is none")
	want := uint64(0)
	if p.Line() == "command buffers yes" {
		want = 1
	}
	c.until("the count", func() bool { return a.ungated.Load() == want })
	p.Done()
}

// Programs that do something odd behave as without the layer, in turns that are as
// short as can be.
func TestTraps(t *testing.T) {
	for _, trap := range []struct {
		name    string
		clients int32
	}{
		{"never_signalled", 1},
		{"released_early", 1},
		{"queue_released", 1},
		{"context_destroyed", 1},
		{"killed", 2},
		{"forks", 1},
		{"threads", 1},
		{"data", 1},
		{"kernels", 1},
		{"order", 1},
		{"many", 1},
		{"counts", 1},
		{"errors", 1},
	} {
		t.Run(trap.name, func(t *testing.T) {
			want, status := bare(t, trap.name)
			a := newArbiter(t)
			go a.turns()
			p := start(t, a, trap.name)
			said := ""
			for line := p.Line(); line != ""; line = p.Line() {
				said += line + "\n"
			}
			_ = p.Cmd.Wait()
			if got := p.Cmd.ProcessState.ExitCode(); said != want || got != status || want == "" {
				t.Errorf("with the layer it says\n%s(exit status %d)\nwithout it\n%s(exit status %d); stderr:\n%s", said, got, want, status, p.Stderr)
			}
			if n := a.hellos.Load(); n != trap.clients {
				t.Errorf("%d clients said HELLO, want %d", n, trap.clients)
			}
		})
	}
}
