// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// State is a state directory that is ours alone for as long as it is open.
type State struct {
	dir  string
	lock *os.File
}

// What is in it beside c/, the directories of the vGPUs, and the control socket.
const (
	lockFile     = "lock"
	storeFile    = "store.db"
	accountsFile = "accounts"
)

// OpenState takes a state directory, before anything else is done in it. It is
// made if it is not there. One that is there must be empty or an earlier
// vgpud's, and nobody else's to write: what is in it is removed at times, and
// gets mounted into containers. Sockets with the paths of made do not count:
// somebody made them for vgpud.
func OpenState(dir string, made ...string) (_ *State, retErr error) {
	if err := privateDir(dir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("failed to look into the state directory: %w", err)
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
		return e.Type() == fs.ModeSocket && slices.Contains(made, filepath.Join(dir, e.Name()))
	})
	path := filepath.Join(dir, lockFile)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) && len(entries) > 0 {
		return nil, fmt.Errorf("the state directory %s is not empty and not vgpud's (there is no file %q in it): name a new one with --state, or empty it", dir, lockFile)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("failed to open the lock: %w", err)
	}
	defer func() {
		if retErr != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("failed to look at the lock: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("the lock %s is not a regular file", path)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("another vgpud runs on %s: stop it, or give this one its own --state", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to lock %s: %w", path, err)
	}
	return &State{dir: dir, lock: f}, nil
}

// Close gives the directory free. It unlocks first: a thread that a container
// holds up can keep this process, and so the file, for a while.
func (s *State) Close() error {
	err := unix.Flock(int(s.lock.Fd()), unix.LOCK_UN)
	return errors.Join(err, s.lock.Close())
}

// oldRecord is the name of a record, and of a leftover, of a vgpud from before
// there was a store.
var oldRecord = regexp.MustCompile(`^(\.[0-9a-f]{16}-[0-9a-f]{16}\.json[0-9]+|[0-9a-f]{16}-[0-9a-f]{16}\.json(\.kept)?)$`)

// removeOldRecords removes what is left of one; other files stay.
func removeOldRecords(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("failed to look for old records: %w", err)
	}
	left := false
	for _, e := range entries {
		if !oldRecord.MatchString(e.Name()) {
			left = true
		} else if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("failed to remove an old record: %w", err)
		}
	}
	if left {
		return nil
	}
	return os.Remove(dir)
}

// privateDir makes a directory, or makes sure that one that is there is ours
// and nobody else can write in it. Its mode stays as it is.
func privateDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return fmt.Errorf("failed to make a directory: %w", err)
	}
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("failed to make a directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("failed to look at a directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory (but %s)", dir, info.Mode().Type())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("the directory %s belongs to another user than vgpud: chown it, or name another", dir)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("others than vgpud can write in the directory %s (mode %#o): chmod go-w it, or name another", dir, info.Mode().Perm())
	}
	return nil
}
