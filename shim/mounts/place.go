// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// places are where mounts go, in the root directory of a container as itself sees it
// and as the host does.
type places struct{ container, host int } // descriptors

// attach gives a mount its place, which is made if it is not there.
func (p places) attach(t tree, destination string) error {
	at, err := lookUp(p.container, destination, unix.O_PATH)
	if errors.Is(err, unix.ENOENT) {
		if err := p.make(destination, t.dir); err != nil {
			return err
		}
		at, err = lookUp(p.container, destination, unix.O_PATH)
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	var fs unix.Statfs_t
	var st unix.Stat_t
	if err := errors.Join(unix.Fstatfs(at, &fs), unix.Fstat(at, &st)); err != nil {
		return fmt.Errorf("failed to look at it: %w", err)
	}
	switch dir := st.Mode&unix.S_IFMT == unix.S_IFDIR; {
	case dir && !t.dir:
		return unix.EISDIR
	case t.dir && !dir:
		return unix.ENOTDIR
	}
	if fs.Type == unix.PROC_SUPER_MAGIC || fs.Type == unix.SYSFS_MAGIC {
		return errors.New("that leads into a kernel file system")
	}
	return os.NewSyscallError("move_mount", unix.MoveMount(t.fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
}

// make makes a place. A root that is to be read-only is so by now, but only as the
// container sees it.
func (p places) make(name string, dir bool) error {
	var readOnly readOnlyError
	err := within{p.container}.make(name, dir, 0)
	if !errors.As(err, &readOnly) || readOnly.mount != mountOf(p.container) {
		return err
	}
	return within{p.host}.make(name, dir, 0)
}

// lookUps is how often a path is looked up before it is given up: while anything on the
// machine is renamed or mounted, the kernel can not vouch for what ".." leads to
// (openat2(2), EAGAIN).
const lookUps = 10000

// lookUp opens a path below the directory root as if that were the root directory.
func lookUp(root int, name string, flags uint64) (fd int, err error) {
	for range lookUps {
		fd, err = unix.Openat2(root, name, &unix.OpenHow{
			Flags: flags | unix.O_CLOEXEC,
			// Through /proc, too, a link leads out of no root.
			Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
		})
		if !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return fd, os.NewSyscallError("openat2", err)
}

// within makes files below a directory as if that were the root directory.
type within struct{ root int }

// maxLinks is how many links in a row are followed, as by the kernel.
const maxLinks = 40

// make makes an empty file or a directory, and the directories above it. A link that
// leads to nothing is followed, and what is missing made where it leads.
func (w within) make(name string, dir bool, links int) error {
	if links > maxLinks {
		return os.NewSyscallError("readlinkat", unix.ELOOP)
	}
	above, base := path.Split(path.Clean(name))
	parent, err := lookUp(w.root, above, unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) && base != "" {
		if err := w.make(above, true, links); err != nil {
			return err
		}
		parent, err = lookUp(w.root, above, unix.O_PATH|unix.O_DIRECTORY)
	}
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if dir {
		err = unix.Mkdirat(parent, base, 0o755)
	} else {
		// Regular files alone need no open; O_EXCL, as it were: no link is followed.
		err = unix.Mknodat(parent, base, unix.S_IFREG|0o755, 0)
	}
	switch {
	case errors.Is(err, unix.EROFS):
		return readOnlyError{mountOf(parent)}
	case !errors.Is(err, unix.EEXIST):
		return os.NewSyscallError("mknodat", err)
	}
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(parent, base, target)
	if errors.Is(err, unix.EINVAL) {
		return nil // made by somebody else
	}
	if err != nil {
		return os.NewSyscallError("readlinkat", err)
	}
	to := string(target[:n])
	if !path.IsAbs(to) {
		to = above + to
	}
	return w.make(to, dir, links+1)
}

// readOnlyError is of what can not be made, since a mount is read-only.
type readOnlyError struct{ mount uint64 }

func (readOnlyError) Error() string { return unix.EROFS.Error() }
func (readOnlyError) Unwrap() error { return unix.EROFS }

// mountOf tells mounts apart; 0: not known.
func mountOf(fd int) uint64 {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0
	}
	return st.Mnt_id
}
