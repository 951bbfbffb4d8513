// SPDX-License-Identifier: Apache-2.0

// Package cluster installs the Helm chart on a real Kubernetes (integration/kubernetes),
// on a node that has nothing of the product before, and has nothing of it afterwards.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/box"
	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/image"
	"github.com/vgpu-shim/vgpu/integration/kubernetes"
)

// shared is the cluster of all tests: one node, named one.
var shared struct {
	*kubernetes.Cluster
	one   *kubernetes.Node
	built harness.Paths
}

// TestMain runs this program again in a box, and there the tests.
func TestMain(m *testing.M) {
	os.Exit(box.Main("chart", func() (int, error) { return run(m) }))
}

// repositoryOfImages is where the tests' images would be, if there was a registry.
const repositoryOfImages = "vgpu.test/vgpu"

// run runs the tests on a cluster.
func run(m *testing.M) (status int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	built, err := harness.DefaultPaths()
	if err != nil {
		return 1, err
	}
	if err := kubernetes.Prepare(built); err != nil {
		return 1, fmt.Errorf("failed to prepare the box: %w", err)
	}
	c, err := kubernetes.Start(ctx, built, filepath.Join(box.Temp, "k"), kubernetes.Options{Guarded: true})
	if err != nil {
		return 1, fmt.Errorf("the control plane did not start: %w", err)
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	shared.Cluster, shared.built = c, built
	shared.one, err = c.AddNode(ctx, kubernetes.NodeOptions{Name: "one", Bare: true, Labels: map[string]string{"vgpu-shim.dev/node": "true"}})
	if err == nil {
		err = loadImages(ctx, built, shared.one)
	}
	if err != nil {
		return 1, fmt.Errorf("the cluster did not start: %w\n%s", err, c.Tails())
	}
	return m.Run(), nil
}

// loadImages gives the node two versions of the product. They differ in a file that
// is installed, so that the second has a directory of its own on the node.
func loadImages(ctx context.Context, built harness.Paths, n *kubernetes.Node) error {
	tree := filepath.Join(box.Temp, "tree")
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return err
	}
	for _, part := range []string{"bin", "build"} {
		if err := os.Symlink(filepath.Join(built.Root, part), filepath.Join(tree, part)); err != nil {
			return err
		}
	}
	if err := os.CopyFS(filepath.Join(tree, "configs"), os.DirFS(filepath.Join(built.Root, "configs"))); err != nil {
		return err
	}
	for _, tag := range []string{"v1", "v2"} {
		if err := os.WriteFile(filepath.Join(tree, "configs", "version"), []byte(tag), 0o644); err != nil {
			return err
		}
		archive := filepath.Join(box.Temp, tag+".tar")
		if err := image.Write(image.Options{From: tree, Tag: repositoryOfImages + ":" + tag, Version: tag}, archive); err != nil {
			return err
		}
		if out, err := n.Containerd.CtrCommand(ctx, "images", "import", "--local", archive).CombinedOutput(); err != nil {
			return fmt.Errorf("ctr images import: %w: %s", err, out)
		}
		if err := os.Remove(archive); err != nil {
			return err
		}
	}
	return nil
}

// systemctl takes the place of systemd's, which does not run here: what it is asked for
// is done by the supervisor, once containerd is killed.
const systemctl = `#!/bin/sh
[ "$*" = "restart containerd" ] || exit 1
echo "$*" >>` + box.Temp + `/systemctl.log
kill "$(cat ` + box.Temp + `/containerd.pid)"
`

// supervisor starts containerd again whenever it ends, as systemd does.
type supervisor struct {
	mu     sync.Mutex
	starts int
	err    error
	stop   chan struct{}
	done   chan struct{}
}

func supervise(ctx context.Context, c *harness.Containerd) *supervisor {
	s := &supervisor{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		for {
			pid := strconv.Itoa(c.Process().PID())
			if err := os.WriteFile(filepath.Join(box.Temp, "containerd.pid"), []byte(pid), 0o600); err != nil {
				s.failed(err)
				return
			}
			select {
			case <-s.stop:
				return
			case <-c.Process().Done():
			}
			err := c.Start(ctx)
			if err != nil {
				s.failed(err)
				return
			}
			s.mu.Lock()
			s.starts++
			s.mu.Unlock()
		}
	}()
	return s
}

func (s *supervisor) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// count is how often it was started again.
func (s *supervisor) count() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.starts, s.err
}

func (s *supervisor) end() {
	close(s.stop)
	<-s.done
}
