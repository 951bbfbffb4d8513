// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// DriverName is that of the DRA driver.
const DriverName = "vgpu-shim.dev"

// registered is what kubelet logs when it has found a driver.
const registered = "Registered DRA plugin"

// StartDriver starts the node's vgpu-kubelet, again if it was stopped, with more flags
// than those that say where things are. It waits until kubelet knows it and its GPUs
// are published.
func (n *Node) StartDriver(ctx context.Context, flags ...string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	before, err := os.ReadFile(n.kubelet.Log)
	if err != nil {
		return err
	}
	args := append([]string{
		"--node-name=" + n.Name, "--kubeconfig=" + n.cluster.Kubeconfig, "--address=" + n.Daemon.Socket,
		"--plugin-dir=" + n.pluginDir(), "--registry-dir=" + filepath.Join(n.kubeletRoot(), "plugins_registry"), "--cdi-dir=" + n.cdiDir(),
	}, flags...)
	cmd := exec.Command(filepath.Join(n.Paths.Root, "bin", "vgpu-kubelet"), args...)
	cmd.Env = n.cluster.environment()
	if n.driver, err = harness.StartProcess("vgpu-kubelet of "+n.Name, filepath.Join(n.Dir, "driver.log"), cmd); err != nil {
		return err
	}
	return n.cluster.wait(ctx, n.processes(), func() error {
		log, err := os.ReadFile(n.kubelet.Log)
		if err != nil {
			return err
		}
		if !bytes.Contains(log[len(before):], []byte(registered)) {
			return fmt.Errorf("kubelet of %s does not know the driver yet", n.Name)
		}
		slices, err := n.cluster.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.Name})
		if err == nil && len(slices.Items) == 0 {
			err = fmt.Errorf("node %s has published no GPUs yet", n.Name)
		}
		return err
	})
}

// KillDriver ends the node's vgpu-kubelet at once.
func (n *Node) KillDriver() error {
	err := n.driver.Kill()
	n.driver = nil
	return err
}

// pluginDir is where the driver keeps what it must remember.
func (n *Node) pluginDir() string { return filepath.Join(n.kubeletRoot(), "plugins", DriverName) }

// cdiDir is where the node's containerd alone reads CDI specs.
func (n *Node) cdiDir() string { return filepath.Join(n.Dir, "cdi") }

// Claims are the UIDs of the claims that the driver remembers.
func (n *Node) Claims() (uids []string, err error) {
	entries, err := os.ReadDir(filepath.Join(n.pluginDir(), "claims"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		uids = append(uids, e.Name())
	}
	return uids, err
}
