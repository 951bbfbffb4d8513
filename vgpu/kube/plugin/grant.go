// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/claim"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// limits is what vgpud is told of a container that was given units; nil if none are ours.
func (p *Plugin) limits(c container, given map[string][]string, gpus []*v1.GPU) *v1.Claim {
	if !slices.ContainsFunc(Resources(), func(r string) bool { return len(given[r]) > 0 }) {
		return nil
	}
	grant := &v1.ClaimGrant{Name: claim.LimitsRequest}
	annotations, err := p.grant(given, gpus)
	if err != nil {
		grant.Refusal = err.Error()
	} else {
		grant.Annotations = annotations
	}
	return &v1.Claim{
		Uid: claim.OfLimits(c.podUID, c.name).UID, Name: "limits of container " + c.name,
		Requests: []*v1.ClaimGrant{grant}, Pods: []*v1.Pod{{Uid: c.podUID, Container: c.name}},
	}
}

// grant is what the units of a container give, as its annotations would say it. Errors
// are shown on the pod: they say what to change.
func (p *Plugin) grant(given map[string][]string, gpus []*v1.GPU) (map[string]string, error) {
	count := len(given[GPUs])
	if count == 0 {
		return nil, fmt.Errorf("they ask for memory or a share, and for no GPU: add %s: 1", GPUs)
	}
	if count > len(gpus) {
		return nil, fmt.Errorf("they ask for %d GPUs, and this node has %s: a container gets each once, so ask for at most %d in %s",
			count, describe(gpus), len(gpus), GPUs)
	}
	for _, r := range []string{Memory, Share} {
		if n := len(given[r]); n%count != 0 {
			return nil, fmt.Errorf("they ask for %d of %s on %d GPUs together, which get the same each: ask for a multiple of %d", n, r, count, count)
		}
	}
	share := len(given[Share]) / count
	if share > wholeGPU {
		return nil, fmt.Errorf("they ask for %d percent of the time of each GPU: ask for at most %d in %s", share, wholeGPU*count, Share)
	}
	if share == 0 {
		share = p.cfg.DefaultShare
	}
	memory := uint64(len(given[Memory])/count) * UnitBytes
	if memory == 0 {
		memory = p.usualMemory(gpus)
	}
	if fit := countOf(gpus, memory); fit < count {
		return nil, fmt.Errorf("they ask for %s of memory on each of %d GPUs, and this node has %s: ask for less of %s, which is in units of %s on all GPUs of the container together",
			request.FormatBytes(memory), count, describe(gpus), Memory, request.FormatBytes(UnitBytes))
	}
	out := map[string]string{
		request.Prefix + "gpus":   strconv.Itoa(count),
		request.Prefix + "memory": request.FormatBytes(memory),
		// As of a claim: among shares that come to a whole at most, weights of the
		// same numbers give each at least its part.
		request.Prefix + "weight": strconv.Itoa(share),
	}
	if near := p.near(given[GPUs], gpus); len(near) >= count && len(near) < len(gpus) && len(near) <= request.MaxCount {
		out[request.Prefix+"uuid"] = strings.Join(near, ",")
	}
	return out, nil
}

// usualMemory is for a container that asks for none, of any of the GPUs.
func (p *Plugin) usualMemory(gpus []*v1.GPU) uint64 {
	if p.cfg.DefaultMemory > 0 {
		return p.cfg.DefaultMemory
	}
	least := slices.MinFunc(gpus, func(a, b *v1.GPU) int { return int(a.GetMemoryBytes()/mebibyte) - int(b.GetMemoryBytes()/mebibyte) })
	return max(least.GetMemoryBytes()/mebibyte*uint64(p.cfg.DefaultShare)/wholeGPU, 1) * mebibyte
}

// near are the UUIDs of the GPUs on the NUMA nodes of these units; all, if that is not to
// be looked at, or is not known of all units.
func (p *Plugin) near(units []string, gpus []*v1.GPU) (uuids []string) {
	nodes := map[int]bool{}
	of := func(g *v1.GPU) int {
		if !p.cfg.NUMA {
			return -1
		}
		return numaNode(p.cfg.Sysfs, g)
	}
	for _, u := range units {
		for _, g := range gpus {
			if g.GetUuid() == gpuOf(u) {
				nodes[of(g)] = true
			}
		}
	}
	for _, g := range gpus {
		if nodes[-1] || nodes[of(g)] {
			uuids = append(uuids, g.GetUuid())
		}
	}
	return uuids
}

func countOf(gpus []*v1.GPU, memory uint64) (n int) {
	for _, g := range gpus {
		if g.GetMemoryBytes() >= memory {
			n++
		}
	}
	return n
}

func describe(gpus []*v1.GPU) string {
	if len(gpus) == 0 {
		return "none"
	}
	var s []string
	for _, g := range gpus {
		s = append(s, fmt.Sprintf("%s (%s, %s)", g.GetUuid(), g.GetModel(), request.FormatBytes(g.GetMemoryBytes())))
	}
	return strings.Join(s, ", ")
}
