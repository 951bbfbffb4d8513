// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"debug/elf"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// driverFile looks at the driver's libraries as files, and at what cuGetProcAddress
// makes of each name (the first two of the open points of docs/hardware.md).
func (h *hardware) driverFile(ctx context.Context) error {
	for _, l := range []struct{ name, theirs, ours string }{
		{"libcuda", h.driver.cuda, h.paths.Library},
		{"libnvidia-ml", h.driver.nvml, h.paths.NVML},
	} {
		facts, err := elfFacts(l.theirs)
		if err != nil {
			return err
		}
		unknown, err := gpu.Unknown(l.theirs, l.ours)
		if err != nil {
			return err
		}
		facts["names that our library does not have"] = unknown
		h.fact(l.name, facts)
		h.finding(l.name, "symbolic: %v, versions: %v, data exports: %v; %d names that ours does not have: %v",
			facts["symbolic"], facts["versions"], facts["data"], len(unknown), unknown)
		if l.name == "libcuda" {
			bypass := slices.DeleteFunc(slices.Clone(unknown), func(name string) bool { return !gpu.Submits(name) })
			h.check("no name that submits is unknown", len(bypass) == 0, "%v", bypass)
		}
	}
	return h.procAddresses(ctx)
}

func elfFacts(path string) (map[string]any, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("failed to read the exports of %s: %w", path, err)
	}
	var data []string
	versions := map[string]bool{}
	functions := 0
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF || elf.ST_BIND(s.Info) == elf.STB_LOCAL {
			continue
		}
		if s.Version != "" {
			versions[s.Version] = true
		}
		switch elf.ST_TYPE(s.Info) {
		case elf.STT_FUNC:
			functions++
		case elf.STT_OBJECT, elf.STT_TLS, elf.STT_COMMON:
			data = append(data, s.Name)
		}
	}
	flags, _ := f.DynValue(elf.DT_FLAGS) // none, if there are none
	symbolic, _ := f.DynValue(elf.DT_SYMBOLIC)
	needed, _ := f.DynString(elf.DT_NEEDED)
	soname, _ := f.DynString(elf.DT_SONAME)
	runpath, _ := f.DynString(elf.DT_RUNPATH)
	return map[string]any{
		"path": path, "functions": functions, "data": data, "versions": slices.Sorted(maps.Keys(versions)),
		"symbolic": len(symbolic) > 0 || len(flags) > 0 && elf.DynFlag(flags[0])&elf.DF_SYMBOLIC != 0,
		"needed":   needed, "soname": soname, "runpath": runpath,
	}, nil
}

var suffix = regexp.MustCompile(`(_v\d+)?(_ptsz|_ptds)?$`)

// bases are the names as programs ask for them.
func bases(exports []string) []string {
	all := map[string]bool{}
	for _, name := range exports {
		if strings.HasPrefix(name, "cu") {
			all[suffix.ReplaceAllString(name, "")] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// procAddresses asks for all names on the driver and in a vGPU.
func (h *hardware) procAddresses(ctx context.Context) error {
	exports, err := gpu.Exports(h.paths.Library)
	if err != nil {
		return err
	}
	lines, err := h.output(ctx, h.driver, h.size.program, append([]string{h.program("names")}, bases(exports)...)...)
	if err != nil {
		return err
	}
	answers := map[string][]string{}
	for _, line := range lines {
		if words := strings.Fields(line); len(words) >= 4 && words[0] == "name" {
			switch what := words[3]; what {
			case "hidden", "none", "error":
				answers[what] = append(answers[what], words[1]+" "+words[2])
			default:
				answers["exported"] = append(answers["exported"], words[1]+" "+words[2]+" "+what)
			}
		}
	}
	h.fact("cuGetProcAddress", answers)
	h.finding("cuGetProcAddress", "%d look-ups lead to an exported name, %d to an address that none has (%s), %d to nothing",
		len(answers["exported"]), len(answers["hidden"]), clip(strings.Join(answers["hidden"], ", "), 400), len(answers["none"]))
	h.measure("names_hidden", float64(len(answers["hidden"])), "look-ups", len(lines))
	return nil
}
