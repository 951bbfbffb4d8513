// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"runtime"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// Image is that of the tests' pods: busybox and the repository's CUDA programs.
// Nodes have it; there is no registry.
const Image = "vgpu.test/workload:1"

// pauseImage is that of the pods' first container.
const pauseImage = "vgpu.test/pause:1"

// writeImages writes both images to a file, in the form of docker save. They have
// one layer, made of a root file system in a directory that is made.
func writeImages(paths harness.Paths, rootfs, file string) error {
	if err := harness.BusyboxRootfs(paths, rootfs); err != nil {
		return err
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.AddFS(os.DirFS(rootfs)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	type object = map[string]any
	files := map[string][]byte{"layer.tar": layer.Bytes()}
	var manifest []object
	for name, command := range map[string][]string{Image: {"sh"}, pauseImage: {"sleep", "2147483647"}} {
		config := fmt.Sprintf("config-%d.json", len(manifest))
		text, err := json.Marshal(object{
			"architecture": runtime.GOARCH, "os": "linux",
			"config": object{"Env": []string{"PATH=/vgpu:/usr/sbin:/usr/bin:/sbin:/bin"}, "Cmd": command},
			"rootfs": object{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer.Bytes()))}},
		})
		if err != nil {
			return err
		}
		files[config] = text
		manifest = append(manifest, object{"Config": config, "RepoTags": []string{name}, "Layers": []string{"layer.tar"}})
	}
	text, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	files["manifest.json"] = text
	return writeTar(file, files)
}

func writeTar(file string, files map[string][]byte) error {
	var all bytes.Buffer
	w := tar.NewWriter(&all)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return err
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(file, all.Bytes(), 0o600)
}
