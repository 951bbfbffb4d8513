// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestMemoryGoesBetweenContainers: two processes in mount and pid namespaces of
// their own share memory and events by handles, and the dead leave no socket.
func TestMemoryGoesBetweenContainers(t *testing.T) {
	m := newMachine(t, "--gpus", "1", "--memory", "256Mi")
	handles := filepath.Join(t.TempDir(), "handles")
	give := m.command(true, "ipc", "give", handles)
	give.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
	in, err := give.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	m.start(give)
	take := m.command(true, "ipc", "take", handles)
	take.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
	m.start(take)
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if err := take.Wait(); err != nil {
		t.Error("take: ", err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := give.Wait(); err != nil {
		t.Error("give: ", err)
	}
	m.output(m.command(true, "ipc", "gone", handles))
	if left, _ := filepath.Glob(filepath.Join(m.dir, "ipc-*")); len(left) != 0 {
		t.Errorf("sockets of the dead are left: %q", left)
	}
	for _, name := range []string{"cuIpcGetMemHandle", "cuIpcOpenMemHandle", "cuIpcCloseMemHandle"} {
		if m.count(name) == 0 {
			t.Errorf("no %s in the log", name)
		}
	}
}

// TestNothingIsTooLargeOrTooWildForAnError: sizes up to 2^64 and addresses that are
// none give errors, nothing else.
func TestNothingIsTooLargeOrTooWildForAnError(t *testing.T) {
	for _, name := range []string{"huge", "wild"} {
		t.Run(name, func(t *testing.T) {
			newMachine(t, "--gpus", "1", "--memory", "256Mi").run(name)
		})
	}
}

// TestInjectedAllocationFault: the n-th allocation from then on fails, that one alone.
func TestInjectedAllocationFault(t *testing.T) {
	m := newMachine(t, "--gpus", "1", "--memory", "256Mi")
	m.inject("--gpu", "0", "--oom-at", "3")
	if out := m.run("faults"); !strings.HasPrefix(out, "failed 3\nleast ") {
		t.Errorf("the third allocation alone was to fail: %q", out)
	}
	if out := m.run("faults"); !strings.HasPrefix(out, "least ") {
		t.Errorf("a fault that was over came again: %q", out)
	}
}

// TestInjectedSlowCall: each call of that name takes its time, until it is cleared.
func TestInjectedSlowCall(t *testing.T) {
	m := newMachine(t, "--gpus", "1", "--memory", "256Mi")
	m.inject("--gpu", "0", "--slow", "cuMemsetD8Async:20000")
	if _, least, _ := strings.Cut(m.run("faults"), "least "); number(t, least) < 20000 {
		t.Errorf("a call that takes 20 ms took %s us", least)
	}
	m.inject("--gpu", "0", "--clear")
	if _, least, _ := strings.Cut(m.run("faults"), "least "); number(t, least) >= 20000 {
		t.Errorf("the call is still slow: %s us", least)
	}
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestPidsAreTheCallers: NVML gives pids as the caller's pid namespace has them,
// and leaves out who is not in there.
func TestPidsAreTheCallers(t *testing.T) {
	for _, test := range []struct {
		description string
		pids        bool // the machine has the file that tells pids
		outside     int  // what a caller outside sees of one in a pid namespace; 0: its pid there
	}{
		{"as the kernel translates them", true, 0},
		{"as each sees itself, in a machine without the file", false, 1},
	} {
		t.Run(test.description, func(t *testing.T) {
			m := newMachine(t, "--gpus", "1", "--memory", "256Mi")
			if !test.pids {
				if err := os.Remove(filepath.Join(m.dir, "pids")); err != nil {
					t.Fatal(err)
				}
			}
			inside := m.command(true, "endless", "1000")
			inside.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
			m.start(inside)
			defer func() { _ = inside.Process.Kill(); _ = inside.Wait() }()
			want := test.outside
			if want == 0 {
				want = inside.Process.Pid
			}
			lib, devices := m.openNVML()
			processes, _ := devices[0].GetComputeRunningProcesses()
			if len(processes) != 1 || int(processes[0].Pid) != want {
				t.Errorf("processes are %+v, want %d", processes, want)
			}
			if name, r := lib.SystemGetProcessName(want); r != nvml.SUCCESS || name != "test-endless" {
				t.Errorf("process %d is %q, %v", want, name, r)
			}
		})
	}
}

// TestADeadProcessWhoseChildHasItsFiles is listed where its pid means something, and
// nowhere else: it was 1 in its container.
func TestADeadProcessWhoseChildHasItsFiles(t *testing.T) {
	for _, test := range []struct {
		description string
		elsewhere   bool // it was in a container
		listed      int
	}{{"on the host", false, 1}, {"in a container", true, 0}} {
		t.Run(test.description, func(t *testing.T) {
			m := newMachine(t, "--gpus", "1", "--memory", "256Mi")
			in, out, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			parent := m.command(test.elsewhere, "endless", strconv.Itoa(100<<20), "clone")
			parent.Stdin = in
			m.start(parent)
			in.Close()
			_, devices := m.openNVML()
			_ = parent.Process.Kill()
			_, _ = parent.Process.Wait()
			processes, _ := devices[0].GetComputeRunningProcesses()
			if len(processes) != test.listed || test.listed == 1 && int(processes[0].Pid) != parent.Process.Pid {
				t.Errorf("processes are %+v", processes)
			}
			if memory, _ := devices[0].GetMemoryInfo(); memory.Used < 100<<20 {
				t.Errorf("%d bytes are used: its child does not have its files", memory.Used)
			}
		})
	}
}

// TestPidsOfOtherNamespacesAreLeftOut looks with NVML from inside one namespace:
// the program finds itself, and not the one in another namespace.
func TestPidsOfOtherNamespacesAreLeftOut(t *testing.T) {
	m := newMachine(t, "--gpus", "1", "--memory", "256Mi")
	other := m.command(true, "endless", "1000")
	m.start(other)
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	look := m.command(true, "pids", filepath.Join(built.root, "lib", "libnvidia-ml.so.1"))
	look.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
	in, err := look.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := look.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := look.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = look.Wait() }()
	lines := bufio.NewScanner(out)
	var got []string
	for lines.Scan() && lines.Text() != "" {
		got = append(got, lines.Text())
	}
	if strings.Join(got, " ") != "1" {
		t.Errorf("a process that is 1 in its namespace sees %q", got)
	}
	// It opened and closed NVML beside its own driver: outside both are still told.
	_, devices := m.openNVML()
	processes, _ := devices[0].GetComputeRunningProcesses()
	want := map[int]bool{other.Process.Pid: true, look.Process.Pid: true}
	for _, p := range processes {
		delete(want, int(p.Pid))
	}
	if len(processes) != 2 || len(want) != 0 {
		t.Errorf("processes are %+v, without %v", processes, want)
	}
}
