// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

const (
	mib = 1 << 20
	gib = 1 << 30
	// contextMemory is what a context costs on the simulated GPUs, which have
	// gpuMemory each.
	contextMemory = 256 * mib
	gpuMemory     = 16 * gib
)

// ledgerRow is what vgpu ps tells of the memory of a container, on its first GPU.
type ledgerRow struct {
	Limit uint64 `json:"limit_bytes"`
	Used  uint64 `json:"used_bytes"`
}

func (n *node) ledger(id string) (ledgerRow, error) {
	var all []struct {
		Container struct{ ID string }
		Memory    []ledgerRow
	}
	if err := json.Unmarshal([]byte(n.cli("ps", "--output", "json")), &all); err != nil {
		return ledgerRow{}, err
	}
	for _, v := range all {
		if v.Container.ID == id && len(v.Memory) > 0 {
			return v.Memory[0], nil
		}
	}
	return ledgerRow{}, fmt.Errorf("vgpu ps shows no memory of container %s", id)
}

// machine asks the simulated GPUs themselves.
func (n *node) machine() []harness.DeviceMemory {
	n.T.Helper()
	all, err := n.Daemon.Memory(n.Ctx)
	if err != nil {
		n.T.Fatal(err)
	}
	return all
}

// really is how much memory the GPUs themselves say that a container has.
func (n *node) really(c *harness.Container) (sum uint64) {
	n.T.Helper()
	tenant := n.tenant(c)
	for _, g := range n.machine() {
		sum += g.Tenants[tenant]
	}
	return sum
}

// memoryShown is what a container is told of its memory.
type memoryShown struct {
	cuda   numbers
	ledger ledgerRow
	v1     [3]uint64 // total, used, free
	v2     [4]uint64 // the same, and reserved
	really uint64
}

// look asks everybody.
func (n *node) look(c *harness.Container, p *talker) (m memoryShown, err error) {
	n.T.Helper()
	m.cuda, m.really = p.info(), n.really(c)
	nvml := n.monitor(c)
	if _, err := fmt.Sscan(nvml["memory"][0], &m.v1[0], &m.v1[1], &m.v1[2]); err != nil {
		n.T.Fatal(err)
	}
	if _, err := fmt.Sscan(nvml["memory2"][0], &m.v2[0], &m.v2[1], &m.v2[2], &m.v2[3]); err != nil {
		n.T.Fatal(err)
	}
	m.ledger, err = n.ledger(c.ID)
	return m, err
}

// tells waits until all that tells of a container's memory says that it may use
// limit and uses used, and that so much is free. What the driver uses is seen a
// little later.
func (n *node) tells(c *harness.Container, p *talker, limit, used, free uint64) {
	n.T.Helper()
	want := memoryShown{
		cuda:   numbers{Free: free, Total: limit, Device: limit},
		ledger: ledgerRow{Limit: limit, Used: used},
		v1:     [3]uint64{limit, used, free},
		v2:     [4]uint64{limit, used, free, limit - used - free},
		really: used,
	}
	n.Wait(func() error {
		got, err := n.look(c, p)
		if err == nil && got != want {
			err = fmt.Errorf("of %s is told\n%+v, want\n%+v", c.ID, got, want)
		}
		return err
	})
}

// A container may allocate up to its limit by whatever allocator, and no more; its
// context counts. CUDA, NVML, vgpu ps and the GPU itself tell the same.
func TestMemoryLimit(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24})
	const limit, room = 512 * mib, 512*mib - contextMemory
	kinds := []string{"plain", "pitch", "managed", "async", "physical", "array"}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			n := n.sub(t)
			c, p := n.limited(kind, "512Mi")
			p.must("ok", "use 0")
			n.tells(c, p, limit, contextMemory, room)
			first := p.alloc(kind, 64*mib)
			n.tells(c, p, limit, contextMemory+64*mib, room-64*mib)
			if got := p.fill(kind, 4*mib); got != room-64*mib {
				t.Errorf("it gets %d MiB more, want %d", got/mib, room/mib-64)
			}
			n.tells(c, p, limit, limit, 0)
			for _, other := range kinds {
				p.must(outOfMemory, "alloc %s %d", other, 2*mib)
			}
			p.must("ok", "free %s", first)
			n.tells(c, p, limit, limit-64*mib, 64*mib)
			for _, other := range kinds {
				p.must("ok", "free %s", p.alloc(other, 64*mib))
			}
			n.tells(c, p, limit, limit-64*mib, 64*mib)
			n.kill(c)
		})
	}
}

