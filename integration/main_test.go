// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// patience bounds every wait for something that should happen soon.
const patience = 60 * time.Second

// The longest that vgpud takes in its configuration: a drain deadline that is
// beyond patience, and a quantum.
const (
	longest        = 5 * time.Minute
	longestQuantum = 10 * time.Second
)

// rootfs is the root file system that the tests' containers share; it is made
// once and holds nothing of ours but CUDA programs.
var rootfs string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("/tmp", "vgpu-rootfs-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		paths, err := harness.DefaultPaths()
		if err == nil {
			rootfs = filepath.Join(dir, "r")
			err = harness.BusyboxRootfs(paths, rootfs)
		}
		if err == nil {
			// Containers' users that are not root pass through here.
			err = os.Chmod(dir, 0o755)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "the integration tests can not run:", err)
			return 1
		}
		return m.Run()
	}())
}

// node is a harness.Node for one test; what goes wrong with it fails the test.
type node struct {
	*harness.Node
	t   *testing.T
	ctx context.Context
}

// start starts a Node that is checked for what was left behind, and ended, when
// the test is over.
func start(t *testing.T, o harness.Options) *node {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	paths, err := harness.DefaultPaths()
	if err != nil {
		t.Fatal(err)
	}
	n, err := harness.Start(ctx, paths, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Containerd.RemoveAll(ctx); err != nil {
			t.Error(err)
		}
		if err := n.CheckLeaks(ctx); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("end of containerd's log:\n%s", n.Containerd.Process().Tail())
			if n.Daemon != nil {
				t.Logf("end of vgpud's log:\n%s", n.Daemon.Process().Tail())
			}
		}
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return &node{n, t, ctx}
}

// versions runs a test under each supported containerd.
func versions(t *testing.T, test func(t *testing.T, v harness.Version)) {
	for _, v := range harness.Versions() {
		t.Run("containerd "+string(v), func(t *testing.T) { test(t, v) })
	}
}

// launch starts a container from the shared root file system.
func (n *node) launch(s harness.Spec) *harness.Container {
	n.t.Helper()
	if s.Rootfs == "" {
		s.Rootfs = rootfs
	}
	c, err := n.Containerd.Launch(n.ctx, s)
	if err != nil {
		n.t.Fatal(err)
	}
	return c
}

// run runs "id ARGS..." to its end and returns the output of a success.
func (n *node) run(s harness.Spec) string {
	n.t.Helper()
	return n.finish(n.launch(s))
}

// finish waits for the end of a container and returns the output of a success.
func (n *node) finish(c *harness.Container) string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.ctx, patience)
	defer cancel()
	status, err := c.Wait(ctx)
	if err != nil || status != 0 {
		n.t.Fatalf("container %s: status %d, error %v, output:\n%s", c.ID, status, err, c.Output())
	}
	return c.Output()
}

// wait waits until f returns nil.
func (n *node) wait(f func() error) {
	n.t.Helper()
	if err := harness.Eventually(n.ctx, patience, f); err != nil {
		n.t.Fatal(err)
	}
}

// says waits until the container has printed a line.
func (n *node) says(c *harness.Container, line string) {
	n.t.Helper()
	n.wait(func() error {
		if strings.Contains("\n"+c.Output(), "\n"+line+"\n") {
			return nil
		}
		if c.Ended() {
			n.t.Fatalf("container %s ended without saying %q: %s", c.ID, line, c.Output())
		}
		return fmt.Errorf("container %s has not said %q yet", c.ID, line)
	})
}

// vgpu asks vgpud for the vGPU of a container.
func (n *node) vgpu(id string) (*v1.VGPU, error) {
	all, err := n.Daemon.VGPUs(n.ctx)
	if err != nil {
		return nil, err
	}
	for _, v := range all {
		if v.GetContainer().GetId() == id {
			return v, nil
		}
	}
	return nil, fmt.Errorf("no vGPU of container %s", id)
}

// in waits until the vGPU of a container is in one of the states.
func (n *node) in(id string, states ...string) {
	n.t.Helper()
	n.wait(func() error {
		v, err := n.vgpu(id)
		if err != nil {
			return err
		}
		for _, s := range states {
			if v.GetState() == s {
				return nil
			}
		}
		return fmt.Errorf("the vGPU of container %s is %s, not yet %v", id, v.GetState(), states)
	})
}

// noOverlap fails the test if work of two tenants was in flight at once, or if
// the log can not tell.
func (n *node) noOverlap() harness.Overlap {
	n.t.Helper()
	o, err := n.Daemon.Overlap(n.ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	if o.OverlapNS != 0 || o.Pairs != 0 || o.Lost != 0 {
		n.t.Errorf("the simulated GPU saw work of two tenants at once: %+v", o)
	}
	return o
}

// lastJSON reads the last line of a program's output.
func lastJSON(t *testing.T, output string, into any) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(output), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), into); err != nil {
		t.Fatalf("failed to read %q: %v", output, err)
	}
}

var errNotYet = errors.New("not yet")
