// SPDX-License-Identifier: Apache-2.0

// Package setup_test installs the product from a tree in which all but the program
// that installs is a placeholder.
package setup_test

import (
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// placeholders are what make install takes from a build, beside bin/vgpu.
var placeholders = []string{
	"bin/containerd-shim-vgpu-v1", "bin/vgpud",
	"build/lib/libvgpu-cuda.so", "build/lib/libvgpu-nvml.so", "build/lib/libvgpu-opencl.so",
	"build/simgpu/bin/simgpu", "build/simgpu/lib/libcuda.so.999.10", "build/simgpu/lib/libnvidia-ml.so.999.10",
}

// install writes placeholders that say content, and installs them below dest.
func install(t *testing.T, tree, dest, content string) {
	t.Helper()
	for _, name := range placeholders {
		file := filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("make", "-s", "-C", tree, "install", "DESTDIR="+dest, "VERSION=v0", "COMMIT=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make install: %v\n%s", err, out)
	}
}

// Programs that run and libraries that containers have mounted keep the file that
// they had: what is installed over it is another one.
func TestInstallWritesIntoNoFileThatIsThere(t *testing.T) {
	tree, dest := t.TempDir(), t.TempDir()
	makefile, err := os.ReadFile("../../Makefile")
	if err == nil {
		err = os.WriteFile(filepath.Join(tree, "Makefile"), makefile, 0o600)
	}
	if err == nil {
		err = os.CopyFS(filepath.Join(tree, "configs"), os.DirFS("../../configs"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(tree, "bin/vgpu"), "../../cmd/vgpu").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const before, after = "before", "and after"
	install(t, tree, dest, before)
	open := placed(t, dest, before)
	if len(open) != len(placeholders) {
		t.Fatalf("%d files were installed, want %d", len(open), len(placeholders))
	}
	install(t, tree, dest, after)
	for path, f := range open {
		name := strings.TrimPrefix(path, dest)
		old := make([]byte, 2*len(before))
		if n, _ := f.ReadAt(old, 0); string(old[:n]) != before {
			t.Errorf("%s was overwritten: who had it open reads %q", name, old[:n])
		}
	}
	if left := placed(t, dest, before); len(left) != 0 {
		t.Errorf("%d old files are there still", len(left))
	}
	if now := placed(t, dest, after); len(now) != len(placeholders) {
		t.Errorf("%d new files are there, want %d", len(now), len(placeholders))
	}
}

// placed opens the files below a directory that have a content.
func placed(t *testing.T, dir, content string) map[string]*os.File {
	t.Helper()
	open := map[string]*os.File{}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		t.Cleanup(func() { f.Close() })
		if text, err := io.ReadAll(f); err != nil || string(text) != content {
			return err // a file of configs
		}
		open[path] = f
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return open
}
