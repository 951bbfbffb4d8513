// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// muslRootfs has no glibc. Its shell needs no library.
func (c *crowd) muslRootfs() string {
	c.T.Helper()
	dir := filepath.Join(c.T.TempDir(), "r")
	if err := harness.MuslRootfs(c.Paths, dir); err != nil {
		c.T.Fatal(err)
	}
	c.do("install", "-D", "/bin/busybox", filepath.Join(dir, "bin", "sh"))
	c.do("ln", "-s", "sh", filepath.Join(dir, "bin", "sleep"))
	return dir
}

// Programs find the driver in their own ways, all at once on one GPU.
func TestProgramsFindTheDriverInTheirOwnWays(t *testing.T) {
	c := newCrowd(t)
	for _, p := range []struct {
		how  string
		spec harness.Spec
	}{
		{"linked with -lcuda", harness.Spec{ID: "linked", Args: []string{"/clients/linked"}}},
		{"linked, and without any environment", harness.Spec{ID: "no-environment", Args: []string{"/usr/bin/env", "-i", "/clients/linked"}}},
		{"linked, with jemalloc by LD_PRELOAD", harness.Spec{ID: "jemalloc", Args: []string{"/clients/linked"}, Env: []string{"LD_PRELOAD=libjemalloc.so.2"}}},
		{"dlopen of libcuda.so.1", harness.Spec{ID: "soname", Args: []string{"/clients/adds", "libcuda.so.1"}}},
		{"dlopen of libcuda.so", harness.Spec{ID: "link-name", Args: []string{"/clients/adds", "libcuda.so"}}},
		{"dlopen of a path", harness.Spec{ID: "path", Args: []string{"/clients/adds", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"}}},
		{"dlopen with RTLD_DEEPBIND", harness.Spec{ID: "deepbind", Args: []string{"/clients/adds", "libcuda.so.1", "deep"}}},
		{"linked with musl, dlopen of libcuda.so.1", harness.Spec{ID: "musl", Rootfs: c.muslRootfs(), Args: []string{"/clients/musl", "libcuda.so.1"}}},
	} {
		c.add(p.spec, 1, row{Client: "C: " + p.how, Version: "-", Does: "sums of vectors"})
	}
	c.all()
	for _, m := range c.members {
		// The loader complains of what it can not preload, and goes on.
		if strings.Count(m.finished, "\n") != 1 {
			t.Errorf("%s also says %s", m.ID, m.finished)
		}
	}
}

// A program that finds no driver, or a stub, gets what it gets without us, and
// nothing of the GPU.
func TestProgramsWithoutADriverGetNoGPU(t *testing.T) {
	c := newCrowd(t)
	for _, p := range []struct {
		how, says string
		spec      harness.Spec
	}{
		{
			"linked, with the toolkit's stub in its RPATH", "cuInit: error 34", // CUDA_ERROR_STUB_LIBRARY
			harness.Spec{ID: "stub", Args: []string{"/clients/stubbed"}},
		},
		{
			"static, with musl", "Dynamic loading not supported",
			harness.Spec{ID: "static", Rootfs: c.muslRootfs(), Args: []string{"/clients/static-musl", "libcuda.so.1"}},
		},
	} {
		m := c.add(p.spec, 0, row{Client: "C: " + p.how, Version: "-", Does: "sums of vectors", Gated: "-"})
		output, status := exitsWith(c.Node, m.Container)
		if strings.TrimSpace(output) != p.says || status != "1" {
			t.Errorf("%s ended with status %s: %s", m.ID, status, output)
		}
		c.table(m, refused+p.says)
	}
	if o := c.NoOverlap(); o.Submissions != 0 {
		t.Errorf("the simulated GPU has seen %+v", o)
	}
}

// A program with a copy of the driver of its own goes around the gate, and is
// named for it; its neighbours are not.
func TestACopyOfTheDriverIsReported(t *testing.T) {
	c := newCrowd(t)
	for _, id := range []string{"one", "another"} {
		c.add(harness.Spec{ID: id, Args: []string{"/clients/linked"}}, 1, row{})
	}
	c.gather()
	if found := c.unmanaged(); len(found) != 0 {
		t.Errorf("before: %q", found)
	}
	copied := c.add(harness.Spec{ID: "copied", Args: []string{"/clients/private"}}, 0,
		row{Client: "C: linked, with a copy of the driver in its RPATH", Version: "-", Does: "sums of vectors", Gated: "-"})
	copied.coming = 1
	c.gather()
	found := c.unmanaged()
	if len(found) != 1 || !strings.Contains(found[0], `("private", `) || !strings.Contains(found[0], "/copied") {
		t.Errorf("vgpu doctor names %q, want the program private of container copied", found)
	}
	c.meet()
	for _, m := range c.members {
		c.right(m)
	}
	c.table(copied, unmanaged)
}

// unmanaged are the processes that vgpu doctor finds on a GPU and that are clients
// of no vGPU.
func (c *crowd) unmanaged() (found []string) {
	c.T.Helper()
	// Its exit code says that there are faults, with a reason.
	out, _ := c.Daemon.CLI(c.Ctx, "doctor", "--no-container", "--output", "json")
	var all []struct{ Check, Result, Detail string }
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		c.T.Fatalf("%v\n%s", err, out)
	}
	for _, f := range all {
		if f.Check == "processes" && f.Result != "ok" {
			found = append(found, f.Detail)
		}
	}
	return found
}
