// SPDX-License-Identifier: Apache-2.0

package opencl

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// CUDA and OpenCL in one container are clients of one vGPU, whose turns both have: while
// the one computes without end, the other gets on, and so does another container.
func TestCUDAAndOpenCLShareOneGrant(t *testing.T) {
	n := start(t, true)
	meeting := t.TempDir()
	both := n.launch(harness.Spec{
		ID:     "both",
		Args:   []string{"/bin/sh", "-c", "/programs/hog --ms 0 --kernels /kernels & until [ -e /meeting/0 ] && [ -e /meeting/1 ]; do sleep 0.1; done & exec /built/witness /meeting 0 2 10"},
		Mounts: append(n.programs(), fmt.Sprintf("type=bind,src=%s,dst=/meeting,options=rbind:rw", meeting)),
	})
	n.Wait(func() error {
		last, err := n.ps(both)
		if err == nil && last.Clients != 2 {
			err = fmt.Errorf("vgpu ps shows %+v", last)
		}
		return err
	})
	other := n.launch(harness.Spec{
		ID: "other", Args: []string{"/built/witness", "/meeting", "1", "2", "10"},
		Mounts: []string{fmt.Sprintf("type=bind,src=%s,dst=/meeting,options=rbind:rw", meeting)},
	})
	one, two := parse(t, n.exits(both)), parse(t, n.exits(other))
	if pairs := overlaps([]ran{one, two}); pairs != 0 {
		t.Errorf("%d pairs of commands of two containers ran at once", pairs)
	}
	if one.sum != two.sum {
		t.Errorf("the same work gives %d and %d", one.sum, two.sum)
	}
	if last, err := n.ps(both); err != nil || last.Clients != 1 { // the hog is left
		t.Errorf("vgpu ps shows %+v, %v", last, err)
	}
}

// A kernel of CUDA in one container never is in flight while a command of OpenCL runs in
// another, by the simulated GPU's own log and the implementation's own times; where OpenCL's
// gate never closes they are.
func TestCUDAKernelsAndOpenCLCommandsDoNotOverlap(t *testing.T) {
	pairs := func(gate bool) (pairs int, sum uint64) {
		n := start(t, gate)
		hog := n.launch(harness.Spec{ID: "kernels", Args: []string{"/programs/hog", "--ms", "0", "--kernels", "/kernels"}, Mounts: n.programs()})
		n.Says(hog, "running")
		tenant, err := hog.Tenant()
		if err != nil {
			t.Fatal(err)
		}
		commands := n.witness("commands", fmt.Sprint(rounds))
		log, err := n.Daemon.Log(n.Ctx)
		if err != nil {
			t.Fatal(err)
		}
		var kernels ran
		between := 0
		first, last := commands.commands[0], commands.commands[len(commands.commands)-1]
		for _, op := range log {
			if op.Tenant != tenant || op.Class != harness.ClassWork {
				continue
			}
			k := interval{uint64(op.Submit), cmp.Or(uint64(op.End), math.MaxUint64)}
			kernels.commands = append(kernels.commands, k)
			if k.start > first.end && k.end < last.start {
				between++
			}
		}
		if between == 0 {
			t.Fatalf("of %d kernels none ran between the first and the last of %d commands: this shows nothing", len(kernels.commands), len(commands.commands))
		}
		// It would compute beside the next pairs.
		if err := hog.Kill(n.Ctx, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if _, err := hog.Wait(n.Ctx); err != nil {
			t.Fatal(err)
		}
		return overlaps([]ran{kernels, commands}), commands.sum
	}
	with, sum := pairs(true)
	without, want := pairs(false)
	if with != 0 {
		t.Errorf("%d pairs of a kernel and a command of two containers were at once", with)
	}
	if without == 0 {
		t.Error("without the gate no kernel and command were at once either: this shows nothing")
	}
	if sum != want {
		t.Errorf("the commands' sum is %d, without the gate %d", sum, want)
	}
}

// What a process allocates by CUDA and by OpenCL is held to one limit, and what it frees on
// one side is there for the other. A context takes no memory on these GPUs: the driver does
// not know what OpenCL has on a CPU, and vgpud would take that off what the context takes.
func TestCUDAAndOpenCLShareOneLimit(t *testing.T) {
	n := startAs(t, "", harness.DaemonOptions{ContextMemory: "0"})
	meeting := t.TempDir()
	c := n.launch(harness.Spec{
		ID: "both", Args: []string{"/built/both", "/meeting"},
		Annotations: map[string]string{"vgpu-shim.dev/memory": "256Mi"},
		Mounts:      []string{fmt.Sprintf("type=bind,src=%s,dst=/meeting,options=rbind:rw", meeting)},
	})
	// Of 32 pieces of 8 MiB; CUDA_ERROR_OUT_OF_MEMORY, CL_MEM_OBJECT_ALLOCATION_FAILURE.
	said := "CUDA 16 2\nOpenCL 16 -4\nfull\n"
	n.Says(c, "full")
	if got := c.Output(); got != said {
		t.Fatalf("it says\n%s\nand not\n%s", got, said)
	}
	v, err := n.VGPU("both")
	if err != nil {
		t.Fatal(err)
	}
	if m := v.GetMemory(); len(m) != 1 || m[0].GetUsedBytes() != 256<<20 || v.GetClients() != 2 {
		t.Errorf("vgpud counts %v of %d clients", m, v.GetClients())
	}
	if err := os.WriteFile(filepath.Join(meeting, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	said += "CUDA 15 2\nOpenCL 17 -4\nCUDA 16 2\nOpenCL 16 -4\n"
	if got := n.exits(c); got != said {
		t.Errorf("it says\n%s\nand not\n%s", got, said)
	}
}

// programs are CUDA programs, and their kernels.
func (n node) programs() []string {
	return []string{
		fmt.Sprintf("type=bind,src=%s,dst=/programs,options=rbind:ro", n.Paths.Workload),
		fmt.Sprintf("type=bind,src=%s,dst=/kernels,options=rbind:ro", n.Paths.Kernels),
	}
}
