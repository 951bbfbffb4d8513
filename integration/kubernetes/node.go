// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vgpu-shim/vgpu/integration/box"
	"github.com/vgpu-shim/vgpu/integration/harness"
)

// containerdCRI is the newest containerd, built with CRI.
const containerdCRI = harness.Containerd24 + "-cri"

// Namespace is that of CRI's containers in containerd.
const Namespace = "k8s.io"

// Label is what the RuntimeClass asks of nodes, with the value "true".
const Label = "vgpu-shim.dev/installed"

// Node is a kubelet with a containerd, a vgpud and a vgpu-kubelet of its own.
type Node struct {
	Name string
	harness.Node

	cluster *Cluster
	number  int // from 1
	kubelet *harness.Process
	driver  *harness.Process // vgpu-kubelet
}

// NodeOptions are what differs between nodes.
type NodeOptions struct {
	Name   string
	Daemon harness.DaemonOptions // but for the directory; the GPUs: a model and a number
	Labels map[string]string
	Bare   bool // nothing of the product runs there; Daemon says nothing
}

// AddNode starts a node and waits until it is ready.
func (c *Cluster) AddNode(ctx context.Context, o NodeOptions) (_ *Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	c.added++
	n := &Node{Name: o.Name, cluster: c, number: c.added}
	// Short, because a socket's path has 107 bytes at most.
	n.Dir, n.Paths = filepath.Join(c.Dir, fmt.Sprintf("n%d", n.number)), c.paths
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", errors.Join(err, n.stop()), tails(n.processes()))
		}
	}()
	if err := addAddress(n.number, n.address()); err != nil {
		return nil, err
	}
	if err := box.Cgroup(n.Name); err != nil {
		return nil, err
	}
	if !o.Bare {
		o.Daemon.Dir = filepath.Join(n.Dir, "v")
		if n.Daemon, err = harness.StartDaemon(ctx, c.paths, o.Daemon); err != nil {
			return nil, err
		}
	}
	if err := n.startContainerd(ctx); err != nil {
		return nil, err
	}
	if err := n.writeKubeletConfig(o.Labels); err != nil {
		return nil, err
	}
	if err := n.StartKubelet(ctx); err != nil {
		return nil, err
	}
	if !o.Bare {
		if err := n.StartDriver(ctx); err != nil {
			return nil, err
		}
	}
	c.Nodes = append(c.Nodes, n)
	return n, nil
}

// address of the node: kubelet takes none of the loopback network.
func (n *Node) address() string { return fmt.Sprintf("10.77.0.%d", n.number) }

// startContainerd starts containerd with what vgpu install has added to its
// configuration, and gives it the images.
func (n *Node) startContainerd(ctx context.Context) error {
	var env []string
	if n.Daemon != nil {
		shim, err := n.Daemon.ShimConfig()
		if err != nil {
			return err
		}
		env = []string{"VGPU_SHIM_CONFIG=" + shim}
	}
	dir := filepath.Join(n.Dir, "c")
	var err error
	n.Containerd, err = harness.StartContainerd(ctx, n.Paths, harness.ContainerdOptions{
		Version: containerdCRI, Dir: dir, Namespace: Namespace, CRI: true,
		Env:       env,
		Configure: func() error { return n.configureCRI(dir) },
	})
	if err != nil {
		return err
	}
	args := []string{"images", "import", "--local", n.cluster.images}
	if out, err := n.Containerd.CtrCommand(ctx, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// configureCRI gives pods a network, and the node the handlers that were installed.
// A machine's root may not be allowed to lower oom_score_adj.
func (n *Node) configureCRI(dir string) error {
	path := filepath.Join(dir, "config.toml")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	const first = "version = 3\n"
	rest, ok := strings.CutPrefix(string(text), first)
	if !ok {
		return fmt.Errorf("%s does not begin with %q", path, first)
	}
	specs := "" // containerd's default
	if n.Daemon != nil {
		specs = fmt.Sprintf("  cdi_spec_dirs = [%q]\n", n.cdiDir())
	}
	all := first + fmt.Sprintf("imports = [%q]\n", dropIns+"/*.toml") + rest + fmt.Sprintf(`
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
%s
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q
`, specs, pauseImage)
	if err := os.WriteFile(path, []byte(all), 0o600); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, "cni"), 0o755); err != nil {
		return err
	}
	network := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{
  "type": "bridge", "bridge": "pods%d", "isDefaultGateway": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.%d.0/24"}]], "dataDir": %q}
}]}`, n.number, n.number, filepath.Join(n.Dir, "addresses"))
	return os.WriteFile(filepath.Join(dir, "cni", "pods.conflist"), []byte(network), 0o644)
}

// writeKubeletConfig writes what a kubelet reads: nothing of it is of this project.
func (n *Node) writeKubeletConfig(labels map[string]string) error {
	dir := n.kubeletDir()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var pairs []string
	for k, v := range labels {
		pairs = append(pairs, k+"="+v)
	}
	if err := os.WriteFile(filepath.Join(dir, "labels"), []byte(strings.Join(pairs, ",")), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.yaml"), fmt.Appendf(nil, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %[1]s
healthzPort: 0
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://%[2]s
cgroupDriver: cgroupfs
cgroupRoot: /%[3]s
failCgroupV1: false
failSwapOn: false
podLogsDir: %[4]s/logs
volumePluginDir: %[4]s/volume-plugins
resolvConf: ""
makeIPTablesUtilChains: false
syncFrequency: 1s
nodeStatusUpdateFrequency: 1s
nodeLeaseDurationSeconds: 8 # renewed each quarter of it
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 1Mi, nodefs.available: 1%%, imagefs.available: 1%%}
`, n.address(), n.Containerd.Socket, n.Name, n.Dir), 0o600)
}

