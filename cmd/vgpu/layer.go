// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// A loader of OpenCL passes in silence by a layer that it can not load. So the doctor's
// container has this machine's C library, which is all that the layer may need, and its
// dynamic linker is asked what OpenCL's loader does not say.

// libcDir is where that is in the root file system.
const libcDir = "/libc"

// linkers are the names of glibc's dynamic linker, by GOARCH.
var linkers = map[string]string{"amd64": "ld-linux-x86-64.so.2", "arm64": "ld-linux-aarch64.so.1"}

// copyLibc puts the C library into a root file system. One of another kind than glibc has
// no layer, and nothing is copied.
func copyLibc(rootfs string) error {
	dir := filepath.Join(rootfs, libcDir)
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // G301: the container's users read it
		return err
	}
	for _, name := range []string{linkers[runtime.GOARCH], "libc.so.6", "libpthread.so.0", "libdl.so.2"} {
		for _, from := range gpu.LibraryDirs(runtime.GOARCH) {
			err := copyProgram(filepath.Join(from, name), filepath.Join(dir, name))
			if err == nil {
				break
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// copyProgram copies a file that can be run.
func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755) //nolint:gosec // G302: the container runs it
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// loadLimit bounds how long the linker may take.
const loadLimit = 5 * time.Second

// load loads the layer below root with the C library there, as "ldd -r" does: nothing of
// it runs. tried: both are there. failure is what the linker says, empty if it can.
func load(ctx context.Context, root string) (tried bool, failure string) {
	linker, layer := filepath.Join(root, libcDir, linkers[runtime.GOARCH]), filepath.Join(root, gpu.OpenCL)
	if info, err := os.Stat(layer); err != nil || info.Size() == 0 { // empty: its mount point alone
		return false, ""
	}
	if info, err := os.Stat(linker); err != nil || !info.Mode().IsRegular() {
		return false, ""
	}
	ctx, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, linker, "--library-path", filepath.Join(root, libcDir), layer) //nolint:gosec // G204: both are ours
	cmd.Env = []string{"LD_TRACE_LOADED_OBJECTS=1", "LD_WARN=yes", "LD_BIND_NOW=yes"}
	out, err := cmd.CombinedOutput()
	var wrong []string
	for line := range strings.Lines(string(out)) {
		if err != nil || strings.Contains(line, "not found") || strings.Contains(line, "undefined symbol") {
			wrong = append(wrong, strings.TrimSpace(line))
		}
	}
	if err != nil && len(wrong) == 0 {
		wrong = append(wrong, err.Error())
	}
	return true, strings.Join(wrong, "; ")
}

// checkLayer says what came of loading it in the doctor's container.
func checkLayer(seen sight) []finding {
	switch {
	case !seen.Layer:
		return nil
	case seen.LayerError != "":
		return []finding{fault("run vgpu install, or set library.opencl in vgpud.toml, and restart vgpud; until then OpenCL programs in containers compute whenever they like, and their loaders say nothing (docs/opencl.md)",
			"a container can not load %s: %s", gpu.OpenCL, seen.LayerError)}
	}
	return []finding{ok("a container ran, and could load %s", gpu.OpenCL)}
}
