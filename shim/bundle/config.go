// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/hooks/oci"
)

// ConfigFile is the name of the OCI spec in a bundle.
const ConfigFile = "config.json"

// maxConfigBytes bounds what is read as a config.json. Real ones have tens of
// kilobytes.
const maxConfigBytes = 64 << 20

// Config is the config.json of one bundle.
type Config struct {
	path    string
	raw     []byte                    // as it was when it was loaded
	parse   func() (*oci.Spec, error) // raw, once
	owner   owner
	applied bool
}

// Summary is what the shim wants to know of a config.json that it may not
// edit at all.
type Summary struct {
	Annotations map[string]string `json:"annotations"`
	Process     struct {
		Env []string `json:"env"`
	} `json:"process"`
	Root struct {
		Path string `json:"path"`
	} `json:"root"`
	Linux struct {
		CgroupsPath       string `json:"cgroupsPath"`
		RootfsPropagation string `json:"rootfsPropagation"`
		Resources         struct {
			Devices []DeviceRule `json:"devices"`
		} `json:"resources"`
		Namespaces []struct {
			Type string `json:"type"`
			Path string `json:"path"`
		} `json:"namespaces"`
	} `json:"linux"`
	Mounts json.RawMessage `json:"mounts"`
}

// Place is where a mount is from and to.
type Place struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

// Places are those of the mounts. A spec whose mounts can not be read has none: the
// runtime will say what is wrong with it.
func (s Summary) Places() []Place {
	var places []Place
	if json.Unmarshal(s.Mounts, &places) != nil {
		return nil
	}
	return places
}

// DeviceRule is a rule of the device cgroup. A number that is absent, or negative,
// stands for any, and so do the types "a" and "".
type DeviceRule struct {
	Allow  bool   `json:"allow"`
	Type   string `json:"type"`
	Major  *int64 `json:"major"`
	Minor  *int64 `json:"minor"`
	Access string `json:"access"`
}

// AllDevices says whether the container may open every character device, as a
// privileged one may: the last rule for all of them allows it.
func (s Summary) AllDevices() (all bool) {
	for _, r := range s.Linux.Resources.Devices {
		wild := func(n *int64) bool { return n == nil || *n < 0 }
		if r.Type != "b" && wild(r.Major) && wild(r.Minor) && (r.Access == "" || strings.ContainsAny(r.Access, "rw")) {
			all = r.Allow
		}
	}
	return all
}

// OwnPIDNamespace tells whether the container gets a PID namespace that nobody else
// is in: not the host's, and none that is there already.
func (s Summary) OwnPIDNamespace() bool { return s.ownNamespace("pid") }

// PrivateMounts tells whether what is mounted in the container is mounted nowhere else:
// it gets a mount namespace of its own, whose root passes nothing on.
func (s Summary) PrivateMounts() bool {
	return s.ownNamespace("mount") && !strings.Contains(s.Linux.RootfsPropagation, "shared")
}

func (s Summary) ownNamespace(of string) bool {
	for _, n := range s.Linux.Namespaces {
		if n.Type == of {
			return n.Path == ""
		}
	}
	return false
}

// Rootfs is where the host has the container's root file system, whose bundle is in
// the directory dir.
func (s Summary) Rootfs(dir string) string {
	if filepath.IsAbs(s.Root.Path) {
		return s.Root.Path
	}
	return filepath.Join(dir, s.Root.Path)
}

// LoadConfig reads the config.json in the directory dir.
func LoadConfig(dir string) (*Config, error) {
	path := filepath.Join(dir, ConfigFile)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("failed to open the OCI spec: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("failed to open the OCI spec: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("failed to open the OCI spec: %s is not a regular file", path)
	}
	var raw bytes.Buffer
	raw.Grow(int(min(info.Size(), maxConfigBytes)) + bytes.MinRead)
	if _, err := raw.ReadFrom(io.LimitReader(f, maxConfigBytes+1)); err != nil {
		return nil, fmt.Errorf("failed to read %s: %w", path, err)
	}
	if raw.Len() > maxConfigBytes {
		return nil, fmt.Errorf("failed to read %s: more than %d bytes", path, maxConfigBytes)
	}
	o := owner{mode: info.Mode().Perm(), uid: -1, gid: -1}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		o.uid, o.gid = int(st.Uid), int(st.Gid)
	}
	c := &Config{path: path, raw: raw.Bytes(), owner: o}
	c.parse = c.parser()
	return c, nil
}

// Summary reads the parts that decide what is to be done with the container.
func (c *Config) Summary() (Summary, error) {
	var s Summary
	if err := json.Unmarshal(c.raw, &s); err != nil {
		return Summary{}, fmt.Errorf("failed to parse %s: %w", c.path, err)
	}
	return s, nil
}

func (c *Config) parser() func() (*oci.Spec, error) {
	return sync.OnceValues(func() (*oci.Spec, error) { return oci.Parse(c.raw) })
}

// Prepare begins what an Apply can do without the edits, and returns at once.
func (c *Config) Prepare() {
	go c.parse() //nolint:errcheck // Apply gets the same error
}

// Apply makes the edits in the file. Without an edit the file is not touched.
func (c *Config) Apply(edits ...oci.Edit) error {
	if len(edits) == 0 {
		return nil
	}
	spec, err := c.parse()
	c.parse = c.parser() // this one is edited now
	if err != nil {
		return fmt.Errorf("failed to parse %s: %w", c.path, err)
	}
	if err := spec.Apply(edits...); err != nil {
		return fmt.Errorf("failed to edit %s: %w", c.path, err)
	}
	data, err := spec.Marshal()
	if err != nil {
		return fmt.Errorf("failed to edit %s: %w", c.path, err)
	}
	if err := replace(c.path, data, c.owner); err != nil {
		return err
	}
	c.applied = true
	return nil
}

// Restore puts back, byte for byte, what LoadConfig read. It does nothing if
// Apply changed nothing.
func (c *Config) Restore() error {
	if !c.applied {
		return nil
	}
	if err := replace(c.path, c.raw, c.owner); err != nil {
		return err
	}
	c.applied = false
	return nil
}
