// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

const mib = 1 << 20

// tookOver starts vgpud on this driver, and looks from inside a vGPU.
func (h *hardware) tookOver(ctx context.Context) error {
	limit := 2048 * mib
	asked := map[string]string{"memory": fmt.Sprint(limit)}
	n, err := h.startNode(ctx, "info", asked)
	// What vgpud says is the finding of this stage; the others go on without it.
	h.check("vgpud finds the driver by itself", err == nil, "%v", errOr(err, "it does"))
	if err != nil && !h.simulate {
		h.mu.Lock()
		h.told = true
		h.mu.Unlock()
		n, err = h.startNode(ctx, "info", asked)
		h.check("vgpud starts if it is told where the driver is", err == nil, "%v", errOr(err, "it does"))
	}
	if err != nil {
		return err
	}
	defer func() { h.stopped(n) }()
	h.fact("vgpud", clip(n.daemon.Messages(), 20000))
	if gpus, err := n.daemon.PhysicalGPUs(ctx); err == nil {
		h.fact("vgpud's GPUs", fmt.Sprint(gpus))
	}
	v := n.vgpus[0]
	if err := h.measureFirstGrant(ctx, v); err != nil {
		h.check("work in a vGPU comes to its end", false, "%v", err)
		h.size.program = 15 * time.Second // more of this kind is to come: none may take all the time
	}
	lines, err := h.output(ctx, v, h.size.program, h.program("monitor"))
	seen := parseMonitor(lines)
	h.check("NVML in a vGPU shows its GPU", err == nil && len(seen) == 1 && strings.HasSuffix(seen[0].Name, " (vGPU)") && seen[0].Total == uint64(limit),
		"%v, %v", seen, err)
	h.namesInside(ctx, n)
	return h.smiInside(ctx, v, limit)
}

// stopped ends a node, and records if that fails.
func (h *hardware) stopped(n *node) {
	if err := n.stop(); err != nil {
		h.check("vgpud ends when it is told to", false, "%v", err)
	}
}

func errOr(err error, otherwise string) string {
	if err == nil {
		return otherwise
	}
	return err.Error()
}

// measureFirstGrant is how much later the first work of a process is over.
func (h *hardware) measureFirstGrant(ctx context.Context, v *vgpu) error {
	took := map[string][]time.Duration{}
	for range 3 {
		for name, at := range map[string]place{"bare": h.driver, "vgpu": v} {
			p, err := h.begin(ctx, at, h.size.program, nil, h.bursts("--bursts", "1", "--launches", "1", "--us", "10")...)
			if err != nil {
				return err
			}
			if err := p.await("ready"); err == nil {
				p.goOn()
			}
			o := p.end()
			j, err := parseJob(o.lines, 0)
			if err != nil {
				return fmt.Errorf("%w: %v", err, o)
			}
			took[name] = append(took[name], j.first-j.began)
		}
	}
	h.check("work in a vGPU comes to its end", true, "%d times", len(took["vgpu"]))
	h.measure("first_work_bare", quantile(took["bare"], .5).Seconds()*1e6, "us", len(took["bare"]))
	h.measure("first_work_vgpu", quantile(took["vgpu"], .5).Seconds()*1e6, "us", len(took["vgpu"]))
	return nil
}

// bursts is a command line of that program.
func (h *hardware) bursts(args ...string) []string {
	return append([]string{h.program("bursts"), "--kernels", h.paths.Kernels, "--loops-per-us", h.loops}, args...)
}

// namesInside checks that each name that submits leads to our library, if anywhere,
// or that vgpud says that it does not: hooks/driver/README.md has the rule.
func (h *hardware) namesInside(ctx context.Context, n *node) {
	exports, err := gpu.Exports(h.paths.Library)
	if err != nil {
		h.check("names inside", false, "%v", err)
		return
	}
	submits := slices.DeleteFunc(bases(exports), func(name string) bool { return !gpu.Submits(name) })
	lines, err := h.output(ctx, n.vgpus[0], h.size.program, append([]string{h.program("names")}, submits...)...)
	var around []string
	found := 0
	for _, line := range lines {
		words := strings.Fields(line)
		if len(words) < 5 || words[0] != "name" {
			continue
		}
		if found++; words[3] == "error" || words[4] == gpu.RealCUDA || words[4] == h.driver.cuda {
			around = append(around, line)
		}
	}
	told := harness.Eventually(ctx, patience, func() error {
		vgpus, err := n.daemon.VGPUs(ctx)
		if err == nil && (len(vgpus) == 0 || vgpus[0].GetUngated() < uint64(len(around))) {
			err = errors.New("vgpud does not tell of all that lead around the gate")
		}
		return err
	})
	h.check("each name that submits leads to the gate, or is told", err == nil && told == nil && found > 0, "%d look-ups; around it: %v; %v, %v", found, around, err, told)
	if len(around) > 0 {
		h.finding("names around the gate", "%v", around)
	}
}

// smiInside runs nvidia-smi where it is there. What its process box shows is the
// sixth open point.
func (h *hardware) smiInside(ctx context.Context, v *vgpu, limit int) error {
	smi := h.nvidiaSMI()
	if smi == "" {
		h.finding("nvidia-smi", "it is not on this machine")
		return nil
	}
	working, err := h.begin(ctx, v, h.size.program, nil, h.program("truth"), "--most", fmt.Sprint(256*mib))
	if err != nil {
		return err
	}
	defer working.end()
	if err := working.await("holds"); err != nil {
		return err
	}
	for name, at := range map[string]place{"bare": h.driver, "vgpu": v} {
		for _, args := range [][]string{nil, {"-L"}, {"-q", "-d", "MEMORY,PIDS"}, {"pmon", "-c", "1"}} {
			lines, err := h.output(ctx, at, 10*time.Second, append([]string{smi}, args...)...)
			h.fact("nvidia-smi "+strings.Join(args, " ")+" ("+name+")", clip(strings.Join(lines, "\n")+errOr(err, ""), 6000))
		}
	}
	lines, err := h.output(ctx, v, 10*time.Second, smi, "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader,nounits")
	want := fmt.Sprintf(" (vGPU), %d,", limit/mib)
	h.check("nvidia-smi in a vGPU shows its name and its limit", err == nil && len(lines) == 1 && strings.Contains(lines[0], want), "%q, want %q; %v", lines, want, err)
	lines, err = h.output(ctx, v, 10*time.Second, smi, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
	h.finding("nvidia-smi's processes in a vGPU", "%q with process %d at work; %v", lines, working.cmd.Process.Pid, err)
	return nil
}
