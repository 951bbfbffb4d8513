// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/integration/simgpu/simbuild"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

const simulator = "../../../integration/simgpu"

// simulated builds the simulated driver and its own test programs, once.
var simulated = sync.OnceValues(func() (string, error) {
	out := filepath.Join(built, "simgpu")
	if err := simbuild.Into(out, "../../..", tools.kind, tools.make...); err != nil {
		return "", err
	}
	programs, err := filepath.Glob(simulator + "/testdata/*.c")
	if err != nil {
		return "", err
	}
	for _, p := range programs {
		args := append(slices.Clone(tools.cflags),
			"-std=gnu11", "-O1", "-I", "..", "-pthread", "-o", filepath.Join(built, "sim-"+strings.TrimSuffix(filepath.Base(p), ".c")),
			p, filepath.Join(out, "lib", "libcuda.so.999.10"), "-lm", "-ldl")
		args = append(args, strings.Fields(os.Getenv("VGPU_TEST_CFLAGS"))...)
		if err := run(tools.cc, args...); err != nil {
			return "", err
		}
	}
	return out, nil
})

// newMachine creates a simulated machine with one GPU; options are simgpu create's.
func newMachine(t testing.TB, sim string, options ...string) (dir string, gpu [16]byte) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "machine")
	if out, err := command(append(append([]string{"simgpu/bin/simgpu", "create", "--gpus", "1"}, options...), dir)...).CombinedOutput(); err != nil {
		t.Fatalf("failed to create a machine: %v\n%s", err, out)
	}
	cmd := command("sim-devices")
	cmd.Env = append(os.Environ(), "SIMGPU_MACHINE="+dir, "LD_LIBRARY_PATH="+filepath.Join(sim, "lib"))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(out), "\n")
	text, _, _ := strings.Cut(line, " ")
	raw, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err != nil || len(raw) != 16 {
		t.Fatalf("no UUID in %q", out)
	}
	return dir, [16]byte(raw)
}

// shortTurns grants whoever waits, and revokes soon, until the client ends.
func shortTurns(a *arbiter, turns chan<- int) {
	n := 0
	defer func() { turns <- n }()
	var c *client
	select {
	case c = <-a.clients:
	case <-a.t.Context().Done(): // it never called cuInit
		return
	}
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for {
		select {
		case _, ok := <-c.msgs:
			if !ok {
				return
			}
		case <-tick.C:
			c.revoke()
		}
		if c.state() == "CLOSED" && c.page.Waiting().Load() > 0 {
			n++
			c.page.Wanted().Store(1)
			c.grant()
			c.send(wire.Msg{Type: wire.Nudge})
		}
	}
}

// The simulated driver's own tests, and numba, do not notice that the library
// stands in between and that their turns are as short as can be. (All but "queue",
// which expects to fill the driver's own queue without being held.)
func TestProgramsOfTheSimulatedDriverDoNotNoticeUs(t *testing.T) {
	sim, err := simulated()
	if err != nil {
		t.Fatal(err)
	}
	kernels, err := filepath.Abs("../../../integration/kernels")
	if err != nil {
		t.Fatal(err)
	}
	numba, err := filepath.Abs(simulator + "/testdata/numba_client.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		args []string
		env  []string
		says string
	}{
		{name: "vecadd"},
		{name: "memory"},
		{name: "streams"},
		{name: "capture"},
		{name: "errors"},
		{name: "procaddr"},
		{name: "spin", args: []string{"20", "100"}},
		{name: "numba", env: []string{"NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM=0"}, says: "numba ok"},
		{name: "numba", env: []string{"NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM=1"}, says: "numba ok"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.name == "numba" && os.Getenv("VGPU_TEST_CFLAGS") != "" {
				t.Skip("the interpreter is built without the sanitizer")
			}
			a := newArbiter(t)
			machine, gpu := newMachine(t, sim)
			a.gpus = [][16]byte{gpu}
			install(t, filepath.Join(sim, "lib", "libcuda.so.999.10"), filepath.Join(a.dir, "libcuda.so"))
			turns := make(chan int, 1)
			t.Cleanup(func() { t.Logf("%d turns", <-turns) })
			go shortTurns(a, turns)
			args := append([]string{filepath.Join(built, "sim-"+test.name), kernels}, test.args...)
			if test.name == "numba" {
				args = []string{"/usr/bin/python3", numba, kernels}
			}
			p := startIn(t, a, append(test.env, "SIMGPU_MACHINE="+machine, "NUMBA_CUDA_DRIVER=/vgpulib/libcuda.so.1"), args...)
			said := ""
			for line := p.line(); line != ""; line = p.line() {
				said += line + "\n"
			}
			if err := p.cmd.Wait(); err != nil {
				t.Fatalf("%v; stderr:\n%s", err, p.stderr)
			}
			if !strings.HasPrefix(said, test.says) {
				t.Errorf("the program said %q, want %q", said, test.says)
			}
		})
	}
}
