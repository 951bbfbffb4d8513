// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
)

var typedefRE = regexp.MustCompile(`\(CUDAAPI \*PFN_(cu\w+?)_v(\d+)(_pt[ds][sz])?\)`)

// setSince says of each row from which CUDA version on cuGetProcAddress means it.
// cudaTypedefs.h has base, version and flavour; the exported name is the next one
// of base, base_v2, base_v3 ... (a version does not say its suffix).
func setSince(rows []Row, typedefs string) error {
	src, err := os.ReadFile(typedefs)
	if err != nil {
		return err
	}
	versions := map[string][]int{} // by base and flavour
	for _, m := range typedefRE.FindAllStringSubmatch(string(src), -1) {
		v, err := strconv.Atoi(m[2])
		if err != nil {
			return err
		}
		versions[m[1]+m[3]] = append(versions[m[1]+m[3]], v)
	}
	index := map[string]int{}
	for i, r := range rows {
		index[r.Name] = i
	}
	for key, of := range versions {
		slices.Sort(of)
		var exported []int
		for v := 1; v <= 9; v++ {
			suffix := flavourSuffix.FindString(key)
			name := strings.TrimSuffix(key, suffix)
			if v > 1 {
				name += "_v" + strconv.Itoa(v)
			}
			if i, ok := index[name+suffix]; ok {
				exported = append(exported, i)
			}
		}
		// The oldest ones may have no typedef: match from the newest down.
		for len(of) > 0 && len(exported) > 0 {
			rows[exported[len(exported)-1]].Since = of[len(of)-1]
			of, exported = of[:len(of)-1], exported[:len(exported)-1]
		}
	}
	return nil
}

// writeVersions writes what the simulated driver's cuGetProcAddress chooses from,
// sorted by base, flavour and version.
func writeVersions(rows []Row, dir string) error {
	var of []Row
	for _, r := range rows {
		if r.Since > 0 {
			of = append(of, r)
		}
	}
	sort.SliceStable(of, func(i, j int) bool {
		a, b := of[i], of[j]
		if a.Base != b.Base {
			return a.Base < b.Base
		}
		if a.Flavour != b.Flavour {
			return a.Flavour < b.Flavour
		}
		return a.Since < b.Since
	})
	var b strings.Builder
	b.WriteString(generatedC)
	b.WriteString("/* X(base, version, flavour, exported name) */\n")
	for _, r := range of {
		suffix := ""
		if r.Flavour != "" {
			suffix = "_" + r.Flavour
		}
		fmt.Fprintf(&b, "X(%s, %d, %q, %s)\n", r.Base, r.Since, suffix, r.Name)
	}
	return os.WriteFile(filepath.Join(dir, "driver", "versions.inc"), []byte(b.String()), 0o644)
}
