// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// NVIDIA's cuda-bindings, which finds every call by cuGetProcAddress.
func TestCUDABindings(t *testing.T) {
	python(t, harness.Containerd24, row{
		Client: "cuda-bindings (PyPI), driver",
		Does:   "memory, pools, mapped physical memory, streams, events, graphs captured, built and changed, kernels from PTX",
	}, "cuda-clients", "bindings_vector.py", "/kernels", "20")
}

// CUDA's runtime asks the driver for tables that only NVIDIA knows; the simulated
// driver has none. The day it has some, this test says that docs/clients.md is
// wrong, as is all that stands there of programs on the runtime.
func TestCUDARuntime(t *testing.T) {
	n := start(t, harness.Containerd24)
	s := pythonSpec(n, "cuda-clients", "runtime_count.py")
	s.ID = "runtime"
	c := launch(n, s)
	var said struct {
		Version, Status string
		Count           *int
	}
	harnesstest.LastJSON(t, exits(n, c), &said)
	if said.Status != "cudaErrorNotSupported" || said.Count != nil {
		t.Errorf("the runtime says %+v", said)
	}
	// It asks for all that there is, also for what the simulated driver gives out at
	// addresses that no name has (simgpu/README.md): nothing of it passes the gate.
	if last := gone(n, c); last.Usage.Submissions != 0 || last.Ungated != 0 {
		t.Errorf("vgpu ps shows %+v of a program that could submit nothing", last)
	}
	if o := n.NoOverlap(); o.Submissions != 0 {
		t.Errorf("the simulated GPU has seen %d pieces of work", o.Submissions)
	}
	if !t.Failed() {
		rows.add(t, row{"cuda-bindings (PyPI), runtime", said.Version, "host", "asks for the devices", "-", notSimulated})
	}
}
