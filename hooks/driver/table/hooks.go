// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// hooks writes everything that follows from the table.
func hooks(tsv, out, exports, about string) error {
	rows, err := readTable(tsv)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	files := []struct {
		name string
		text string
	}{
		{"names.h", namesHeader(rows)},
		{"names.inc", namesTable(rows)},
		{"bases.inc", basesTable(rows)},
		{"trampolines.inc", trampolines(rows)},
		{"hooks.inc", hookFunctions(rows)},
		{"libvgpu-cuda.map", versionMap(rows)},
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(out, f.name), []byte(f.text), 0o644); err != nil {
			return err
		}
	}
	if err := errors.Join(writeExports(rows, exports), writeVersions(rows, exports)); err != nil {
		return err
	}
	return writeCoverage(rows, about)
}

// namesHeader numbers the names: the index into vgpu_real.
func namesHeader(rows []Row) string {
	var b strings.Builder
	b.WriteString(generatedC)
	b.WriteString("#ifndef VGPU_NAMES_H\n#define VGPU_NAMES_H\n\nenum vgpu_name {\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "\tVGPU_NAME_%s,\n", r.Name)
	}
	b.WriteString("\tVGPU_NAMES\n};\n\n/* Hooks: an index into vgpu_found. */\nenum vgpu_hook {\n")
	for _, r := range rows {
		if hookOf(r) != nil {
			fmt.Fprintf(&b, "\tVGPU_HOOK_%s,\n", r.Name)
		}
	}
	b.WriteString("\tVGPU_HOOKS\n};\n\n#endif\n")
	return b.String()
}

// namesTable is the body of vgpu_names, sorted by name.
func namesTable(rows []Row) string {
	var b strings.Builder
	b.WriteString(generatedC)
	for _, r := range rows {
		flags := "0"
		if r.Flavour != "" {
			flags = "VGPU_NAME_PER_THREAD"
		}
		if hookOf(r) != nil {
			fmt.Fprintf(&b, "{ \"%s\", %s, VGPU_HOOK_%s, (void *)%s, (void *)found_%s },\n", r.Name, flags, r.Name, r.Name, r.Name)
		} else {
			fmt.Fprintf(&b, "{ \"%s\", %s, -1, (void *)%s, NULL },\n", r.Name, flags, r.Name)
		}
	}
	return b.String()
}

// basesTable groups the rows by the name that cuGetProcAddress takes.
func basesTable(rows []Row) string {
	groups := map[string][]Row{}
	for _, r := range rows {
		groups[r.Base] = append(groups[r.Base], r)
	}
	var bases []string
	for b := range groups {
		bases = append(bases, b)
	}
	sort.Strings(bases)
	var list, table strings.Builder
	n := 0
	for _, name := range bases {
		g := groups[name]
		flags := []string{}
		if slices.ContainsFunc(g, func(r Row) bool { return r.Class == "work" }) {
			flags = append(flags, "VGPU_BASE_WORK")
		}
		if oneABI(g) {
			flags = append(flags, "VGPU_BASE_ONE_ABI")
		}
		if len(flags) == 0 {
			flags = []string{"0"}
		}
		fmt.Fprintf(&table, "\t{ \"%s\", %d, %d, %s },\n", name, n, len(g), strings.Join(flags, " | "))
		for _, r := range g {
			fmt.Fprintf(&list, "\t{ VGPU_NAME_%s, %d },\n", r.Name, r.Since)
			n++
		}
	}
	return generatedC + "static const struct vgpu_base_row base_rows[] = {\n" + list.String() + "};\n\nstatic const struct vgpu_base bases[] = {\n" + table.String() + "};\n"
}

// oneABI says whether all versions of a name take the same parameters, so that
// a hook fits whatever version an address belongs to.
func oneABI(g []Row) bool {
	for _, r := range g {
		if !r.known() || !slices.Equal(types(r), types(g[0])) {
			return false
		}
	}
	return true
}

// types are the parameters without their names.
func types(r Row) []string {
	var out []string
	for _, p := range r.Params {
		m := paramName.FindStringIndex(p)
		if m == nil {
			out = append(out, p)
			continue
		}
		out = append(out, strings.TrimSpace(p[:m[0]]))
	}
	return out
}

