// SPDX-License-Identifier: Apache-2.0

package opencl

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// node is a node with one simulated GPU, and a root file system in which all programs
// of this machine are, and those of OpenCL.
type node struct {
	*harnesstest.Node
	rootfs string
}

// start starts one; gate: with the layer that is installed, else with one whose gate
// never closes.
func start(t *testing.T, gate bool) node {
	t.Helper()
	if gate {
		return startWith(t, "")
	}
	return startWith(t, filepath.Join(filepath.Dir(built), "nogate", "libvgpu-opencl.so"))
}

// startWith starts one with another layer than the one that is installed, if it is named.
func startWith(t *testing.T, layer string) node {
	t.Helper()
	return startAs(t, layer, harness.DaemonOptions{})
}

// startAs is startWith, with more that is different.
func startAs(t *testing.T, layer string, o harness.DaemonOptions) node {
	t.Helper()
	o.OpenCLCPU = true
	paths, err := harness.DefaultPaths()
	if err != nil {
		t.Fatal(err)
	}
	paths.OpenCL = cmp.Or(layer, paths.OpenCL)
	n := harnesstest.StartFrom(t, paths, busybox, harness.Options{Version: harness.Containerd24, Daemon: o})
	overlay, err := n.Overlay()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"etc", "usr"} {
		if err := overlay.Above(tools, dir); err != nil {
			t.Fatal(err)
		}
	}
	return node{n, overlay.Rootfs}
}

// launch starts a program in a container that stays when the program has ended, so that
// vgpud can be asked for its last numbers.
func (n node) launch(s harness.Spec) *harness.Container {
	n.T.Helper()
	const script = `"$@" 2>&1; echo "exit status $?"; exec sleep 1000000`
	s.Args = append([]string{"/bin/sh", "-c", script, "sh"}, s.Args...)
	s.Rootfs = n.rootfs
	// What was compiled once serves every container and every run; what else a program
	// writes is its container's own.
	s.Env = append([]string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/built", "POCL_CACHE_DIR=/built/pocl", "XDG_CACHE_HOME=/built/cache",
		"XDG_DATA_HOME=/tmp/" + s.ID, "PYTHONDONTWRITEBYTECODE=1",
	}, s.Env...)
	s.Mounts = append(s.Mounts, fmt.Sprintf("type=bind,src=%s,dst=/built,options=rbind:rw", built))
	return n.Launch(s)
}

var exitStatus = regexp.MustCompile(`(?m)^exit status (\d+)\n`)

// exits waits for the end of the program in a container that launch has started, and
// returns the output of a success.
func (n node) exits(c *harness.Container) (output string) {
	n.T.Helper()
	n.Wait(func() error {
		text := c.Output()
		at := exitStatus.FindStringSubmatchIndex(text)
		if at == nil {
			return fmt.Errorf("the program in container %s still runs; its output:\n%s", c.ID, text)
		}
		output = text[:at[0]]
		if status := text[at[2]:at[3]]; status != "0" {
			n.T.Fatalf("the program in container %s ended with status %s:\n%s", c.ID, status, output)
		}
		return nil
	})
	return output
}

// listed is what vgpu ps shows of a vGPU.
type listed struct {
	Container struct{ ID string }
	State     string
	Clients   int
	Ungated   int
	Usage     struct {
		HeldNS      int64 `json:"held_ns"`
		Turns       int
		Submissions int
	}
}

// ps is vgpu ps of one container.
func (n node) ps(c *harness.Container) (listed, error) {
	text, err := n.Daemon.CLI(n.Ctx, "ps", "--output", "json")
	if err != nil {
		return listed{}, err
	}
	var all []listed
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return listed{}, err
	}
	for _, one := range all {
		if one.Container.ID == c.ID {
			return one, nil
		}
	}
	return listed{}, fmt.Errorf("vgpu ps does not show %s: %s", c.ID, text)
}

// gone waits until vgpud knows that no client of a container lives, and returns its last
// numbers.
func (n node) gone(c *harness.Container) (last listed) {
	n.T.Helper()
	n.Wait(func() (err error) {
		if last, err = n.ps(c); err == nil && (last.Clients != 0 || last.State == "HOLDING" || last.State == "DRAINING") {
			err = fmt.Errorf("the vGPU is still in use: %+v", last)
		}
		return err
	})
	return last
}
