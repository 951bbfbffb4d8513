// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/install"
)

// machine names the parts of this machine that the doctor looks at. A program
// without a slash is looked for in PATH.
type machine struct {
	containerd string // program
	config     string // containerd's configuration
	socket     string // containerd's
	runc, ctr  string // programs

	limit time.Duration // for what any of them is asked; several times that for a container
}

// host is what the doctor found on this machine, of itself.
type host struct {
	module string // what the NVIDIA kernel module says of itself; empty: it is not loaded

	containerd struct {
		version string
		err     error
		config  install.Configuration
		bad     error // of the configuration
	}
	runc struct {
		version string // first line of its --version
		err     error
	}
	cgroups string            // what is mounted on /sys/fs/cgroup
	legacy  map[string]bool   // controllers of version 1
	room    map[string]room   // by path
	owned   map[string]access // by path
	probe   *probed           // nil: no container was started
}

// room is what is left in a file system.
type room struct{ bytes, files uint64 }

// access is who may use or change a file.
type access struct {
	uid  uint32
	mode fs.FileMode
	// private: only its owner may use it; else only he may change it.
	private bool
}

// look looks at everything; whatever runs for that is ended in time.
func (m machine) look(ctx context.Context, address string, info *v1.InfoResponse) *host {
	h := &host{room: map[string]room{}, owned: map[string]access{}}
	if b, err := os.ReadFile("/proc/driver/nvidia/version"); err == nil {
		h.module = string(b)
	}
	m.ask(ctx, func(ctx context.Context) {
		h.containerd.version, h.containerd.err = install.ContainerdVersion(ctx, m.containerd)
	})
	if h.containerd.err == nil {
		m.ask(ctx, func(ctx context.Context) {
			h.containerd.config, h.containerd.bad = install.Dump(ctx, m.containerd, m.config)
		})
	}
	m.ask(ctx, func(ctx context.Context) {
		out, err := install.Output(ctx, m.runc, "--version")
		h.runc.version, h.runc.err = string(out), err
	})
	h.cgroups, h.legacy = cgroups("/sys/fs/cgroup")

	state := filepath.Dir(address)
	for _, path := range []string{state, "/usr/lib", os.TempDir(), text(h.containerd.config, "root"), text(h.containerd.config, "state")} {
		var s unix.Statfs_t
		if path != "" && unix.Statfs(path, &s) == nil {
			free := room{s.Bavail * uint64(s.Bsize), s.Ffree} //nolint:gosec // G115: the size of a block, which the kernel says
			if s.Files == 0 {                                 // such as btrfs, which has no fixed number
				free.files = 1 << 30
			}
			h.room[path] = free
		}
	}
	h.see(address, true)
	if _, there := h.owned[address]; there {
		h.see(state, true)
	}
	for _, l := range info.GetLibraries() {
		h.see(l.GetLibrary(), false)
	}
	for _, path := range []string{"/etc/vgpu/vgpud.toml", "/etc/vgpu/shim.toml", shimPath(h.containerd.config), m.config} {
		h.see(path, false)
	}
	return h
}

// ask bounds how long a program is asked.
func (m machine) ask(ctx context.Context, question func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, m.limit)
	defer cancel()
	question(ctx)
}

func (h *host) see(path string, private bool) {
	// Links lead where their owner says, which is judged by the directories on the way.
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return
	}
	info, err := os.Stat(real)
	if err != nil {
		return
	}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		h.owned[path] = access{sys.Uid, info.Mode(), private}
	}
}

// shimPath is the shim that containerd starts for CRI, else for others.
func shimPath(config install.Configuration) string {
	if path := text(config.Runtime(install.Handler), "runtime_path"); path != "" {
		return path
	}
	path, err := exec.LookPath("containerd-shim-vgpu-v1")
	if err != nil {
		return ""
	}
	return path
}

func text(table map[string]any, key string) string {
	s, _ := table[key].(string)
	return s
}

// cgroups tells which version of control groups is mounted at a path, and the
// controllers of version 1.
func cgroups(path string) (version string, legacy map[string]bool) {
	legacy = map[string]bool{}
	var s unix.Statfs_t
	switch err := unix.Statfs(path, &s); {
	case err != nil:
		return "", legacy
	case s.Type == unix.CGROUP2_SUPER_MAGIC:
		return "2", legacy
	}
	entries, _ := os.ReadDir(path)
	for _, e := range entries {
		if unix.Statfs(filepath.Join(path, e.Name()), &s) == nil && s.Type == unix.CGROUP_SUPER_MAGIC {
			legacy[e.Name()] = true
		}
	}
	if len(legacy) == 0 {
		return "", legacy
	}
	return "1", legacy
}
