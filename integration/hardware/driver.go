// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// driver is one as a program finds it on this machine: a place without vgpu.
type driver struct {
	cuda, nvml string // the files
	version    string // of the file's name, such as 580.65.06
	search     string // LD_LIBRARY_PATH
	machine    string // of the simulated driver
}

// command implements place.
func (d driver) command(more []string, args ...string) (*exec.Cmd, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(d.environment(), more...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	return cmd, nil
}

// environment is what its programs get.
func (d driver) environment() []string {
	env := os.Environ()
	if d.search != "" {
		env = append(env, "LD_LIBRARY_PATH="+d.search)
	}
	if d.machine != "" {
		env = append(env, "SIMGPU_MACHINE="+d.machine)
	}
	return env
}

// simulatedDriver makes a machine with a GPU below dir.
func (h *hardware) simulatedDriver(dir string) (driver, error) {
	machine, lib := filepath.Join(dir, "machine"), filepath.Join(h.paths.Simulated, "lib")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return driver{}, err
	}
	out, err := exec.Command(filepath.Join(h.paths.Simulated, "bin", "simgpu"), "create", "--gpus", "1", machine).CombinedOutput()
	if err != nil {
		return driver{}, fmt.Errorf("failed to make a simulated machine: %w: %s", err, out)
	}
	d := driver{search: lib, machine: machine}
	return d, d.files(filepath.Join(lib, "libcuda.so.1"), filepath.Join(lib, "libnvidia-ml.so.1"))
}

// places are where drivers stand that the dynamic linker does not search by itself.
var places = []string{
	"/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64",
	"/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib/wsl/lib", "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
}

// realDriver finds the one that programs get here; root is where to look first.
func (h *hardware) realDriver(ctx context.Context, root string) (driver, error) {
	search := []string{}
	if root != "" {
		for _, dir := range append([]string{"", "lib", "lib64"}, places...) {
			search = append(search, filepath.Join(root, dir))
		}
	}
	var errs []string
	for _, more := range []string{"", strings.Join(places, ":")} {
		d := driver{search: joined(strings.Join(search, ":"), os.Getenv("LD_LIBRARY_PATH"), more)}
		lines, err := h.output(ctx, d, h.size.program, h.program("where"), "libcuda.so.1", "libnvidia-ml.so.1")
		if err != nil {
			errs = append(errs, err.Error())
			continue
		}
		found := map[string]string{}
		for _, line := range lines {
			if words := strings.Fields(line); len(words) == 3 && words[0] == "file" {
				found[words[1]] = words[2]
			} else {
				errs = append(errs, line)
			}
		}
		if len(found) == 2 {
			return d, d.files(found["libcuda.so.1"], found["libnvidia-ml.so.1"])
		}
	}
	return driver{}, fmt.Errorf("there is no NVIDIA driver (--simulate needs none): %s", strings.Join(errs, "; "))
}

func (d *driver) files(cuda, nvml string) (err error) {
	if d.cuda, err = filepath.EvalSymlinks(cuda); err != nil {
		return err
	}
	if d.nvml, err = filepath.EvalSymlinks(nvml); err != nil {
		return err
	}
	for _, path := range []string{d.cuda, d.nvml} {
		if _, version, ok := strings.Cut(filepath.Base(path), ".so."); ok && len(version) > len(d.version) {
			d.version = version
		}
	}
	return nil
}

// joined are lists of directories as one, without those that are empty.
func joined(lists ...string) string {
	var all []string
	for _, l := range lists {
		if l != "" {
			all = append(all, l)
		}
	}
	return strings.Join(all, ":")
}
