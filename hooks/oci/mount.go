// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// SimulatedGPU is where a container finds the simulated GPU: a directory, and
// the only mount below /dev that an edit may add.
const SimulatedGPU = "/dev/simgpu"

// Mount adds a mount. A mount that the spec already has at the same
// destination is replaced. The mount goes to the end of the list, so that it
// lies above one on a parent directory.
type Mount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type,omitempty"`
	Source      string   `json:"source,omitempty"`
	Options     []string `json:"options,omitempty"`
}

var _ Edit = Mount{}

// Apply implements Edit.
func (m Mount) Apply(s *Spec) error {
	if err := m.validate(); err != nil {
		return fmt.Errorf("invalid mount: %w", err)
	}
	return s.mounts.last(m, func(o Mount) bool { return path.Clean(o.Destination) == m.Destination })
}

func (m Mount) validate() error {
	if err := checkPath("destination", m.Destination); err != nil {
		return err
	}
	switch {
	case m.Destination == "/":
		return fmt.Errorf("destination %q is the root directory", m.Destination)
	case within(m.Destination, "/proc"), within(m.Destination, "/sys"):
		return fmt.Errorf("destination %q lies in a kernel file system", m.Destination)
	case within(m.Destination, "/dev") && !within(m.Destination, SimulatedGPU):
		return fmt.Errorf("destination %q lies in /dev, where only %s may be mounted", m.Destination, SimulatedGPU)
	}
	for _, o := range m.Options {
		if o == "" || strings.ContainsAny(o, "\x00,") {
			return fmt.Errorf("destination %q has the invalid option %q", m.Destination, o)
		}
	}
	if m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind") {
		return checkPath("source", m.Source)
	}
	if m.Type == "" {
		return fmt.Errorf("destination %q has no type", m.Destination)
	}
	return nil
}

// Later are mounts that are made in the container when the runtime has made those of
// the spec. They are held to the same rules, and take the place of the spec's as if
// they stood in it.
type Later []Mount

var _ Edit = Later{}

// Apply implements Edit.
func (l Later) Apply(s *Spec) error {
	for _, m := range l {
		if err := m.validate(); err != nil {
			return fmt.Errorf("invalid mount: %w", err)
		}
	}
	s.mounts.remove(func(m Mount) bool { return l.at(m.Destination) })
	return nil
}

// at tells whether one of them goes to a destination.
func (l Later) at(destination string) bool {
	destination = path.Clean(destination)
	return slices.ContainsFunc(l, func(m Mount) bool { return m.Destination == destination })
}

// NoMount removes the mounts of a source, or those at a destination.
type NoMount struct{ Source, Destination string }

var _ Edit = NoMount{}

// Apply implements Edit.
func (n NoMount) Apply(s *Spec) error {
	s.mounts.remove(func(m Mount) bool {
		return n.Source != "" && m.Source == n.Source || n.Destination != "" && m.Destination == n.Destination
	})
	return nil
}

// checkPath wants an absolute path in its shortest form, so that a comparison
// of strings is one of paths.
func checkPath(what, p string) error {
	if !path.IsAbs(p) || path.Clean(p) != p || strings.ContainsRune(p, 0) {
		return fmt.Errorf("%s %q is not an absolute, clean path", what, p)
	}
	return nil
}

// within says whether the clean path p is dir or below it.
func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, dir+"/")
}
