// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// pycuda, which is linked with libcuda, and uses calls of before CUDA 4.
func TestPyCUDA(t *testing.T) {
	python(t, harness.Containerd24, row{
		Client: "pycuda (PyPI, built here)",
		Does:   "arrays of a memory pool, sets, copies of lines, page-locked memory, streams, events, a kernel from PTX",
	}, "pycuda", "pycuda_vector.py", "/kernels/vec_add_f32.ptx", "50")
}