// trampolines lists every name for the assembler: hooked ones have their entry
// in C, and only need a place in the table of real addresses.
func trampolines(rows []Row) string {
	var b strings.Builder
	b.WriteString(generatedC)
	for i, r := range rows {
		if hookOf(r) != nil {
			fmt.Fprintf(&b, "VGPU_LAZY %d\n", i)
		} else {
			fmt.Fprintf(&b, "VGPU_ENTRY %s, %d\nVGPU_LAZY %d\n", r.Name, i, i)
		}
	}
	b.WriteString("\nVGPU_TABLE\n")
	for i := range rows {
		fmt.Fprintf(&b, "VGPU_SLOT %d\n", i)
	}
	b.WriteString("VGPU_TABLE_END\n")
	return b.String()
}

// hookFunctions writes, for each hooked name, the exported function and its
// twin that stands over an address which cuGetProcAddress returned and no
// exported name has.
func hookFunctions(rows []Row) string {
	var b strings.Builder
	b.WriteString(generatedC)
	for _, r := range rows {
		h := hookOf(r)
		if h == nil {
			if !r.known() {
				fmt.Fprintf(&b, "extern __attribute__((visibility(\"default\"))) CUresult %s(void); /* prototype unknown */\n", r.Name)
			}
			continue
		}
		args := strings.Join(r.argNames(), ", ")
		comma := ""
		if args != "" {
			comma = ", "
		}
		params := strings.Join(r.Params, ", ")
		b.WriteString("\n")
		body := "hook_" + r.Name
		if h.whole == "" && h.before == "" {
			body = "vgpu_" + r.Name
		} else if h.whole != "" {
			body = h.whole
		} else {
			inline := "static inline"
			if r.Class == "work" {
				inline = "VGPU_HOT"
			}
			fmt.Fprintf(&b, inline+" CUresult hook_%s(__typeof__(&%s) real, const void *caller%s%s)\n{\n", r.Name, r.Name, comma, params)
			fmt.Fprintf(&b, "\tstruct vgpu_call call;\n\tCUresult r;\n\n\tif (!vgpu_managed(caller))\n\t\treturn real(%s);\n", args)
			fmt.Fprintf(&b, "\t%s\n\tr = real(%s);\n\t%s\n\treturn r;\n}\n", h.expand(h.before, r), args, h.expand(h.after, r))
		}
		fmt.Fprintf(&b, "CUresult %s(%s)\n{\n\treturn %s(VGPU_REAL(%s), VGPU_CALLER%s%s);\n}\n", r.Name, r.cParams(), body, r.Name, comma, args)
		fmt.Fprintf(&b, "static CUresult found_%s(%s)\n{\n\treturn %s(VGPU_FOUND(%s), VGPU_CALLER%s%s);\n}\n", r.Name, r.cParams(), body, r.Name, comma, args)
	}
	return b.String()
}

// versionMap exports the names, without a version, and nothing else.
func versionMap(rows []Row) string {
	var b strings.Builder
	b.WriteString("/* Code generated by hooks/driver/table; DO NOT EDIT. */\n{\nglobal:\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "\t%s;\n", r.Name)
	}
	b.WriteString("local:\n\t*;\n};\n")
	return b.String()
}

// writeExports writes the simulated driver's list of exports: every name, with
// its class and whether its prototype is in cuda_abi.h.
func writeExports(rows []Row, dir string) error {
	var tsv, inc strings.Builder
	tsv.WriteString("# Code generated by hooks/driver/table (step hooks); DO NOT EDIT.\n# name\tclass\tprototype\n")
	inc.WriteString(generatedC)
	inc.WriteString("/* X(name, class, prototype known) */\n")
	for _, r := range rows {
		known := 0
		if r.known() {
			known = 1
		}
		fmt.Fprintf(&tsv, "%s\t%s\t%d\n", r.Name, r.Class, known)
		fmt.Fprintf(&inc, "X(%s, %s, %d)\n", r.Name, r.Class, known)
	}
	if err := os.WriteFile(filepath.Join(dir, "exports.tsv"), []byte(tsv.String()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "exports.inc"), []byte(inc.String()), 0o644)
}
