// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
)

// MuslRootfs makes a root file system whose only C library is musl, in the one
// file that is its loader too; the repository's CUDA programs, linked with it,
// are under /vgpu. Nothing else is there, not even /etc.
func MuslRootfs(paths Paths, dir string) error {
	programs, err := workload(filepath.Join(paths.Musl, "workload"), paths.Kernels, dir)
	if err != nil {
		return fmt.Errorf("failed to find programs for musl, run make musl: %w", err)
	}
	if len(programs) == 0 {
		return errors.New("there is no program for musl, run make musl")
	}
	loader, err := interpreter(programs[0])
	if err != nil {
		return err
	}
	return copyFile(loader, filepath.Join(dir, loader), 0o755)
}

// interpreter is the loader that a program names.
func interpreter(program string) (string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b, err := io.ReadAll(p.Open())
			return strings.TrimRight(string(b), "\x00"), err
		}
	}
	return "", fmt.Errorf("%s names no loader", program)
}
