// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// The most requirements that a container may have, and bytes in one. NVIDIA's
// images have two kilobytes.
const (
	maxRequirements = 32
	maxRequirement  = 16 << 10
)

func (f *faults) requirements(all map[string]string) {
	if len(all) > maxRequirements {
		f.add("requirements", fmt.Sprintf("must be at most %d", maxRequirements))
		return
	}
	for name, value := range all {
		f.text("requirements: name", name, maxKey)
		f.text("requirements: value of "+clip(name), value, maxRequirement)
		if _, err := gpu.ParseRequirement(value); err != nil {
			f.add("requirements: "+clip(name), err.Error()+hintRequire)
		}
	}
}

const hintRequire = " (NVIDIA_DISABLE_REQUIRE=true in the container, or disable_require in the runtime's configuration, turns this off)"

// met says whether the driver and the GPUs that a request may be bound to are what
// the container's image asks for.
func met(driver gpu.Driver, all []gpu.GPU, req request.Request, requirements map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(requirements)) {
		r, err := gpu.ParseRequirement(requirements[name])
		if err != nil {
			return err
		}
		fit := 0
		for _, g := range all {
			if candidate(g, req) && r.Met(properties(driver, g)) {
				fit++
			}
		}
		if fit >= req.Count {
			continue
		}
		wants := "it"
		if cuda := r.CUDA(); cuda != "" {
			wants = "CUDA " + cuda
		}
		return fmt.Errorf("the image wants %s (%s=%s), and the driver of this node is %s, which serves CUDA up to %s%s: "+
			"take an image for that, or a newer driver%s: %w", wants, name, clip(requirements[name]), driver.Version,
			orUnknown(driver.CUDAVersion), kinds(all, req), hintRequire, errdefs.ErrFailedPrecondition)
	}
	return nil
}

func properties(driver gpu.Driver, g gpu.GPU) gpu.Properties {
	return gpu.Properties{Driver: driver.Version, CUDA: driver.CUDAVersion, Brand: g.Brand, Arch: g.ComputeCapability}
}

// kinds tells of the GPUs that a request may be bound to what a requirement may be
// about, each kind once.
func kinds(all []gpu.GPU, req request.Request) (text string) {
	var said []string
	for _, g := range all {
		kind := fmt.Sprintf(", on %s (brand %s, compute capability %s)", g.Model, orUnknown(g.Brand), orUnknown(g.ComputeCapability))
		if candidate(g, req) && !slices.Contains(said, kind) {
			said = append(said, kind)
			text += kind
		}
	}
	return text
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
