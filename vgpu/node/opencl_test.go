// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// The OpenCL layer in a container knows of the GPUs that its vGPU may be given, and of
// no others of the node.
func TestTheDirectoryNamesTheGPUsThatTheContainerMayBeGiven(t *testing.T) {
	n := newNode(t, settings{gpus: 3})
	line := func(i int) string { return fmt.Sprintf("%s %s\n", gpuUUID(i), n.gpus.GPUs()[i].PCIBusID) }
	for name, c := range map[string]struct {
		annotations []string
		want        string
	}{
		"any":   {nil, line(0) + line(1) + line(2)},
		"named": {[]string{"uuid=" + gpuUUID(1)}, line(1)},
		"early": {[]string{"bind=early", "uuid=" + gpuUUID(2) + "," + gpuUUID(1)}, line(1)},
	} {
		if got, err := os.ReadFile(filepath.Join(n.create(name, c.annotations...), "gpus")); err != nil || string(got) != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}

// Where a CPU stands for a GPU nobody lists the processes on it: one that has its device
// and not our layer is found by what it has in its memory.
func TestAProcessPastTheOpenCLLayerIsListed(t *testing.T) {
	n := newNode(t, settings{gpus: 2, edit: func(l *loop) { l.openCLOnCPU = true }})
	r := n.request("a")
	resp, err := n.control.Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	dir, libraries := resp.GetEdits().GetMounts()[0].GetSource(), t.TempDir()
	for _, name := range []string{"libpocl-devices-pthread.so", "libvgpu-opencl.so"} {
		cmd := exec.Command("cc", "-shared", "-nostdlib", "-o", filepath.Join(libraries, name), "-x", "c", "/dev/null")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	const device, layer = "/libpocl-devices-pthread.so", " /libvgpu-opencl.so"
	inside := func(preload string) int {
		t.Helper()
		return stranger(t, rootAt+`rootAt "$1" "$2"; cp "$3"/* "$1"; exec chroot "$1" env LD_PRELOAD="$4" sh -c 'echo ready; read end'`,
			t.TempDir(), dir, libraries, preload)
	}
	past := inside(device)
	inside(device + layer)
	inside("")
	stranger(t, `LD_PRELOAD="$1" exec sh -c 'echo ready; read end'`, filepath.Join(libraries, device)) // in no container
	want := []*v1.Process{{Gpu: gpuUUID(0), Pid: uint32(past), Command: "sh", Inside: n.idOf("a"), Container: r.GetContainer()}}
	got := n.processes().GetProcesses()
	if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(&v1.Process{}, "cgroup")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
