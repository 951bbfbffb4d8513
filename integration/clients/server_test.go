// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// workers is how many gunicorn.conf.py asks for.
const workers = 32

// A pre-fork server whose workers all initialise CUDA at once, after the fork:
// each answers, and none is killed for being late. The library of the driver is
// loaded before the fork, too, where the application is.
func TestPreForkServer(t *testing.T) {
	c := newCrowd(t)
	const does = "32 workers initialise CUDA after the fork, and add vectors at each request"
	c.serve("plain", row{Client: "gunicorn", Does: does})
	c.serve("preload", row{Client: "gunicorn --preload", Does: does}, "--preload")
	c.meet()
	for _, m := range c.members {
		if pids := c.ask(m, "meet").Before; len(pids) != workers {
			t.Errorf("%s: %d workers answer, want %d", m.ID, len(pids), workers)
		}
	}
	for _, m := range c.members {
		c.shutDown(m)
	}
	c.judge()
}

// Workers that are replaced while requests run fail none of them, and leave
// nothing behind in the vGPU.
func TestPreForkServerReloads(t *testing.T) {
	c := newCrowd(t)
	server := c.serve("server", row{})
	beside := c.add(harness.Spec{ID: "beside", Args: []string{"/clients/linked"}}, 1, row{})
	c.meet()
	asked := c.ask(server, "reload")
	if len(asked.Before) != workers || len(asked.After) != workers || asked.Asked < 16 {
		t.Errorf("%d workers have answered, %d requests later %d, want %d", len(asked.Before), asked.Asked, len(asked.After), workers)
	}
	for _, pid := range asked.After {
		if slices.Contains(asked.Before, pid) {
			t.Errorf("worker %d has not been replaced", pid)
		}
	}
	c.Wait(func() error {
		v, err := ps(c.Node, server.ID)
		if err == nil && v.Clients != workers {
			err = fmt.Errorf("vgpu ps shows %d clients, not yet %d", v.Clients, workers)
		}
		return err
	})
	c.right(beside)
	c.shutDown(server)
	c.judge()
}

// serve starts gunicorn with app.py.
func (c *crowd) serve(id string, r row, flags ...string) *member {
	c.T.Helper()
	return c.add(harness.Spec{
		ID:     id,
		Args:   append([]string{"/usr/bin/python3", "-m", "gunicorn", "--config", "/clients/gunicorn.conf.py", "--chdir", "/clients"}, flags...),
		Env:    []string{"PYTHONPATH=/gunicorn", "PYTHONDONTWRITEBYTECODE=1"},
		Mounts: []string{readOnly(filepath.Join(c.Paths.Tools, "gunicorn"), "/gunicorn")},
	}, workers, r)
}

// asked is what ask.py prints.
type asked struct {
	Before, After []int // pids
	Asked         int
}

// ask runs ask.py in the container of a server.
func (c *crowd) ask(m *member, what string) (a asked) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.Ctx, harnesstest.Patience)
	defer cancel()
	out, err := m.Exec(ctx, "/usr/bin/python3", "/clients/ask.py", what, "t-"+m.ID, fmt.Sprint(workers))
	if err != nil {
		c.T.Fatalf("%v\n%s\n%s says:\n%s", err, out, m.ID, m.Output())
	}
	harnesstest.LastJSON(c.T, out, &a)
	return a
}

// shutDown ends a server, which must not have had anything to complain of.
func (c *crowd) shutDown(m *member) {
	c.T.Helper()
	if out, err := m.Exec(c.Ctx, "/bin/sh", "-c", "kill -TERM $(cat /dev/shm/gunicorn.pid)"); err != nil {
		c.T.Fatalf("%v: %s", err, out)
	}
	output := exits(c.Node, m.Container)
	for _, bad := range []string{"WORKER TIMEOUT", "SIGKILL", "Traceback", "[ERROR]"} {
		if strings.Contains(output, bad) {
			c.T.Errorf("%s says %q:\n%s", m.ID, bad, output)
		}
	}
	_, after, _ := strings.Cut(output, "Starting gunicorn ")
	m.row.Version, _, _ = strings.Cut(after, "\n")
}
