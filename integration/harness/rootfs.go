// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// libraryDirs is where the C library of this machine is, and where the loader
// in a root file system looks without a cache.
var libraryDirs = []string{
	"/usr/lib/x86_64-linux-gnu",
	"/usr/lib/aarch64-linux-gnu",
	"/usr/lib64",
	"/usr/lib",
}

// BusyboxRootfs makes a root file system of Debian's static busybox and what is in
// that of BareRootfs.
func BusyboxRootfs(paths Paths, dir string) error {
	if err := BareRootfs(paths, dir); err != nil {
		return err
	}
	for _, d := range []string{"bin", "dev", "etc", "proc", "root", "run", "sys", "tmp", "var"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(dir, "tmp"), 0o1777); err != nil {
		return err
	}
	for name, target := range map[string]string{"sbin": "bin", "usr/bin": "../bin"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	passwd := "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n"
	if err := os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte(passwd), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "etc/group"), []byte("root:x:0:\nuser:x:1000:\n"), 0o644); err != nil {
		return err
	}
	return busybox(dir)
}

// BareRootfs makes a root file system of the CUDA programs and PTX of the repository
// under /vgpu, and the few libraries of this machine that those need: no shell, no
// cache of the loader, not even /etc. Nothing of CUDA is in it: the driver library
// comes from the runtime or is missing.
func BareRootfs(paths Paths, dir string) error {
	for _, d := range []string{"usr/lib", "usr/lib64", "vgpu"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{"lib": "usr/lib", "lib64": "usr/lib64"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	programs, err := workload(paths.Workload, paths.Kernels, dir)
	if err != nil {
		return err
	}
	copied := map[string]bool{}
	for _, p := range programs {
		if err := copyLibraries(p, dir, copied); err != nil {
			return err
		}
	}
	// What the driver libraries need, as an image that runs CUDA has it.
	drivers, err := filepath.Glob(filepath.Join(paths.Simulated, "lib", "*.so*"))
	if err != nil {
		return err
	}
	for _, l := range append(drivers, paths.Library, paths.NVML) {
		if err := copyLibraries(l, dir, copied); err != nil {
			return err
		}
	}
	return nil
}

// workload copies CUDA programs and PTX into a root file system, and returns
// where the programs were.
func workload(from, kernels, dir string) (programs []string, _ error) {
	entries, err := os.ReadDir(from)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		source := filepath.Join(from, e.Name())
		if err := copyFile(source, filepath.Join(dir, "vgpu", e.Name()), 0o755); err != nil {
			return nil, err
		}
		programs = append(programs, source)
	}
	texts, err := filepath.Glob(filepath.Join(kernels, "*.ptx"))
	if err != nil {
		return nil, err
	}
	for _, k := range texts {
		if err := copyFile(k, filepath.Join(dir, "vgpu", filepath.Base(k)), 0o644); err != nil {
			return nil, err
		}
	}
	return programs, nil
}

// busybox copies the program and links its applets.
func busybox(dir string) error {
	const program = "/bin/busybox"
	if err := copyFile(program, filepath.Join(dir, "bin/busybox"), 0o755); err != nil {
		return fmt.Errorf("busybox-static is not there, run make setup: %w", err)
	}
	applets, err := exec.Command(program, "--list").Output()
	if err != nil {
		return err
	}
	for _, a := range strings.Fields(string(applets)) {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", a)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// copyLibraries copies the loader and the libraries that an ELF file names, and
// theirs; the driver's are left out. done holds what was copied before.
func copyLibraries(file, rootfs string, done map[string]bool) error {
	f, err := elf.Open(file)
	var format *elf.FormatError
	if errors.As(err, &format) {
		return nil // a script
	}
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		b, err := io.ReadAll(p.Open())
		if err != nil {
			return err
		}
		interpreter := strings.TrimRight(string(b), "\x00")
		if !done[interpreter] {
			done[interpreter] = true
			if err := copyFile(interpreter, filepath.Join(rootfs, interpreter), 0o755); err != nil {
				return err
			}
		}
	}
	for _, name := range names {
		if done[name] || strings.Contains(name, "libcuda") || strings.Contains(name, "libnvidia") {
			continue
		}
		done[name] = true
		path, err := findLibrary(name)
		if err != nil {
			return fmt.Errorf("%s needs it: %w", file, err)
		}
		if err := copyFile(path, filepath.Join(rootfs, path), 0o755); err != nil {
			return err
		}
		if err := copyLibraries(path, rootfs, done); err != nil {
			return err
		}
	}
	return nil
}

func findLibrary(name string) (string, error) {
	for _, dir := range libraryDirs {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("library %s is in none of %s", name, strings.Join(libraryDirs, ", "))
}

// copyFile copies what source points to. The directory is made if missing.
func copyFile(source, destination string, mode os.FileMode) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(destination), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(destination, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
