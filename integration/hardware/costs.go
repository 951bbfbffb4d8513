// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// costs measures what calls cost on the driver (the third open point), and in a vGPU
// that has the GPU to itself.
func (h *hardware) costs(ctx context.Context) error {
	node, err := h.startNode(ctx, "info", nil)
	if err != nil {
		return err
	}
	defer func() { h.stopped(node) }()
	args := []string{h.program("costs"), "--kernels", h.paths.Kernels, "--rounds", fmt.Sprint(h.size.rounds)}
	// Bare on both sides of it, so that a machine that changes is seen.
	var all []map[string]float64
	for _, at := range []place{h.driver, node.vgpus[0], h.driver} {
		lines, err := h.output(ctx, at, h.size.program, args...)
		if err != nil {
			return err
		}
		all = append(all, parseCosts(lines))
	}
	add := min(all[0]["add"], all[2]["add"])
	h.measure("locked_add", add, "ns", h.size.rounds)
	for _, name := range slices.Sorted(maps.Keys(all[0])) {
		if name == "add" {
			continue
		}
		bare := min(all[0][name], all[2][name])
		h.measure("cost_"+name+"_bare", bare, "ns", h.size.rounds)
		h.measure("cost_"+name+"_vgpu", all[1][name], "ns", h.size.rounds)
		h.measure("gate_"+name, (all[1][name]-bare)/add, "locked adds", h.size.rounds)
	}
	h.check("calls were measured", len(all[1]) == len(all[0]) && len(all[0]) > 5, "%d of them", len(all[0]))
	return nil
}

// parseCosts reads what programs/costs.c prints, as nanoseconds.
func parseCosts(lines []string) map[string]float64 {
	all := map[string]float64{}
	for _, line := range lines {
		var name string
		var ps float64
		if _, err := fmt.Sscanf(line, "cost %s %f", &name, &ps); err == nil && strings.HasPrefix(line, "cost ") {
			all[name] = ps / 1000
		}
	}
	return all
}
