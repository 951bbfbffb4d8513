// SPDX-License-Identifier: Apache-2.0

// Coverage prints how much of the C code of hooks/gate, hooks/driver and hooks/opencl
// was run: lines per file, the functions that were never run, and the sum. It fails if
// the sum is too low. make coverage builds and runs what it reads.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	least := flag.Float64("min", 85, "fail under so many `percent` of lines")
	root := flag.String("root", ".", "the repository")
	copies := flag.String("copies", "", "`folder` with copies of files of hooks/gate, line by line the same")
	flag.Parse()
	if err := cover(*root, *copies, *least, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "coverage:", err)
		os.Exit(1)
	}
}

func cover(root, copies string, least float64, dirs []string) error {
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
	sum := r.print(os.Stdout)
	if sum.lines == 0 {
		return fmt.Errorf("nothing of hooks/gate, hooks/driver and hooks/opencl was counted in %s: were they built with --coverage?", strings.Join(dirs, ", "))
	}
	if sum.percent() < least {
		return fmt.Errorf("%.1f %% of the lines were run, which is less than %.0f %%: write a test for what is listed above", sum.percent(), least)
	}
	return nil
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
