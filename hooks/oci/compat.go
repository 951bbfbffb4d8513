// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"fmt"
	"path"
	"strings"
)

// MaskCompat masks the directories in which images bring libraries for CUDA's forward
// compatibility: a libcuda of their own, which LD_LIBRARY_PATH or the cache of the
// loader finds before ours.
//
// They become masked paths, not mounts. What is masked and not there is passed by;
// for a mount the runtime would make the directory, and programs take a
// /usr/local/cuda that is there for an installation. And a path is masked inside
// of the container, after its root has become the root: a symbolic link of the
// image can lead only to what is the image's.
type MaskCompat struct{}

var _ Edit = MaskCompat{}

// The versions of CUDA with directories of their own that are masked whether a
// variable names them or not. There are such packages from CUDA 10 on.
const (
	firstCompat, lastCompat = 10, 15
	minorVersions           = 10
)

// Apply implements Edit.
func (MaskCompat) Apply(s *Spec) error {
	dirs := []string{"/usr/local/cuda/compat"}
	for major := firstCompat; major <= lastCompat; major++ {
		for minor := range minorVersions {
			dirs = append(dirs, fmt.Sprintf("/usr/local/cuda-%d.%d/compat", major, minor))
		}
	}
	for _, e := range s.env.elements {
		name, value, _ := strings.Cut(e.value, "=")
		if name != "LD_LIBRARY_PATH" {
			continue
		}
		// Its own separators are both of these (ld.so(8)).
		for _, dir := range strings.FieldsFunc(value, func(r rune) bool { return r == ':' || r == ';' }) {
			if dir = compatDir(dir); dir != "" {
				dirs = append(dirs, dir)
			}
		}
	}
	masked := make(map[string]bool)
	for _, e := range s.masked.elements {
		masked[path.Clean(e.value)] = true
	}
	var missing []string
	for _, dir := range dirs {
		if !masked[dir] {
			masked[dir] = true
			missing = append(missing, dir)
		}
	}
	return s.masked.add(missing...)
}

// compatDir is the directory of compatibility libraries that dir is, or lies in;
// empty: it is in none. They are called compat below a directory of CUDA's, and
// cuda-compat elsewhere.
func compatDir(dir string) string {
	if !path.IsAbs(dir) {
		return ""
	}
	parent := "/"
	for _, name := range strings.Split(path.Clean(dir)[1:], "/") {
		at := path.Join(parent, name)
		base := path.Base(parent)
		if name == "cuda-compat" || name == "compat" && (base == "cuda" || strings.HasPrefix(base, "cuda-")) {
			return at
		}
		parent = at
	}
	return ""
}
