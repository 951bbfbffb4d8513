// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"
)

// makespans compares what jobs take one after another, beside each other on the
// hardware as it is, and beside each other in vGPUs.
func (h *hardware) makespans(ctx context.Context) error {
	bursts := fmt.Sprint(h.size.bursts)
	lines := [][]string{
		h.bursts("--bursts", bursts, "--launches", "20", "--us", "500", "--gap-us", "10000"),
		h.bursts("--bursts", bursts, "--launches", "5", "--us", "1000", "--gap-us", "5000"),
		h.bursts("--bursts", bursts, "--launches", "200", "--us", "20", "--gap-us", "4000"),
		h.bursts("--bursts", bursts, "--way", "graph", "--launches", "20", "--us", "200", "--gap-us", "4000"),
	}
	for _, n := range []int{2, 4} {
		if err := h.compare(ctx, fmt.Sprint("jobs", n), h.size.program, lines[:n], true); err != nil {
			return err
		}
	}
	return nil
}

// compare runs jobs in the three ways, and judges the last one.
func (h *hardware) compare(ctx context.Context, name string, limit time.Duration, lines [][]string, whole bool) error {
	n := len(lines)
	alone, err := h.inTurn(ctx, limit, everywhere(h.driver, lines))
	if err != nil {
		return err
	}
	native, err := h.together(ctx, limit, everywhere(h.driver, lines))
	if err != nil {
		return err
	}
	serial, hw := oneAfterAnother(alone).Seconds(), makespan(native).Seconds()
	h.measure("makespan_"+name+"_one_after_another", serial*1e3, "ms", n)
	h.measure("makespan_"+name+"_native", hw*1e3, "ms", n)
	node, err := h.startNode(ctx, "trace", make([]map[string]string, n)...)
	if err != nil {
		return err
	}
	defer func() { h.stopped(node) }()
	gated, err := h.together(ctx, limit, apart(node, lines))
	if err != nil {
		return err
	}
	vg := makespan(gated).Seconds()
	h.measure("makespan_"+name+"_vgpu", vg*1e3, "ms", n)
	h.measure("makespan_"+name+"_over_native", vg/hw, "", n)
	h.measure("makespan_"+name+"_over_one_after_another", vg/serial, "", n)
	return h.judgeExclusion(ctx, name, node, gated, whole)
}

// frameworks does the same with PyTorch: eager, by CUDA graphs, compiled, and many
// small kernels. Without it programs of ours stand in for it.
func (h *hardware) frameworks(ctx context.Context) error {
	modes := []string{"eager", "graphs", "compiled", "small"}
	worker := filepath.Join(h.built, "torch", "worker.py")
	limit := 100 * time.Second // the first import and compilation take long
	var version string
	if !h.simulate {
		lines, err := h.output(ctx, h.driver, 60*time.Second, h.python, "-c", "import torch; print(torch.__version__, torch.cuda.is_available())")
		if err != nil || len(lines) != 1 || lines[0][max(0, len(lines[0])-4):] != "True" {
			h.finding("PyTorch", "it can not be used here, programs of ours stand in for it: %v, %v", lines, err)
		} else {
			version = lines[0]
		}
	}
	h.fact("PyTorch", version)
	if version == "" {
		return h.standIns(ctx, worker)
	}
	lines := make([][]string, len(modes))
	for i, mode := range modes {
		lines[i] = []string{h.python, worker, mode, "--kernels", h.paths.Kernels}
	}
	// The order matters: the first run fills the compiler's cache.
	if err := h.compare(ctx, "torch4", limit, lines, false); err != nil {
		h.check("PyTorch, four programs", false, "%v", err)
		// Compiling takes a C compiler and time: the others can do without it.
		if err := h.compare(ctx, "torch3", limit, [][]string{lines[0], lines[1], lines[3]}, false); err != nil {
			return err
		}
	}
	for _, pair := range [][]int{{0, 1}, {2, 3}} {
		name := "torch " + modes[pair[0]] + " and " + modes[pair[1]]
		if err := h.pair(ctx, name, limit, [][]string{lines[pair[0]], lines[pair[1]]}); err != nil {
			return err
		}
	}
	return nil
}

// standIns have the same patterns of launches. That of Python is run, too, so that
// its own part is known to work.
func (h *hardware) standIns(ctx context.Context, worker string) error {
	bursts := fmt.Sprint(h.size.bursts)
	lines := [][]string{
		h.bursts("--bursts", bursts, "--launches", "30", "--us", "100", "--gap-us", "2000"),
		h.bursts("--bursts", bursts, "--way", "graph", "--launches", "30", "--us", "100", "--gap-us", "2000"),
		h.bursts("--bursts", bursts, "--launches", "8", "--us", "400", "--gap-us", "2000"),
		h.bursts("--bursts", bursts, "--launches", "500", "--us", "2", "--gap-us", "2000"),
	}
	if err := h.compare(ctx, "standins4", h.size.program, lines, true); err != nil {
		return err
	}
	driver := []string{h.python, worker, "driver", "--kernels", h.paths.Kernels, "--bursts", bursts}
	return h.pair(ctx, "python", h.size.program, [][]string{driver, driver})
}

// pair runs two in vGPUs.
func (h *hardware) pair(ctx context.Context, name string, limit time.Duration, lines [][]string) error {
	node, err := h.startNode(ctx, "trace", nil, nil)
	if err != nil {
		return err
	}
	defer func() { h.stopped(node) }()
	jobs, err := h.together(ctx, limit, apart(node, lines))
	if err != nil {
		return err
	}
	return h.judgeExclusion(ctx, name, node, jobs, false)
}
