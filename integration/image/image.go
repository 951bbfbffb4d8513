// SPDX-License-Identifier: Apache-2.0

// Package image makes the container image that the Helm chart's pods run, without a
// container engine: an archive of one layer, which ctr, nerdctl, docker and podman
// load, and crane pushes. The same programs give the same bytes.
package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// product is where the image has what vgpu-node installs on nodes, in the layout of
// an installed version.
const product = "opt/vgpu"

// programs are what the pods run.
var programs = []string{"vgpu-node", "vgpu-kubelet"}

// Options say what is in an image.
type Options struct {
	From            string // tree that was built
	Tag             string // name and tag
	Version, Commit string // of the product
	Arch            string // of the programs; this one's if empty
}

// Write writes the archive of an image to a file.
func Write(o Options, out string) error {
	tag, err := name.NewTag(o.Tag)
	if err != nil {
		return fmt.Errorf("tag %q: %w", o.Tag, err)
	}
	layer, err := layer(o)
	if err != nil {
		return err
	}
	image, err := imageOf(o, layer)
	if err != nil {
		return err
	}
	// Under its name only when it is whole.
	temporary := out + ".tmp"
	if err := tarball.WriteToFile(temporary, tag, image); err != nil {
		return fmt.Errorf("failed to write %s: %w", temporary, err)
	}
	return os.Rename(temporary, out)
}

func imageOf(o Options, content []byte) (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", cmp.Or(o.Arch, runtime.GOARCH)
	config.Config = v1.Config{
		Env: []string{"PATH=/usr/bin"},
		Cmd: []string{"vgpu-node", "--help"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "vgpu",
			"org.opencontainers.image.source":   "https://github.com/vgpu-shim/vgpu",
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.version":  o.Version,
			"org.opencontainers.image.revision": o.Commit,
		},
	}
	return mutate.ConfigFile(image, config)
}

// layer is what is in the image. What vgpu install makes of the tree is the product.
func layer(o Options) ([]byte, error) {
	root, err := os.MkdirTemp("", "vgpu-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(root)
	cmd := exec.Command(filepath.Join(o.From, "bin", "vgpu"), "install", "--from", o.From, "--root", root, "--no-containerd")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	current, err := filepath.EvalSymlinks(filepath.Join(root, "usr/lib/vgpu/current"))
	if err != nil {
		return nil, err
	}
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	for _, dir := range []string{"opt", product, "tmp", "usr", "usr/bin"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	if err := addTree(w, current); err != nil {
		return nil, err
	}
	for _, program := range programs {
		if err := addFile(w, filepath.Join(o.From, "bin", program), "usr/bin/"+program, 0o755); err != nil {
			return nil, fmt.Errorf("%w; run make image", err)
		}
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "usr/bin/vgpu", Linkname: "/" + product + "/bin/vgpu", Mode: 0o777}); err != nil {
		return nil, err
	}
	return content.Bytes(), w.Close()
}

// addTree adds what is below a directory, in the order of names, and nothing of who
// made it and when.
func addTree(w *tar.Writer, dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		to := product + "/" + relative
		info, err := e.Info()
		if err != nil {
			return err
		}
		switch {
		case e.IsDir():
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: to + "/", Mode: 0o755})
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: to, Linkname: target, Mode: 0o777})
		}
		return addFile(w, path, to, 0o644|info.Mode().Perm()&0o111)
	})
}

func addFile(w *tar.Writer, from, to string, mode fs.FileMode) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: to, Mode: int64(mode), Size: int64(len(content))}); err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}
