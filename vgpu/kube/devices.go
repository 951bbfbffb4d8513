// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// What a device offers, and tells of itself. The names are the driver's own but for
// those of Kubernetes.
const (
	memoryCapacity = "memory" // bytes, in steps of 1Mi
	shareCapacity  = "share"  // percent of the GPU's time

	modelAttribute        = "model"
	architectureAttribute = "architecture"
	capabilityAttribute   = "computeCapability"
	driverAttribute       = "driverVersion"
	uuidAttribute         = "uuid"
)

// The taints of a device. A claim that tolerates one says so by its key.
const (
	unhealthyTaint = DriverName + "/unhealthy" // it takes no work; pods on it are evicted
	cordonedTaint  = DriverName + "/cordoned"  // it takes no new pods
	contestedTaint = DriverName + "/contested" // somebody else offers it as well; no new pods
	absentTaint    = DriverName + "/absent"    // vgpud does not run; no new pods
)

const (
	mebibyte  = 1 << 20
	wholeGPU  = 100 // percent
	perSlice  = 64  // devices of a ResourceSlice, where they have taints
	maxString = 64  // characters of an attribute
)

// deviceName names a GPU in Kubernetes: by its UUID, which is a DNS label in small
// letters. A number would be another GPU's when one is taken out.
func deviceName(g *v1.GPU) string { return strings.ToLower(g.GetUuid()) }

// pool is the node's devices, in the order in which the scheduler is to try them.
func (d *Driver) pool(s snapshot, claimed map[string]uint64, rivals map[string]string, guests map[string]uint64) resourceslice.Pool {
	var pool resourceslice.Pool
	for group := range slices.Chunk(d.order(s.gpus, claimed), perSlice) {
		var slice resourceslice.Slice
		for _, g := range group {
			slice.Devices = append(slice.Devices, d.device(g, s, rivals[g.GetUuid()], guests[g.GetUuid()]))
		}
		pool.Slices = append(pool.Slices, slice)
	}
	if pool.Slices == nil {
		pool.Slices = []resourceslice.Slice{{}} // empty is not the same as not there
	}
	return pool
}

// order puts the GPUs in the order of the configuration. claimed is how many bytes of
// each device are.
func (d *Driver) order(gpus []*v1.GPU, claimed map[string]uint64) []*v1.GPU {
	gpus = slices.Clone(gpus)
	part := func(g *v1.GPU) float64 { return float64(claimed[deviceName(g)]) / float64(max(g.GetMemoryBytes(), 1)) }
	switch d.cfg.Order {
	case Pack:
		slices.SortStableFunc(gpus, func(a, b *v1.GPU) int { return cmp.Compare(part(b), part(a)) })
	case Spread:
		slices.SortStableFunc(gpus, func(a, b *v1.GPU) int { return cmp.Compare(part(a), part(b)) })
	case Random:
		// The same until the next claim: nothing is published for no reason.
		r := rand.New(rand.NewPCG(d.seed, d.shuffles.Load())) //nolint:gosec // G404: an order, and no secret
		r.Shuffle(len(gpus), func(i, j int) { gpus[i], gpus[j] = gpus[j], gpus[i] })
	}
	return gpus
}

func (d *Driver) device(g *v1.GPU, s snapshot, rival string, guests uint64) resourceapi.Device {
	multiple := true
	// The API server wants a request of the least and one step to fit, and neither
	// default nor maximum above what there is.
	memory := d.claimable(g)
	memory = max(memory-min(memory, guests), min(memory, 2))
	whole := min(g.GetMemoryBytes()/mebibyte, memory)
	usual := d.cfg.DefaultMemory / mebibyte
	if usual == 0 {
		usual = g.GetMemoryBytes() / mebibyte * uint64(d.cfg.DefaultShare) / wholeGPU
	}
	usual = min(max(usual, 1), whole)
	return resourceapi.Device{
		Name: deviceName(g), Attributes: d.attributes(g, s.driver), AllowMultipleAllocations: &multiple,
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			memoryCapacity: capacity(mebibyte, memory, usual, whole),
			shareCapacity:  capacity(1, wholeGPU, uint64(d.cfg.DefaultShare), wholeGPU),
		},
		Taints: taints(g, s.absent, rival),
	}
}

// claimable is how many mebibytes of a GPU may be claimed: whole ones, as the API server
// wants it.
func (d *Driver) claimable(g *v1.GPU) uint64 {
	return uint64(float64(g.GetMemoryBytes()/mebibyte) * d.cfg.Oversubscription)
}

