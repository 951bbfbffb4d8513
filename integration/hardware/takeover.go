// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/hooks/driver/test/jail"
)

// vgpu is a place behind the take-over libraries, as a container's is.
type vgpu struct {
	h    *hardware
	id   string
	dir  string // of the vGPU, on the host
	real driver
}

var _, _ place = driver{}, (*vgpu)(nil)

// binds is the variable with what is mounted in a jail beyond what every jail has.
const (
	binds  = "VGPU_JAIL_BINDS"
	search = "VGPU_JAIL_SEARCH"
)

type bind struct{ From, To string }

// enterIfJailed becomes the program of a vGPU if this process is to.
func enterIfJailed() {
	jail.Entered(jail.Layout{Search: os.Getenv(search), More: func(root string) error {
		var all []bind
		if err := json.Unmarshal([]byte(os.Getenv(binds)), &all); err != nil {
			return err
		}
		for _, b := range all {
			if err := b.mount(root); err != nil {
				return err
			}
		}
		return nil
	}})
}

// mount makes a file of ours if there is none: only in the jail's own root.
func (b bind) mount(root string) error {
	to := filepath.Join(root, b.To)
	if _, err := os.Stat(to); errors.Is(err, fs.ErrNotExist) {
		if err := os.WriteFile(to, nil, 0o600); err != nil {
			return err
		}
	}
	if err := unix.Mount(b.From, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("failed to bind %s to %s: %w", b.From, b.To, err)
	}
	return nil
}

// names are those of a library of the driver, as vgpu/gpu mounts them.
func names(link, version string) []string {
	return []string{link + "." + version, link + ".1", link}
}

// taken are the names, with the library of ours that each gets.
func (v *vgpu) taken() map[string]string {
	all := map[string]string{}
	for _, name := range names("libcuda.so", v.real.version) {
		all[name] = v.h.paths.Library
	}
	for _, name := range names("libnvidia-ml.so", v.real.version) {
		all[name] = v.h.paths.NVML
	}
	return all
}

// command implements place.
func (v *vgpu) command(more []string, args ...string) (*exec.Cmd, error) {
	if v.h.noMounts {
		return v.withoutMounts(more, args...)
	}
	root, err := os.MkdirTemp(v.h.dir, "root")
	if err != nil {
		return nil, err
	}
	// The real ones first: the files are not to be found by their paths afterwards.
	all := []bind{{v.real.cuda, "/.vgpu/libcuda.so"}, {v.real.nvml, "/.vgpu/libnvidia-ml.so"}}
	for name, library := range v.taken() {
		all = append(all, bind{library, filepath.Join("/", jail.Libraries, name)})
	}
	all = append(all, bind{v.h.paths.Library, v.real.cuda}, bind{v.h.paths.NVML, v.real.nvml})
	text, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	cmd := jail.In(root, v.dir, v.h.paths.Library, args...)
	cmd.Env = append(append(cmd.Env, v.real.environment()...), binds+"="+string(text), search+"="+v.real.search)
	cmd.Env = append(cmd.Env, more...)
	return cmd, nil
}

// inRoot is where the libraries look for the vGPU's directory.
const inRoot = "/.vgpu"

// withoutMounts is for machines that allow none: each process has its vGPU's
// directory as a descriptor, to which one symbolic link leads in all of them. Only
// LD_LIBRARY_PATH leads to the libraries then.
func (v *vgpu) withoutMounts(more []string, args ...string) (*exec.Cmd, error) {
	lib := filepath.Join(v.dir, "lib")
	if err := os.Mkdir(lib, 0o755); err == nil {
		for name, library := range v.taken() {
			if err := os.Symlink(library, filepath.Join(lib, name)); err != nil {
				return nil, err
			}
		}
		for name, file := range map[string]string{"libcuda.so": v.real.cuda, "libnvidia-ml.so": v.real.nvml} {
			if err := errors.Join(os.Remove(filepath.Join(v.dir, name)), os.Symlink(file, filepath.Join(v.dir, name))); err != nil {
				return nil, err
			}
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	dir, err := os.Open(v.dir)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.ExtraFiles = []*os.File{dir} // descriptor 3
	cmd.Env = append(v.real.environment(), more...)
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+joined(lib, v.real.search))
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	return cmd, nil
}

// tryMounts finds out whether this machine allows what a jail takes.
func (h *hardware) tryMounts() error {
	root, err := os.MkdirTemp(h.dir, "root")
	if err != nil {
		return err
	}
	cmd := jail.In(root, root, h.paths.Library, "/bin/true")
	cmd.Env = append(cmd.Env, binds+"=[]")
	text, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(text)))
	}
	return nil
}

// linkInRoot makes the link that withoutMounts needs; undo removes it.
func linkInRoot() (undo func(), err error) {
	if err := os.Symlink("/proc/self/fd/3", inRoot); err != nil {
		return nil, err
	}
	return func() { _ = os.Remove(inRoot) }, nil
}
