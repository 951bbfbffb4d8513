// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/hooks/oci"
)

// Supported tells whether the kernel has what this takes: the calls of Linux 5.12, and
// CONFIG_PROC_CHILDREN, by which it tells which threads have children.
func Supported() bool {
	// The newest of the calls. There is no such descriptor; where nothing is to be set,
	// nobody looks.
	err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	_, unknown := os.ReadFile(children)
	return errors.Is(err, unix.EBADF) && unknown == nil
}

// attributes are the options that are attributes of a mount. What is made here is
// private.
var attributes = map[string]uint64{
	"bind": 0, "rw": 0, "private": 0, "rprivate": 0,
	"ro": unix.MOUNT_ATTR_RDONLY, "nosuid": unix.MOUNT_ATTR_NOSUID, "nodev": unix.MOUNT_ATTR_NODEV, "noexec": unix.MOUNT_ATTR_NOEXEC,
}

// Fits tells whether Make can make a mount: a bind mount of a file or a directory
// without what is mounted below.
func Fits(m oci.Mount) bool {
	for _, o := range m.Options {
		if _, ok := attributes[o]; !ok {
			return false
		}
	}
	return m.Type == "bind"
}

// ErrEnded says that the container's process has ended.
var ErrEnded = errors.New("the container's first process has ended")

// Mounts are mounts without a place. A thread of its own holds them until Put or Drop,
// of which one must be called, once.
type Mounts struct {
	to     chan target // closed by Drop
	result <-chan error
}

// target is where mounts go: below the root directory of a process, which the host
// has at rootfs.
type target struct {
	pid    int
	rootfs string
}

// Make begins to make mounts, and returns at once. What goes wrong with that Put tells.
func Make(all []oci.Mount) *Mounts {
	m := &Mounts{to: make(chan target)}
	m.result = onThread(func() error {
		trees, err := clones(all)
		if err != nil {
			return err // at once: the thread may have copies of what others wait for
		}
		if t, ok := <-m.to; ok {
			return t.put(all, trees)
		}
		return nil
	})
	return m
}

// Drop lets the mounts go.
func (m *Mounts) Drop() { close(m.to) }

// Put gives the mounts their places in the mount namespace of the process pid, in
// their order, each below its root directory. rootfs is where the host has that root:
// there the places are made that a container whose root is read-only lacks. pid must
// stay as long as Put runs.
//
// After an error some of the mounts are there. It is ErrEnded if the process had ended
// before.
func (m *Mounts) Put(pid int, rootfs string) error {
	var err error
	select {
	case m.to <- target{pid, rootfs}:
		err = <-m.result
	case err = <-m.result: // there is nothing to put
	}
	if err != nil {
		return fmt.Errorf("failed to mount in the container: %w", err)
	}
	return nil
}

// onThread calls f on a thread that nothing else will ever run on, and that ends then.
// One that may not end is held while another is taken, and goes back to Go's runtime.
// The result is what f returns, or why no thread could be had.
func onThread(f func() error) <-chan error {
	result := make(chan error, 1)
	taken := make(chan struct{})
	var try func()
	try = func() {
		runtime.LockOSThread()
		switch ok, err := mayEnd(); {
		case err != nil:
			close(taken)
			result <- err
		case ok:
			close(taken)
			result <- f()
			return // while it is locked, which ends the thread
		default:
			go try()
			<-taken
		}
		runtime.UnlockOSThread()
	}
	go try()
	return result
}

// children names the children of the thread that reads it (proc_pid_task(5)).
const children = "/proc/thread-self/children"

// mayEnd tells whether this thread may end. The process's first one can not. And the
// children of another may have asked for a signal at its end, not at the process's
// (PR_SET_PDEATHSIG): each runc that runs is killed so, whose container may be another.
// A thread that is locked gets no further ones.
func mayEnd() (bool, error) {
	if unix.Gettid() == unix.Getpid() {
		return false, nil
	}
	all, err := os.ReadFile(children)
	return len(all) == 0, err
}

// clones makes the mounts. The thread is changed for good. Its root directory is its
// own, as setns(2) will ask for, and so are its descriptors: they close by themselves, a
// table that grows makes nobody wait who shares it, no child of the process has them,
// and none has to wait for their end when the process is killed.
func clones(all []oci.Mount) ([]tree, error) {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_FILES); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	if err := closeOthers(); err != nil {
		return nil, fmt.Errorf("failed to close what the process has open: %w", err)
	}
	trees := make([]tree, len(all))
	for i, m := range all {
		var err error
		if trees[i], err = clone(m); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Source, err)
		}
	}
	return trees, nil
}

