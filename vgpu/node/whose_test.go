// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// stranger starts a shell script that uses no library of ours, and returns its pid
// once it has said "ready". It can read until the test ends.
func stranger(t *testing.T, script string, args ...string) int {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-ec", script, "sh"}, args...)...)
	cmd.Stderr = t.Output()
	// A mount namespace of its own, in a process group that ends as a whole.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return cmd.Process.Pid
}

// rootAt makes a root file system of this machine's programs in its first
// argument, with a vGPU's directory, the second one, mounted where its container
// has it.
const rootAt = `
rootAt() {
	mkdir -p "$1"
	mount -t tmpfs none "$1"
	for d in bin lib lib64 usr proc; do
		mkdir "$1/$d"
		mount --rbind "/$d" "$1/$d"
	done
	test -z "$2" || { mkdir "$1/.vgpu"; mount --bind "$2" "$1/.vgpu"; }
}
`

func TestAProcessPastTheLibraryIsKnownByItsContainer(t *testing.T) {
	n := newNode(t, settings{})
	r := n.request("a")
	r.Pod = &v1.Pod{Namespace: "ml", Name: "train-0", Uid: "1-2-3", Container: "main"}
	resp, err := n.control.Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	dir := resp.GetEdits().GetMounts()[0].GetSource()
	n.create("b") // another one, which it is not
	root := t.TempDir()
	for what, script := range map[string]string{
		"in it":                    `rootAt "$1" "$2"; exec chroot "$1" sh -c 'echo ready; read end'`,
		"in another root below it": `rootAt "$1" "$2"; mkdir "$1/inner"; rootAt "$1/inner" ""; chroot "$1" sh -c 'chroot /inner sh -c "echo ready; read end"; true'`,
	} {
		pid := stranger(t, rootAt+script, root, dir)
		if strings.Contains(what, "below") {
			pid = lastOf(t, pid)
		}
		n.gpus.SetUsed(gpuUUID(0), pid, 5)
		got := n.processes().GetProcesses()
		want := []*v1.Process{{
			Gpu: gpuUUID(0), Pid: uint32(pid), MemoryBytes: 5, Command: "sh",
			Inside: n.idOf("a"), Container: r.GetContainer(), Pod: r.GetPod(),
		}}
		if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(&v1.Process{}, "cgroup")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		n.gpus.Ended(gpuUUID(0), pid)
	}
	if v := n.vgpu("a"); !cmp.Equal(v.GetPod(), r.GetPod(), protocmp.Transform()) {
		t.Errorf("the vGPU is of the pod %v", v.GetPod())
	}
}

// lastOf is the youngest of a line of processes, each the only child of the one
// before it.
func lastOf(t *testing.T, pid int) int {
	t.Helper()
	for {
		children, err := os.ReadFile(procFile(pid, filepath.Join("task", strconv.Itoa(pid), "children")))
		if err != nil {
			t.Fatal(err)
		}
		child, err := strconv.Atoi(strings.TrimSpace(string(children)))
		if err != nil {
			return pid
		}
		pid = child
	}
}

// A process that began while no vgpud ran (engine.absence), or whose record was
// lost, is nowhere in the store, and needs a moment to find the new vgpud.
func TestWhoMayStillReturnAfterARestartIsNotNamed(t *testing.T) {
	n := newNode(t, settings{})
	dir := n.create("a")
	n.stop()
	var until time.Duration
	n.settings.edit = func(l *loop) { until, l.returnUntil = l.returnUntil-l.now(), math.MaxInt64 }
	n.start()
	if until <= 0 || until > reconnect {
		t.Errorf("it may return for %s", until)
	}
	pid := stranger(t, rootAt+`rootAt "$1" "$2"; exec chroot "$1" sh -c 'echo ready; read end'`, t.TempDir(), dir)
	foreign := stranger(t, "echo ready; read end")
	n.gpus.SetUsed(gpuUUID(0), pid, 5)
	n.gpus.SetUsed(gpuUUID(0), foreign, 5)
	for _, late := range []bool{false, true} {
		if late {
			if err := n.daemon.call(func(l *loop) { l.returnUntil = 0 }); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range n.processes().GetProcesses() {
			if unmanaged, want := p.GetVgpu() == "", late || p.GetPid() == uint32(foreign); unmanaged != want {
				t.Errorf("late %t: %v", late, p)
			}
		}
	}
}
