// SPDX-License-Identifier: Apache-2.0

package install

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
)

// Where what lies. Containers keep the libraries of libraryDir mounted, and the
// default configuration of vgpud names them, so it does not follow the prefix.
const (
	libraryDir   = "/usr/lib/vgpu"
	versionsDir  = libraryDir + "/versions"
	currentLink  = libraryDir + "/current"
	manifestPath = libraryDir + "/manifest.json"
	configDir    = "/etc/vgpu"
)

// The programs.
const (
	shimProgram = "containerd-shim-vgpu-v1"
)

// The libraries, of the build and of libraryDir.
var libraries = []string{"libvgpu-cuda.so", "libvgpu-nvml.so", "libvgpu-opencl.so"}

var programs = []string{shimProgram, "vgpu", "vgpud"}

// tree is one version of the product: files and links by their path in the
// version's directory.
type tree map[string]*state

// readTree reads the version that lies in dir: a tree that was built (programs in
// bin, libraries in build), or the directory of an installed version.
func readTree(dir string) (tree, error) {
	t := tree{}
	lib, musl, simulated, share := "lib", "musl", "simgpu", "share"
	if _, err := os.Stat(filepath.Join(dir, "build")); err == nil {
		lib, musl, simulated, share = "build/lib", "build/musl/lib", "build/simgpu", "configs"
	}
	for _, name := range programs {
		if err := t.file(dir, "bin/"+name, "bin/"+name); err != nil {
			return nil, fmt.Errorf("nothing to install in %s: %w; run make build there, or name another directory with --from", dir, err)
		}
	}
	for _, name := range libraries {
		if err := t.file(dir, lib+"/"+name, "lib/"+name); err != nil {
			return nil, fmt.Errorf("nothing to install in %s: %w; run make build there, or name another directory with --from", dir, err)
		}
	}
	for _, part := range []struct{ from, to string }{
		{musl, "musl"},
		{simulated + "/bin", "simgpu/bin"},
		{simulated + "/lib", "simgpu/lib"},
		{simulated + "/musl/lib", "simgpu/musl/lib"},
		{share, "share"},
	} {
		if err := t.all(dir, part.from, part.to); err != nil {
			return nil, err
		}
	}
	// Our libraries for musl are of use beside a driver for musl alone.
	if t["simgpu/musl/lib/libnvidia-ml.so"] == nil {
		maps.DeleteFunc(t, func(name string, _ *state) bool { return path.Dir(name) == "musl" })
	}
	return t, nil
}

func (t tree) file(dir, from, to string) error {
	s, err := look(filepath.Join(dir, from))
	switch {
	case err != nil:
		return err
	case s == nil:
		return fmt.Errorf("%s is not there", from)
	case s.mode.IsDir():
		return nil
	case s.link == "":
		// Neither who built it nor his umask is of interest.
		s = &state{mode: 0o644 | s.mode&0o111, data: s.data}
	default:
		s = link(s.link)
	}
	t[to] = s
	return nil
}

// objects are the directories in which make keeps what it links.
var objects = regexp.MustCompile(`^obj(-|$)`)

// all reads a directory with what is below it, if it is there.
func (t tree) all(dir, from, to string) error {
	return filepath.WalkDir(filepath.Join(dir, from), func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() {
			if objects.MatchString(d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		relative, err := filepath.Rel(filepath.Join(dir, from), name)
		if err != nil {
			return err
		}
		return t.file(dir, path.Join(from, relative), path.Join(to, relative))
	})
}

// name of the version's directory: the product's version, and a hash over all
// that is in the tree.
func (t tree) name(version string) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(t)) {
		s := t[name]
		fmt.Fprintf(h, "%q %o %q %s\n", name, s.mode, s.link, hash(s.data))
	}
	clean := regexp.MustCompile(`[^A-Za-z0-9.+_-]`).ReplaceAllString(version, "_")
	return clean + "-" + hex.EncodeToString(h.Sum(nil))[:12]
}
