// SPDX-License-Identifier: Apache-2.0

// Package harnesstest is package harness for tests: what goes wrong fails the
// test, and a Node is ended, and checked for what was left behind, when its test
// is over.
//
// Methods of Node must be called from the goroutine of the test.
package harnesstest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// Patience bounds every wait for something that should happen soon.
const Patience = 60 * time.Second

// Main runs the tests of a package. Before, it makes a root file system of
// busybox and the repository's CUDA programs, and tells where it is: containers
// of all tests share it.
func Main(m *testing.M, rootfs *string) int {
	dir, err := os.MkdirTemp("/tmp", "vgpu-rootfs-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	paths, err := harness.DefaultPaths()
	if err == nil {
		*rootfs = filepath.Join(dir, "r")
		err = harness.BusyboxRootfs(paths, *rootfs)
	}
	if err == nil {
		// Containers' users that are not root pass through here.
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the tests can not run:", err)
		return 1
	}
	return m.Run()
}

// Node is a harness.Node for one test.
type Node struct {
	*harness.Node
	T   *testing.T
	Ctx context.Context

	rootfs string
}

// Start starts a Node. Its containers have the given root file system if they ask
// for none.
func Start(t *testing.T, rootfs string, o harness.Options) *Node {
	t.Helper()
	paths, err := harness.DefaultPaths()
	if err != nil {
		t.Fatal(err)
	}
	return StartFrom(t, paths, rootfs, o)
}

// StartFrom is Start with programs and libraries from elsewhere.
func StartFrom(t *testing.T, paths harness.Paths, rootfs string, o harness.Options) *Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
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
	return &Node{n, t, ctx, rootfs}
}

// StartRenamed is Start with our shim under the name of runc's, too, where
// containerd looks first: as where it was installed in that one's place.
func StartRenamed(t *testing.T, rootfs string, o harness.Options) *Node {
	t.Helper()
	paths, err := harness.DefaultPaths()
	if err != nil {
		t.Fatal(err)
	}
	built := paths.Bin
	paths.Bin = t.TempDir()
	for name, program := range map[string]string{
		"vgpu": "vgpu", "vgpud": "vgpud",
		harness.ShimProgram: harness.ShimProgram, "containerd-shim-runc-v2": harness.ShimProgram,
	} {
		if err := os.Symlink(filepath.Join(built, program), filepath.Join(paths.Bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return StartFrom(t, paths, rootfs, o)
}

// Sub is the Node for a subtest.
func (n *Node) Sub(t *testing.T) *Node { return &Node{n.Node, t, n.Ctx, n.rootfs} }

// Versions runs a test under each supported containerd.
func Versions(t *testing.T, test func(t *testing.T, v harness.Version)) {
	under(t, harness.Versions(), test)
}

// VersionsWithCRI is Versions with those that have CRI.
func VersionsWithCRI(t *testing.T, test func(t *testing.T, v harness.Version)) {
	under(t, harness.VersionsWithCRI(), test)
}

func under(t *testing.T, versions []harness.Version, test func(t *testing.T, v harness.Version)) {
	for _, v := range versions {
		t.Run("containerd "+string(v), func(t *testing.T) { test(t, v) })
	}
}

// Launch starts a container.
func (n *Node) Launch(s harness.Spec) *harness.Container {
	n.T.Helper()
	if s.Rootfs == "" {
		s.Rootfs = n.rootfs
	}
	c, err := n.Containerd.Launch(n.Ctx, s)
	if err != nil {
		n.T.Fatal(err)
	}
	return c
}

// Run runs "id ARGS..." to its end and returns the output of a success.
func (n *Node) Run(s harness.Spec) string {
	n.T.Helper()
	return n.Finish(n.Launch(s))
}

// Finish waits for the end of a container and returns the output of a success.
func (n *Node) Finish(c *harness.Container) string {
	n.T.Helper()
	ctx, cancel := context.WithTimeout(n.Ctx, Patience)
	defer cancel()
	status, err := c.Wait(ctx)
	if err != nil || status != 0 {
		n.T.Fatalf("container %s: status %d, error %v, output:\n%s", c.ID, status, err, c.Output())
	}
	return c.Output()
}

// Wait waits until f returns nil.
func (n *Node) Wait(f func() error) {
	n.T.Helper()
	if err := harness.Eventually(n.Ctx, Patience, f); err != nil {
		n.T.Fatal(err)
	}
}

// Says waits until the container has printed a line.
func (n *Node) Says(c *harness.Container, line string) {
	n.T.Helper()
	n.Wait(func() error {
		if strings.Contains("\n"+c.Output(), "\n"+line+"\n") {
			return nil
		}
		if c.Ended() {
			n.T.Fatalf("container %s ended without saying %q: %s", c.ID, line, c.Output())
		}
		return fmt.Errorf("container %s has not said %q yet", c.ID, line)
	})
}

// LastJSON reads the last line of a program's output.
func LastJSON(t *testing.T, output string, into any) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(output), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), into); err != nil {
		t.Fatalf("failed to read %q: %v", output, err)
	}
}
