// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Paths says where the build put what a Node runs. All are absolute.
type Paths struct {
	Root      string // the repository
	Bin       string // our programs
	Library   string // the take-over library of libcuda
	NVML      string // that of libnvidia-ml
	OpenCL    string // the OpenCL layer; empty: none
	Musl      string // both for musl in lib/, programs in workload/ (make musl)
	Simulated string // the simulated driver: lib/, bin/
	Workload  string // CUDA programs for containers
	Kernels   string // PTX
	Tools     string // what integration/setup brought in
}

// LibraryVariable of the environment names another take-over library than the one
// that was built: with sanitizers, or with the gate off.
const LibraryVariable = "VGPU_TEST_LIBRARY"

// DefaultPaths finds the repository from the working directory upwards, and
// checks that it was built.
func DefaultPaths() (Paths, error) {
	dir, err := os.Getwd()
	if err != nil {
		return Paths{}, err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		if dir == "/" {
			return Paths{}, errors.New("the working directory is not inside the repository")
		}
		dir = filepath.Dir(dir)
	}
	p := Paths{
		Root:      dir,
		Bin:       filepath.Join(dir, "bin"),
		Library:   filepath.Join(dir, "build", "lib", "libvgpu-cuda.so"),
		NVML:      filepath.Join(dir, "build", "lib", "libvgpu-nvml.so"),
		OpenCL:    filepath.Join(dir, "build", "lib", "libvgpu-opencl.so"),
		Musl:      filepath.Join(dir, "build", "musl"),
		Simulated: filepath.Join(dir, "build", "simgpu"),
		Workload:  filepath.Join(dir, "build", "workload"),
		Kernels:   filepath.Join(dir, "integration", "kernels"),
		Tools:     filepath.Join(dir, ".tools"),
	}
	if library := os.Getenv(LibraryVariable); library != "" {
		p.Library = library
	}
	for _, need := range []string{p.Bin, p.Library, p.NVML, p.OpenCL, p.Workload} {
		if _, err := os.Stat(need); err != nil {
			return p, fmt.Errorf("not built yet, run make build: %w", err)
		}
	}
	return p, nil
}

// ShimProgram is the file name of our shim.
const ShimProgram = "containerd-shim-vgpu-v1"

// Version names a supported containerd.
type Version string

// The two ends of the supported range: Debian 12's own, and the newest.
const (
	Containerd16 Version = "1.6.20"
	Containerd24 Version = "2.4.2"
)

// withCRI marks a build with the plugin CRI; Debian's has it anyway.
const withCRI = "-cri"

// Those beside the two ends; setup says for what it brings in which.
const (
	Containerd17  Version = "1.7.35"
	ContainerdCRI Version = Containerd24 + withCRI
)

// Between lists versions between the two ends, oldest first, with CRI.
func Between() []Version {
	return []Version{Containerd17 + withCRI, "2.2.9" + withCRI, "2.3.7" + withCRI}
}

// Number is the version as the daemon tells it.
func (v Version) Number() string { return strings.TrimSuffix(string(v), withCRI) }

// VersionsWithCRI lists those that tests of CRI run under; see Versions.
func VersionsWithCRI() []Version {
	if v := Versions(); !slices.Contains(v, Containerd24) {
		return v
	}
	return []Version{Containerd16, ContainerdCRI}
}

// Versions lists those that the tests run under: the two ends or, where the
// environment says VGPU_TEST_CONTAINERD=between, those between them.
func Versions() []Version {
	if os.Getenv("VGPU_TEST_CONTAINERD") == "between" {
		return Between()
	}
	return []Version{Containerd16, Containerd24}
}

// ContainerdBin is the directory of containerd, ctr and the stock runc shim.
func (p Paths) ContainerdBin(v Version) (string, error) {
	dir := filepath.Join(p.Tools, "containerd-"+string(v), "bin")
	if v == Containerd16 {
		dir = filepath.Join(p.Tools, "debian", "containerd", "usr", "bin")
	}
	if _, err := os.Stat(filepath.Join(dir, "containerd")); err != nil {
		return "", fmt.Errorf("containerd %s is not there, run make setup: %w", v, err)
	}
	return dir, nil
}

// RuncBin is the directory of runc.
func (p Paths) RuncBin() string {
	return filepath.Join(p.Tools, "debian", "runc", "usr", "sbin")
}
