// SPDX-License-Identifier: Apache-2.0

package node

import (
	"path/filepath"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// driverLibraries compares each library of the host's driver that is taken over
// with ours, and logs what ours does not know.
func (d *Daemon) driverLibraries() []*v1.DriverLibrary {
	var all []*v1.DriverLibrary
	for _, l := range []*v1.DriverLibrary{
		{Driver: d.inventory.Driver().CUDA, Library: d.cfg.Library.CUDA},
		{Driver: d.inventory.Driver().NVML, Library: d.cfg.Library.NVML},
	} {
		log := d.log.WithField("driver", l.Driver).WithField("library", l.Library)
		unknown, err := gpu.Unknown(l.Driver, l.Library)
		if err != nil {
			log.WithError(err).Warn("the names of the driver and of the library that is in its place can not be compared")
			l.Error = err.Error()
		}
		if l.UnknownNames = unknown; len(unknown) > 0 {
			log.WithField("names", unknown).Warn("the driver is newer than the library that is in its place: what is called by these names reaches the driver as it is; see vgpu doctor")
		}
		l.Name = filepath.Base(l.Driver)
		all = append(all, l)
	}
	return all
}
