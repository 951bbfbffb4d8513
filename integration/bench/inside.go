// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/integration/harness"
	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// inside is the first argument of this program as it starts another one behind the
// driver library, as the shim would start it in a container: see enter. No
// container is made, since none takes a process of real-time priority (docs/bench.md,
// "Noise") under cgroup v1.
const inside = "inside"

// command is a program of this tree for the vGPU with these edits. Its root file
// system is mounted below dir.
func (b *bench) command(ctx context.Context, dir string, edits *v1.Edits, args ...string) (*exec.Cmd, error) {
	tree := &v1.Mount{Source: b.paths.Root, Destination: b.paths.Root}
	mounts, err := json.Marshal(append([]*v1.Mount{tree}, edits.GetMounts()...))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append([]string{inside, dir, string(mounts)}, args...)...)
	cmd.Env = append(os.Environ(), edits.GetEnv()...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

// enter becomes a program that finds this machine's root file system, and the
// mounts in it. It runs in a mount
// namespace of its own, which ends with the program.
func enter(dir, edits string, args []string) error {
	var mounts []*v1.Mount
	if err := json.Unmarshal([]byte(edits), &mounts); err != nil {
		return err
	}
	overlay, err := harness.NewOverlay(dir)
	if err != nil {
		return err
	}
	all := []*v1.Mount{{Source: "/proc", Destination: "/proc"}, {Source: "/dev", Destination: "/dev"}}
	for _, m := range append(all, mounts...) {
		if err := bind(m.GetSource(), filepath.Join(overlay.Rootfs, m.GetDestination())); err != nil {
			return err
		}
	}
	if err := unix.Chroot(overlay.Rootfs); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return fmt.Errorf("failed to start %s: %w", args[0], syscall.Exec(args[0], args, os.Environ()))
}

// bind makes what is at from appear at to.
func bind(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	dir := filepath.Dir(to)
	if info.IsDir() {
		dir = to
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if !info.IsDir() {
		f, err := os.OpenFile(to, os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("failed to bind %s to %s: %w", from, to, err)
	}
	return nil
}
