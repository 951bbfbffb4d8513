// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

func (n *node) processes() *v1.ListProcessesResponse {
	n.t.Helper()
	resp, err := n.control.ListProcesses(n.t.Context(), &v1.ListProcessesRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	return resp
}

func TestProcessesAreListedWithTheirVGPUs(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	n.create("a")
	a := n.client("a")
	bare := exec.Command("sleep", "1000")
	if err := bare.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bare.Process.Kill(); _ = bare.Wait() })
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	n.gpus.SetUsed(gpuUUID(0), a.cmd.Process.Pid, 5)
	n.gpus.SetUsed(gpuUUID(0), gone.Process.Pid, 6)
	n.gpus.SetUsed(gpuUUID(1), bare.Process.Pid, 7)
	resp := n.processes()
	if len(resp.GetProcesses()) != 2 || len(resp.GetSilentGpus()) != 0 {
		t.Fatalf("%v", resp)
	}
	client, other := resp.GetProcesses()[0], resp.GetProcesses()[1]
	if client.GetPid() != uint32(a.cmd.Process.Pid) || client.GetVgpu() != n.idOf("a") || client.GetGpu() != gpuUUID(0) || client.GetMemoryBytes() != 5 {
		t.Errorf("the client: %v", client)
	}
	groups, err := os.ReadFile("/proc/self/cgroup") // the child's too
	if err != nil {
		t.Fatal(err)
	}
	if other.GetPid() != uint32(bare.Process.Pid) || other.GetVgpu() != "" || other.GetGpu() != gpuUUID(1) || other.GetMemoryBytes() != 7 ||
		other.GetCommand() != "sleep" || !strings.Contains(string(groups), ":"+other.GetCgroup()+"\n") {
		t.Errorf("the other one: %v", other)
	}
}

// A driver that does not answer keeps nobody, and not more than one goroutine.
func TestADriverThatDoesNotSayWhoUsesAGPU(t *testing.T) {
	n := newNode(t, settings{})
	end := n.gpus.Hang()
	defer end()
	for range 2 {
		if resp := n.processes(); len(resp.GetProcesses()) != 0 || len(resp.GetSilentGpus()) != 1 {
			t.Errorf("%v", resp)
		}
	}
	end()
	n.until("the driver answers again", func() bool { return len(n.processes().GetSilentGpus()) == 0 })
}
