// SPDX-License-Identifier: Apache-2.0

// Command containerd-shim-vgpu-v1 is the containerd shim of the runtime
// io.containerd.vgpu.v1: runc's shim, whose containers get a virtual GPU.
//
// Build it with -tags no_grpc, as containerd builds its own shim: without the
// tag, gRPC's server is linked in for nothing, and costs every pod 6 MiB.
package main

import (
	"os"

	"github.com/vgpu-shim/vgpu/shim"
)

func main() { os.Exit(shim.Main()) }
