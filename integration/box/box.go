// SPDX-License-Identifier: Apache-2.0

// Package box runs this program again where it can write to fixed places: below
// /run, /var/lib, /etc and /opt, to any port, to bridges and cgroups.
//
// A box has namespaces of its own, in which those places are empty memory file
// systems or overlays, and of which nothing is left when its first process ends.
//
// It has two processes of ours. The first is its init: it furnishes the box and
// reaps what nobody else does, as containerd's tests look for processes that
// should be gone. The second, its child, does the work. A program that uses Run
// calls Init when it is started with the argument InitArg. Both need root. Main does
// all of it for a program that is in a box and nowhere else.
package box

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// InitArg is the first argument of a program that should call Init with the rest.
const InitArg = "init"

// flags are the namespaces that a box has from its start. That of cgroups comes
// later: its root is the cgroup of whoever makes it.
const flags = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC

// Run runs this program with arguments in a box of a name, which is part of those
// of its cgroups, with what it writes in out. It returns when the box is gone.
func Run(ctx context.Context, name string, out io.Writer, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	groups, err := makeCgroups(fmt.Sprintf("vgpu-%s-%d", name, os.Getpid()))
	if err != nil {
		return errors.Join(err, removeCgroups(groups))
	}
	cmd := exec.CommandContext(ctx, self, append([]string{InitArg, strings.Join(groups, ":")}, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	ended := make(chan struct{})
	go thawFromEnd(ctx, groups, ended)
	// The signal of the parent's death is bound to its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	close(ended)
	return errors.Join(err, removeCgroups(groups))
}

// thawFromEnd thaws a box's cgroups again and again from the end of ctx until the
// box has ended: with version 1 a process that is frozen does not even take
// SIGKILL, and a box ends only when all its processes have.
func thawFromEnd(ctx context.Context, groups []string, ended <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-ended:
		return
	}
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		for _, g := range groups {
			thaw(g)
		}
		select {
		case <-again.C:
		case <-ended:
			return
		}
	}
}

// Init is the first process of a box. It returns the exit status of the second.
func Init(args []string) (int, error) {
	groups, args := strings.Split(args[0], ":"), args[1:]
	// The namespace of cgroups is this thread's, and its children's.
	runtime.LockOSThread()
	if err := furnish(groups); err != nil {
		return 1, fmt.Errorf("failed to furnish the box: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	child, err := os.StartProcess(self, append([]string{self}, args...), &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return 1, err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 1, err
		case pid == child.Pid && status.Exited():
			return status.ExitStatus(), thawAll()
		case pid == child.Pid && status.Signaled():
			return 128 + int(status.Signal()), thawAll()
		}
	}
}

// furnish gives the box its own file systems, cgroups and loopback device.
func furnish(groups []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	if err := enterCgroups(groups); err != nil {
		return err
	}
	for _, dir := range []string{"/run", "/var/lib"} {
		if err := unix.Mount("box", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	for _, dir := range []string{Temp, "/run/lock"} {
		if err := os.Mkdir(dir, 0o777); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/etc", "/opt"} {
		if err := LayOver(dir); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	return loopbackUp()
}

// Temp is for temporary files in a box.
const Temp = "/run/tmp"

// LayOver lets the box write to a directory without changing it.
func LayOver(dir string) error {
	upper, work := filepath.Join("/run/over", dir, "u"), filepath.Join("/run/over", dir, "w")
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return unix.Mount("box", dir, "overlay", 0, "lowerdir="+dir+",upperdir="+upper+",workdir="+work)
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}

// removeCgroups removes the cgroups of a box whose processes are gone, or are
// going: the kernel takes a moment.
func removeCgroups(groups []string) error {
	return harness.Eventually(context.Background(), 60*time.Second, func() error {
		var errs []error
		for _, g := range groups {
			errs = append(errs, removeTree(g))
		}
		return errors.Join(errs...)
	})
}

// removeTree removes a cgroup and those below it.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}
