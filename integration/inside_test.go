// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// A process that exec puts into a container uses the same vGPU.
func TestExec(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v, Daemon: harness.DaemonOptions{GPUs: "sim:2"}})
		first := n.Launch(harness.Spec{ID: "first", Args: []string{"hog", "--ms", "0"}})
		n.Says(first, "running")
		out := make(chan error, 1)
		go func() {
			_, err := first.Exec(n.Ctx, "/vgpu/hog", "--ms", "2000")
			out <- err
		}()
		var list []map[string]any
		n.Wait(func() error {
			select {
			case err := <-out:
				t.Fatalf("the exec ended before vgpu ps showed it: %v", err)
			default:
			}
			text, err := n.Daemon.CLI(n.Ctx, "ps", "--output", "json")
			if err != nil {
				return err
			}
			if list, err = vgpus(text); err != nil {
				return err
			}
			if len(list) != 1 || list[0]["clients"] != 2.0 {
				return fmt.Errorf("vgpu ps shows %s, not yet one vGPU with two clients", text)
			}
			return nil
		})
		if err := <-out; err != nil {
			t.Error(err)
		}
		if o := n.NoOverlap(); len(o.Tenants) != 1 {
			t.Errorf("the simulated GPU has seen %d tenants, want 1", len(o.Tenants))
		}
	})
}

// vgpus reads the list in the JSON of vgpu ps.
func vgpus(text string) ([]map[string]any, error) {
	var bare []map[string]any
	if err := json.Unmarshal([]byte(text), &bare); err == nil {
		return bare, nil
	}
	var wrapped struct{ Vgpus []map[string]any }
	err := json.Unmarshal([]byte(text), &wrapped)
	return wrapped.Vgpus, err
}

// Invariant 10: a process that is linked with the driver and makes no call of it
// opens no socket and starts no thread, and its container binds no GPU. The
// second half shows that this is seen when it happens.
func TestInert(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24})
	inert := n.Launch(harness.Spec{ID: "inert", Args: []string{"inert"}})
	n.Says(inert, "loaded")
	libraries, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", inert.PID))
	if err != nil || !strings.Contains(string(libraries), "libcuda.so") {
		t.Fatalf("the driver library is not loaded (%v): %s", err, libraries)
	}
	if sockets, threads := footprint(t, inert.PID); sockets != 0 || threads != 1 {
		t.Errorf("the process has %d sockets and %d threads, want none and 1", sockets, threads)
	}
	v, err := n.VGPU("inert")
	if err != nil {
		t.Fatal(err)
	}
	if v.GetClients() != 0 || v.GetState() != "UNBOUND" {
		t.Errorf("its vGPU is %s with %d clients, want UNBOUND with none", v.GetState(), v.GetClients())
	}

	active := n.Launch(harness.Spec{ID: "active", Args: []string{"inert", "--init"}})
	n.Says(active, "loaded")
	if sockets, _ := footprint(t, active.PID); sockets == 0 {
		t.Error("the process that initialised CUDA has no socket: this test can not fail")
	}
	if v, err = n.VGPU("active"); err != nil || v.GetClients() != 1 || v.GetState() == "UNBOUND" {
		t.Errorf("its vGPU is %v (%v), want bound with 1 client", v, err)
	}
}

// footprint counts the sockets and the threads of a process.
func footprint(t *testing.T, pid int) (sockets, threads int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d", pid)
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		target, _ := os.Readlink(filepath.Join(dir, "fd", f.Name())) // closed meanwhile: no socket
		if strings.HasPrefix(target, "socket:") {
			sockets++
		}
	}
	tasks, err := os.ReadDir(filepath.Join(dir, "task"))
	if err != nil {
		t.Fatal(err)
	}
	return sockets, len(tasks)
}
