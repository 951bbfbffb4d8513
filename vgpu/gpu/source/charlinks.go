// SPDX-License-Identifier: Apache-2.0

package source

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// linkDevices makes the links by which systemd knows character devices
// (/dev/char/195:0), where they are missing: udev makes none for the driver's.
// Where systemd manages the container's cgroup, runc names devices to it by them,
// and one that systemd does not find is taken from the container when systemd is
// reloaded: "Failed to initialize NVML: Unknown Error". dev is the host's /dev.
func linkDevices(dev string, devices []*v1.Device) error {
	var errs []error
	for _, d := range devices {
		name, ok := strings.CutPrefix(d.GetPath(), "/dev/")
		if !ok || d.GetType() != "c" {
			continue
		}
		link := filepath.Join(dev, "char", fmt.Sprintf("%d:%d", d.GetMajor(), d.GetMinor()))
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil { //nolint:gosec // G301: as all of /dev is
			return err
		}
		if err := os.Symlink(filepath.Join("..", name), link); err != nil && !errors.Is(err, fs.ErrExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
