// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/nvmltest"
	vgpud "github.com/vgpu-shim/vgpu/vgpu/node"
	"github.com/vgpu-shim/vgpu/vgpu/node/nodetest"
)

// A container on a server of NVIDIA's, as far as one can come without its GPUs: runc
// makes the nodes of its GPU and no other, the device cgroup lets it open them alone,
// and each file of the driver is where it is looked for.
func TestAContainerOnAServer(t *testing.T) {
	const others = 3 // the minor number of a GPU that is not its own
	s := nvmltest.New(t, "DGX H100")
	bound := s.Device(2)
	n := start(t, harness.Options{Version: harness.Containerd24, NoDaemon: true})
	nodetest.Serve(t, s, filepath.Join(n.Dir, "v", "s"), vgpud.LibraryConfig{CUDA: n.Paths.Library, NVML: n.Paths.NVML})

	script := fmt.Sprintf(`for d in /dev/nvidia*; do stat -c '%%n %%t:%%T %%a' $d; done
mknod /dev/other c 195 %d
for d in /dev/nvidia%d /dev/other; do head -c1 $d 2>&1 >/dev/null | grep -q 'not permitted' && echo $d is out of reach; done
for l in libnvidia-ptxjitcompiler.so.1 libnvidia-nvvm.so.4 libnvidia-gpucomp.so.%s libnvcuvid.so; do test -s /usr/lib64/$l && echo $l; done
test -x /usr/bin/nvidia-smi && echo nvidia-smi
ls -A /run /tmp
cmp /usr/lib64/libcuda.so.1 /vgpu-library && echo ours
echo $NVIDIA_VISIBLE_DEVICES`, others, bound.Minor, s.DriverVersion)
	got := n.Run(harness.Spec{
		ID: "c", Args: []string{"sh", "-c", script}, Annotations: map[string]string{"vgpu-shim.dev/uuid": bound.UUID},
		Mounts: []string{
			"type=tmpfs,src=tmpfs,dst=/run", "type=tmpfs,src=tmpfs,dst=/tmp",
			"type=bind,src=" + n.Paths.Library + ",dst=/vgpu-library,options=bind:ro",
		},
	})
	want := fmt.Sprintf(`/dev/nvidia-modeset c3:fe 666
/dev/nvidia-uvm 1ff:0 666
/dev/nvidia-uvm-tools 1ff:1 666
/dev/nvidia%[1]d c3:%[1]d 666
/dev/nvidiactl c3:ff 666
/dev/other is out of reach
libnvidia-ptxjitcompiler.so.1
libnvidia-nvvm.so.4
libnvidia-gpucomp.so.%[2]s
libnvcuvid.so
nvidia-smi
/run:

/tmp:
ours
void
`, bound.Minor, s.DriverVersion)
	if got != want {
		t.Errorf("the container sees\n%s\nwant\n%s", got, want)
	}
}
