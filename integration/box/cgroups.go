// SPDX-License-Identifier: Apache-2.0

package box

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// hierarchy is a mounted hierarchy of cgroups: the only one with version 2, one
// for each controller with version 1.
type hierarchy struct {
	mountpoint string
	fstype     string // cgroup or cgroup2
	options    string // the file system's, such as "memory"
}

func hierarchies() ([]hierarchy, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var all []hierarchy
	for line := range strings.Lines(string(b)) {
		// proc_pid_mountinfo(5): the mount point is the fifth field; the type, the
		// source and the file system's options follow a lone hyphen.
		before, after, ok := strings.Cut(line, " - ")
		place, fs := strings.Fields(before), strings.Fields(after)
		if !ok || len(place) < 5 || len(fs) < 3 || !strings.HasPrefix(fs[0], "cgroup") {
			continue
		}
		var options []string
		for o := range strings.SplitSeq(fs[2], ",") {
			if o != "rw" && o != "ro" {
				options = append(options, o)
			}
		}
		all = append(all, hierarchy{mountpoint: place[4], fstype: fs[0], options: strings.Join(options, ",")})
	}
	return all, nil
}

// own is the directory of the cgroup that this process is in.
func (h hierarchy) own() (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		// cgroups(7): number:controllers:path, without controllers for version 2.
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		if h.fstype == "cgroup2" && fields[1] == "" || h.fstype == "cgroup" && fields[1] != "" && strings.HasPrefix(h.options+",", fields[1]+",") {
			return filepath.Join(h.mountpoint, fields[2]), nil
		}
	}
	return "", fmt.Errorf("this process has no cgroup in %s", h.mountpoint)
}

// makeCgroups makes a cgroup below our own in each hierarchy, and returns their
// directories, also those that it made before an error.
func makeCgroups(name string) (made []string, err error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	for _, h := range all {
		own, err := h.own()
		if err != nil {
			return made, err
		}
		if err := makeCgroup(h, own, name); err != nil {
			return made, err
		}
		made = append(made, filepath.Join(own, name))
	}
	return made, nil
}

// makeCgroup makes a cgroup below another of the same hierarchy.
func makeCgroup(h hierarchy, parent, name string) error {
	dir := filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o755); err != nil || h.fstype != "cgroup" {
		return err
	}
	// With version 1 a new one has no CPUs and no memory at first.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		b, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), b, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// enterCgroups makes groups the roots of all cgroups that this thread and its
// children can see.
func enterCgroups(groups []string) error {
	for _, g := range groups {
		if err := os.WriteFile(filepath.Join(g, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("namespace of cgroups: %w", err)
	}
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		// The kernel mounts no file system over itself.
		if err := unix.Unmount(h.mountpoint, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("%s: %w", h.mountpoint, err)
		}
		if err := unix.Mount("cgroup", h.mountpoint, h.fstype, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, h.options); err != nil {
			return fmt.Errorf("%s: %w", h.mountpoint, err)
		}
		if h.fstype == "cgroup2" {
			if err := delegate(h.mountpoint); err != nil {
				return err
			}
		}
	}
	return nil
}

// Cgroup makes a cgroup in each hierarchy of a box, with the controllers of its
// root: for a program that manages its own below one.
func Cgroup(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := makeCgroup(h, h.mountpoint, name); err != nil {
			return err
		}
	}
	return nil
}

// thawAll thaws all cgroups of the box, so that what the suite has left can end.
func thawAll() error {
	all, err := hierarchies()
	for _, h := range all {
		thaw(h.mountpoint)
	}
	return err
}

// thaw lets the processes run that are in a cgroup or below it.
func thaw(dir string) {
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil // it went meanwhile
		}
		_ = os.WriteFile(filepath.Join(path, "freezer.state"), []byte("THAWED"), 0)
		_ = os.WriteFile(filepath.Join(path, "cgroup.freeze"), []byte("0"), 0)
		return nil
	})
}

// delegate lets the cgroups below root, of version 2, have controllers: for that
// no process may be in root itself.
func delegate(root string) error {
	leaf := filepath.Join(root, "init")
	if err := os.Mkdir(leaf, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0); err != nil {
		return err
	}
	b, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for controller := range strings.FieldsSeq(string(b)) {
		if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+controller), 0); err != nil {
			return fmt.Errorf("controller %s: %w", controller, err)
		}
	}
	return nil
}
