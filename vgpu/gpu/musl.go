// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Places in the container for programs that are linked with musl, beside those
// of glibc's, which they can not use. Never changed, only added to, as those.
const (
	MuslContainerDir = "/.vgpu-musl"
	RealCUDAMusl     = MuslContainerDir + "/libcuda.so"
	RealNVMLMusl     = MuslContainerDir + "/libnvidia-ml.so"
	muslLibraries    = MuslContainerDir + "/lib"
	muslPathDir      = "/etc"
)

// Musl are our libraries for programs that are linked with musl. They go into
// every container if the driver has a build for musl: what a container gets does
// not depend on its root file system, which may change, and none of the two C
// libraries looks where the other one's libraries are.
//
// Only the simulated driver has such a build.
type Musl struct {
	CUDA, NVML string // host paths, as in TakeOver
	// Path is the host path of the list of directories that musl searches in the
	// container, and our directory in it the first. musl reads it from a file
	// named after the machine, which is this file's name too.
	Path string
}

// MuslIn are the libraries in a directory of the host, as make install leaves
// them, for a GOARCH.
func MuslIn(dir, arch string) Musl {
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]
	return Musl{
		CUDA: filepath.Join(dir, "libvgpu-cuda.so"),
		NVML: filepath.Join(dir, "libvgpu-nvml.so"),
		Path: filepath.Join(dir, "ld-musl-"+machine+".path"),
	}
}

// edits adds the mounts, if there are both the driver's build and ours.
func (m Musl) edits(d Driver, add func(source, destination string, options ...string)) {
	if m == (Musl{}) || d.CUDAMusl == "" {
		return
	}
	add(d.CUDAMusl, RealCUDAMusl)
	add(d.NVMLMusl, RealNVMLMusl)
	for _, name := range names(cudaLinkName, cudaSoname, d.Version) {
		add(m.CUDA, path.Join(muslLibraries, name))
	}
	for _, name := range names(nvmlLinkName, nvmlSoname, d.Version) {
		add(m.NVML, path.Join(muslLibraries, name))
	}
	add(m.Path, path.Join(muslPathDir, filepath.Base(m.Path)))
}

// Check makes sure that the libraries are ones that a program with musl can load
// on this machine, and that it will find them.
func (m Musl) Check() error {
	return errors.Join(checkMuslLibrary(m.CUDA, RealCUDAMusl), checkMuslLibrary(m.NVML, RealNVMLMusl), checkMuslPath(m.Path))
}

// checkMuslPath wants our directory before all others, and those that musl
// searches without a list: it searches no other than those in the list.
func checkMuslPath(list string) error {
	text, err := os.ReadFile(list)
	if err != nil {
		return fmt.Errorf("failed to read musl's list of directories: %w", err)
	}
	dirs := strings.Fields(string(text))
	if len(dirs) == 0 || dirs[0] != muslLibraries {
		return fmt.Errorf("musl's list of directories %s does not begin with %s", list, muslLibraries)
	}
	for _, dir := range []string{"/lib", "/usr/local/lib", "/usr/lib"} {
		if !slices.Contains(dirs, dir) {
			return fmt.Errorf("musl's list of directories %s is without %s", list, dir)
		}
	}
	return nil
}

func checkMuslLibrary(library, real string) error {
	if err := checkLibrary(library); err != nil {
		return err
	}
	f, err := elf.Open(library)
	if err != nil {
		return err
	}
	defer f.Close()
	// Another build would look for the driver of the other C library.
	if needs, err := f.ImportedLibraries(); err != nil || !slices.Contains(needs, real) {
		return fmt.Errorf("the take-over library %s is not built for musl: it does not need %s", library, real)
	}
	return nil
}
