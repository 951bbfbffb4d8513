// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	after, err := p.new.state()
	if err != nil {
		return nil, err
	}
	if err := p.change(manifestPath, after); err != nil {
		return nil, err
	}
	p.then(was != nil)
	return &p.Plan, nil
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
	for _, name := range []string{"lib/libvgpu-cuda.so", "lib/libvgpu-nvml.so"} {
		links[libraryDir+"/"+filepath.Base(name)] = name
	}
	for _, name := range []string{"musl", "simgpu"} {
		for file := range files {
			if below(file, name) {
				links[libraryDir+"/"+name] = name
			}
		}
	}
	for _, from := range slices.Sorted(maps.Keys(links)) {
		if err := p.own(from, link(currentLink+"/"+links[from])); err != nil {
			return err
		}
	}
	return p.own(currentLink, link("versions/"+p.new.Current))
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

// containerd plans the change of containerd's configuration.
func (p *planner) containerd(ctx context.Context) error {
	p.new.Containerd = p.old.Containerd
	if p.Containerd == "" {
		for path, e := range p.old.Entries {
			if filepath.Base(path) == Handler+".toml" || strings.HasSuffix(path, backup) {
				p.new.Entries[path] = e
			}
		}
		return nil
	}
	c, was, err := p.configuration()
	if err != nil {
		return err
	}
	w, err := c.want(ctx, p.Prefix+"/bin/"+shimProgram)
	if errors.Is(err, errCRIDisabled) {
		p.note("containerd's configuration %s stays as it is: %v", p.place(c.path), err)
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case w.file != "":
		return p.share(w.file, text(w.text))
	case w.changed:
		p.note("the block of vgpu in %s was changed: it stays as it is", p.place(c.path))
		return nil
	}
	if err := p.parents(c.path); err != nil {
		return err
	}
	p.new.Containerd = &edit{Config: c.path, SHA256: hash([]byte(w.block))}
	if rest, _, _ := cut(w.text); !c.exists || p.old.Containerd != nil && p.old.Containerd.Created == rest {
		p.new.Containerd.Created = rest
	}
	after := text(w.text)
	if was != nil {
		after.mode = was.mode
		if w.text != c.text {
			// As it is now, whoever made it so.
			if err := p.own(c.path+backup, &state{mode: was.mode, data: was.data, uid: was.uid, gid: was.gid}); err != nil {
				return err
			}
		} else if e, ok := p.old.Entries[c.path+backup]; ok {
			p.new.Entries[c.path+backup] = e
		}
	}
	return p.change(c.path, after)
}

// backup is beside a configuration that was changed.
const backup = ".before-vgpu"

// configuration reads that of containerd, following links.
func (p *planner) configuration() (*configuration, *state, error) {
	path := p.Config
	if real, err := filepath.EvalSymlinks(p.place(path)); err == nil {
		root, err := filepath.EvalSymlinks(p.place("/"))
		if err != nil {
			return nil, nil, err
		}
		if relative, err := filepath.Rel(root, real); err == nil && filepath.IsLocal(relative) {
			path = "/" + relative
		}
	}
	was, err := p.look(path)
	if err != nil {
		return nil, nil, err
	}
	if was != nil && !was.isFile() {
		return nil, nil, fmt.Errorf("%s is not a file", p.place(path))
	}
	c := &configuration{program: p.Containerd, path: path, exists: was != nil, place: p.place, ours: p.old.Entries, edited: p.old.Containerd}
	if was != nil {
		c.text = string(was.data)
	}
	return c, was, nil
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
}
