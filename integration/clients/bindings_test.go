// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// NVIDIA's cuda-bindings, which finds every call by cuGetProcAddress.
func TestCUDABindings(t *testing.T) {
	python(t, harness.Containerd24, row{
		Client: "cuda-bindings (PyPI), driver",
		Does:   "memory, pools, mapped physical memory, streams, events, graphs captured, built and changed, kernels from PTX",
	}, "cuda-clients", "bindings_vector.py", "/kernels", "20")
}
