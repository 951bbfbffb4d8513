// SPDX-License-Identifier: Apache-2.0

// Coverage prints how much of the C code of hooks/gate, hooks/driver and hooks/opencl
// was run: lines per file, the functions that were never run, and the sums. It fails if
// that of a directory is too low. make coverage builds and runs what it reads.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// least is how many percent of the lines of each directory are to be run. No directory
// hides behind another. A run has some lines more or less than the one before, as some are
// for what seldom happens: each has room for a percent of them. That of hooks/gate is low
// since what only the NVML library has of it is not run here.
var least = map[string]float64{"hooks/gate": 70, "hooks/driver": 92, "hooks/opencl": 84}

func main() {
	root := flag.String("root", ".", "the repository")
	copies := flag.String("copies", "", "`folder` with copies of files of hooks/gate, line by line the same")
	flag.Parse()
	if err := cover(*root, *copies, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "coverage:", err)
		os.Exit(1)
	}
}

func cover(root, copies string, dirs []string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	r := newReport(root, copies)
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".gcno" {
				return err
			}
			return r.read(path)
		})
		if err != nil {
			return err
		}
	}
	return enough(r.print(os.Stdout))
}

// enough says which directories have too few lines that were run.
func enough(sums map[string]total) error {
	var errs []error
	for _, dir := range slices.Sorted(maps.Keys(least)) {
		switch sum := sums[dir]; {
		case sum.lines == 0:
			errs = append(errs, fmt.Errorf("nothing of %s was counted: was it built with --coverage?", dir))
		case sum.percent() < least[dir]:
			errs = append(errs, fmt.Errorf("%.1f %% of the lines of %s were run, which is less than %.0f %%: write a test for what is listed above", sum.percent(), dir, least[dir]))
		}
	}
	return errors.Join(errs...)
}

// gcov runs gcov on the notes of one object file; it finds the counts beside
// them. Without counts the object was never run.
func gcov(notes string) ([]byte, error) {
	out, err := exec.Command("gcov", "--json-format", "--stdout", notes).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("gcov %s: %w\n%s", notes, err, exit.Stderr)
	}
	return out, err
}
