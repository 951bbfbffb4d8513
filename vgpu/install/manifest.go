// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"fmt"
	"maps"
)

// manifestVersion is that of the manifest's format.
const manifestVersion = 1

// manifest tells what was placed. Paths are as they are when the root is "/".
type manifest struct {
	Version    int              `json:"version"`
	Product    string           `json:"product"`
	Current    string           `json:"current"` // directory of the version, below versions
	Entries    map[string]entry `json:"entries"` // by path
	Containerd *edit            `json:"containerd,omitempty"`

	// Pending is what the run that is under way leaves here at its end. If it is here
	// afterwards, that run was killed.
	Pending *manifest `json:"pending,omitempty"`
}

// entry is one thing that was placed.
type entry struct {
	Dir    bool   `json:"dir,omitempty"`
	Link   string `json:"link,omitempty"`
	SHA256 string `json:"sha256,omitempty"` // of the file as it was placed, or would have been
}

// edit is a block that was put into a configuration of containerd.
type edit struct {
	Config  string `json:"config"`
	SHA256  string `json:"sha256"`            // of the block
	Created string `json:"created,omitempty"` // what is around the block in a file that was not there before
}

func entryOf(s *state) entry {
	switch {
	case s.link != "":
		return entry{Link: s.link}
	case s.mode.IsDir():
		return entry{Dir: true}
	}
	return entry{SHA256: hash(s.data)}
}

// placed tells whether what is there is what was placed.
func (e entry) placed(s *state) bool {
	return s != nil && e == entryOf(s)
}

func readManifest(path string) (*manifest, *state, error) {
	s, err := look(path)
	if err != nil || s == nil {
		return &manifest{}, nil, err
	}
	m := &manifest{}
	if err := json.Unmarshal(s.data, m); err != nil {
		return nil, nil, fmt.Errorf("failed to read %s, which tells what was installed: %w; restore it from a backup", path, err)
	}
	if m.Version > manifestVersion {
		return nil, nil, fmt.Errorf("%s is of a newer version of vgpu (%s): use that", path, m.Product)
	}
	return m, s, nil
}

// settle makes of the manifest that a killed run has left one that tells what is
// there: each thing as the one or as the other run placed it.
func (m *manifest) settle(place func(string) string) error {
	pending := m.Pending
	if pending == nil {
		return nil
	}
	m.Pending = nil
	entries := maps.Clone(pending.Entries)
	for path, e := range m.Entries {
		s, err := look(place(path))
		if err != nil {
			return err
		}
		if p, ok := entries[path]; !ok || !p.placed(s) {
			entries[path] = e
		}
	}
	m.Entries = entries
	if pending.Containerd == nil {
		return nil
	}
	s, err := look(place(pending.Containerd.Config))
	if err != nil {
		return err
	}
	block := ""
	if s.isFile() {
		_, block, _ = cut(string(s.data)) // one that can not be cut is told of later
	}
	if m.Containerd == nil || hash([]byte(block)) == pending.Containerd.SHA256 {
		m.Containerd = pending.Containerd
	}
	return nil
}

func (m *manifest) state() (*state, error) {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	return text(string(b) + "\n"), nil
}
