// SPDX-License-Identifier: Apache-2.0

// Package simbuild builds the simulated driver for the tests of several packages,
// once: into the tree's own build directory, by its Makefile, which finds out what
// is not current any more. Packages are tested side by side, so one builds while the
// others wait.
package simbuild

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Into makes lib and bin of the simulated driver appear in dir. root is the path of
// the tree. kind is a directory below build/, "" for this machine's own programs;
// vars are variables for make. What is in dir then is not to be written.
func Into(dir, root, kind string, vars ...string) error {
	out, err := filepath.Abs(filepath.Join(root, "build", kind, "simgpu"))
	if err != nil {
		return err
	}
	if err := build(out, filepath.Join(root, "integration", "simgpu"), vars); err != nil {
		return fmt.Errorf("failed to build the simulated driver into %s: %w", out, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"lib", "bin"} {
		// A test directory that is kept has it already.
		if err := os.Symlink(filepath.Join(out, name), filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

func build(out, source string, vars []string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	lock, err := os.Open(out)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	make := exec.Command("make", append([]string{"-s", "-j2", "-C", source, "OUT=" + out}, vars...)...)
	if b, err := make.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, b)
	}
	return nil
}
