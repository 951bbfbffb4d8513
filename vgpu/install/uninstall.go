// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// Busy is why nothing is taken away: containers have parts of it.
type Busy struct{ uses string }

func (b Busy) Error() string {
	return "containers still run with vGPUs: " + b.uses + "; end them first, or use --force: they go on, and what they use stays"
}

// String names who has a part of a version.
func (u use) String() string {
	var parts []string
	for _, of := range []struct {
		pids []int
		what string
	}{{u.containers, "containers' processes and shims have parts of it"}, {u.others, "processes run programs of it"}} {
		if len(of.pids) > 0 {
			slices.Sort(of.pids)
			pids := slices.Compact(of.pids)
			parts = append(parts, fmt.Sprintf("%s (pid %s)", of.what, strings.Trim(fmt.Sprint(pids[:min(len(pids), 8)]), "[]")))
		}
	}
	return strings.Join(parts, "; ")
}

// Uninstall plans the end of all that was placed. While containers have parts of
// it, it is refused as Busy; with force, what they have stays, and what they need
// to be deleted, until a later run.
func Uninstall(o Options, force bool) (*Plan, error) {
	p, was, err := newPlanner(o)
	if err != nil {
		return nil, err
	}
	if was == nil {
		p.note("nothing is installed: there is no %s", p.place(manifestPath))
		// A run that was killed may have left so much.
		if err := p.sweep(manifestPath); err != nil {
			return nil, err
		}
		return &p.Plan, p.remove(libraryDir, entry{Dir: true})
	}
	used, err := inUse(o.Proc)
	if err != nil {
		return nil, err
	}
	busy := map[string]string{}
	for version, u := range used {
		_, ours := p.old.Entries[filepath.Join(versionsDir, version)]
		if ours && len(u.containers) > 0 {
			busy[version] = u.String()
		}
	}
	if len(busy) > 0 && !force {
		return nil, Busy{strings.Join(slices.Sorted(maps.Values(busy)), "; ")}
	}
	p.new = &manifest{Version: manifestVersion, Product: p.old.Product, Current: p.old.Current, Entries: map[string]entry{}}
	if len(busy) > 0 {
		// containerd calls the shim once more to delete a container.
		busy[p.old.Current] = "the shim of it is needed to delete containers"
	}
	shim := filepath.Join(p.Prefix, "bin", shimProgram)
	keep := func(path string, e entry) bool {
		if len(busy) == 0 {
			return false
		}
		return busy[versionOf(path)] != "" || path == shim || path == currentLink || e.Dir && below(shim, path) || e.Dir && below(manifestPath, path) || path == versionsDir
	}
	if err := p.restore(); err != nil {
		return nil, err
	}
	var last []string // after the manifest, which is in there
	for _, path := range slices.Backward(slices.Sorted(maps.Keys(p.old.Entries))) {
		e := p.old.Entries[path]
		switch {
		case keep(path, e):
			p.new.Entries[path] = e
		case e.Dir && below(manifestPath, path):
			last = append(last, path)
		default:
			if err := p.remove(path, e); err != nil {
				return nil, err
			}
		}
	}
	for _, version := range slices.Sorted(maps.Keys(busy)) {
		p.note("%s stays: %s; run \"vgpu uninstall\" again later", p.place(filepath.Join(versionsDir, version)), busy[version])
	}
	if used[p.old.Current].others != nil {
		p.note("vgpud may run still: \"systemctl disable --now vgpud.socket vgpud.service\" stops it, best before this")
	}
	p.Then = append(p.Then, "systemctl daemon-reload")
	var after *state
	if len(busy) > 0 {
		if after, err = p.new.state(); err != nil {
			return nil, err
		}
	}
	if err := p.change(manifestPath, after); err != nil {
		return nil, err
	}
	for _, path := range last {
		if err := p.remove(path, p.old.Entries[path]); err != nil {
			return nil, err
		}
	}
	return &p.Plan, nil
}

// restore plans that our block goes out of containerd's configuration, and leaves
// what others wrote since.
func (p *planner) restore() error {
	e := p.old.Containerd
	drop := slices.ContainsFunc(slices.Collect(maps.Keys(p.old.Entries)), func(path string) bool { return filepath.Base(path) == Handler+".toml" })
	if e != nil || drop {
		p.Then = append(p.Then, "systemctl restart containerd   # containers go on")
	}
	if e == nil {
		return nil
	}
	if err := p.sweep(e.Config); err != nil {
		return err
	}
	was, err := p.look(e.Config)
	if err != nil || !was.isFile() {
		return err
	}
	rest, ours, err := cut(string(was.data))
	switch {
	case err != nil:
		p.note("%s stays as it is: %v", p.place(e.Config), err)
		return nil
	case ours == "":
		return nil
	case hash([]byte(ours)) != e.SHA256:
		p.note("the block of vgpu in %s was changed since: it stays", p.place(e.Config))
		return nil
	case e.Created != "" && rest == e.Created:
		return p.change(e.Config, nil)
	}
	return p.change(e.Config, &state{mode: was.mode, data: []byte(rest)})
}
