// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/integration/box"
	"github.com/vgpu-shim/vgpu/integration/harness"
)

// tunables are settings of the kernel that kubelet changes. They are the
// machine's, not the box's.
var tunables = []string{
	"vm/overcommit_memory", "vm/panic_on_oom",
	"kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// dropIns is where vgpu install puts the handler, for the containerds of all nodes.
const dropIns = "/etc/containerd/conf.d"

// Furnish prepares the box that this process is in, and installs the product in it
// as on a node. It returns where that is.
func Furnish(ctx context.Context, built harness.Paths) (harness.Paths, error) {
	installed := built
	if err := Prepare(built); err != nil {
		return installed, err
	}
	containerd, err := built.ContainerdBin(containerdCRI)
	if err != nil {
		return installed, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(built.Bin, "vgpu"), "install", "--from", built.Root, "--containerd", filepath.Join(containerd, "containerd"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return installed, fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	installed.Bin = "/usr/local/bin"
	if os.Getenv(harness.LibraryVariable) == "" {
		installed.Library = "/usr/lib/vgpu/libvgpu-cuda.so"
	}
	installed.NVML = "/usr/lib/vgpu/libvgpu-nvml.so"
	installed.OpenCL = "/usr/lib/vgpu/libvgpu-opencl.so"
	installed.Musl, installed.Simulated = "/usr/lib/vgpu/musl", "/usr/lib/vgpu/simgpu"
	return installed, nil
}

// Prepare prepares the box that this process is in, without the product.
func Prepare(built harness.Paths) error {
	if err := box.LayOver("/usr"); err != nil {
		return fmt.Errorf("/usr: %w", err)
	}
	if err := unix.Mount("box", "/var/log", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("/var/log: %w", err)
	}
	if err := shieldTunables(); err != nil {
		return err
	}
	if err := os.MkdirAll(dropIns, 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll("/opt/cni", 0o755); err != nil {
		return err
	}
	plugins := filepath.Join(built.Tools, "debian", "containernetworking-plugins", "usr", "lib", "cni")
	if err := os.Symlink(plugins, "/opt/cni/bin"); err != nil {
		return err
	}
	config := fmt.Sprintf("version = 3\nimports = [%q]\n", dropIns+"/*.toml")
	return os.WriteFile("/etc/containerd/config.toml", []byte(config), 0o644)
}

// shieldTunables puts files that take any value over the kernel's.
func shieldTunables() error {
	for _, name := range tunables {
		path := filepath.Join("/proc/sys", name)
		value, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file := filepath.Join(box.Temp, "sys", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, value, 0o644); err != nil {
			return err
		}
		if err := unix.Mount(file, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}
