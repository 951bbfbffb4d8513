// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// Debian's numba, under each containerd.
func TestNumba(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		python(t, v, row{
			Client: "numba (Debian)",
			Does:   "device arrays there and back, streams, events, a kernel from PTX",
		}, "", "numba_vector.py", "/kernels/vec_add_f32.ptx", "100")
	})
}

// NVIDIA's numba-cuda, which takes the place of numba's own part for CUDA, on
// cuda-core and cuda-bindings.
func TestNumbaCUDA(t *testing.T) {
	python(t, harness.Containerd24, row{
		Client: "numba-cuda (PyPI) on cuda-core",
		Does:   "device arrays there and back, streams, events, a kernel from PTX",
	}, "numba-cuda", "numba_vector.py", "/kernels/vec_add_f32.ptx", "100")
}
