// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"path"
	"strings"

	"github.com/vgpu-shim/vgpu/hooks/oci"
	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// privateDir is where a container finds the directory of its vGPU, and in it
// the real driver libraries; privateMuslDir, where it finds those for programs
// with musl, and ours for them.
const (
	privateDir     = "/.vgpu"
	privateMuslDir = "/.vgpu-musl"
)

// openCLLayers is the variable in which OpenCL loaders find layers.
const openCLLayers = "OPENCL_LAYERS"

// edits turns vgpud's answer into edits of config.json, and the mounts that are made
// after the runtime's own: those that later takes.
func edits(e *v1.Edits, later func(oci.Mount) bool) (out []oci.Edit, after oci.Later) {
	take := oci.Takeover{Keep: []string{privateDir, privateMuslDir}}
	for _, m := range e.GetMounts() {
		mount := oci.Mount{
			Destination: m.GetDestination(),
			Type:        m.GetType(),
			Source:      m.GetSource(),
			Options:     m.GetOptions(),
		}
		if later(mount) {
			after = append(after, mount)
		} else {
			out = append(out, mount)
		}
		name := path.Base(m.GetDestination())
		switch {
		case take.Keeps(m.GetDestination()):
		case oci.IsCUDAName(name):
			take.CUDA = m.GetSource()
		case oci.IsNVMLName(name):
			take.NVML = m.GetSource()
		}
	}
	if len(after) > 0 {
		out = append(out, after)
		take.Later = after
	}
	if take.CUDA != "" {
		out = append(out, take, oci.MaskCompat{})
	}
	for _, d := range e.GetDevices() {
		out = append(out, oci.Device{
			Path:        d.GetPath(),
			Type:        d.GetType(),
			Major:       d.GetMajor(),
			Minor:       d.GetMinor(),
			FileMode:    d.GetFileMode(),
			UID:         d.GetUid(),
			GID:         d.GetGid(),
			Permissions: d.GetPermissions(),
			Host:        hostNode(d),
		})
	}
	for _, v := range e.GetEnv() {
		// The container's own layers stay, behind ours.
		if layer, ok := strings.CutPrefix(v, openCLLayers+"="); ok {
			out = append(out, oci.EnvList{Name: openCLLayers, First: layer})
			continue
		}
		out = append(out, oci.Env(v))
	}
	return out, after
}
