// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Options say what is installed, and where.
type Options struct {
	Root   string // "/", or the directory that will be it: for packages
	Prefix string // where programs and units go: /usr/local
	From   string // the tree that was built, or an installed version's directory

	// Containerd is the program of containerd; empty: its configuration is left
	// alone.
	Containerd string
	// Config is containerd's configuration, below the root.
	Config string

	Version string // of the product
	Proc    string // where processes are looked for: /proc
}

// Plan is what is to be done. It was only looked so far.
type Plan struct {
	Changes []Change
	Notes   []string // what needs saying, such as a file that is kept
	Then    []string // commands for the operator, once it is done
}

// Apply makes all changes, or none.
func (p *Plan) Apply() error { return apply(p.Changes, put) }

// planner makes a plan.
type planner struct {
	Options
	Plan
	old, new *manifest
	planned  map[string]*state // by path, as it will be
}

func newPlanner(o Options) (*planner, *state, error) {
	p := &planner{Options: o, planned: map[string]*state{}}
	old, was, err := readManifest(p.place(manifestPath))
	if err != nil {
		return nil, nil, err
	}
	p.old = old
	return p, was, old.settle(p.place)
}

// Lock keeps others from installing and uninstalling below the same root, until
// unlock is called or the process ends. Plans are made and applied under it.
func (o Options) Lock() (unlock func(), err error) {
	d, err := os.Open(o.place("/"))
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil // nothing is there to be kept
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		d.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another \"vgpu install\" or \"vgpu uninstall\" is under way in %s: run this again when it has ended", o.place("/"))
		}
		return nil, fmt.Errorf("failed to lock %s: %w", o.place("/"), err)
	}
	return func() { d.Close() }, nil
}

// place is where a path lies here.
func (o Options) place(path string) string { return filepath.Join(o.Root, path) }

// look reads what will be at a path once what is planned so far is done.
func (p *planner) look(path string) (*state, error) {
	if s, ok := p.planned[path]; ok {
		return s, nil
	}
	return look(p.place(path))
}

// change plans that a path will be in a state.
func (p *planner) change(path string, after *state) error {
	if err := p.sweep(path); err != nil {
		return err
	}
	before, err := p.look(path)
	if err != nil {
		return err
	}
	if before.same(after) {
		return nil
	}
	if before.isFile() && after.isFile() {
		c := *after
		c.uid, c.gid = before.uid, before.gid
		after = &c
	}
	p.Changes = append(p.Changes, Change{
		Path: p.place(path), before: before, after: after,
		own: versionOf(path) != "" || path == manifestPath,
	})
	p.planned[path] = after
	return nil
}

// sweep plans the end of what a run left that was killed while it replaced a file.
func (p *planner) sweep(path string) error {
	left := temporary(path)
	s, err := p.look(left)
	if err != nil || s == nil {
		return err
	}
	return p.change(left, nil)
}

// parents plans the directories that a path needs. Those that are made are ours.
func (p *planner) parents(path string) error {
	parent := filepath.Dir(path)
	if parent == "/" {
		return nil
	}
	// That of the manifest is ours, also if a run was killed before it wrote that.
	if p.old.Entries[parent].Dir || parent == libraryDir {
		p.new.Entries[parent] = entry{Dir: true}
	}
	info, err := os.Stat(p.place(parent)) // a link to a directory will do
	switch {
	case p.planned[parent] != nil:
		return nil
	case err == nil && !info.IsDir():
		return fmt.Errorf("%s is not a directory", p.place(parent))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if perr := p.parents(parent); perr != nil || err == nil {
		return perr
	}
	p.new.Entries[parent] = entry{Dir: true}
	return p.change(parent, dir())
}

// own plans what nobody else may have changed: a part of a version, a link. What is
// there and is not ours is an error.
func (p *planner) own(path string, want *state) error {
	if err := p.parents(path); err != nil {
		return err
	}
	was, err := p.look(path)
	if err != nil {
		return err
	}
	_, ours := p.old.Entries[path]
	if was != nil && !ours && !was.same(want) {
		return fmt.Errorf("%s is there, and \"vgpu install\" did not place it: move it away (an earlier \"make install\" may have left it; containers keep what they have mounted), then run this again", p.place(path))
	}
	p.new.Entries[path] = entryOf(want)
	return p.change(path, want)
}

// share plans a file that the administrator may change. One that he did stays, and
// what is new lies beside it.
func (p *planner) share(path string, want *state) error {
	if err := p.parents(path); err != nil {
		return err
	}
	was, err := p.look(path)
	if err != nil {
		return err
	}
	e, ours := p.old.Entries[path]
	p.new.Entries[path] = entryOf(want)
	beside := path + ".new"
	switch {
	case was == nil, ours && e.placed(was), was.isFile() && hash(was.data) == hash(want.data):
		if old, ok := p.old.Entries[beside]; ok { // of no use any more
			if err := p.remove(beside, old); err != nil {
				return err
			}
		}
		if was.isFile() {
			c := *want
			c.mode = was.mode
			want = &c
		}
		return p.change(path, want)
	case ours && e == entryOf(want):
		p.note("%s was changed: it stays as it is", p.place(path))
		if old, ok := p.old.Entries[beside]; ok {
			p.new.Entries[beside] = old
		}
		return nil
	}
	p.note("%s was changed: it stays as it is, and this version's is %s", p.place(path), p.place(beside))
	return p.own(beside, want)
}

// remove plans that what was placed goes. What was changed since stays, and a
// directory in which something is left.
func (p *planner) remove(path string, e entry) error {
	if err := p.sweep(path); err != nil {
		return err
	}
	was, err := p.look(path)
	switch {
	case err != nil:
		return err
	case was == nil:
		return nil
	case !e.Dir && !e.placed(was):
		p.note("%s was changed since: it stays", p.place(path))
		return nil
	case e.Dir:
		left, err := p.left(path)
		if err != nil || left {
			return err
		}
	}
	return p.change(path, nil)
}

// left tells whether something will be in a directory.
func (p *planner) left(path string) (bool, error) {
	entries, err := os.ReadDir(p.place(path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for _, e := range entries {
		if s, ok := p.planned[filepath.Join(path, e.Name())]; !ok || s != nil {
			return true, nil
		}
	}
	for name, s := range p.planned {
		if s != nil && filepath.Dir(name) == path {
			return true, nil
		}
	}
	return false, nil
}

func (p *planner) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

// below tells whether a path lies in a directory, or is it.
func below(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }
