// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// tree is a small one that looks as if it was built.
func tree(t *testing.T) string {
	t.Helper()
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string]string{
		"bin/containerd-shim-vgpu-v1": "shim", "bin/vgpud": "vgpud", "bin/vgpu-node": "node", "bin/vgpu-kubelet": "kubelet",
		"build/lib/libvgpu-cuda.so": "cuda", "build/lib/libvgpu-nvml.so": "nvml", "build/lib/libvgpu-opencl.so": "opencl",
		"build/simgpu/bin/simgpu": "sim", "build/simgpu/lib/libcuda.so.1.0": "simcuda",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("libcuda.so.1.0", filepath.Join(dir, "build/simgpu/lib/libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "configs"), os.DirFS(filepath.Join(repository, "integration/image/testdata/configs"))); err != nil {
		t.Fatal(err)
	}
	// The program that lays the tree out is the real one.
	program := filepath.Join(repository, "bin/vgpu")
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("run make build: %v", err)
	}
	if err := os.Symlink(program, filepath.Join(dir, "bin/vgpu")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func archive(t *testing.T, from string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.tar")
	if err := Write(Options{From: from, Tag: "registry.example/vgpu:1", Version: "v1", Commit: "abc", Arch: "arm64"}, out); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Neither when nor with which right of a group to write the tree was built is in the image.
func TestTheSameTreeGivesTheSameBytes(t *testing.T) {
	dir := tree(t)
	first := archive(t, dir)
	for _, name := range []string{"bin/vgpud", "build/lib/libvgpu-cuda.so"} {
		path := filepath.Join(dir, name)
		if err := os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o775); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first, archive(t, dir)) {
		t.Error("the second archive is another one")
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/vgpu-node"), []byte("another"), 0o755); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(first, archive(t, dir)) {
		t.Error("another program gives the same archive")
	}
}

func TestWhatIsInTheImage(t *testing.T) {
	b := archive(t, tree(t))
	image, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != "arm64" || config.OS != "linux" || config.Config.Labels["org.opencontainers.image.version"] != "v1" || config.Config.Labels["org.opencontainers.image.revision"] != "abc" {
		t.Errorf("the configuration is %+v", config)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers: %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	found := map[string]string{}
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(time.Unix(0, 0)) || h.Mode&0o022 != 0 && h.Typeflag != tar.TypeSymlink {
			t.Errorf("%s is of %d:%d, of %v, with mode %o", h.Name, h.Uid, h.Gid, h.ModTime, h.Mode)
		}
		if h.Linkname != "" {
			text = []byte("-> " + h.Linkname)
		}
		found[h.Name] = string(text)
		// A directory stands before what is in it.
		if parent := filepath.Dir(strings.TrimSuffix(h.Name, "/")); parent != "." {
			if _, ok := found[parent+"/"]; !ok {
				t.Errorf("%s comes before its directory", h.Name)
			}
		}
	}
	for name, want := range map[string]string{
		"usr/bin/vgpu-node": "node", "usr/bin/vgpu-kubelet": "kubelet", "usr/bin/vgpu": "-> /opt/vgpu/bin/vgpu",
		"opt/vgpu/bin/vgpud": "vgpud", "opt/vgpu/bin/containerd-shim-vgpu-v1": "shim",
		"opt/vgpu/lib/libvgpu-cuda.so": "cuda", "opt/vgpu/lib/libvgpu-nvml.so": "nvml", "opt/vgpu/lib/libvgpu-opencl.so": "opencl",
		"opt/vgpu/simgpu/lib/libcuda.so.1": "-> libcuda.so.1.0", "opt/vgpu/share/vgpud.toml": "vgpud\n",
	} {
		if found[name] != want {
			t.Errorf("%s is %q, not %q", name, found[name], want)
		}
	}
}

func TestWhatCanNotBeAnImage(t *testing.T) {
	out := filepath.Join(t.TempDir(), "image.tar")
	dir := tree(t)
	if err := Write(Options{From: dir, Tag: "Not A Name"}, out); err == nil || !strings.Contains(err.Error(), "Not A Name") {
		t.Errorf("a wrong tag: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "bin/vgpu-node")); err != nil {
		t.Fatal(err)
	}
	if err := Write(Options{From: dir, Tag: "registry.example/vgpu:1"}, out); err == nil || !strings.Contains(err.Error(), "vgpu-node") || !strings.Contains(err.Error(), "run make image") {
		t.Errorf("a program that is missing: %v", err)
	}
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an archive is there all the same: %v", err)
	}
}
