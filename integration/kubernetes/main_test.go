// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/integration/box"
	"github.com/vgpu-shim/vgpu/integration/harness"
)

// shared is the cluster of all tests, with the node "one" that has one GPU. They
// run one after another, and each removes its pods.
var shared struct {
	*Cluster
	one *Node
}

// TestMain runs this program again in a box, and there the tests.
func TestMain(m *testing.M) {
	os.Exit(box.Main("kubernetes", func() (int, error) { return run(m) }))
}

// run runs the tests on a cluster.
func run(m *testing.M) (status int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	built, err := harness.DefaultPaths()
	if err != nil {
		return 1, err
	}
	installed, err := Furnish(ctx, built)
	if err != nil {
		return 1, fmt.Errorf("failed to prepare the box: %w", err)
	}
	c, err := Start(ctx, installed, filepath.Join(box.Temp, "k"), Options{})
	if err != nil {
		return 1, fmt.Errorf("the control plane did not start: %w", err)
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	shared.Cluster = c
	shared.one, err = c.AddNode(ctx, NodeOptions{
		Name:   "one",
		Labels: map[string]string{Label: "true"},
		// No drain is so late that another is let in beside it: nobody computes while
		// another does, whatever a test does.
		Daemon: harness.DaemonOptions{GPUs: "sim:1", LogLevel: "trace", Drain: 5 * time.Minute},
	})
	if err == nil {
		_, err = c.Kubectl(ctx, "apply", "--filename", c.manifest("runtimeclass.yaml"), "--filename", c.manifest("deviceclasses.yaml"))
	}
	if err != nil {
		return 1, fmt.Errorf("the cluster did not start: %w\n%s", err, c.Tails())
	}
	return m.Run(), nil
}
