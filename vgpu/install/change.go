// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// state is what is at a path; nil is nothing. It is a link if link is set, else a
// directory if mode says so, else a file.
type state struct {
	mode     fs.FileMode // permissions, and fs.ModeDir
	link     string
	data     []byte
	uid, gid int
}

func (s *state) isFile() bool { return s != nil && s.link == "" && !s.mode.IsDir() }

// same compares all but the owner, whom a file keeps that is changed.
func (s *state) same(o *state) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.link == o.link && s.mode == o.mode && bytes.Equal(s.data, o.data)
}

func dir() *state               { return &state{mode: fs.ModeDir | 0o755} }
func link(target string) *state { return &state{link: target} }
func text(data string) *state   { return &state{mode: 0o644, data: []byte(data)} }
func hash(data []byte) string   { s := sha256.Sum256(data); return hex.EncodeToString(s[:]) }

// look reads what is at a path. A device, socket or pipe is an error.
func look(path string) (*state, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := &state{mode: info.Mode() & (fs.ModeDir | fs.ModePerm)}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.uid, s.gid = int(sys.Uid), int(sys.Gid)
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
	case fs.ModeSymlink:
		s.mode = 0
		s.link, err = os.Readlink(path)
	case 0:
		s.data, err = os.ReadFile(path)
	default:
		err = fmt.Errorf("%s is neither a file, nor a directory, nor a link", path)
	}
	return s, err
}

// put makes a path be in a state, by one rename or removal. Whoever has the old
// file open or mounted keeps it. Doing it twice is the same as once.
func put(path string, want *state) error {
	switch {
	case want == nil:
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	case want.mode.IsDir():
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.Chmod(path, want.mode.Perm()); err != nil {
			return err
		}
	default:
		if err := replace(path, want); err != nil {
			return err
		}
	}
	d, err := os.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // what was to be removed went with its directory
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// temporary is where what is to be at a path is made: beside it, so that a rename
// suffices, and under no name that a pattern such as *.toml fits.
func temporary(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".vgpu-tmp")
}

// replace renames a new file or link over what is there.
func replace(path string, want *state) (err error) {
	temporary := temporary(path)
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(temporary)
		}
	}()
	if want.link != "" {
		err = os.Symlink(want.link, temporary)
	} else {
		err = write(temporary, want)
	}
	if err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

func write(path string, want *state) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(want.data)
	// The mode after the owner: changing that may clear bits of it.
	err = errors.Join(err, f.Chown(want.uid, want.gid), f.Chmod(want.mode), f.Sync())
	return errors.Join(err, f.Close())
}

// Change is what happens at one path.
type Change struct {
	Path          string
	before, after *state
	own           bool // a part of a version, or the manifest: nobody edits those
}

// Action says in a word what it does.
func (c Change) Action() string {
	switch {
	case c.before == nil:
		return "create"
	case c.after == nil:
		return "remove"
	}
	return "replace"
}

// apply makes all changes in their order by a function such as put. If one fails,
// those that were made are taken back, and so is what was half made of it.
func apply(changes []Change, put func(string, *state) error) error {
	for i, c := range changes {
		err := put(c.Path, c.after)
		if err == nil {
			continue
		}
		err = fmt.Errorf("failed to %s %s: %w", c.Action(), c.Path, err)
		var undone error
		for j := i; j >= 0; j-- {
			if err := put(changes[j].Path, changes[j].before); err != nil {
				undone = errors.Join(undone, fmt.Errorf("failed to restore %s: %w", changes[j].Path, err))
			}
		}
		if undone != nil {
			return errors.Join(err, undone)
		}
		return fmt.Errorf("%w; everything is as it was before", err)
	}
	return nil
}
