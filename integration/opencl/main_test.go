// SPDX-License-Identifier: Apache-2.0

package opencl

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// busybox is the root file system of containers that ask for no other, tools that which
// setup.sh opencl brings in, and built a directory in the repository for what is built
// here and for what PoCL and hashcat have compiled: the next run finds it.
var busybox, tools, built string

func TestMain(m *testing.M) {
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "the tests can not run:", err)
		os.Exit(1)
	}
	status := harnesstest.Main(m, &busybox)
	if doc := os.Getenv("VGPU_OPENCL_DOC"); status == 0 && doc != "" {
		if err := os.WriteFile(doc, page(), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	os.Exit(status)
}

func prepare() error {
	paths, err := harness.DefaultPaths()
	if err != nil {
		return err
	}
	if tools, err = filepath.EvalSymlinks(filepath.Join(paths.Tools, "opencl")); err != nil {
		return fmt.Errorf("there are no OpenCL programs: %w; run make setup-opencl", err)
	}
	built = filepath.Join(paths.Root, "build", "opencl")
	if err := compiled(filepath.Join(paths.Tools, "opencl-kernels")); err != nil {
		return fmt.Errorf("there are no compiled kernels: %w; run make setup-opencl", err)
	}
	for name, args := range map[string][]string{
		"witness": nil,
		"both":    {"-I", filepath.Join(paths.Root, "hooks/driver"), filepath.Join(paths.Simulated, "lib/libcuda.so")},
	} {
		args = append([]string{
			"-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-isystem", filepath.Join(tools, "usr/include"),
			"-o", filepath.Join(built, name), filepath.Join("testdata", name+".c"), filepath.Join(tools, "usr/lib/x86_64-linux-gnu/libOpenCL.so"),
		}, args...)
		if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("cc: %w\n%s", err, out)
		}
	}
	return nil
}

// compiled begins with what setup.sh opencl has compiled, unless an earlier run did with
// the same.
func compiled(kernels string) error {
	const label = ".made-of"
	want, err := os.ReadFile(filepath.Join(kernels, label))
	if err != nil {
		return err
	}
	if got, err := os.ReadFile(filepath.Join(built, label)); err == nil && bytes.Equal(got, want) {
		return nil
	}
	if err := os.RemoveAll(built); err != nil {
		return err
	}
	return os.CopyFS(built, os.DirFS(kernels))
}
