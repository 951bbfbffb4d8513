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

	"github.com/vgpu-shim/vgpu/hooks/driver/test/cases"
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

// notSymbolic builds the simulated driver as one whose internal calls of exported
// names go through the symbol table, and so to us; the path of it.
var notSymbolic = sync.OnceValues(func() (string, error) {
	out := filepath.Join(built, "simgpu-not-symbolic")
	lib := filepath.Join(out, "lib", "libcuda.so.999.10")
	args := []string{"-s", "-j2", "-C", simulator, "OUT=" + out, "SYMBOLIC=0", lib}
	return lib, run("make", append(args, tools.make...)...)
})

// newMachine creates a simulated machine with one GPU; options are simgpu create's.
func newMachine(t testing.TB, sim string, options ...string) (dir string, gpu [16]byte) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "machine")
	if out, err := command(append(append([]string{"simgpu/bin/simgpu", "create", "--gpus", "1"}, options...), dir)...).CombinedOutput(); err != nil {
		t.Fatalf("failed to create a machine: %v\n%s", err, out)
	}
	return dir, gpusOf(t, sim, dir)[0]
}

// gpusOf are the UUIDs of a machine's GPUs.
func gpusOf(t testing.TB, sim, machine string) (gpus [][16]byte) {
	t.Helper()
	cmd := command("sim-devices")
	cmd.Env = append(os.Environ(), "SIMGPU_MACHINE="+machine, "LD_LIBRARY_PATH="+filepath.Join(sim, "lib"))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n")[1:] {
		text, _, _ := strings.Cut(line, " ")
		raw, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
		if err != nil || len(raw) != 16 {
			t.Fatalf("no UUID in %q", out)
		}
		gpus = append(gpus, [16]byte(raw))
	}
	if len(gpus) == 0 {
		t.Fatalf("no GPU in %q", out)
	}
	return gpus
}

// stuck is how long a drain may take before it is resumed, and for how long.
const stuck = 20 * time.Millisecond

// shortTurns grants whoever waits, and revokes soon, until the client ends. A drain
// that does not end while a thread waits may need what that one submits: it is
// resumed for a while, as vgpud does.
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
	var drains, resumed time.Time // since when
	for {
		select {
		case _, ok := <-c.msgs:
			if !ok {
				return
			}
		case now := <-tick.C:
			if now.Sub(resumed) < stuck {
				break
			}
			switch {
			case !c.revoke() || c.page.Waiting().Load() == 0:
				drains = time.Time{}
			case drains.IsZero():
				drains = now
			case now.Sub(drains) > stuck && c.tryResume():
				drains, resumed = time.Time{}, now
			}
		}
		if c.state() == "CLOSED" && c.page.Waiting().Load() > 0 {
			n++
			c.page.Wanted().Store(1)
			c.grant()
			c.send(wire.Msg{Type: wire.Nudge})
		}
	}
}

// No program is forgotten.
func TestEachProgramOfTheSimulatedDriverIsListed(t *testing.T) {
	files, err := filepath.Glob(simulator + "/testdata/*.c")
	if err != nil || len(files) == 0 {
		t.Fatalf("no programs: %v", err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".c")
		if !slices.ContainsFunc(cases.Programs(), func(p cases.Program) bool { return p.Name == name }) {
			t.Errorf("%s is neither run nor said why not", name)
		}
	}
}

// The simulated driver's own tests, and numba, do not notice that the library
// stands in between and that their turns are as short as can be; nor if the
// driver calls itself by its exported names.
func TestProgramsOfTheSimulatedDriverDoNotNoticeUs(t *testing.T) {
	sim, err := simulated()
	if err != nil {
		t.Fatal(err)
	}
	other, err := notSymbolic()
	if err != nil {
		t.Fatal(err)
	}
	for _, driver := range []struct{ name, path string }{
		{"symbolic", filepath.Join(sim, "lib", "libcuda.so.999.10")},
		{"not symbolic", other},
	} {
		for _, test := range cases.Programs() {
			if test.NotHere != "" {
				continue
			}
			t.Run(driver.name+"/"+test.Name, func(t *testing.T) {
				t.Parallel()
				runOwn(t, test, sim, driver.path)
			})
		}
	}
}

func runOwn(t *testing.T, test cases.Program, sim, driver string) {
	kernels, err := filepath.Abs("../../../integration/kernels")
	if err != nil {
		t.Fatal(err)
	}
	numba, err := filepath.Abs(simulator + "/testdata/numba_client.py")
	if err != nil {
		t.Fatal(err)
	}
	a := newArbiter(t)
	machine, _ := newMachine(t, sim, append([]string{"--memory", "256Mi"}, test.Machine...)...)
	a.gpus = gpusOf(t, sim, machine)
	install(t, driver, filepath.Join(a.dir, "libcuda.so"))
	n := max(test.Processes, 1)
	turns := make(chan int, n)
	t.Cleanup(func() {
		for range n {
			t.Logf("%d turns", <-turns)
		}
	})
	for range n {
		go shortTurns(a, turns)
	}
	args := append([]string{filepath.Join(built, "sim-"+test.Name), kernels}, test.Args...)
	if test.Name == "numba" {
		args = []string{"/usr/bin/python3", numba, kernels}
	}
	p := startIn(t, a, append(test.Env, "SIMGPU_MACHINE="+machine, "NUMBA_CUDA_DRIVER=/vgpulib/libcuda.so.1"), args...)
	said := ""
	for line := p.Line(); line != ""; line = p.Line() {
		said += line + "\n"
	}
	if err := p.Cmd.Wait(); err != nil {
		t.Fatalf("%v; stderr:\n%s", err, p.Stderr)
	}
	if !strings.HasPrefix(said, test.Says) {
		t.Errorf("the program said %q, want %q", said, test.Says)
	}
}
