// SPDX-License-Identifier: Apache-2.0

package neighbours

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// rootfs is what all containers and the image are made of.
var rootfs string

func TestMain(m *testing.M) { os.Exit(harnesstest.Main(m, &rootfs)) }

// node is a harness.Node for one test; what goes wrong with it fails the test.
type node struct{ *harnesstest.Node }

// start starts a node with one simulated GPU, whose turns can be looked at.
func start(t *testing.T, o harness.Options) *node {
	t.Helper()
	o.Daemon.LogLevel = "trace"
	return &node{harnesstest.Start(t, rootfs, o)}
}

// startRenamed starts one whose containerd finds our shim in the place of runc's.
func startRenamed(t *testing.T, o harness.Options) *node {
	t.Helper()
	o.Daemon.LogLevel = "trace"
	return &node{harnesstest.StartRenamed(t, rootfs, o)}
}

// handler adds lines to the configuration of the shim.
func (n *node) handler(lines string) {
	n.T.Helper()
	config, err := n.Daemon.ShimConfig()
	if err != nil {
		n.T.Fatal(err)
	}
	b, err := os.ReadFile(config)
	if err == nil {
		err = os.WriteFile(config, append(b, lines...), 0o600)
	}
	if err != nil {
		n.T.Fatal(err)
	}
}

// tool is a program that setup has put below .tools.
func (n *node) tool(elem ...string) string {
	return filepath.Join(append([]string{n.Paths.Tools}, elem...)...)
}

// forEver is the share of contention of a container that has to be killed.
var forEver = []string{"/vgpu/burst", "--bursts", "1000000", "--launches", "5", "--gpu-us", "10000", "--cpu-us", "0", "--rest-us", "5000"}