// A limit that does not even hold the context: nothing can be allocated.
func TestMemoryLimitBelowTheContext(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24})
	c, p := n.limited("small", "64Mi")
	p.must("ok", "use 0")
	n.Wait(func() error {
		if row, err := n.ledger("small"); err != nil || row.Used != contextMemory {
			return fmt.Errorf("the ledger shows %+v, %w", row, cmp.Or(err, errNotYet))
		}
		return nil
	})
	p.must(outOfMemory, "alloc plain 1")
	if got := p.info(); got != (numbers{0, 64 * mib, 64 * mib}) {
		t.Errorf("CUDA tells %+v", got)
	}
	if got := n.monitor(c)["memory"][0]; got != fmt.Sprint(64*mib, 64*mib, 0) {
		t.Errorf("NVML tells %s", got)
	}
}

// The processes of a container share its limit, another container has its own. A
// process that is killed in the middle gives back what it had, so does a
// container.
func TestMemoryOfTwoProcesses(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24})
	pair, one := n.limited("pair", "1Gi")
	two := n.beside(pair, "second")
	own, alone := n.limited("own", "512Mi")
	for _, p := range []*talker{one, two, alone} {
		p.must("ok", "use 0")
	}
	n.tells(pair, one, gib, 2*contextMemory, gib-2*contextMemory)
	one.alloc("plain", 384*mib)
	n.tells(pair, two, gib, 896*mib, 128*mib)
	two.must(outOfMemory, "alloc plain %d", 132*mib)
	two.alloc("plain", 120*mib)
	one.must(outOfMemory, "alloc plain %d", 16*mib)
	n.tells(pair, one, gib, 1016*mib, 8*mib)
	n.tells(own, alone, 512*mib, contextMemory, 256*mib)
	seen := n.monitor(pair)["pid"]
	want := []string{fmt.Sprint(one.ask("pid"), " ", 640*mib), fmt.Sprint(two.ask("pid"), " ", 376*mib)}
	if strings.Join(seen, "; ") != strings.Join(want, "; ") {
		t.Errorf("NVML shows the processes %v, want %v", seen, want)
	}

	var pid int
	fmt.Sscan(two.ask("pid"), &pid)
	two.must("ok", "churn plain %d", 4*mib)
	pidfd, err := pair.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	n.Wait(func() error { // SIGKILL takes a moment
		if got := one.ask("alloc plain %d", 384*mib); got == outOfMemory {
			return errNotYet
		}
		return nil
	})
	n.tells(pair, one, gib, gib, 0)
	n.tells(own, alone, 512*mib, contextMemory, 256*mib)
	n.gpuHolds(gib+contextMemory, gib+512*mib)
	n.kill(pair)
	n.gpuHolds(contextMemory, 512*mib)
	n.kill(own)
	n.gpuHolds(0, 0)
	if g := n.machine()[0]; g.Used != 0 || g.Free != gpuMemory {
		t.Errorf("the GPU itself tells %+v", g)
	}
}

