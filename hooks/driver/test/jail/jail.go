// SPDX-License-Identifier: Apache-2.0

// Package jail runs programs behind the libraries that take over the driver's, for
// their tests and for integration/hardware: in a mount namespace of their own, laid
// out like a container. It needs root, for the mounts. A program that uses In or
// Command calls Entered first, a test binary in its TestMain: it is what becomes the
// program in the jail.
package jail

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Libraries is where in the jail our library stands.
const Libraries = "vgpulib"

// The environment of this binary between In and the program. A command may
// name another library.
const (
	LibraryVariable = "VGPU_JAIL_LIB"
	dirVariable     = "VGPU_JAIL_DIR"
	rootVariable    = "VGPU_JAIL_ROOT"
)

// Layout is what else a jail has.
type Layout struct {
	Names   []string                // of our library in Libraries: one inode
	More    func(root string) error // other mounts; nil: none
	NotHere bool                    // Libraries is not where programs search by LD_LIBRARY_PATH
	Search  string                  // what LD_LIBRARY_PATH names after it
}

// In is a command that runs a program in a jail: dir is its vGPU's directory, library
// ours, root an empty directory. A later entry of its Env wins.
func In(root, dir, library string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), dirVariable+"="+dir, rootVariable+"="+root, LibraryVariable+"="+library)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL, Setpgid: true}
	return cmd
}

// Dir and Library are those of the jail that this process is to enter.
func Dir() string     { return os.Getenv(dirVariable) }
func Library() string { return os.Getenv(LibraryVariable) }

// Entered becomes the program if this process was started by In; else it
// returns at once.
func Entered(l Layout) {
	if Dir() == "" {
		return
	}
	fmt.Fprintln(os.Stderr, enter(l, os.Args[1:]))
	os.Exit(125)
}

// enter makes this process's root look like a container and becomes the program.
// Nothing of the host's root changes.
func enter(l Layout, args []string) error {
	root := os.Getenv(rootVariable)
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=16m"); err != nil {
		return fmt.Errorf("failed to mount a root: %w", err)
	}
	if err := everything(root); err != nil {
		return err
	}
	if err := takeOver(root, l.Names); err != nil {
		return err
	}
	if l.More != nil {
		if err := l.More(root); err != nil {
			return err
		}
	}
	if err := unix.Chroot(root); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	env := slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "VGPU_JAIL") || strings.HasPrefix(e, "LD_LIBRARY_PATH=")
	})
	if !l.NotHere {
		env = append(env, strings.TrimSuffix("LD_LIBRARY_PATH=/"+Libraries+":"+l.Search, ":"))
	}
	return fmt.Errorf("failed to start %s: %w", args[0], syscall.Exec(args[0], args, env))
}

// everything binds what stands in / into the new root.
func everything(root string) error {
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := "/"+e.Name(), filepath.Join(root, e.Name())
		switch {
		case e.Type()&os.ModeSymlink != 0:
			target, err := os.Readlink(from)
			if err == nil {
				err = os.Symlink(target, to)
			}
			if err != nil {
				return err
			}
		case e.IsDir():
			if err := os.Mkdir(to, 0o755); err != nil {
				return err
			}
			if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
				return fmt.Errorf("failed to bind %s: %w", from, err)
			}
		}
	}
	return nil
}

// takeOver mounts what the shim would: the directory, and our library under the
// names of the real one.
func takeOver(root string, names []string) error {
	lib, dir := filepath.Join(root, Libraries), filepath.Join(root, ".vgpu")
	for _, d := range []string{lib, dir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(Dir(), dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("failed to bind the directory: %w", err)
	}
	for _, name := range names {
		to := filepath.Join(lib, name)
		if err := os.WriteFile(to, nil, 0o600); err != nil {
			return err
		}
		if err := unix.Mount(Library(), to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("failed to bind the library: %w", err)
		}
	}
	return nil
}
