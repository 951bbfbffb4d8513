// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// named is what vgpu doctor says of processes on GPUs.
type named struct {
	Result, Detail string
	Process        struct {
		PID            int
		Gone           bool
		Command        string
		Cgroup         string
		GPU            string
		MemoryBytes    uint64 `json:"memory_bytes"`
		VGPU           string
		Container, Pod struct{ Namespace, Name, ID string }
	}
}

// unmanaged is what the doctor of a vgpud says of processes on GPUs.
func unmanaged(t *testing.T, d *harness.Daemon) (all []named) {
	t.Helper()
	// Its exit code says that there are faults, with a reason.
	out, _ := d.CLI(t.Context(), "doctor", "--no-container", "--output", "json")
	var findings []struct {
		Check string
		named
	}
	if err := json.Unmarshal([]byte(out), &findings); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, f := range findings {
		if f.Check == "processes" {
			all = append(all, f.named)
		}
	}
	return all
}

// pids are those of the processes that are named.
func pids(all []named) (pids []int) {
	for _, p := range all {
		if p.Result == "fault" {
			pids = append(pids, p.Process.PID)
		}
	}
	slices.Sort(pids)
	return pids
}

// ownDriver are the mounts and environment of a container whose program has a copy
// of the driver of its own.
func (n *node) ownDriver(s harness.Spec) harness.Spec {
	s.Mounts = append(s.Mounts, fmt.Sprintf("type=bind,src=%s,dst=/opt/driver,options=rbind:ro", filepath.Join(n.Paths.Simulated, "lib")))
	s.Env = append(s.Env, "LD_LIBRARY_PATH=/opt/driver")
	return s
}

// Whoever uses a GPU past the library is told with what is known of it: in a
// container with a vGPU, and in one of another runtime that was handed the GPU. One
// that takes turns beside them is not, also while vgpud is started again.
func TestProcessesPastTheLibraryAreTold(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24})
	events := n.follow()
	hog := []string{"hog", "--ms", "0"}
	honest := n.Launch(harness.Spec{ID: "honest", Args: hog})
	n.Says(honest, "running")
	if all := unmanaged(t, n.Daemon); len(all) != 1 || all[0].Result != "ok" {
		t.Errorf("before: %+v", all)
	}
	bypass := n.Launch(n.ownDriver(harness.Spec{ID: "bypass", Args: hog, Annotations: map[string]string{
		"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "main",
		"io.kubernetes.cri.sandbox-namespace": "ml", "io.kubernetes.cri.sandbox-name": "train-0",
	}}))
	handed := n.Launch(n.ownDriver(harness.Spec{
		ID: "handed", Runtime: harness.RuncRuntime, Args: hog,
		Mounts: []string{fmt.Sprintf("type=bind,src=%s,dst=/dev/simgpu,options=rbind:rw", n.Daemon.Machine)},
	}))
	n.Says(bypass, "running")
	n.Says(handed, "running")

	vgpu, err := n.VGPU("bypass")
	if err != nil {
		t.Fatal(err)
	}
	if vgpu.GetClients() != 0 {
		t.Fatalf("it went through the library: %v", vgpu)
	}
	all := unmanaged(t, n.Daemon)
	if len(all) != 2 {
		t.Fatalf("named are %+v", all)
	}
	for _, p := range all {
		q := p.Process
		if p.Result != "fault" || q.Command != "hog" || q.MemoryBytes == 0 || q.GPU == "" || q.Gone {
			t.Errorf("%+v", p)
		}
		switch q.PID {
		case bypass.PID:
			if q.VGPU != vgpu.GetId() || q.Container.ID != "bypass" || q.Container.Namespace != n.Containerd.Namespace ||
				q.Pod.Name != "train-0" || q.Pod.Namespace != "ml" || !strings.Contains(p.Detail, "pod ml/train-0") {
				t.Errorf("in the container: %+v", p)
			}
		case handed.PID:
			// ctr's name for it, which nobody takes apart.
			if q.VGPU != "" || q.Container.ID != "" || q.Pod.Name != "" || !strings.Contains(q.Cgroup, "/handed") {
				t.Errorf("elsewhere: %+v", p)
			}
		default:
			t.Errorf("another one: %+v", p)
		}
	}
	gpu := all[0].Process.GPU
	inside := fmt.Sprintf(`{container="bypass",gpu=%q,id=%q,namespace=%q,pod="train-0",pod_namespace="ml"}`, gpu, vgpu.GetId(), n.Containerd.Namespace)
	elsewhere := fmt.Sprintf(`{container="",gpu=%q,id="",namespace="",pod="",pod_namespace=""}`, gpu)
	metrics := n.metrics()
	for _, at := range []string{inside, elsewhere} {
		if metrics["vgpu_unmanaged_processes"+at] != 1 || metrics["vgpu_unmanaged_memory_bytes"+at] == 0 {
			t.Errorf("metrics of %s: %v", at, metrics)
		}
	}
	events.wait("UNMANAGED", "bypass", 1)
	events.wait("UNMANAGED", "", 2)

	// Who takes turns is back before anybody takes it for another.
	want := []int{bypass.PID, handed.PID}
	slices.Sort(want)
	if err := n.Daemon.Process().Stop(); err != nil {
		t.Fatal(err)
	}
	if err := n.Daemon.Start(n.Ctx); err != nil {
		t.Fatal(err)
	}
	n.Wait(func() error {
		all := unmanaged(t, n.Daemon)
		if slices.Contains(pids(all), honest.PID) {
			t.Fatalf("named while it was coming back: %+v", all)
		}
		if v, err := n.VGPU("honest"); err != nil || v.GetClients() != 1 || !slices.Equal(pids(all), want) {
			return fmt.Errorf("after the restart: %v, %w, %+v", v, cmp.Or(err, errNotYet), all)
		}
		return nil
	})
	events.wait("UNMANAGED", "bypass", 2)
	events.wait("UNMANAGED", "", 4)

	for _, c := range []*harness.Container{bypass, handed} {
		if err := c.Remove(n.Ctx); err != nil {
			t.Fatal(err)
		}
	}
	if all := unmanaged(t, n.Daemon); len(all) != 1 || all[0].Result != "ok" {
		t.Errorf("after: %+v", all)
	}
	metrics = n.metrics()
	if _, there := metrics["vgpu_unmanaged_processes"+inside]; there || metrics["vgpu_unmanaged_processes"+elsewhere] != 0 {
		t.Errorf("metrics after: %v", metrics)
	}
	events.wait("UNMANAGED_GONE", "", 2)
	if n := events.count("UNMANAGED", "honest"); n != 0 {
		t.Errorf("%d events about the one that takes turns", n)
	}
	log := n.Daemon.Messages()
	for text, times := range map[string]int{"a process uses a GPU and is a client of no vGPU": 4, "uses a GPU no more": 2} {
		if got := strings.Count(log, text); got != times {
			t.Errorf("the log says %d times, not %d times: %q", got, times, text)
		}
	}
}