// gpuHolds waits until vgpu gpus shows so much of the first GPU in use, and
// reserved.
func (n *node) gpuHolds(used, reserved uint64) {
	n.T.Helper()
	n.Wait(func() error {
		var all []struct {
			Used     uint64 `json:"memory_used_bytes"`
			Reserved uint64 `json:"memory_reserved_bytes"`
		}
		if err := json.Unmarshal([]byte(n.cli("gpus", "--output", "json")), &all); err != nil {
			return err
		}
		if all[0].Used != used || all[0].Reserved != reserved {
			return fmt.Errorf("vgpu gpus shows %+v, want %d used and %d reserved", all[0], used, reserved)
		}
		return nil
	})
}

// vgpu set changes the limit of a container that runs: more can be allocated at
// once; with less, what is there stays and works, and nothing comes to it.
func TestMemorySet(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24})
	c, p := n.limited("set", "512Mi")
	p.must("ok", "use 0")
	n.tells(c, p, 512*mib, contextMemory, 512*mib-contextMemory) // which comes a moment later
	piece := p.alloc("plain", 256*mib)
	p.must("ok", "set %s 17", piece)
	p.must(outOfMemory, "alloc plain %d", 256*mib)
	n.cli("set", "set", "memory=1Gi")
	more := p.alloc("plain", 256*mib)
	n.tells(c, p, gib, 768*mib, 256*mib)

	n.cli("set", "set", "memory=300Mi")
	p.must(outOfMemory, "alloc plain %d", mib)
	if row, err := n.ledger("set"); err != nil || row != (ledgerRow{300 * mib, 768 * mib}) {
		t.Errorf("vgpu ps tells %+v, %v", row, err)
	}
	if got := p.info(); got != (numbers{0, 300 * mib, 300 * mib}) {
		t.Errorf("CUDA tells %+v", got)
	}
	p.must("17", "get %s", piece)
	p.must("ok", "free %s", more)
	p.must(outOfMemory, "alloc plain %d", mib)
	p.must("17", "get %s", piece)
	p.must("ok", "free %s", piece)
	n.tells(c, p, 300*mib, contextMemory, 44*mib)
	if got := p.fill("plain", 4*mib); got != 44*mib {
		t.Errorf("below its new limit it gets %d MiB", got/mib)
	}
}

// Containers that ask for no memory share what the others did not reserve, and
// are told so as it changes.
func TestMemoryWithoutAKey(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24})
	a, one := n.memory(harness.Spec{ID: "a"})
	b, two := n.memory(harness.Spec{ID: "b"})
	one.must("ok", "use 0")
	two.must("ok", "use 0")
	const both = 2 * contextMemory
	n.tells(a, one, gpuMemory, contextMemory, gpuMemory-both)
	n.tells(b, two, gpuMemory, contextMemory, gpuMemory-both)
	large := one.alloc("plain", 8*gib)
	n.tells(a, one, gpuMemory, contextMemory+8*gib, 8*gib-both)
	n.tells(b, two, gpuMemory, contextMemory, 8*gib-both)

	// Room for 4Gi is taken away by somebody who uses nothing of it but a context.
	c, three := n.limited("c", "4Gi")
	three.must("ok", "use 0")
	n.tells(c, three, 4*gib, contextMemory, 4*gib-contextMemory)
	n.tells(b, two, gpuMemory-4*gib, contextMemory, 4*gib-both)
	n.tells(a, one, gpuMemory-4*gib, contextMemory+8*gib, 4*gib-both)
	two.must(outOfMemory, "alloc plain %d", 4*gib)
	if got := two.fill("plain", 64*mib); got != 4*gib-both {
		t.Errorf("it gets %d MiB, and %d are free", got/mib, (4*gib-both)/mib)
	}
	n.tells(a, one, gpuMemory-4*gib, contextMemory+8*gib, 0)
	three.alloc("plain", 4*gib-contextMemory)
	n.kill(c)
	n.tells(b, two, gpuMemory, 4*gib-contextMemory, 4*gib)
	one.must("ok", "free %s", large)
	n.tells(b, two, gpuMemory, 4*gib-contextMemory, 12*gib)
	two.alloc("plain", 12*gib)
	n.tells(a, one, gpuMemory, contextMemory, 0)
}

