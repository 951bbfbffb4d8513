// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// start starts a node with one simulated GPU, whose turns can be looked at.
func start(t *testing.T, v harness.Version) *harnesstest.Node {
	t.Helper()
	return harnesstest.Start(t, busybox, harness.Options{Version: v, Daemon: harness.DaemonOptions{LogLevel: "trace"}})
}

// host makes a root file system in which all programs of this machine are.
func host(n *harnesstest.Node) string {
	n.T.Helper()
	overlay, err := n.Overlay()
	if err != nil {
		n.T.Fatal(err)
	}
	return overlay.Rootfs
}

// readOnly is a mount of a directory of this machine, which may be on a file
// system that the overlay does not show.
func readOnly(from, to string) string {
	return fmt.Sprintf("type=bind,src=%s,dst=%s,options=rbind:ro", from, to)
}

// launch starts a client in a container that stays when the client has ended, so
// that vgpud can be asked for its last numbers. The root file system has a shell.
func launch(n *harnesstest.Node, s harness.Spec) *harness.Container {
	n.T.Helper()
	// One pipe, or what is said on the other can come after the status.
	const script = `exec 2>&1; "$@"; echo "exit status $?"; exec sleep 1000000`
	s.Args = append([]string{"/bin/sh", "-c", script, "sh"}, s.Args...)
	s.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, s.Env...)
	return n.Launch(s)
}

var exitStatus = regexp.MustCompile(`(?m)^exit status (\d+)\n`)

// exits waits for the end of the client in a container that launch has started,
// and returns the output of a success.
func exits(n *harnesstest.Node, c *harness.Container) string {
	n.T.Helper()
	output, status := exitsWith(n, c)
	if status != "0" {
		n.T.Fatalf("the client in container %s ended with status %s:\n%s", c.ID, status, output)
	}
	return output
}

// exitsWith waits for the end of a client, however it ends.
func exitsWith(n *harnesstest.Node, c *harness.Container) (output, status string) {
	n.T.Helper()
	n.Wait(func() error {
		text := c.Output()
		at := exitStatus.FindStringSubmatchIndex(text)
		if at == nil {
			return fmt.Errorf("the client in container %s still runs; its output:\n%s", c.ID, text)
		}
		output, status = text[:at[0]], text[at[2]:at[3]]
		return nil
	})
	return output, status
}