// closeOthers closes this thread's copies of the process's descriptors: who reads from
// a pipe would wait for their end, too. Standard input, output and error stay, and what
// is no file, such as an epoll(7) instance: Go's runtime needs its own on every thread,
// and must have made it before Make, as it has in any process that serves.
func closeOthers() error {
	fds, err := os.ReadDir("/proc/thread-self/fd")
	if err != nil {
		return err
	}
	for _, entry := range fds {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if fd > 2 && unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT != 0 {
			unix.Close(fd)
		}
	}
	return nil
}

// put gives the mounts, of which trees has each one's, their places, on the thread that
// made them.
func (t target) put(all []oci.Mount, trees []tree) error {
	unix.Umask(0)
	process, err := openProcess(t.pid)
	if err != nil {
		return err
	}
	host, err := unix.Open(t.rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: t.rootfs, Err: err}
	}
	if err := unix.Setns(process.namespace, unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("setns", err)
	}
	if err := process.become(); err != nil {
		return err
	}
	p := places{container: process.root, host: host}
	for i, m := range all {
		if err := p.attach(trees[i], m.Destination); err != nil {
			return fmt.Errorf("%s on %s: %w", m.Source, m.Destination, err)
		}
	}
	return nil
}

// tree is a mount without a place.
type tree struct {
	fd  int
	dir bool // of a directory
}

// clone makes the mount, without a place.
func clone(m oci.Mount) (t tree, err error) {
	t.fd, err = unix.OpenTree(unix.AT_FDCWD, m.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return t, os.NewSyscallError("open_tree", err)
	}
	attr := unix.MountAttr{Propagation: unix.MS_PRIVATE}
	for _, o := range m.Options {
		attr.Attr_set |= attributes[o]
	}
	if err := unix.MountSetattr(t.fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return t, os.NewSyscallError("mount_setattr", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(t.fd, &st); err != nil {
		return t, os.NewSyscallError("fstat", err)
	}
	t.dir = st.Mode&unix.S_IFMT == unix.S_IFDIR
	return t, nil
}

// process is the container's first one.
type process struct {
	root, namespace int // descriptors
	uid, gid        int // of its user namespace's root, as the host has them
}

func openProcess(pid int) (p process, err error) {
	defer func() {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) { // a zombie has neither root nor namespaces
			err = fmt.Errorf("%w: %w", ErrEnded, err)
		}
	}()
	name := fmt.Sprintf("/proc/%d", pid)
	// All of it is read through this descriptor, so that it is of one process.
	dir, err := unix.Open(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return p, &os.PathError{Op: "open", Path: name, Err: err}
	}
	if p.root, err = unix.Openat(dir, "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return p, &os.PathError{Op: "open", Path: name + "/root", Err: err}
	}
	if p.namespace, err = unix.Openat(dir, "ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return p, &os.PathError{Op: "open", Path: name + "/ns/mnt", Err: err}
	}
	var own, its unix.Stat_t
	if err := errors.Join(unix.Stat("/proc/thread-self/ns/mnt", &own), unix.Fstat(p.namespace, &its)); err != nil {
		return p, fmt.Errorf("failed to look at the mount namespace of process %d: %w", pid, err)
	}
	if own.Ino == its.Ino {
		return p, fmt.Errorf("process %d is in the host's mount namespace", pid)
	}
	if p.uid, err = hostID(dir, "uid_map"); err == nil {
		p.gid, err = hostID(dir, "gid_map")
	}
	if err != nil {
		return p, fmt.Errorf("failed to look at the user namespace of process %d: %w", pid, err)
	}
	return p, nil
}

// hostID is the ID that root has on the host by a map of a user namespace
// (user_namespaces(7)).
func hostID(dir int, name string) (int, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	text := make([]byte, 64<<10)
	n, err := unix.Read(fd, text)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text[:n])) {
		var inside, outside, count int
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err != nil {
			return 0, fmt.Errorf("%s says %q: %w", name, line, err)
		}
		if inside == 0 {
			return outside, nil
		}
	}
	return 0, fmt.Errorf("%s has no root", name)
}

// become makes what this thread makes the container's root's, and lets it do what
// that may.
func (p process) become() error {
	if p.uid == 0 && p.gid == 0 {
		return nil
	}
	if err := errors.Join(unix.Setfsgid(p.gid), unix.Setfsuid(p.uid)); err != nil {
		return fmt.Errorf("failed to become the container's root: %w", err)
	}
	// Another user than root has lost those that are about files (capabilities(7)).
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	if err == nil {
		for i := range data {
			data[i].Effective = data[i].Permitted
		}
		err = unix.Capset(&header, &data[0])
	}
	return os.NewSyscallError("capset", err)
}
