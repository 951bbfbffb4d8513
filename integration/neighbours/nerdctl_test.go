// SPDX-License-Identifier: Apache-2.0

package neighbours

import (
	"path/filepath"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// nerdctl gives containers a vGPU as annotated, by the runtime's name.
func TestNerdctl(t *testing.T) {
	t.Parallel()
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v})
		nerdctl := client{n: n, namespace: n.Containerd.Namespace, command: []string{
			n.tool("suites", "nerdctl", "nerdctl"), "--address", n.Containerd.Socket, "--namespace", n.Containerd.Namespace,
			"--data-root", filepath.Join(n.Dir, "nerdctl"), "--cgroup-manager", "cgroupfs",
			"--cni-netconfpath", filepath.Join(n.Dir, "cni"), "--snapshotter", snapshotter,
		}}
		n.load(n.Containerd.Namespace)
		runtime := []string{"--runtime", harness.VGPURuntime}
		vgpus := nerdctl.mainJob(
			append(runtime, "--annotation", "vgpu-shim.dev/weight=200"),
			append(runtime, "--annotation", "vgpu-shim.dev/memory=2Gi"),
		)
		if vgpus[0].GetWeight() != 200 || vgpus[1].GetMemoryBytes() != 2<<30 {
			t.Errorf("the vGPUs are not as annotated: %v", vgpus)
		}
	})
}
