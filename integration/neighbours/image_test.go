// SPDX-License-Identifier: Apache-2.0

package neighbours

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// image is the name of the image that archive makes.
const image = "docker.io/library/vgpu-test:1"

// archive writes an image of the root file system to a file, in the form of docker
// save, which docker and containerd load. A container of it sleeps, if nothing
// else is said.
func (n *node) archive() (file string) {
	n.T.Helper()
	var layer bytes.Buffer
	layers := tar.NewWriter(&layer)
	if err := layers.AddFS(os.DirFS(rootfs)); err != nil {
		n.T.Fatal(err)
	}
	if err := layers.Close(); err != nil {
		n.T.Fatal(err)
	}
	encode := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			n.T.Fatal(err)
		}
		return b
	}

	config := encode(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Env": []string{"PATH=/vgpu:/usr/sbin:/usr/bin:/sbin:/bin"}, "Cmd": []string{"sleep", "1000000"}},
		"rootfs": object{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer.Bytes()))}},
	})
	manifest := encode([]object{{"Config": "config.json", "RepoTags": []string{image}, "Layers": []string{"layer.tar"}}})

	file = filepath.Join(n.T.TempDir(), "image.tar")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		n.T.Fatal(err)
	}
	defer f.Close()
	all := tar.NewWriter(f)
	for name, content := range map[string]*bytes.Buffer{
		"manifest.json": bytes.NewBuffer(manifest), "config.json": bytes.NewBuffer(config), "layer.tar": &layer,
	} {
		if err := all.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(content.Len())}); err != nil {
			n.T.Fatal(err)
		}
		if _, err := io.Copy(all, content); err != nil {
			n.T.Fatal(err)
		}
	}
	if err := all.Close(); err != nil {
		n.T.Fatal(err)
	}
	return file
}

// load gives the image to containerd.
func (n *node) load(namespace string) {
	n.T.Helper()
	args := []string{"--namespace", namespace, "images", "import", "--snapshotter", snapshotter}
	if n.Containerd.Version != harness.Containerd16 {
		args = append(args, "--local") // or the daemon would have to be configured for the snapshotter
	}
	if out, err := n.Containerd.CtrCommand(n.Ctx, append(args, n.archive())...).CombinedOutput(); err != nil {
		n.T.Fatalf("ctr %s: %v: %s", args, err, out)
	}
}

// snapshotter is one that works whatever this machine's file systems are.
const snapshotter = "native"
