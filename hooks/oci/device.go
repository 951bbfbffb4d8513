// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
)

// Device adds a device node and the rule of the device cgroup that lets the
// container use it. Both stand in config.json before the runtime runs: a rule
// that is added behind its back is lost at its next update of the cgroup. The
// rule goes to the end, because the last rule that matches decides.
//
// In a user namespace the runtime can make no node: it mounts the host's from the
// same path. Where the host has it at another one, the edit adds that mount
// instead of the node.
type Device struct {
	Path        string // in the container
	Type        string // "c" or "b"
	Major       int64
	Minor       int64
	FileMode    uint32 // permission bits; 0: the runtime's default
	UID         uint32
	GID         uint32
	Permissions string // of the device cgroup: some of "r", "w", "m"
	Host        string // where the host has the node; empty: at Path
}

var _ Edit = Device{}

// device is an element of linux.devices.
type device struct {
	Path     string  `json:"path"`
	Type     string  `json:"type"`
	Major    int64   `json:"major"`
	Minor    int64   `json:"minor"`
	FileMode *uint32 `json:"fileMode,omitempty"`
	UID      *uint32 `json:"uid,omitempty"`
	GID      *uint32 `json:"gid,omitempty"`
}

// rule is an element of linux.resources.devices. An absent number stands for
// any.
type rule struct {
	Allow  bool   `json:"allow"`
	Type   string `json:"type,omitempty"`
	Major  *int64 `json:"major,omitempty"`
	Minor  *int64 `json:"minor,omitempty"`
	Access string `json:"access,omitempty"`
}

// Apply implements Edit.
func (d Device) Apply(s *Spec) error {
	if err := d.validate(); err != nil {
		return fmt.Errorf("invalid device: %w", err)
	}
	node := device{Path: d.Path, Type: d.Type, Major: d.Major, Minor: d.Minor, UID: &d.UID, GID: &d.GID}
	if d.FileMode != 0 {
		node.FileMode = &d.FileMode
	}
	user, err := s.userNamespace()
	if err != nil {
		return err
	}
	if user && d.Host != "" && d.Host != d.Path {
		bind := Mount{Destination: d.Path, Type: "bind", Source: d.Host, Options: []string{"bind", "rw", "nosuid", "noexec"}}
		err = s.mounts.last(bind, func(o Mount) bool { return path.Clean(o.Destination) == d.Path })
	} else {
		err = s.devices.set(node, func(o device) bool { return o.Path == d.Path })
	}
	if err != nil {
		return err
	}
	allow := rule{Allow: true, Type: d.Type, Major: &d.Major, Minor: &d.Minor, Access: d.Permissions}
	return s.rules.last(allow, allow.equal)
}

func (d Device) validate() error {
	if err := checkPath("path", d.Path); err != nil {
		return err
	}
	if !strings.HasPrefix(d.Path, "/dev/") {
		return fmt.Errorf("path %q does not lie in /dev", d.Path)
	}
	if d.Host != "" {
		if err := checkPath("host", d.Host); err != nil {
			return err
		}
		if !strings.HasPrefix(d.Host, "/dev/") {
			return fmt.Errorf("path %q is that of %q on the host, which does not lie in /dev", d.Path, d.Host)
		}
	}
	if d.Type != "c" && d.Type != "b" {
		return fmt.Errorf("path %q has type %q, want c or b", d.Path, d.Type)
	}
	if d.Major < 0 || d.Minor < 0 || d.Major > math.MaxUint32 || d.Minor > math.MaxUint32 {
		return fmt.Errorf("path %q has the number %d:%d", d.Path, d.Major, d.Minor)
	}
	if d.FileMode&^0o777 != 0 {
		return fmt.Errorf("path %q has mode %#o, want permission bits only", d.Path, d.FileMode)
	}
	if d.Permissions == "" || strings.Trim(d.Permissions, "rwm") != "" {
		return fmt.Errorf("path %q has permissions %q, want some of rwm", d.Path, d.Permissions)
	}
	return nil
}

// userNamespace tells whether the container has a user namespace.
func (s *Spec) userNamespace() (bool, error) {
	var namespaces list[struct {
		Type string `json:"type"`
	}]
	if err := s.linux.list("namespaces", namespaces.decode); err != nil {
		return false, fmt.Errorf("linux: %w", err)
	}
	for _, n := range namespaces.elements {
		if n.value.Type == "user" {
			return true, nil
		}
	}
	return false, nil
}

func (r rule) equal(o rule) bool {
	return r.Allow == o.Allow && r.Type == o.Type && same(r.Major, o.Major) && same(r.Minor, o.Minor) &&
		letters(r.Access) == letters(o.Access)
}

func same(a, b *int64) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// letters puts a set of letters into order.
func letters(s string) string {
	b := []byte(s)
	slices.Sort(b)
	return string(slices.Compact(b))
}
