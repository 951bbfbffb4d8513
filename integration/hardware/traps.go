// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vgpu-shim/vgpu/hooks/driver/test/cases"
)

// oddity is a program, and what is compared of it.
type oddity struct {
	name string
	args []string
	env  []string
	more []string // arguments on hardware alone
	bare bool     // not in a vGPU
}

// atOnce is how many of them run beside each other, each in its own vGPU.
const atOnce = 4

// traps runs the driver library's traps.
func (h *hardware) traps(ctx context.Context) error {
	var all []oddity
	for _, t := range cases.Traps() {
		o := oddity{name: "trap: " + t.Name, args: []string{filepath.Join(h.built, "traps", t.Program)}, env: t.Env}
		if t.Plugin != "" {
			o.args = append(o.args, filepath.Join(h.built, "traps", t.Plugin+".so"))
		}
		o.args = append(o.args, t.Args...)
		if t.Program == "crowd" {
			o.more = []string{"4194304"} // KiB: a real driver takes more of the host's memory
		}
		all = append(all, o)
	}
	return h.compareAll(ctx, all, atOnce)
}

// tooMuch are programs of the simulated driver's tests that are not for a GPU that
// others may use, too.
var tooMuch = map[string]string{
	"huge":    "asks for more than there is, of managed memory too",
	"managed": "asks for managed memory without knowing how much is free",
	"wild":    "writes where nothing is, which the driver reports as an error of the GPU",
	"many":    "wants two GPUs",
	"pools":   "fills all memory that there is, which takes long",
}

// notInside are those that a vGPU may answer otherwise.
var notInside = map[string]string{
	"module_memory": "compares free memory to the byte, and vgpud learns a moment later what the driver has taken or given back for itself",
}

// programs runs the simulated driver's own tests.
func (h *hardware) programs(ctx context.Context) error {
	var all []oddity
	seen := map[string]bool{}
	for _, p := range cases.Programs() {
		if p.NotHere != "" || p.Name == "numba" || seen[p.Name] {
			continue
		}
		seen[p.Name] = true
		if why := tooMuch[p.Name]; why != "" {
			h.finding("program: "+p.Name, "not run: it %s", why)
			continue
		}
		why := notInside[p.Name]
		if why != "" {
			h.finding("program: "+p.Name, "not run in a vGPU: it %s", why)
		}
		all = append(all, oddity{
			name: "program: " + p.Name,
			args: append([]string{filepath.Join(h.built, "tests", p.Name), h.paths.Kernels}, p.Args...), env: p.Env,
			bare: why != "",
		})
	}
	// One at a time: some take all the memory that they get.
	return h.compareAll(ctx, all, 1)
}

// compareAll runs each bare, in a vGPU, and on the simulated driver.
func (h *hardware) compareAll(ctx context.Context, all []oddity, n int) error {
	// Without vgpud the two drivers can be compared still.
	vgpus := make([]*vgpu, n)
	node, failed := h.startNode(ctx, "info", make([]map[string]string, n)...)
	if failed == nil {
		defer func() { h.stopped(node) }()
		vgpus = node.vgpus
	}
	work := make(chan oddity)
	var done sync.WaitGroup
	for i := range n {
		done.Go(func() {
			for o := range work {
				h.compareOne(ctx, o, vgpus[i])
			}
		})
	}
	left := slices.Clone(all)
	for len(left) > 0 && ctx.Err() == nil {
		work <- left[0]
		left = left[1:]
	}
	close(work)
	done.Wait()
	for _, o := range left {
		h.finding(o.name, "not run: its stage was cut")
	}
	return failed
}

func (h *hardware) compareOne(ctx context.Context, o oddity, v *vgpu) {
	answer := func(at place, more ...string) (answered, error) {
		p, err := h.begin(ctx, at, min(h.size.program, 25*time.Second), o.env, slices.Concat(o.args, more)...)
		if err != nil {
			return answered{}, err
		}
		out := p.end()
		return answered{said: out.text(), status: out.status, stderr: out.stderr}, nil
	}
	simulated, err := answer(h.simulated)
	if err != nil {
		h.check(o.name, false, "%v", err)
		return
	}
	bare, err := answer(h.driver, o.more...)
	if err != nil {
		h.check(o.name, false, "%v", err)
		return
	}
	if v != nil && !o.bare {
		gated, err := answer(v, o.more...)
		if err != nil {
			h.check(o.name, false, "%v", err)
			return
		}
		different := difference(bare, gated)
		h.check(o.name+": the same in a vGPU", different == "", "%s", orSame(different))
	}
	if different := difference(bare, simulated); different != "" {
		h.finding(o.name+": the simulated driver answers otherwise", "%s", different)
	}
}

// answered is what a program says and how it ends. What it writes to stderr is not
// compared: it has line numbers and pids.
type answered struct{ said, status, stderr string }

func orSame(different string) string {
	if different == "" {
		return "it is"
	}
	return different
}

// difference tells where two answers part; empty: they are the same.
func difference(want, got answered) string {
	if want.said == got.said && want.status == got.status {
		return ""
	}
	a, b := strings.Split(want.said, "\n"), strings.Split(got.said, "\n")
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	line := func(all []string) string {
		if i < len(all) {
			return fmt.Sprintf("%q", clip(all[i], 200))
		}
		return "nothing more"
	}
	return fmt.Sprintf("line %d: %s without, %s with; %s (%s) without, %s (%s) with", i+1, line(a), line(b),
		want.status, clip(want.stderr, 300), got.status, clip(got.stderr, 300))
}
