// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"path/filepath"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	cshim "github.com/containerd/containerd/v2/pkg/shim"
)

// shimManager is the part of the shim that is not the server: it starts one,
// cleans up after one, and says what it is. The runc shim's own does the work.
type shimManager struct {
	cshim.Shim
	containerd string // address of the containerd that started the process
}

var _ cshim.Shim = shimManager{}

func newManager(program, containerd string) shimManager {
	name := "io.containerd.vgpu.v1"
	if filepath.Base(program) == "containerd-shim-runc-v2" {
		name = "io.containerd.runc.v2"
	}
	return shimManager{manager.NewShimManager(name), containerd}
}
