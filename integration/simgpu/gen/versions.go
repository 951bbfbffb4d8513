// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

var typedefRE = regexp.MustCompile(`\(CUDAAPI \*PFN_(cu\w+?)_v(\d+)(_pt[ds][sz])?\)`)

// symbol is one exported name and the driver version that brought it.
type symbol struct {
	base    string
	version int
	flavour string // "", "_ptds" or "_ptsz"
	name    string // exported
}

// genVersions writes X(base, version, flavour, exported name), sorted by base,
// flavour and version: what cuGetProcAddress chooses from. cudaTypedefs.h gives
// base and version; the exported name is the next one of base, base_v2,
// base_v3 ... (a version does not say its suffix).
func genVersions(typedefs, exports, out string) error {
	src, err := os.ReadFile(typedefs)
	if err != nil {
		return err
	}
	list, err := os.ReadFile(exports)
	if err != nil {
		return err
	}
	exported := map[string]bool{}
	for line := range strings.Lines(string(list)) {
		if name, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); strings.HasPrefix(name, "cu") {
			exported[name] = true
		}
	}
	versions := map[string][]int{} // base + flavour
	flavours := map[string][2]string{}
	for _, m := range typedefRE.FindAllStringSubmatch(string(src), -1) {
		v, err := strconv.Atoi(m[2])
		if err != nil {
			return err
		}
		key := m[1] + m[3]
		versions[key] = append(versions[key], v)
		flavours[key] = [2]string{m[1], m[3]}
	}
	var symbols []symbol
	for key, vs := range versions {
		base, flavour := flavours[key][0], flavours[key][1]
		sort.Ints(vs)
		names := exportedNames(exported, base, flavour)
		// The oldest ones may have no typedef: match from the newest down.
		for len(vs) > 0 && len(names) > 0 {
			symbols = append(symbols, symbol{base, vs[len(vs)-1], flavour, names[len(names)-1]})
			vs, names = vs[:len(vs)-1], names[:len(names)-1]
		}
	}
	sort.Slice(symbols, func(i, j int) bool {
		a, b := symbols[i], symbols[j]
		if a.base != b.base {
			return a.base < b.base
		}
		if a.flavour != b.flavour {
			return a.flavour < b.flavour
		}
		return a.version < b.version
	})
	var b strings.Builder
	b.WriteString(generated + "/* X(base, version, flavour, exported name) */\n")
	for _, s := range symbols {
		fmt.Fprintf(&b, "X(%s, %d, %q, %s)\n", s.base, s.version, s.flavour, s.name)
	}
	return os.WriteFile(out, []byte(b.String()), 0o644)
}

func exportedNames(exported map[string]bool, base, flavour string) []string {
	var names []string
	for v := 1; v <= 9; v++ {
		name := base
		if v > 1 {
			name += "_v" + strconv.Itoa(v)
		}
		if name += flavour; exported[name] {
			names = append(names, name)
		}
	}
	return names
}
