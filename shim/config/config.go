// SPDX-License-Identifier: Apache-2.0

// Package config is the configuration of the runtime handler: what an
// administrator sets for all containers that run under one name in containerd.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

const (
	// Env names the environment variable that holds the path of a
	// configuration file. containerd's environment is inherited by its shims.
	Env = "VGPU_SHIM_CONFIG"
	// DefaultFile is read if it exists and no other file is named.
	DefaultFile = "/etc/vgpu/shim.toml"
	// DefaultAddress is where vgpud serves its control API.
	DefaultAddress = "/run/vgpu/vgpud.sock"
)

// Config is the configuration of one handler.
type Config struct {
	// Address is the path of vgpud's control socket.
	Address string
	// DefaultCount is how many GPUs a container gets that asks for none by
	// annotation.
	DefaultCount int
	// AllowAnnotations are patterns (path.Match) for the annotations that a
	// container may use.
	AllowAnnotations []string
	// DisableRequire: what the image asks of the driver (NVIDIA_REQUIRE_*) is not
	// looked at. NVIDIA's toolkit has it under the same name.
	DisableRequire bool
	// Limits are the most that a container may ask for.
	Limits request.Limits
	// Runc are options for the runc task service.
	Runc Runc
}

// Runc are those options of containerd.runc.v1.Options that an administrator
// sets. A nil or empty field was not set.
type Runc struct {
	BinaryName    string
	Root          string
	ShimCgroup    string
	CriuWorkPath  string
	SystemdCgroup *bool
	NoPivotRoot   bool
	NoNewKeyring  bool
	IoUID, IoGID  uint32
}

// Sources are the places that a configuration is put together from.
type Sources struct {
	Program     string // the name that the shim runs under, os.Args[0]
	File        string // the file that Env names, or empty
	DefaultFile string // read if it exists and neither File nor ConfigPath is set

	ConfigPath string // of the runtime options
	ConfigBody []byte // of the runtime options
}

// Load puts a configuration together. Key by key, the body of the runtime
// options goes before the file, and the file before the defaults. There is one
// file: that of the runtime options, else File, else DefaultFile.
func Load(s Sources) (Config, error) {
	c := Config{Address: DefaultAddress, DefaultCount: defaultCount(s.Program), AllowAnnotations: []string{"*"}}
	name, optional := s.file()
	if name != "" {
		data, err := os.ReadFile(name)
		switch {
		case optional && errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return Config{}, fmt.Errorf("failed to read the configuration of the vgpu runtime: %w", err)
		default:
			if err := c.overlay(data); err != nil {
				return Config{}, fmt.Errorf("failed to read the configuration of the vgpu runtime: %s: %w", name, err)
			}
		}
	}
	if err := c.overlay(s.ConfigBody); err != nil {
		return Config{}, fmt.Errorf("failed to read the configuration of the vgpu runtime: options of the runtime: %w", err)
	}
	return c, nil
}

func (s Sources) file() (name string, optional bool) {
	switch {
	case s.ConfigPath != "":
		return s.ConfigPath, false
	case s.File != "":
		return s.File, false
	}
	return s.DefaultFile, true
}

// defaultCount is 0 when the shim is installed under runc's name: there, a
// container that does not ask for a vGPU is an ordinary one.
func defaultCount(program string) int {
	if filepath.Base(program) == "containerd-shim-runc-v2" {
		return 0
	}
	return 1
}

// document is the TOML form. Beside our own keys, it takes those of the table
// that CRI calls the options of a runtime, under the names that they have for
// runc there, because that is where an administrator looks for SystemdCgroup.
// A nil field was not in the document.
type document struct {
	Version          *int           `toml:"version"`
	Address          *string        `toml:"address"`
	DefaultCount     *int           `toml:"default_count"`
	AllowAnnotations *[]string      `toml:"allow_annotations"`
	DisableRequire   *bool          `toml:"disable_require"`
	Limits           map[string]any `toml:"limits"`
	Runc             struct {
		BinaryName    *string `toml:"binary_name"`
		Root          *string `toml:"root"`
		ShimCgroup    *string `toml:"shim_cgroup"`
		CriuWorkPath  *string `toml:"criu_work_path"`
		SystemdCgroup *bool   `toml:"systemd_cgroup"`
		NoPivotRoot   *bool   `toml:"no_pivot_root"`
		NoNewKeyring  *bool   `toml:"no_new_keyring"`
		IoUID         *uint32 `toml:"io_uid"`
		IoGID         *uint32 `toml:"io_gid"`
	} `toml:"runc"`

	BinaryName    *string `toml:"BinaryName"`
	Root          *string `toml:"Root"`
	ShimCgroup    *string `toml:"ShimCgroup"`
	CriuWorkPath  *string `toml:"CriuWorkPath"`
	SystemdCgroup *bool   `toml:"SystemdCgroup"`
	NoPivotRoot   *bool   `toml:"NoPivotRoot"`
	NoNewKeyring  *bool   `toml:"NoNewKeyring"`
	IoUID         *uint32 `toml:"IoUid"`
	IoGID         *uint32 `toml:"IoGid"`

	// Part of the same table and without a meaning here.
	TypeURL    *string `toml:"TypeUrl"`
	ConfigPath *string `toml:"ConfigPath"`
}

