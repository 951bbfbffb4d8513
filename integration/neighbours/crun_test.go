// SPDX-License-Identifier: Apache-2.0

package neighbours

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// crun does for a container with a vGPU what runc does, however it was chosen.
func TestCrun(t *testing.T) {
	t.Parallel()
	for v, program := range map[harness.Version]string{
		// Debian 12's crun takes no configuration that a containerd 2 has made.
		harness.Containerd16: "debian/crun/usr/bin/crun",
		harness.Containerd24: "debian/crun-1.21/bin/crun",
	} {
		run := func(name string, spec func(*node, crun) harness.Spec) {
			t.Run("containerd "+string(v)+"/"+name, func(t *testing.T) {
				n := startRenamed(t, harness.Options{Version: v})
				r := crun{n.oneKindOfCgroups(n.tool(program))}
				r.mainJob(n, spec(n, r))
			})
		}
		// Such options name a file, which is then all the configuration there is.
		run("by runtime options", func(n *node, r crun) harness.Spec {
			file := filepath.Join(n.T.TempDir(), "crun.toml")
			if err := os.WriteFile(file, fmt.Appendf(nil, "address = %q\n%s", n.Daemon.Socket, r.chosen()), 0o600); err != nil {
				n.T.Fatal(err)
			}
			return harness.Spec{Extra: []string{"--runtime-config-path", file}}
		})
		run("by runc's own options", func(_ *node, r crun) harness.Spec {
			return harness.Spec{
				Runtime: harness.RuncRuntime, Extra: []string{"--runc-binary", r.program},
				Annotations: map[string]string{"vgpu-shim.dev/gpus": "1"},
			}
		})
		run("by the handler's configuration", func(n *node, r crun) harness.Spec {
			n.handler(r.chosen())
			return harness.Spec{}
		})
	}
}

// oneKindOfCgroups makes of a program one that sees no control groups of version 2
// beside those of version 1: where both have controllers, crun refuses to work.
func (n *node) oneKindOfCgroups(program string) string {
	n.T.Helper()
	const both = "/sys/fs/cgroup/unified"
	controllers, err := os.ReadFile(filepath.Join(both, "cgroup.controllers"))
	if err != nil || len(controllers) == 0 {
		return program
	}
	script := filepath.Join(n.T.TempDir(), filepath.Base(program))
	text := fmt.Sprintf("#!/bin/sh\nexec unshare --mount --propagation slave sh -c 'umount %s; exec %s \"$@\"' sh \"$@\"\n", both, program)
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		n.T.Fatal(err)
	}
	return script
}

// crun is a program of that name.
type crun struct{ program string }

// chosen is what chooses it in the configuration of the shim.
func (r crun) chosen() string { return fmt.Sprintf("[runc]\nbinary_name = %q\n", r.program) }

// mainJob runs two such containers at once: they compute in turns, what is executed
// in one has its vGPU, and each is killed and deleted.
func (r crun) mainJob(n *node, s harness.Spec) {
	n.T.Helper()
	s.Args = forEver
	first, second := s, s
	first.ID, second.ID = "one", "two"
	tenants := n.Tenants(n.Launch(first), n.Launch(second))
	ids := n.VGPUIDs(tenants)
	n.GoOn(tenants, nil)
	for _, c := range tenants {
		if got := r.status(n, c); got != "running" {
			n.T.Errorf("crun says that container %s is %q, want running", c.ID, got)
		}
		if out, err := c.Exec(n.Ctx, "/vgpu/vecadd"); err != nil {
			n.T.Errorf("%v: %s", err, out)
		}
	}
	n.GoOn(tenants, n.Submissions())
	for _, c := range tenants {
		if err := c.Kill(n.Ctx, syscall.SIGKILL); err != nil {
			n.T.Fatal(err)
		}
		limited, cancel := context.WithTimeout(n.Ctx, harnesstest.Patience)
		status, err := c.Wait(limited)
		cancel()
		if err != nil || status != 128+int(syscall.SIGKILL) {
			n.T.Errorf("container %s: status %d, %v", c.ID, status, err)
		}
		if got := r.status(n, c); got != "" {
			n.T.Errorf("crun says that container %s is %q, though it was deleted", c.ID, got)
		}
	}
	n.NoOverlap()
	n.InTurns(ids)
}

// status asks crun for that of a container; it is empty if crun has none of that
// id.
func (r crun) status(n *node, c *harness.Container) string {
	n.T.Helper()
	// Where the shim keeps the runtime's state.
	root := filepath.Join("/run/containerd/runc", n.Containerd.Namespace)
	out, err := exec.CommandContext(n.Ctx, r.program, "--root", root, "list", "--format", "json").Output()
	if err != nil {
		n.T.Fatal(err)
	}
	var all []struct{ ID, Status string }
	if err := json.Unmarshal(out, &all); err != nil {
		n.T.Fatalf("%v: %s", err, out)
	}
	for _, one := range all {
		if one.ID == c.ID {
			return one.Status
		}
	}
	return ""
}
