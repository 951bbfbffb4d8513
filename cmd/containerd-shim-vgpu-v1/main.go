// SPDX-License-Identifier: Apache-2.0

// Command containerd-shim-vgpu-v1 is the containerd shim of the runtime
// io.containerd.vgpu.v1: runc's shim, whose containers get a virtual GPU.
package main

import (
	"os"

	"github.com/vgpu-shim/vgpu/shim"
)

func main() { os.Exit(shim.Main()) }
