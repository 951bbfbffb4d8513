// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// What tests of what happens besides turns look at: vgpud's events, and the
// processes and cgroups of a container.

// sub is the Node for a subtest.
func (n *node) sub(t *testing.T) *node { return &node{n.Sub(t)} }

// event is a line of vgpu events --output json.
type event struct {
	Sequence  uint64
	Epoch     string
	Type      string
	VGPU      string
	Container struct{ Namespace, ID string }
	GPUs      []string
	Reason    string
	Policy    *struct{ Name string }
}

// events is a vgpu events that runs until the test is over.
type events struct {
	n       *node
	process *harness.Process
}

// follow starts to follow vgpud's events, from its first one on.
func (n *node) follow() *events { return n.followFrom("events", "--after", "0") }

// followFrom starts to follow vgpud's events, from where the flags say. Name is of
// its log.
func (n *node) followFrom(name string, flags ...string) *events {
	n.T.Helper()
	p, err := n.Daemon.Follow(name, append([]string{"events", "--output", "json"}, flags...)...)
	if err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() {
		if err := p.Stop(); err != nil {
			n.T.Error(err)
		}
	})
	return &events{n, p}
}

// all is what came so far.
func (e *events) all() []event {
	e.n.T.Helper()
	f, err := os.Open(e.process.Log)
	if err != nil {
		e.n.T.Fatal(err)
	}
	defer f.Close()
	var all []event
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var ev event
		if json.Unmarshal(lines.Bytes(), &ev) == nil && ev.Type != "" {
			all = append(all, ev)
		} // else what it says on stderr, or half a line
	}
	return all
}

// count is how many events of a type came for a container; an empty id stands
// for all of them.
func (e *events) count(kind, id string) int {
	e.n.T.Helper()
	n := 0
	for _, ev := range e.all() {
		if ev.Type == kind && (id == "" || ev.Container.ID == id) {
			n++
		}
	}
	return n
}

// wait waits until at least so many have come.
func (e *events) wait(kind, id string, least int) {
	e.n.T.Helper()
	e.n.Wait(func() error {
		if got := e.count(kind, id); got < least {
			return fmt.Errorf("%d events %s of %q came, not yet %d: %+v", got, kind, id, least, e.all())
		}
		return nil
	})
}

// child is the only child of a container's first process.
func (n *node) child(c *harness.Container) int {
	n.T.Helper()
	var pid int
	n.Wait(func() error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", c.PID, c.PID))
		if err != nil {
			return err
		}
		if _, err := fmt.Sscan(string(b), &pid); err != nil {
			return fmt.Errorf("container %s has no child yet: %w; its output: %s", c.ID, err, c.Output())
		}
		return nil
	})
	return pid
}

// frozen tells whether the cgroup of a process is frozen, by the kernel's word.
func frozen(pid int) (bool, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(b)) {
		// hierarchy:controllers:path, see cgroups(7)
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && parts[1] == "freezer" {
			state, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/freezer", parts[2], "freezer.state"))
			return strings.TrimSpace(string(state)) == "FROZEN", err
		}
	}
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			state, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", path, "cgroup.events"))
			return strings.Contains(string(state), "frozen 1"), err
		}
	}
	return false, errors.New("no cgroup freezer")
}

// becomes waits until a process is frozen, or is not.
func (n *node) becomes(pid int, want bool) {
	n.T.Helper()
	n.Wait(func() error {
		got, err := frozen(pid)
		if err == nil && got != want {
			err = fmt.Errorf("process %d: frozen is %v, not yet %v", pid, got, want)
		}
		return err
	})
}

// is returns a choice of one tenant for harness.Together.
func is(of ...harness.Tenant) func(harness.Tenant) bool {
	return func(t harness.Tenant) bool {
		for _, one := range of {
			if one == t {
				return true
			}
		}
		return false
	}
}

// tenant tells who a container is in the simulated GPU's log.
func (n *node) tenant(c *harness.Container) harness.Tenant {
	n.T.Helper()
	tenant, err := c.Tenant()
	if err != nil {
		n.T.Fatal(err)
	}
	return tenant
}

// cli runs the operator's command line.
func (n *node) cli(args ...string) string {
	n.T.Helper()
	out, err := n.Daemon.CLI(n.Ctx, args...)
	if err != nil {
		n.T.Fatal(err)
	}
	return out
}
