// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// Places in the container. They are part of the library's contract and of
// hooks/gate/wire.h: never changed, only added to.
const (
	ContainerDir = "/.vgpu"
	RealCUDA     = ContainerDir + "/libcuda.so"
	RealNVML     = ContainerDir + "/libnvidia-ml.so"
	RealCUDAFile = "libcuda.so" // mount points in a vGPU's directory
	RealNVMLFile = "libnvidia-ml.so"
	// The OpenCL layer, and the list of layers with which loaders find it.
	OpenCLFile     = "libvgpu-opencl.so"
	OpenCL         = ContainerDir + "/" + OpenCLFile
	OpenCLListFile = "vgpu.lay"
	openCLList     = "/etc/OpenCL/layers/" + OpenCLListFile
	cudaSoname     = "libcuda.so.1"
	cudaLinkName   = "libcuda.so"
	nvmlSoname     = "libnvidia-ml.so.1"
	nvmlLinkName   = "libnvidia-ml.so"
	voidDevices    = "NVIDIA_VISIBLE_DEVICES=void"
	maxSourcePath  = 4096
)

// OpenCLLayers is the variable in which OpenCL loaders find layers, separated by
// colons. A container's own value is kept, behind ours.
const OpenCLLayers = "OPENCL_LAYERS"

// TakeOver puts our libraries in the place of the driver's.
type TakeOver struct {
	// CUDA is the host path of our libcuda (libvgpu-cuda.so).
	CUDA string
	// NVML is the host path of our libnvidia-ml (libvgpu-nvml.so).
	NVML string
	// OpenCL is the host path of the OpenCL layer (libvgpu-opencl.so); empty: none.
	OpenCL string
	// Dirs are the directories in the container that its dynamic linker
	// searches by default. All of them are served, whatever the image is.
	Dirs []string
	// Musl are our libraries for programs with musl; the zero value: none.
	Musl Musl
}

// LibraryDirs are the default directories of the dynamic linkers of the
// supported distributions, for a GOARCH.
func LibraryDirs(arch string) []string {
	switch arch {
	case "arm64":
		return []string{"/usr/lib/aarch64-linux-gnu", "/usr/lib64"}
	default:
		return []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib64"}
	}
}

// Edits are the edits for a container whose vGPU's directory on the host is
// dir. d is the driver as the container would have got it without us.
//
// Each of our libraries is mounted under all three names of the driver's: the
// versioned one, so that nothing can load the real one first; the soname; and
// the link-time name, which some programs try first. It is one inode, so the
// dynamic linker loads it once, and neither a hook nor ldconfig nor a symbolic
// link is needed. The real files are at RealCUDA and RealNVML, the fixed paths
// that our libraries name in their DT_NEEDED.
//
// Mounts are in the order in which they must be made.
func (t TakeOver) Edits(d Driver, dir string) (*v1.Edits, error) {
	if err := t.check(d, dir); err != nil {
		return nil, err
	}
	e := &v1.Edits{}
	add := func(source, destination string, options ...string) {
		e.Mounts = append(e.Mounts, &v1.Mount{
			Source: source, Destination: destination, Type: "bind",
			Options: append([]string{"bind", "ro", "nosuid", "nodev"}, options...),
		})
	}

	add(dir, ContainerDir, "noexec")
	add(d.CUDA, RealCUDA)
	add(d.NVML, RealNVML)
	t.Musl.edits(d, add)
	if t.OpenCL != "" {
		// Khronos's loader, and ocl-icd from 2.3.2 on, read lists in a directory.
		add(t.OpenCL, OpenCL)
		add(filepath.Join(dir, OpenCLListFile), openCLList)
		// Older ones know the variable alone.
		e.Env = append(e.Env, OpenCLLayers+"="+OpenCL)
	}
	for _, libs := range t.Dirs {
		for _, name := range names(cudaLinkName, cudaSoname, d.Version) {
			add(t.CUDA, path.Join(libs, name))
		}
		for _, name := range names(nvmlLinkName, nvmlSoname, d.Version) {
			add(t.NVML, path.Join(libs, name))
		}
		for _, l := range d.Libraries {
			for _, name := range l.Names {
				if !taken(name) {
					add(l.Source, path.Join(libs, name))
				}
			}
		}
	}
	for _, m := range d.Mounts {
		// A second way to the driver would lead around the gate.
		if !taken(path.Base(m.GetDestination())) {
			e.Mounts = append(e.Mounts, m)
		}
	}
	e.Devices = append(e.Devices, d.Devices...)
	// Last, so that it wins: an NVIDIA runtime or hook that is in the path as
	// well must not bring in the driver a second time.
	for _, kv := range d.Env {
		if !strings.HasPrefix(kv, "NVIDIA_VISIBLE_DEVICES=") {
			e.Env = append(e.Env, kv)
		}
	}
	e.Env = append(e.Env, voidDevices)
	return e, nil
}

// names are the three of a library of the driver's.
func names(link, soname, version string) []string {
	return []string{link + "." + version, soname, link}
}

// taken says whether a file name is one that the take-over decides about.
func taken(name string) bool {
	for _, link := range []string{cudaLinkName, nvmlLinkName} {
		if name == link || strings.HasPrefix(name, link+".") {
			return true
		}
	}
	return false
}

func (t TakeOver) check(d Driver, dir string) error {
	var errs []error
	for _, p := range []struct{ what, path string }{
		{"the vGPU's directory", dir},
		{"the take-over library of libcuda", t.CUDA},
		{"the take-over library of libnvidia-ml", t.NVML},
		{"the driver's libcuda", d.CUDA},
		{"the driver's libnvidia-ml", d.NVML},
	} {
		if !filepath.IsAbs(p.path) || len(p.path) >= maxSourcePath {
			errs = append(errs, fmt.Errorf("%s: %q is not an absolute path", p.what, p.path))
		}
	}
	for _, libs := range t.Dirs {
		if !path.IsAbs(libs) {
			errs = append(errs, fmt.Errorf("library directory: %q is not an absolute path", libs))
		}
	}
	if len(t.Dirs) == 0 {
		errs = append(errs, errors.New("there is no library directory to serve"))
	}
	if d.Version == "" || strings.ContainsAny(d.Version, "/ \n") {
		errs = append(errs, fmt.Errorf("driver version: %q can not be part of a file name", d.Version))
	}
	return errors.Join(errs...)
}

// CheckLibraries makes sure that our libraries are ones that this machine can
// load. Containers that got them would only fail when they start, and say little.
func (t TakeOver) CheckLibraries() error {
	var errs []error
	for _, l := range []struct{ library, key string }{
		{t.CUDA, "library.cuda"},
		{t.NVML, "library.nvml"},
		{t.OpenCL, "library.opencl (empty: containers' OpenCL work takes no turns)"},
	} {
		if l.library == "" && l.library == t.OpenCL {
			continue
		}
		if err := checkLibrary(l.library); err != nil {
			errs = append(errs, fmt.Errorf("%w; run make install, or set %s", err, l.key))
		}
	}
	return errors.Join(errs...)
}

// checkLibrary looks at one of them.
func checkLibrary(library string) error {
	f, err := openLibrary(library)
	if err != nil {
		return fmt.Errorf("the take-over library: %w", err)
	}
	return f.Close()
}
