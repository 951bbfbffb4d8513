// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// uploads are the records of uploads in the machine's log, and how many are over.
func uploads(t *testing.T, machine string) (all, over int) {
	t.Helper()
	out, err := command("simgpu/bin/simgpu", "log", machine).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")[1:] {
		f := strings.Split(line, "\t")
		if len(f) != 12 {
			t.Fatalf("a line of the log has %d fields: %q", len(f), line)
		}
		if f[8] == "cuGraphUpload" {
			all++
			if f[11] != "0" {
				over++
			}
		}
	}
	return all, over
}

// A graph that is uploaded as it is made does so within a turn: the call waits
// for the grant, and the turn is not over before the upload is.
func TestAnUploadThatComesWithAGraphIsWork(t *testing.T) {
	t.Parallel()
	sim, err := simulated()
	if err != nil {
		t.Fatal(err)
	}
	bin := compile(t, "upload", append(strings.Fields(os.Getenv("VGPU_TEST_CFLAGS")),
		"testdata/upload.c", filepath.Join(sim, "lib", "libcuda.so.999.10"), "-ldl")...)
	a := newArbiter(t)
	machine, gpu := newMachine(t, sim)
	a.gpus = [][16]byte{gpu}
	install(t, filepath.Join(sim, "lib", "libcuda.so.999.10"), filepath.Join(a.dir, "libcuda.so"))
	p := startIn(t, a, []string{"SIMGPU_MACHINE=" + machine}, bin)
	c := a.client()
	p.Expect("made without an upload")
	c.expect(wire.Pending)
	if all, _ := uploads(t, machine); all != 0 {
		t.Fatalf("%d uploads without a turn", all)
	}
	c.grant()
	p.Expect("uploading")
	if all, over := uploads(t, machine); all != 1 || over != 0 {
		t.Fatalf("%d uploads, %d over, want one that waits for its stream", all, over)
	}
	if !c.revoke() {
		t.Error("the turn was over with an upload in flight")
	}
	p.GoOn()
	c.until("the turn ends", func() bool { return c.state() == "CLOSED" })
	if _, over := uploads(t, machine); over != 1 {
		t.Error("the turn ended before the upload")
	}
	p.GoOn()
	p.Done()
}
