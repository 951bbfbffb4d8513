// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// answer is the line of JSON with which a client of ours in Python ends: the
// library's own version, and whether all values were right.
type answer struct {
	Version string
	OK      bool
	Devices int
}

// pythonSpec is a container with Debian's Python, the packages of .tools/PACKAGES
// (if not empty), and the PTX in /kernels, that runs a program of
// integration/workload.
func pythonSpec(n *harnesstest.Node, packages, program string, args ...string) harness.Spec {
	n.T.Helper()
	s := harness.Spec{
		Rootfs: host(n),
		Args:   append([]string{"/usr/bin/python3", "/workload/" + program}, args...),
		Env:    []string{"PYTHONDONTWRITEBYTECODE=1"},
		Mounts: []string{readOnly(filepath.Join(n.Paths.Root, "integration", "workload"), "/workload"), readOnly(n.Paths.Kernels, "/kernels")},
	}
	if packages != "" {
		// Python reads files such as numba-cuda's *.pth in a user's own site-packages,
		// not in PYTHONPATH.
		s.Env = append(s.Env, "PYTHONUSERBASE=/packages")
		s.Mounts = append(s.Mounts, readOnly(filepath.Join(n.Paths.Tools, packages), "/packages/lib/python3.11/site-packages"))
	}
	return s
}

// python runs a program of integration/workload in two containers at once, and
// adds a row for it.
func python(t *testing.T, v harness.Version, r row, packages, program string, args ...string) {
	t.Helper()
	n := start(t, v)
	both := pair(n, pythonSpec(n, packages, program, args...))
	for _, one := range both {
		var said answer
		harnesstest.LastJSON(t, one.Output, &said)
		if !said.OK || said.Devices != 1 || (r.Version != "" && r.Version != said.Version) {
			t.Errorf("got %+v, want right values on one device: %s", said, one.Output)
		}
		r.Version = said.Version
	}
	if both[0].Gated != both[1].Gated {
		t.Errorf("the same work was submitted in %d and in %d pieces", both[0].Gated, both[1].Gated)
	}
	if t.Failed() {
		return
	}
	r.Rootfs, r.Gated, r.Result = "host", fmt.Sprint(both[0].Gated), works
	rows.add(t, r)
}
