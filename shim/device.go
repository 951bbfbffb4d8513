// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// hostNode is where the host has the node of a device if that is not the path
// that the container has it at: a simulated GPU's node is another device's under
// a name of its own. Empty: at the same path, or nowhere.
func hostNode(d *v1.Device) string {
	if isNode(d.GetPath(), d) {
		return ""
	}
	// The kernel tells the name that it gave the node.
	kind := "char"
	if d.GetType() == "b" {
		kind = "block"
	}
	b, err := os.ReadFile(fmt.Sprintf("/sys/dev/%s/%d:%d/uevent", kind, d.GetMajor(), d.GetMinor()))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME=")
		if path := filepath.Join("/dev", name); ok && isNode(path, d) {
			return path
		}
	}
	return ""
}

// isNode tells whether path is a node of the device.
func isNode(path string, d *v1.Device) bool {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return false
	}
	kind := uint32(unix.S_IFCHR)
	if d.GetType() == "b" {
		kind = unix.S_IFBLK
	}
	return st.Mode&unix.S_IFMT == kind && int64(unix.Major(st.Rdev)) == d.GetMajor() && int64(unix.Minor(st.Rdev)) == d.GetMinor()
}
