// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/kube"
)

// The resources. A container has one vGPU, whatever it asks for.
const (
	GPUs   = kube.LimitsGPU              // GPUs of it; a GPU has as many as default shares go into it
	Memory = kube.DriverName + "/memory" // units of memory on all its GPUs together
	Share  = kube.DriverName + "/share"  // percent of the time of all its GPUs together
)

// Resources are all of them.
func Resources() []string { return []string{GPUs, Memory, Share} }

// UnitBytes is a unit of Memory. kubelet knows a device for each, so that smaller ones
// would be too many.
const UnitBytes = 256 * mebibyte

const (
	mebibyte = 1 << 20
	wholeGPU = 100 // percent
)

// maxUnits is how many of a resource a node offers at most: kubelet takes messages of up
// to 4 MiB, and a unit has below 70 bytes in one.
const maxUnits = 50_000

// offer is what a GPU brings of a resource.
type offer struct {
	uuid    string
	units   int
	healthy bool
	numa    int // node of it; below 0: not known, or not to be told
}

// offers are those of all GPUs.
func (p *Plugin) offers(resource string, now state) (out []offer) {
	total := 0
	for _, g := range now.gpus {
		o := offer{uuid: g.GetUuid(), units: p.units(resource, g), numa: -1}
		o.healthy = !now.absent && g.GetState() != "UNHEALTHY" && g.GetCordon() == ""
		if p.cfg.NUMA {
			o.numa = numaNode(p.cfg.Sysfs, g)
		}
		out = append(out, o)
		total += o.units
	}
	if total > maxUnits {
		for i := range out {
			out[i].units = out[i].units * maxUnits / total
		}
	}
	return out
}

func (p *Plugin) units(resource string, g *v1.GPU) int {
	switch resource {
	case Memory:
		return int(float64(g.GetMemoryBytes()) * p.cfg.Oversubscription / UnitBytes)
	case Share:
		return wholeGPU
	}
	return wholeGPU / p.cfg.DefaultShare
}

// devices are the units as kubelet wants them.
func devices(offers []offer) (out []*pluginapi.Device) {
	for _, o := range offers {
		health := pluginapi.Healthy
		if !o.healthy {
			health = pluginapi.Unhealthy
		}
		var topology *pluginapi.TopologyInfo
		if o.numa >= 0 {
			topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: int64(o.numa)}}}
		}
		for i := range o.units {
			out = append(out, &pluginapi.Device{ID: o.uuid + "/" + strconv.Itoa(i), Health: health, Topology: topology})
		}
	}
	return out
}

// gpuOf is the UUID of the GPU by which a unit is named.
func gpuOf(unit string) string {
	uuid, _, _ := strings.Cut(unit, "/")
	return uuid
}

// prefer chooses units: with what must be among them, from as few GPUs as can be, and
// from those of which the least is left that is enough, so that whole GPUs stay free. If
// they are to be apart, each is from another GPU as long as there is one.
func prefer(available, must []string, size int, apart bool) []string {
	chosen := slices.Clone(must)
	left, taken := map[string][]string{}, map[string]int{}
	for _, u := range must {
		taken[gpuOf(u)]++
	}
	for _, u := range available {
		if !slices.Contains(must, u) {
			left[gpuOf(u)] = append(left[gpuOf(u)], u)
		}
	}
	for _, units := range left {
		slices.SortFunc(units, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	}
	for len(chosen) < size && len(left) > 0 {
		need := size - len(chosen)
		gpu := slices.MinFunc(slices.Sorted(maps.Keys(left)), func(a, b string) int {
			inA, inB := len(left[a]), len(left[b])
			switch {
			case apart:
				return cmp.Or(taken[a]-taken[b], inA-inB)
			case taken[a] != taken[b]:
				return taken[b] - taken[a]
			case inA >= need && inB >= need:
				return inA - inB
			}
			return inB - inA
		})
		n := min(need, len(left[gpu]))
		if apart {
			n = 1
		}
		chosen = append(chosen, left[gpu][:n]...)
		taken[gpu] += n
		if left[gpu] = left[gpu][n:]; len(left[gpu]) == 0 {
			delete(left, gpu)
		}
	}
	return chosen
}

// numaNode is below 0 if the machine does not say.
func numaNode(sysfs string, g *v1.GPU) int {
	text, err := os.ReadFile(filepath.Join(sysfs, "bus/pci/devices", kube.BusID(g.GetPciBusId()), "numa_node"))
	if err != nil {
		return -1 // a simulated GPU is at none of the machine's addresses
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return -1
	}
	return n
}
