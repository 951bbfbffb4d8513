// SPDX-License-Identifier: Apache-2.0

package neighbours

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// docker starts a private dockerd, of whose package the directories below .tools
// are, on the node's containerd, with some configuration.
func (n *node) docker(daemon, command string, config map[string]any) client {
	n.T.Helper()
	dir := filepath.Join(n.Dir, "docker")
	socket := "unix://" + filepath.Join(dir, "s")
	all := map[string]any{
		"hosts": []string{socket}, "data-root": filepath.Join(dir, "data"), "exec-root": filepath.Join(dir, "exec"), "pidfile": filepath.Join(dir, "pid"),
		"containerd": n.Containerd.Socket, "containerd-namespace": n.Containerd.Namespace,
		"cgroup-parent": "/" + n.Containerd.Namespace, "storage-driver": "vfs",
		"bridge": "none", "iptables": false, "ip6tables": false, "ip-forward": false, "ip-masq": false, "userland-proxy": false,
	}
	for key, value := range config {
		all[key] = value
	}
	text, err := json.Marshal(all)
	if err == nil {
		err = os.Mkdir(dir, 0o711)
	}
	file := filepath.Join(dir, "daemon.json")
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		n.T.Fatal(err)
	}
	cmd := exec.Command(n.tool("debian", daemon, "usr/sbin/dockerd"), "--config-file", file,
		"--containerd-plugins-namespace", n.Containerd.Namespace+"-plugins") // as a key of the file it is unknown
	cmd.Env = []string{"PATH=" + n.Paths.RuncBin() + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir, "TMPDIR=" + dir}
	_, before := os.Stat("/run/docker")
	p, err := harness.StartProcess("dockerd", filepath.Join(dir, "log"), cmd)
	if err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() {
		if n.T.Failed() {
			n.T.Logf("end of dockerd's log:\n%s", p.Tail())
		}
		if err := p.Stop(); err != nil {
			n.T.Error(err)
		}
		if before != nil { // the one place that no flag moves
			_, _ = os.Remove("/run/docker/plugins"), os.Remove("/run/docker")
		}
	})
	docker := client{n: n, namespace: n.Containerd.Namespace, command: []string{
		n.tool("debian", command, "usr/bin/docker"), "--host", socket, "--config", dir,
	}}
	n.Wait(func() error {
		select {
		case <-p.Done():
			n.T.Fatal("dockerd has ended")
		default:
		}
		_, err := docker.run("version")
		return err
	})
	docker.must("load", "--input", n.archive())
	return docker
}

// Docker 20.10 knows no runtime but those that stand below runc's shim. So ours is
// installed in that one's place, and gives every container a vGPU.
func TestDockerBeforeItKnewRuntimes(t *testing.T) {
	t.Parallel()
	n := startRenamed(t, harness.Options{Version: harness.Containerd16})
	n.handler("default_count = 1\n")
	docker := n.docker("docker.io", "docker.io", map[string]any{
		"deprecated-key-path": filepath.Join(n.Dir, "docker", "key.json"), // else in /etc
	})
	docker.mainJob(nil, nil)
}

// From Docker 23 on the runtime's name is enough, or daemon.json names it with its
// options; from 24 on containers have annotations.
func TestDocker(t *testing.T) {
	t.Parallel()
	n := start(t, harness.Options{Version: harness.Containerd24})
	bounded := filepath.Join(t.TempDir(), "bounded.toml")
	text := fmt.Sprintf("address = %q\n[limits]\nmemory = \"4Gi\"\n", n.Daemon.Socket)
	if err := os.WriteFile(bounded, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	docker := n.docker("docker.io-26.1.5", "docker-cli-26.1.5", map[string]any{
		"runtimes": map[string]any{"bounded": map[string]any{
			"runtimeType": harness.VGPURuntime,
			"options":     map[string]any{"ConfigPath": bounded},
		}},
	})
	vgpus := docker.mainJob(
		[]string{"--runtime", harness.VGPURuntime, "--annotation", "vgpu-shim.dev/weight=200"},
		[]string{"--runtime", "bounded", "--annotation", "vgpu-shim.dev/memory=2Gi"},
	)
	if vgpus[0].GetWeight() != 200 || vgpus[1].GetMemoryBytes() != 2<<30 {
		t.Errorf("the vGPUs are not as annotated: %v", vgpus)
	}
	_, err := docker.run("run", "--rm", "--network", "none", "--runtime", "bounded", "--annotation", "vgpu-shim.dev/memory=8Gi", image, "true")
	if err == nil || !strings.Contains(err.Error(), "4Gi") {
		t.Errorf("more than the limit of its runtime was not refused: %v", err)
	}
}
