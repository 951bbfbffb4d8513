// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Install plans that the version in o.From is the installed one.
func Install(ctx context.Context, o Options) (*Plan, error) {
	p, was, err := newPlanner(o)
	if err != nil {
		return nil, err
	}
	files, err := readTree(o.From)
	if err != nil {
		return nil, err
	}
	p.new = &manifest{Version: manifestVersion, Product: o.Version, Current: files.name(o.Version), Entries: map[string]entry{}}
	if err := p.parents(manifestPath); err != nil {
		return nil, err
	}
	begin := len(p.Changes)
	for _, step := range []func() error{
		func() error { return p.tree(files) },
		func() error { return p.config(files) },
		func() error { return p.links(files) },
		func() error { return p.containerd(ctx) },
		p.stale,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	if err := p.manifest(was, begin); err != nil {
		return nil, err
	}
	p.then(was != nil)
	return &p.Plan, nil
}

// manifest plans that the manifest tells of what is placed. It does so from begin on:
// a run that is killed leaves nothing of which the next does not know.
func (p *planner) manifest(was *state, begin int) error {
	after, err := p.new.state()
	if err != nil {
		return err
	}
	if len(p.Changes) == begin {
		return p.change(manifestPath, after)
	}
	under := *p.old
	under.Version, under.Pending = manifestVersion, p.new
	meanwhile, err := under.state()
	if err != nil {
		return err
	}
	p.Changes = slices.Insert(p.Changes, begin, Change{Path: p.place(manifestPath), before: was, after: meanwhile, own: true})
	p.planned[manifestPath] = meanwhile
	return p.change(manifestPath, after)
}

// tree plans the version's directory.
func (p *planner) tree(files tree) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := p.own(filepath.Join(versionsDir, p.new.Current, name), files[name]); err != nil {
			return err
		}
	}
	return nil
}

// config plans what the administrator may change.
func (p *planner) config(files tree) error {
	units := filepath.Join(p.Prefix, "lib/systemd/system")
	for _, f := range []struct{ from, to string }{
		{"share/vgpud.toml", configDir + "/vgpud.toml"},
		{"share/shim.toml", configDir + "/shim.toml"},
		{"share/systemd/vgpud.service", units + "/vgpud.service"},
		{"share/systemd/vgpud.socket", units + "/vgpud.socket"},
	} {
		s := files[f.from]
		if s == nil {
			return fmt.Errorf("%s has no %s", p.From, f.from)
		}
		if err := p.share(f.to, text(strings.ReplaceAll(string(s.data), "=/usr/bin/vgpud", "="+p.Prefix+"/bin/vgpud"))); err != nil {
			return err
		}
	}
	return nil
}

// links plans what leads to the current version. That of the version is the last:
// with it, all others change.
func (p *planner) links(files tree) error {
	links := map[string]string{p.Prefix + "/share/vgpu": "share"}
	for _, name := range programs {
		links[p.Prefix+"/bin/"+name] = "bin/" + name
	}
	for _, name := range libraries {
		links[libraryDir+"/"+name] = "lib/" + name
	}
	for _, name := range []string{"musl", "simgpu"} {
		for file := range files {
			if below(file, name) {
				links[libraryDir+"/"+name] = name
			}
		}
	}
	for _, from := range slices.Sorted(maps.Keys(links)) {
		to, err := p.relative(from, currentLink+"/"+links[from])
		if err != nil {
			return err
		}
		if err := p.own(from, link(to)); err != nil {
			return err
		}
	}
	return p.own(currentLink, link("versions/"+p.new.Current))
}

// relative is how a link leads from one path to another, whatever the root is: from
// where its directory really is, which may be behind a link.
func (p *planner) relative(from, to string) (string, error) {
	parent, made := filepath.Dir(from), ""
	for parent != "/" {
		if _, err := os.Lstat(p.place(parent)); err == nil {
			break
		}
		parent, made = filepath.Dir(parent), filepath.Join(filepath.Base(parent), made)
	}
	real, err := p.real(parent)
	if err != nil {
		return "", err
	}
	return filepath.Rel(filepath.Join(real, made), to)
}

// real is a path without links in it, if that is below the root; else it is the
// path itself.
func (o Options) real(path string) (string, error) {
	real, err := filepath.EvalSymlinks(o.place(path))
	if err != nil {
		return "", err
	}
	root, err := filepath.EvalSymlinks(o.place("/"))
	if err != nil {
		return "", err
	}
	if relative, err := filepath.Rel(root, real); err == nil && filepath.IsLocal(relative) {
		return filepath.Join("/", relative), nil
	}
	return path, nil
}

// stale plans the end of what earlier versions placed and this one does not. A
// version of which a process has a part stays until a later run.
func (p *planner) stale() error {
	used, err := inUse(p.Proc)
	if err != nil {
		return err
	}
	kept := map[string]bool{}
	// What is in a directory goes before it.
	for _, path := range slices.Backward(slices.Sorted(maps.Keys(p.old.Entries))) {
		e := p.old.Entries[path]
		if _, still := p.new.Entries[path]; still {
			continue
		}
		if version := versionOf(path); version != "" && used[version].any() || path == versionsDir {
			p.new.Entries[path] = e
			kept[version] = version != ""
			continue
		}
		if err := p.remove(path, e); err != nil {
			return err
		}
	}
	for _, version := range slices.Sorted(maps.Keys(kept)) {
		if kept[version] {
			p.note("%s stays: %s", p.place(filepath.Join(versionsDir, version)), used[version])
		}
	}
	return nil
}

// versionOf is the version to whose directory a path belongs; empty: to none.
func versionOf(path string) string {
	rest, ok := strings.CutPrefix(path, versionsDir+"/")
	if !ok {
		return ""
	}
	version, _, _ := strings.Cut(rest, "/")
	return version
}

// then says what is left to do, by what changes.
func (p *planner) then(upgrade bool) {
	changed := func(where func(string) bool) bool {
		return slices.ContainsFunc(p.Changes, func(c Change) bool {
			return where(strings.TrimPrefix(c.Path, strings.TrimSuffix(filepath.Clean(p.Root), "/")))
		})
	}
	if changed(func(path string) bool { return strings.Contains(path, "/systemd/system/vgpud.") }) {
		p.Then = append(p.Then, "systemctl daemon-reload")
	}
	switch {
	case !upgrade:
		p.Then = append(p.Then, "systemctl enable --now vgpud.socket vgpud.service")
	case changed(func(path string) bool { return path == currentLink || below(path, configDir) }):
		p.Then = append(p.Then, "systemctl restart vgpud   # containers go on")
	}
	if changed(func(path string) bool { return path == p.Config || filepath.Base(path) == Handler+".toml" }) {
		p.Then = append(p.Then, "systemctl restart containerd   # containers go on")
	}
	if len(p.Changes) > 0 {
		p.Then = append(p.Then, "vgpu doctor")
	}
	if !upgrade {
		p.Then = append(p.Then, "kubectl label node NODE vgpu-shim.dev/installed=true   # under Kubernetes")
	}
}
