// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

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
	if real, err := p.real(path); err == nil {
		path = real
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
