// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// crowd is a Node with containers whose processes all compute at the same time.
// Each does a first sum and comes to a meeting, as adder.h says.
type crowd struct {
	*harnesstest.Node
	rootfs   string // with all programs of this machine
	programs string // of testdata/processes, built
	members  []*member
}

// member is a container of a crowd.
type member struct {
	*harness.Container
	row      row
	clients  int    // processes that compute
	coming   int    // who comes to the meeting: processes, or threads of one
	meeting  string // directory
	finished string // what it has said at its end
}

// programs builds testdata/processes, once for all tests; make knows what is current.
var programs = sync.OnceValues(func() (string, error) {
	paths, err := harness.DefaultPaths()
	if err != nil {
		return "", err
	}
	out := filepath.Join(paths.Root, "build", "clients")
	if b, err := exec.Command("make", "-C", "testdata/processes", "OUT="+out).CombinedOutput(); err != nil {
		return "", fmt.Errorf("make: %w\n%s", err, b)
	}
	return out, nil
})

func newCrowd(t *testing.T) *crowd {
	t.Helper()
	built, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	n := harnesstest.Start(t, busybox, harness.Options{
		Version: harness.Containerd24,
		// Contexts of real size, of so many processes, would not fit on the GPU.
		Daemon: harness.DaemonOptions{LogLevel: "trace", ContextMemory: "16Mi"},
	})
	return &crowd{Node: n, rootfs: host(n), programs: built}
}

// add starts a container in which so many processes compute, each once.
func (c *crowd) add(s harness.Spec, clients int, r row) *member {
	c.T.Helper()
	m := &member{row: r, clients: clients, coming: clients, meeting: c.T.TempDir()}
	if err := os.Chmod(m.meeting, 0o1777); err != nil { // for users who are not root, too
		c.T.Fatal(err)
	}
	m.row.Rootfs = "host"
	if s.Rootfs == "" {
		s.Rootfs = c.rootfs
	} else {
		m.row.Rootfs = "musl"
	}
	s.Mounts = append(s.Mounts, readOnly(c.programs, "/clients"), "type=bind,src="+m.meeting+",dst=/meeting,options=rbind:rw")
	m.Container = launch(c.Node, s)
	c.members = append(c.members, m)
	return m
}

// gather waits until all have computed and are clients of their vGPUs.
func (c *crowd) gather() {
	c.T.Helper()
	for _, m := range c.members {
		c.Wait(func() error { return c.here(m) })
	}
}

// meet waits until all are there, and has them go on together.
func (c *crowd) meet() {
	c.T.Helper()
	c.gather()
	for _, m := range c.members {
		if err := os.WriteFile(filepath.Join(m.meeting, "now"), nil, 0o644); err != nil {
			c.T.Fatal(err)
		}
	}
}

// here tells whether all of a container have come to the meeting.
func (c *crowd) here(m *member) error {
	if end := exitStatus.FindString(m.Output()); end != "" {
		c.T.Fatalf("container %s has ended before the meeting: %s", m.ID, m.Output())
	}
	come, err := os.ReadDir(m.meeting)
	if err != nil {
		return err
	}
	v, err := ps(c.Node, m.ID)
	if err == nil && (len(come) != m.coming || v.Clients != m.clients) {
		err = fmt.Errorf("container %s: %d of %d have computed, vgpu ps shows %d clients of %d; it says %s",
			m.ID, len(come), m.coming, v.Clients, m.clients, m.Output())
	}
	return err
}

// right waits for the end of a container's program, which must have been right.
func (c *crowd) right(m *member) {
	c.T.Helper()
	m.finished = exits(c.Node, m.Container)
	c.checked(m, m.finished)
}

// said is the line with which the programs end.
type said struct {
	OK      bool
	Version string
	UID     int
}

// checked reads that line.
func (c *crowd) checked(m *member, output string) (s said) {
	c.T.Helper()
	harnesstest.LastJSON(c.T, output, &s)
	if !s.OK {
		c.T.Errorf("a program in container %s says %s", m.ID, output)
	}
	if s.Version != "" {
		m.row.Version = s.Version
	}
	return s
}

// judge checks, when all have ended, that they took turns, and puts them into the
// table.
func (c *crowd) judge() {
	c.T.Helper()
	var containers []*harness.Container
	for _, m := range c.members {
		containers = append(containers, m.Container)
	}
	for i, gated := range inTurns(c.Node, containers...) {
		m := c.members[i]
		m.row.Gated = fmt.Sprint(gated)
		c.table(m, works)
	}
}

// table puts a member into the table, unless it is there only for the others.
func (c *crowd) table(m *member, result string) {
	c.T.Helper()
	if c.T.Failed() || m.row.Client == "" {
		return
	}
	m.row.Result = result
	ways.add(c.T, m.row)
}

// all has all programs that were added do their work, and judges them.
func (c *crowd) all() {
	c.T.Helper()
	c.meet()
	for _, m := range c.members {
		c.right(m)
	}
	c.judge()
}

// do runs a command on this machine.
func (c *crowd) do(args ...string) {
	c.T.Helper()
	if out, err := exec.CommandContext(c.Ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		c.T.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
