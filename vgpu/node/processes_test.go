// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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
	n.gpus.SetUsed(gpuUUID(0), a.cmd.Process.Pid, 5)
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

// deadProcess is the pid of a process that has ended; with a zombie it is still there to
// be waited for.
func deadProcess(t *testing.T, zombie bool) int {
	t.Helper()
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	wait := func() { _ = cmd.Wait() }
	if zombie {
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(wait)
	} else {
		wait()
	}
	return cmd.Process.Pid
}

// A process that died while the driver was asked is nobody's fault. One that the
// driver still lists when it is asked again left its files to a child.
func TestADeadProcessIsNamedOnlyIfTheDriverListsItAgain(t *testing.T) {
	n := newNode(t, settings{})
	for _, zombie := range []bool{false, true} {
		pid := deadProcess(t, zombie)
		n.gpus.SetUsedOnce(gpuUUID(0), pid, 6)
		if got := n.processes().GetProcesses(); len(got) != 0 {
			t.Errorf("it just died: %v", got)
		}
		n.gpus.SetUsed(gpuUUID(0), pid, 6)
		if got := n.processes().GetProcesses(); len(got) != 1 || !got[0].GetGone() || got[0].GetPid() != uint32(pid) || got[0].GetVgpu() != "" {
			t.Errorf("its child lives: %v", got)
		}
		n.gpus.Ended(gpuUUID(0), pid)
	}
}

// Who exits or joins while the driver is asked was a client or is one.
func TestWhoIsAClientBeforeOrAfterTheLookIsNotUnmanaged(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	a := n.client("a")
	pid := a.cmd.Process.Pid
	for what, now := range map[string]func(all owners) (before, after owners){
		"it left":   func(all owners) (_, _ owners) { return all, owners{} },
		"it joined": func(all owners) (_, _ owners) { return owners{}, all },
	} {
		var all owners
		if err := n.daemon.call(func(l *loop) { all = l.owners() }); err != nil {
			t.Fatal(err)
		}
		before, after := now(all)
		p := &v1.Process{Pid: uint32(pid)}
		if after.attribute(p, before); p.GetVgpu() != n.idOf("a") || p.GetInside() != "" {
			t.Errorf("%s: %v", what, p)
		}
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