// vgpud killed and started again: what is told is what it was. An allocation that
// needs vgpud waits for it, and is held to the same limit.
func TestMemoryOverKill(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24})
	c, one := n.limited("pair", "1Gi")
	two := n.beside(c, "second")
	free, twoToo := n.memory(harness.Spec{ID: "free"})
	for _, p := range []*talker{one, two, twoToo} {
		p.must("ok", "use 0")
	}
	piece := one.alloc("plain", 100*mib)
	one.must("ok", "set %s 17", piece)
	two.alloc("async", 64*mib)
	twoToo.alloc("physical", 2*gib)
	all := func(used uint64) {
		t.Helper()
		n.tells(c, one, gib, used, gib-used)
		n.tells(c, two, gib, used, gib-used)
		n.tells(free, twoToo, 15*gib, 2*gib+contextMemory, 13*gib-contextMemory)
	}
	all(676 * mib)
	kill := func() {
		t.Helper()
		if err := n.Daemon.Process().Kill(); err != nil {
			t.Fatal(err)
		}
	}
	again := func() {
		t.Helper()
		if err := n.Daemon.Start(n.Ctx); err != nil {
			t.Fatal(err)
		}
	}
	kill()
	one.must("17", "get %s", piece)
	again()
	all(676 * mib)

	kill()
	one.tell("alloc array %d", 240*mib)
	if !one.silent() {
		t.Error("with no vgpud it got memory that was not leased")
	}
	again()
	if got := one.hear(); strings.HasPrefix(got, "error") {
		t.Errorf("when vgpud is back it gets %s", got)
	}
	all(916 * mib)

	kill()
	two.tell("alloc managed %d", 240*mib)
	again()
	if got := two.hear(); got != outOfMemory {
		t.Errorf("beyond the limit it gets %s", got)
	}
	two.alloc("plain", 108*mib)
	all(gib)
	one.must("17", "get %s", piece)
	n.kill(c)
	n.kill(free)
	n.gpuHolds(0, 0)
}

// Policy open: with vgpud away for long, allocations go on, up to the limit that
// is known; what was allocated so is in the ledger of the next vgpud.
func TestMemoryOverAbsenceOpen(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: harness.DaemonOptions{
		Engine: "absence = \"open\"\nabsence_after = \"1s\"\n",
	}})
	c, p := n.limited("open", "1Gi")
	p.must("ok", "use 0")
	piece := p.alloc("plain", 100*mib)
	n.tells(c, p, gib, 356*mib, 668*mib)
	pair, one := n.limited("pair", "1Gi")
	two := n.beside(pair, "second")
	one.must("ok", "use 0")
	two.must("ok", "use 0")
	two.alloc("plain", 300*mib)
	n.tells(pair, one, gib, 812*mib, 212*mib)
	if err := n.Daemon.Process().Kill(); err != nil {
		t.Fatal(err)
	}
	one.alloc("plain", 100*mib) // what the other one has counts
	one.must(outOfMemory, "alloc plain %d", 200*mib)
	if got := one.info(); got != (numbers{112 * mib, gib, gib}) {
		t.Errorf("one of two processes is told %+v", got)
	}
	p.alloc("plain", 500*mib)
	if got := p.info(); got != (numbers{168 * mib, gib, gib}) {
		t.Errorf("without vgpud CUDA tells %+v", got)
	}
	p.must(outOfMemory, "alloc plain %d", 200*mib)
	p.must("ok", "free %s", piece)
	p.alloc("array", 200*mib)
	if err := n.Daemon.Start(n.Ctx); err != nil {
		t.Fatal(err)
	}
	n.tells(c, p, gib, 956*mib, 68*mib)
	n.tells(pair, two, gib, 912*mib, 112*mib)
	if got := p.fill("plain", 4*mib); got != 68*mib {
		t.Errorf("then it gets %d MiB more, want 68", got/mib)
	}
}
