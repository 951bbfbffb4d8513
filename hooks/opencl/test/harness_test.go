// SPDX-License-Identifier: Apache-2.0

// Package opencl_test drives the built layer from outside: C programs run in a mount
// namespace of their own, laid out like a container, with a real loader, a real
// implementation on the CPU (PoCL) that stands for a GPU, and a vgpud of a few lines.
// Needs root (for the mounts), a C compiler, and what setup.sh opencl brings in.
package opencl_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/hooks/driver/test/jail"
)

const (
	layer = "libvgpu-opencl.so"
	// toolsVariable tells this binary in the jail which trees lie above this machine's,
	// the first on top: a list as PATH is one.
	toolsVariable = "VGPU_JAIL_OPENCL"
	// leaks are those that are not ours: of the implementation, its compiler, and Debian
	// 13's loader. The address sanitizer reads the file of that name.
	leaks = "leak:libpocl\nleak:libLLVM\nleak:__alloc_dir\n"
)

// built is what TestMain made; tools is the tree of setup.sh opencl, and newer one with
// Debian 13's loader alone.
var built, tools, newer string

func TestMain(m *testing.M) {
	jail.Entered(jail.Layout{Names: []string{layer}, More: overlays})
	os.Exit(func() int {
		dir := os.Getenv("VGPU_TEST_OUT") // what is built there stays
		if dir == "" {
			var err error
			if dir, err = os.MkdirTemp("", "vgpu-opencl"); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			defer os.RemoveAll(dir)
		}
		built = dir
		if err := build(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// overlays puts the OpenCL programs above this machine's.
func overlays(root string) error {
	for _, dir := range []string{"etc", "usr"} {
		lower := "lowerdir="
		for _, tree := range filepath.SplitList(os.Getenv(toolsVariable)) {
			if from := filepath.Join(tree, dir); isDir(from) {
				lower += from + ":"
			}
		}
		lower += "/" + dir
		if err := unix.Mount("overlay", filepath.Join(root, dir), "overlay", unix.MS_RDONLY, lower); err != nil {
			return fmt.Errorf("failed to put OpenCL into /%s: %w", dir, err)
		}
	}
	return nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func build(dir string) error {
	for tree, name := range map[*string]string{&tools: "opencl", &newer: "debian/ocl-icd-libopencl1-2.3.3"} {
		var err error
		if *tree, err = filepath.EvalSymlinks(filepath.Join("../../../.tools", name)); err != nil {
			return fmt.Errorf("there are no OpenCL programs: %w; run make setup-opencl", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "leaks"), []byte(leaks), 0o600); err != nil {
		return err
	}
	sanitize := os.Getenv("VGPU_TEST_CFLAGS")
	lib := filepath.Join(tools, "usr/lib/x86_64-linux-gnu")
	program := []string{
		"-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-isystem", filepath.Join(tools, "usr/include"),
		"-o", filepath.Join(dir, "program"), "testdata/program.c", filepath.Join(lib, "libOpenCL.so"), "-pthread",
	}
	for _, cmd := range []*exec.Cmd{
		exec.Command("make", "-s", "-C", "..", "-j2", "OUT="+dir, "CFLAGS_EXTRA="+sanitize),
		exec.Command("make", "-s", "-C", "..", "-j2", "OUT="+filepath.Join(dir, "nogate"), "VGPU_NO_GATE=1"),
		exec.Command("cc", append(program, strings.Fields(sanitize)...)...),
		exec.Command("cc", "-shared", "-fPIC", "-DCL_TARGET_OPENCL_VERSION=300", "-isystem", filepath.Join(tools, "usr/include"),
			"-o", filepath.Join(dir, "tells.so"), "testdata/tells.c"),
		exec.Command("cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-DCL_TARGET_OPENCL_VERSION=300", "-isystem", filepath.Join(tools, "usr/include"),
			"-o", filepath.Join(dir, "devices.so"), "testdata/devices.c"),
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
		}
	}
	return nil
}

// command runs the program; with a vgpud also the layer.
func command(t *testing.T, dir string, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := jail.Command(t, dir, filepath.Join(built, layer), append([]string{filepath.Join(built, "program")}, args...)...)
	cmd.Env = append(cmd.Env, toolsVariable+"="+tools, "POCL_CACHE_DIR="+filepath.Join(built, "cache"), "POCL_MAX_PTHREAD_COUNT=2",
		"LSAN_OPTIONS=suppressions="+filepath.Join(built, "leaks"))
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

const layers = "OPENCL_LAYERS=/" + jail.Libraries + "/" + layer

// start runs a case of the program under the layer, beside a vgpud.
func start(t *testing.T, a *arbiter, args ...string) *jail.Program {
	t.Helper()
	return jail.Begin(t, command(t, a.dir, []string{layers}, args...))
}

// bare runs a case without the layer.
func bare(t *testing.T, args ...string) (said string, status int) {
	t.Helper()
	cmd := command(t, t.TempDir(), nil, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("without the layer: %v\n%s", err, &stderr)
	}
	if stderr.Len() > 0 {
		t.Logf("without the layer, on stderr: %s", &stderr)
	}
	return string(out), cmd.ProcessState.ExitCode()
}