// capacity is value units, of which a request takes 1 to most and, if it says nothing,
// usual.
func capacity(unit int64, value, usual, most uint64) resourceapi.DeviceCapacity {
	q := func(n uint64) *resource.Quantity {
		if unit == 1 {
			return resource.NewQuantity(int64(n), resource.DecimalSI)
		}
		return resource.NewQuantity(int64(n)*unit, resource.BinarySI)
	}
	return resourceapi.DeviceCapacity{
		Value: *q(value),
		RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default:    q(usual),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: q(1), Max: q(most), Step: q(1)},
		},
	}
}

func (d *Driver) attributes(g *v1.GPU, driver string) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	out := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	text := func(name resourceapi.QualifiedName, value string) {
		if value = strings.ToValidUTF8(value[:min(len(value), maxString)], ""); value != "" {
			out[name] = resourceapi.DeviceAttribute{StringValue: &value}
		}
	}
	number := func(name resourceapi.QualifiedName, value string) {
		if v, ok := semantic(value); ok {
			out[name] = resourceapi.DeviceAttribute{VersionValue: &v}
		}
	}
	text(modelAttribute, g.GetModel())
	text(architectureAttribute, g.GetArchitecture())
	text(uuidAttribute, g.GetUuid())
	number(capabilityAttribute, g.GetComputeCapability())
	number(driverAttribute, driver)
	if bus := BusID(g.GetPciBusId()); bus != "" {
		sys := deviceattribute.WithFSFromRoot(d.cfg.Sysfs)
		// A simulated GPU is at none of the machine's addresses.
		if a, err := deviceattribute.GetPCIBusIDAttribute(bus); err == nil {
			out[a.Name] = a.Value
		}
		if a, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(bus, sys); err == nil {
			out[a.Name] = a.Value
		}
		if a, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(bus, deviceattribute.ScalarAttribute, sys); err == nil {
			out[a.Name] = a.Value
		}
	}
	return out
}

// BusID is a PCI address as Linux writes it; NVML writes a domain of eight digits.
func BusID(nvml string) string {
	s := strings.ToLower(nvml)
	if domain, rest, ok := strings.Cut(s, ":"); ok && len(domain) == 8 {
		return strings.TrimPrefix(domain, "0000") + ":" + rest
	}
	return s
}

// semantic makes a version one of three numbers, as the API wants it: 9.0 is 9.0.0,
// and 580.65.06 is 580.65.6.
func semantic(version string) (string, bool) {
	parts := strings.Split(version, ".")
	for len(parts) < 3 {
		parts = append(parts, "0")
	}
	for i, p := range parts[:3] {
		if p == "" || strings.Trim(p, "0123456789") != "" || len(p) > 9 {
			return "", false
		}
		parts[i] = cmp.Or(strings.TrimLeft(p, "0"), "0")
	}
	return strings.Join(parts[:3], "."), true
}

func taints(g *v1.GPU, absent bool, rival string) (out []resourceapi.DeviceTaint) {
	if g.GetState() == "UNHEALTHY" {
		out = append(out, resourceapi.DeviceTaint{Key: unhealthyTaint, Effect: resourceapi.DeviceTaintEffectNoExecute})
	}
	if g.GetCordon() != "" {
		out = append(out, resourceapi.DeviceTaint{Key: cordonedTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	if absent {
		out = append(out, resourceapi.DeviceTaint{Key: absentTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	if rival != "" {
		// The value is a label's, which has no slash.
		out = append(out, resourceapi.DeviceTaint{Key: contestedTaint, Value: strings.ReplaceAll(rival, "/", "_"), Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	return out
}

// identical are the UUIDs of the GPUs that are as g to whoever does not name one.
func identical(g *v1.GPU, all []*v1.GPU) (uuids []string) {
	for _, o := range all {
		if o.GetModel() == g.GetModel() && o.GetMemoryBytes() == g.GetMemoryBytes() &&
			o.GetArchitecture() == g.GetArchitecture() && o.GetComputeCapability() == g.GetComputeCapability() {
			uuids = append(uuids, o.GetUuid())
		}
	}
	return uuids
}

func describe(all []*v1.GPU) string {
	var s []string
	for _, g := range all {
		s = append(s, fmt.Sprintf("%s (%s)", g.GetUuid(), g.GetModel()))
	}
	return strings.Join(s, ", ")
}
