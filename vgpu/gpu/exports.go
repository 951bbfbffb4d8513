// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"debug/elf"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// openLibrary opens a shared object that this machine can load.
func openLibrary(path string) (*elf.File, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("failed to read %s: %w", path, err)
	}
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	if f.Type != elf.ET_DYN || f.Class != elf.ELFCLASS64 || f.Machine != machine {
		f.Close()
		return nil, fmt.Errorf("%s is not a shared object for this machine (%s, %s, %s)", path, f.Type, f.Class, f.Machine)
	}
	return f, nil
}

// Exports are the functions that a library for this machine exports, sorted.
func Exports(path string) ([]string, error) {
	f, err := openLibrary(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("failed to read the exports of %s: %w", path, err)
	}
	const indirect = elf.SymType(10) // STT_GNU_IFUNC: its address is chosen when it is loaded
	var names []string
	for _, s := range symbols {
		kind, bind, visible := elf.ST_TYPE(s.Info), elf.ST_BIND(s.Info), elf.ST_VISIBILITY(s.Other)
		if s.Section == elf.SHN_UNDEF || kind != elf.STT_FUNC && kind != indirect ||
			bind != elf.STB_GLOBAL && bind != elf.STB_WEAK || visible != elf.STV_DEFAULT && visible != elf.STV_PROTECTED {
			continue
		}
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil // one that has several versions is one name
}

// Unknown are the functions that a driver's library exports and the take-over
// library does not: it is older than the driver. They reach the driver all the
// same, as the dynamic linker finds them behind the library.
func Unknown(driver, library string) ([]string, error) {
	theirs, err := Exports(driver)
	if err != nil {
		return nil, err
	}
	ours, err := Exports(library)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(theirs, func(name string) bool {
		_, found := slices.BinarySearch(ours, name)
		return found
	}), nil
}

// Submits says whether a function of the CUDA driver looks by its name as if it
// submitted work. hooks/driver/table gates such a name at once when it gets to know
// it.
func Submits(name string) bool {
	return slices.ContainsFunc([]string{"cuLaunch", "cuGraphLaunch", "cuGraphUpload", "cuMemcpy", "cuMemsetD", "cuMemset2D", "cuMemPrefetch", "cuMemBatch", "cuFabricCpy"},
		func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

var nvmlChange = regexp.MustCompile(`^nvml(\w*[a-z0-9])?(Set|Clear|Reset|Create|Destroy|Freeze|Modify|Remove|Activate|Update|Write)([A-Z]\w*|_v\d+)?$`)

// Changes says whether a function of NVML looks by its name as if it changed a GPU,
// which others share. hooks/driver/table has it refused when it gets to know it.
func Changes(name string) bool {
	return nvmlChange.MatchString(name) && !strings.HasPrefix(name, "nvmlEventSet") && !strings.HasPrefix(name, "nvmlSystemEventSet")
}
