// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"testing"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

func TestHostNode(t *testing.T) {
	for _, c := range []struct {
		description string
		device      *v1.Device
		want        string
	}{
		{"a node under another name", &v1.Device{Path: "/dev/simgpu-of-a-test", Type: "c", Major: 1, Minor: 3}, "/dev/null"},
		{"a name that is another device's", &v1.Device{Path: "/dev/zero", Type: "c", Major: 1, Minor: 3}, "/dev/null"},
		{"a node at the same path", &v1.Device{Path: "/dev/null", Type: "c", Major: 1, Minor: 3}, ""},
		{"no such device", &v1.Device{Path: "/dev/simgpu-of-a-test", Type: "c", Major: 4000, Minor: 4000}, ""},
		{"the numbers of a device of the other type", &v1.Device{Path: "/dev/null", Type: "b", Major: 1, Minor: 3}, ""},
	} {
		t.Run(c.description, func(t *testing.T) {
			if got := hostNode(c.device); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