// Of processes that come and go, those that vgpud happens to see are told, whatever
// it looked for, and each is told to be gone.
func TestShortLivedProcessesPastTheLibrary(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24})
	events := n.follow()
	for events.count("UNMANAGED", "short") == 0 {
		c := n.Launch(n.ownDriver(harness.Spec{ID: "short", Args: []string{"hog", "--ms", "500"}}))
		unmanaged(t, n.Daemon)
		n.Finish(c)
		if err := c.Remove(n.Ctx); err != nil {
			t.Fatal(err)
		}
		if all := unmanaged(t, n.Daemon); len(all) != 1 || all[0].Result != "ok" {
			t.Errorf("it is gone: %+v", all)
		}
	}
	n.Wait(func() error {
		came, went := events.count("UNMANAGED", "short"), events.count("UNMANAGED_GONE", "short")
		if came != went {
			return fmt.Errorf("%d came, %d went", came, went)
		}
		return nil
	})
}

// A worker that was forked has its parent's files, and with them the parent's
// context. It is the parent's while that one lives.
func TestAForkedChildIsItsParents(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24})
	overlay, err := n.Overlay()
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile(n.forked())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(overlay.Rootfs, "forked.py"), script, 0o644); err != nil {
		t.Fatal(err)
	}
	c := n.Launch(harness.Spec{ID: "forked", Rootfs: overlay.Rootfs, Args: []string{
		"/bin/sh", "-c", "sleep 1000000 | /usr/bin/python3 /forked.py stay",
	}})
	n.Says(c, "forked")
	v, err := n.VGPU("forked")
	if err != nil {
		t.Fatal(err)
	}
	if all := unmanaged(t, n.Daemon); v.GetClients() != 1 || len(all) != 1 || all[0].Result != "ok" {
		t.Errorf("%v, %+v", v, all)
	}
}

func (n *node) forked() string {
	return filepath.Join(n.Paths.Root, "integration", "workload", "forked.py")
}

// When the parent is dead, the driver still counts its memory under a pid that
// nobody has.
func TestAChildThatOutlivesItsParentIsFound(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24})
	parent := exec.Command("/usr/bin/python3", n.forked(), "leave")
	parent.Env = []string{"SIMGPU_MACHINE=" + n.Daemon.Machine, "LD_LIBRARY_PATH=" + filepath.Join(n.Paths.Simulated, "lib")}
	// Not the command's own pipe, which it closes when it is waited for.
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	parent.Stdin = in
	said, err := parent.Output()
	if err = errors.Join(err, in.Close()); err != nil || string(said) != "forked\n" {
		t.Fatalf("%q, %v", said, err)
	}
	all := unmanaged(t, n.Daemon)
	if len(all) != 1 || all[0].Result != "fault" || !all[0].Process.Gone || all[0].Process.PID != parent.Process.Pid || all[0].Process.MemoryBytes == 0 {
		t.Errorf("its child lives: %+v", all)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	n.Wait(func() error {
		if all := unmanaged(t, n.Daemon); len(all) != 1 || all[0].Result != "ok" {
			return fmt.Errorf("its child is gone: %+v", all)
		}
		return nil
	})
}