func (n *Node) kubeletDir() string { return filepath.Join(n.Dir, "kubelet") }

// KubeletRoot is where kubelet keeps pods, and looks for plugins.
func (n *Node) KubeletRoot() string { return n.kubeletRoot() }

// kubeletRoot is where kubelet keeps pods; it mounts that over itself.
func (n *Node) kubeletRoot() string { return filepath.Join(n.kubeletDir(), "root") }

// StartKubelet starts kubelet, again if it was stopped, and waits until this one
// has said that the node is ready.
func (n *Node) StartKubelet(ctx context.Context) error {
	dir := n.kubeletDir()
	labels, err := os.ReadFile(filepath.Join(dir, "labels"))
	if err != nil {
		return err
	}
	cmd := exec.Command(n.cluster.program("kubelet"),
		"--config="+filepath.Join(dir, "config.yaml"), "--kubeconfig="+n.cluster.Kubeconfig,
		"--root-dir="+n.kubeletRoot(), "--cert-dir="+filepath.Join(dir, "certificates"),
		"--hostname-override="+n.Name, "--node-ip="+n.address(), "--node-labels="+string(labels),
		"--vmodule=dra_plugin_manager=3") // StartDriver looks for what that logs
	cmd.Env = n.cluster.environment()
	began := time.Now()
	if n.kubelet, err = harness.StartProcess("kubelet of "+n.Name, filepath.Join(n.Dir, "kubelet.log"), cmd); err != nil {
		return err
	}
	return n.cluster.wait(ctx, n.processes(), func() error {
		lease, err := n.cluster.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if renewed := lease.Spec.RenewTime; renewed == nil || renewed.Time.Before(began) {
			return fmt.Errorf("kubelet of %s has not renewed the node's lease yet", n.Name)
		}
		node, err := n.cluster.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("node %s is not ready: %v", n.Name, node.Status.Conditions)
	})
}

// StopKubelet ends kubelet; pods go on.
func (n *Node) StopKubelet() error { return n.kubelet.Stop() }

// processes are those that were started here.
func (n *Node) processes() (all []*harness.Process) {
	if n.Daemon != nil && n.Daemon.Process() != nil {
		all = append(all, n.Daemon.Process())
	}
	if n.Containerd != nil && n.Containerd.Process() != nil {
		all = append(all, n.Containerd.Process())
	}
	if n.driver != nil {
		all = append(all, n.driver)
	}
	if n.kubelet != nil {
		all = append(all, n.kubelet)
	}
	return all
}

// stop ends the processes, kubelet first: it would start again what containerd ends.
func (n *Node) stop() error {
	var errs []error
	all := n.processes()
	for i := len(all) - 1; i >= 0; i-- {
		errs = append(errs, all[i].Stop())
	}
	return errors.Join(errs...)
}

// ContainerID is the name that containerd knows a pod's container by.
func ContainerID(pod *corev1.Pod, name string) (string, error) {
	for _, s := range pod.Status.ContainerStatuses {
		if id, ok := strings.CutPrefix(s.ContainerID, "containerd://"); ok && s.Name == name {
			return id, nil
		}
	}
	return "", fmt.Errorf("pod %s has no container %s yet", pod.Name, name)
}
