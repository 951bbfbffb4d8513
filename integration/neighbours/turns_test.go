// SPDX-License-Identifier: Apache-2.0

package neighbours

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/vgpu-shim/vgpu/integration/harness"
	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// client is a command line that starts containers, as docker's does.
type client struct {
	n         *node
	namespace string // of containerd, in which its containers are
	command   []string
	env       []string
}

// run runs a command of it, and returns its stdout; what it says on stderr is in the
// error of a failure.
func (c client) run(args ...string) (string, error) {
	cmd := exec.CommandContext(c.n.Ctx, c.command[0], append(c.command[1:], args...)...)
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + c.n.Dir}, c.env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s%s", strings.Join(cmd.Args, " "), err, out, &stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// must is run of what has to succeed.
func (c client) must(args ...string) string {
	c.n.T.Helper()
	out, err := c.run(args...)
	if err != nil {
		c.n.T.Fatal(err)
	}
	return out
}

// start starts a container that computes for ever.
func (c client) start(name string, flags ...string) *harness.Container {
	c.n.T.Helper()
	args := append([]string{"run", "--detach", "--name", name, "--network", "none"}, flags...)
	c.must(append(append(args, image), forEver...)...)
	c.n.T.Cleanup(func() {
		if _, err := c.run("rm", "--force", name); err != nil && !strings.Contains(strings.ToLower(err.Error()), "no such container") {
			c.n.T.Error(err)
		}
	})
	var id string
	var pid int
	if _, err := fmt.Sscan(c.must("inspect", "--format", "{{.Id}} {{.State.Pid}}", name), &id, &pid); err != nil {
		c.n.T.Fatal(err)
	}
	found, err := c.n.Containerd.Found(c.namespace, id, pid)
	if err != nil {
		c.n.T.Fatal(err)
	}
	return found
}

// mainJob starts two containers with the flags of each: they compute in turns, what
// is executed in one has its vGPU, and each is killed and removed. It returns their
// vGPUs.
func (c client) mainJob(one, two []string) (vgpus []*v1.VGPU) {
	c.n.T.Helper()
	both := []*harness.Container{c.start("one", one...), c.start("two", two...)}
	tenants := c.n.Tenants(both...)
	ids := c.n.VGPUIDs(tenants)
	for _, b := range both {
		v, err := c.n.VGPU(b.ID)
		if err != nil {
			c.n.T.Fatal(err)
		}
		vgpus = append(vgpus, v)
		c.n.ours(b)
	}
	c.n.GoOn(tenants, nil)
	for _, name := range []string{"one", "two"} {
		if out := c.must("exec", name, "vecadd"); !strings.Contains(out, `"ok":true`) {
			c.n.T.Errorf("exec in %s: %s", name, out)
		}
	}
	c.n.GoOn(tenants, c.n.Submissions())
	for _, name := range []string{"one", "two"} {
		c.must("kill", name)
		if status := c.must("wait", name); status != "137" {
			c.n.T.Errorf("container %s ended with status %s, want 137", name, status)
		}
		c.must("rm", name)
	}
	c.n.NoOverlap()
	c.n.InTurns(ids)
	if out := c.must(append(append([]string{"run", "--rm", "--network", "none"}, one...), image, "vecadd")...); !strings.Contains(out, `"ok":true`) {
		c.n.T.Errorf("a container that is not detached says: %s", out)
	}
	return vgpus
}

// ours fails the test if the shim of a container is not our program.
func (n *node) ours(c *harness.Container) {
	n.T.Helper()
	pid, err := c.ShimPID()
	if err != nil {
		n.T.Fatal(err)
	}
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || !strings.HasSuffix(program, "/"+harness.ShimProgram) {
		n.T.Errorf("the shim of container %s is %s (%v), want ours", c.ID, program, err)
	}
}
