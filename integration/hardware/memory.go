// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// talliedMemory is what programs/truth.c prints.
type talliedMemory struct {
	before, after [3]uint64 // free, total, the device's total
	taken         uint64
	result        int
}

func parseTruth(lines []string) (t talliedMemory, err error) {
	infos := 0
	for _, line := range lines {
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "info":
			to := &t.before
			if infos++; infos > 1 {
				to = &t.after
			}
			if infos <= 2 {
				_, err = fmt.Sscan(rest, &to[0], &to[1], &to[2])
			}
		case "taken":
			_, err = fmt.Sscan(rest, &t.taken, &t.result)
		}
		if err != nil {
			return t, fmt.Errorf("truth says %q: %w", line, err)
		}
	}
	if infos < 2 {
		return t, fmt.Errorf("truth has not said all: %q", lines)
	}
	return t, nil
}

const outOfMemory = 2 // CUDA_ERROR_OUT_OF_MEMORY

// memory fills two vGPUs up to their limits, and compares all who tell of it.
func (h *hardware) memory(ctx context.Context) error {
	limits := []uint64{4096 * mib, 2048 * mib}
	var asked []map[string]string
	for _, l := range limits {
		asked = append(asked, map[string]string{"memory": strconv.FormatUint(l, 10)})
	}
	node, err := h.startNode(ctx, "info", asked...)
	if err != nil {
		return err
	}
	defer func() { h.stopped(node) }()
	var holders []*program
	defer func() {
		for _, p := range holders {
			if o := p.end(); !o.ok {
				h.check("memory is given back", false, "%v", o)
			}
		}
	}()
	ours := map[int]uint64{} // used, as vgpud's NVML tells inside, by pid
	for i, limit := range limits {
		p, err := h.begin(ctx, node.vgpus[i], h.size.program, nil, h.program("truth"), "--piece", fmt.Sprint(32*mib))
		if err != nil {
			return err
		}
		holders = append(holders, p)
		if err := p.await("holds"); err != nil {
			return err
		}
		if err := h.judgeMemory(ctx, fmt.Sprintf("memory of %d MiB", limit/mib), node.vgpus[i], p, limit, ours); err != nil {
			return err
		}
	}
	return h.reconcile(ctx, node, ours)
}

// judgeMemory looks at a vGPU whose only process has taken all that it got.
func (h *hardware) judgeMemory(ctx context.Context, name string, v *vgpu, p *program, limit uint64, ours map[int]uint64) error {
	t, err := parseTruth(p.outcome().lines)
	if err != nil {
		return err
	}
	h.check(name+": the driver says the limit", t.before[1] == limit && t.before[2] == limit, "total %d, of the device %d", t.before[1], t.before[2])
	h.check(name+": out of memory at the limit", t.result == outOfMemory && t.taken <= limit && t.taken+2048*mib > limit,
		"error %d after %d MiB", t.result, t.taken/mib)
	h.check(name+": nothing is free then", t.after[0] < 64*mib, "%d MiB", t.after[0]/mib)
	h.measure("context_memory", float64(limit-t.before[0])/mib, "MiB", 1)
	lines, err := h.output(ctx, v, h.size.program, h.program("monitor"))
	seen := parseMonitor(lines)
	if err != nil || len(seen) != 1 {
		h.check(name+": NVML agrees", false, "%v, %v", seen, err)
		return nil
	}
	g, pid := seen[0], p.cmd.Process.Pid
	h.check(name+": NVML agrees", g.Total == limit && g.Used >= t.taken && g.Used <= limit && g.Used+g.Free <= limit,
		"total %d MiB, used %d, free %d", g.Total/mib, g.Used/mib, g.Free/mib)
	used, there := g.Processes[pid]
	h.check(name+": NVML lists its process alone", there && len(g.Processes) == 1 && used >= t.taken, "%v, the process is %d", g.Processes, pid)
	if used > limit {
		h.finding(name+": beyond the limit", "by %d MiB: what the driver takes for itself is known a moment later", (used-limit)/mib)
	}
	ours[pid] = used
	return nil
}

// patience is until vgpud has learned what a program did; less than a stage has.
const patience = 30 * time.Second

// reconcile compares with what vgpud and the real NVML say of the same processes.
func (h *hardware) reconcile(ctx context.Context, node *node, ours map[int]uint64) error {
	var told, all, theirs uint64
	for _, used := range ours {
		told += used
	}
	err := harness.Eventually(ctx, patience, func() error {
		vgpus, err := node.daemon.VGPUs(ctx)
		if err != nil {
			return err
		}
		all = 0
		for _, v := range vgpus {
			for _, m := range v.GetMemory() {
				all += m.GetUsedBytes()
			}
		}
		if !within(all, told, 64*mib) {
			return errors.New("they differ")
		}
		return nil
	})
	h.check("vgpud says the same of memory as NVML inside", err == nil, "%d MiB and %d MiB; %v", all/mib, told/mib, errOr(err, "they agree"))
	lines, err := h.output(ctx, h.driver, h.size.program, h.program("monitor"))
	if err != nil {
		return err
	}
	h.fact("NVML's processes while two vGPUs are full", lines)
	for pid := range ours {
		found := false
		for _, g := range parseMonitor(lines) {
			if n, ok := g.Processes[pid]; ok && n != unknownMemory {
				theirs, found = theirs+n, true
			}
		}
		if !found {
			h.finding("NVML's processes", "the driver does not tell how much memory each of %v uses: %q", slices.Sorted(maps.Keys(ours)), lines)
			return nil
		}
	}
	h.check("the sum over the vGPUs is the driver's own", within(theirs, all, max(all/20, 64*mib)), "%d MiB and %d MiB", theirs/mib, all/mib)
	return nil
}

func within(a, b, off uint64) bool { return max(a, b)-min(a, b) <= off }
