// SPDX-License-Identifier: Apache-2.0

package node

import (
	"runtime"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// muslLibraries are what containers get for programs with musl; none if a part
// of it is missing, which is said once and keeps vgpud from nothing: such
// programs find no driver then, and all others are served.
func (d *Daemon) muslLibraries() gpu.Musl {
	const without = "programs that are linked with musl find no driver in containers"
	if d.cfg.Library.Musl == "" {
		return gpu.Musl{}
	}
	if d.inventory.Driver().CUDAMusl == "" {
		d.log.Info(without + ": it has no build for musl")
		return gpu.Musl{}
	}
	m := gpu.MuslIn(d.cfg.Library.Musl, runtime.GOARCH)
	if err := m.Check(); err != nil {
		d.log.WithError(err).Warn(without + ": run make musl and make install, or set library.musl")
		return gpu.Musl{}
	}
	return m
}