// version of the configuration's format.
const version = 1

// overlay sets what the TOML document data says.
func (c *Config) overlay(data []byte) error {
	var d document
	if err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(&d); err != nil {
		return describe(err)
	}
	if d.Version != nil && *d.Version != version {
		return fmt.Errorf("version is %d, this shim knows %d", *d.Version, version)
	}
	set(&c.Address, d.Address)
	set(&c.DefaultCount, d.DefaultCount)
	set(&c.AllowAnnotations, d.AllowAnnotations)
	set(&c.DisableRequire, d.DisableRequire)
	for key, value := range d.Limits {
		if c.Limits == nil {
			c.Limits = request.Limits{}
		}
		// A number may stand without quotes, as it does in the rest of the file.
		c.Limits[key] = fmt.Sprint(value)
	}

	r := &c.Runc
	set(&r.BinaryName, d.BinaryName, d.Runc.BinaryName)
	set(&r.Root, d.Root, d.Runc.Root)
	set(&r.ShimCgroup, d.ShimCgroup, d.Runc.ShimCgroup)
	set(&r.CriuWorkPath, d.CriuWorkPath, d.Runc.CriuWorkPath)
	set(&r.NoPivotRoot, d.NoPivotRoot, d.Runc.NoPivotRoot)
	set(&r.NoNewKeyring, d.NoNewKeyring, d.Runc.NoNewKeyring)
	set(&r.IoUID, d.IoUID, d.Runc.IoUID)
	set(&r.IoGID, d.IoGID, d.Runc.IoGID)
	for _, v := range []*bool{d.SystemdCgroup, d.Runc.SystemdCgroup} {
		if v != nil {
			r.SystemdCgroup = v
		}
	}
	return c.validate()
}

// maxSocketPath is what fits into a sockaddr_un beside the NUL.
const maxSocketPath = len(unix.RawSockaddrUnix{}.Path) - 1

func (c *Config) validate() error {
	if !filepath.IsAbs(c.Address) {
		return fmt.Errorf("address is %q, want the absolute path of vgpud's socket", c.Address)
	}
	if len(c.Address) > maxSocketPath {
		return fmt.Errorf("address %.40q... is %d bytes long, want at most %d, as Linux takes no more", c.Address, len(c.Address), maxSocketPath)
	}
	if c.DefaultCount < 0 || c.DefaultCount > request.MaxCount {
		return fmt.Errorf("default_count is %d, want 0 to %d", c.DefaultCount, request.MaxCount)
	}
	if err := c.Limits.Check(); err != nil {
		return err
	}
	for _, p := range c.AllowAnnotations {
		if _, err := path.Match(strings.TrimPrefix(p, request.Prefix), ""); err != nil {
			return fmt.Errorf("allow_annotations has %q: %w", p, err)
		}
	}
	return nil
}

func set[T any](to *T, values ...*T) {
	for _, v := range values {
		if v != nil {
			*to = *v
		}
	}
}

// describe adds the place to an error of the decoder.
func describe(err error) error {
	if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		var keys []string
		for _, e := range strict.Errors {
			keys = append(keys, strings.Join(e.Key(), "."))
		}
		return fmt.Errorf("unknown key %s", strings.Join(keys, ", "))
	}
	if decode, ok := errors.AsType[*toml.DecodeError](err); ok {
		row, _ := decode.Position()
		return fmt.Errorf("line %d: %w", row, decode)
	}
	return err
}
