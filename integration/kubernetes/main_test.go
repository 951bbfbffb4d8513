// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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

// inBox is the first argument of this program in its box.
const inBox = "inside"

// TestMain runs this program again in a box, and there the tests.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == box.InitArg {
		status, err := box.Init(os.Args[2:])
		if err != nil {
			fmt.Fprintln(os.Stderr, "the box of the tests:", err)
		}
		os.Exit(status)
	}
	if len(os.Args) > 1 && os.Args[1] == inBox {
		os.Args = append(os.Args[:1], os.Args[2:]...)
		status, err := run(m)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = max(status, 1)
		}
		os.Exit(status)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := box.Run(ctx, "kubernetes", os.Stdout, append([]string{inBox}, os.Args[1:]...)...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the box of the tests:", err)
		os.Exit(1)
	}
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
		_, err = c.Kubectl(ctx, "apply", "--filename", filepath.Join(built.Root, "configs", "kubernetes", "runtimeclass.yaml"))
	}
	if err == nil {
		err = makeClass(ctx, c, deviceClass)
	}
	if err != nil {
		return 1, fmt.Errorf("the cluster did not start: %w\n%s", err, c.Tails())
	}
	return m.Run(), nil
}
