// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/integration/simgpu/simbuild"
)

// built is where TestMain put the libraries, the tool and the test programs.
var built struct{ root, kernels string }

// TestMain builds once, with the Makefile that everybody uses.
func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "simgpu:", err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	root, err := os.MkdirTemp("", "simgpu-test-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(root)
	built.root = root
	if built.kernels, err = filepath.Abs("../kernels"); err != nil {
		return 0, err
	}
	if err := simbuild.Into(root, "../..", ""); err != nil {
		return 0, err
	}
	programs, err := filepath.Glob("testdata/*.c")
	if err != nil {
		return 0, err
	}
	for _, c := range programs {
		out, err := exec.Command("cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread",
			"-I../../hooks/driver", "-o", program(c), c, "-L"+root+"/lib", "-lcuda", "-Wl,-rpath,"+root+"/lib").CombinedOutput()
		if err != nil {
			return 0, fmt.Errorf("failed to build %s: %w\n%s", c, err, out)
		}
	}
	return m.Run(), nil
}

// lookAtSources makes go test see what make reads: a result is cached only as
// long as the files that a test itself has looked at (not TestMain) are the same.
func lookAtSources() error {
	for _, root := range []string{".", "../kernels", "../../hooks/driver/cuda_abi.h"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			_, err = os.Stat(path)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// program is where one of testdata is built: bin is the tree's own, which tests of other
// packages copy meanwhile.
func program(name string) string {
	return filepath.Join(built.root, "test-"+strings.TrimSuffix(filepath.Base(name), ".c"))
}

// machine is a simulated machine of one test.
type machine struct {
	t   *testing.T
	dir string
}

func newMachine(t *testing.T, options ...string) *machine {
	t.Helper()
	if err := lookAtSources(); err != nil {
		t.Fatal(err)
	}
	m := &machine{t, filepath.Join(t.TempDir(), "m")}
	m.tool(append(append([]string{"create"}, options...), m.dir)...)
	return m
}

// tool runs simgpu and returns its output.
func (m *machine) tool(args ...string) string {
	m.t.Helper()
	return m.output(exec.Command(filepath.Join(built.root, "bin", "simgpu"), args...))
}

// command is a test program on this machine. As a tenant of its own it is in
// its own mount namespace, which needs root.
func (m *machine) command(tenant bool, name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	m.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program(name), append([]string{built.kernels}, args...)...)
	cmd.Env = append(os.Environ(), "SIMGPU_MACHINE="+m.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if tenant {
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	return cmd
}

func (m *machine) run(name string, args ...string) string {
	m.t.Helper()
	return m.output(m.command(false, name, args...))
}

func (m *machine) output(cmd *exec.Cmd) string {
	m.t.Helper()
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, complaints.String())
	}
	return string(out)
}

// start starts a program and waits until it says "running".
func (m *machine) start(cmd *exec.Cmd) {
	m.t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "running\n" {
		m.t.Fatalf("%s did not start: %q, %v", cmd.Path, line, err)
	}
}

// record is one line of the log.
type record struct {
	gpu, pid, proc             int
	tenant                     uint64
	class, name                string
	submitNS, startNS, endNS   int64
	context, stream, submitSeq string
}

func (m *machine) log() []record {
	m.t.Helper()
	var records []record
	lines := strings.Split(strings.TrimSuffix(m.tool("log", m.dir), "\n"), "\n")
	for _, line := range lines[1:] {
		f := strings.Split(line, "\t")
		if len(f) != 12 {
			m.t.Fatalf("a line of the log has %d fields: %q", len(f), line)
		}
		number := func(s string) int64 {
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				m.t.Fatalf("%q in the log: %v", line, err)
			}
			return n
		}
		records = append(records, record{
			submitSeq: f[0], gpu: int(number(f[1])), tenant: uint64(number(f[2])), pid: int(number(f[3])), proc: int(number(f[4])),
			context: f[5], stream: f[6], class: f[7], name: f[8],
			submitNS: number(f[9]), startNS: number(f[10]), endNS: number(f[11]),
		})
	}
	return records
}

func (m *machine) count(name string) int {
	n := 0
	for _, r := range m.log() {
		if r.name == name {
			n++
		}
	}
	return n
}

type overlap struct {
	OverlapNS   int64 `json:"overlap_ns"`
	Pairs       int64 `json:"pairs"`
	BusyNS      int64 `json:"busy_ns"`
	Submissions int64 `json:"submissions"`
	Open        int64 `json:"open"`
	Lost        int64 `json:"lost"`
	Tenants     []struct {
		Tenant      uint64 `json:"tenant"`
		BusyNS      int64  `json:"busy_ns"`
		Submissions int64  `json:"submissions"`
	} `json:"tenants"`
}

func (m *machine) overlap() overlap {
	m.t.Helper()
	var o overlap
	if err := json.Unmarshal([]byte(m.tool("overlap", m.dir, "--json")), &o); err != nil {
		m.t.Fatal(err)
	}
	return o
}

// TestPrograms runs the programs that check one process's view.
func TestPrograms(t *testing.T) {
	for _, name := range []string{
		"vecadd", "streams", "capture", "errors", "queue", "meet", "procaddr",
		"vmm", "pools", "managed", "v1", "launch_v1", "attach", "share", "module_memory",
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, "--gpus", "1", "--memory", "256Mi")
			m.run(name)
			for _, r := range m.log() {
				if r.class == "work" && (r.endNS == 0 || r.startNS < r.submitNS || r.endNS < r.startNS) {
					t.Errorf("times out of order: %+v", r)
				}
			}
		})
	}
}

// TestCapturedCallsAreLoggedWhenTheGraphRuns: one record for each launch of the graph.
func TestCapturedCallsAreLoggedWhenTheGraphRuns(t *testing.T) {
	m := newMachine(t, "--gpus", "1")
	m.run("capture")
	if n := m.count("cuGraphLaunch"); n != 5 {
		t.Errorf("%d launches of graphs in the log, want 5", n)
	}
	if n := m.count("cuLaunchKernel:spin_us"); n != 0 {
		t.Errorf("%d kernels in the log that were only captured", n)
	}
}

func TestKernelStampsWhenItBeganAndEnded(t *testing.T) {
	newMachine(t, "--gpus", "1").run("stamps")
}

// TestStreamsRunInOrder reads the order of a stream out of the log.
func TestStreamsRunInOrder(t *testing.T) {
	m := newMachine(t, "--gpus", "1")
	m.run("spin", "20", "100")
	var last record
	for _, r := range m.log() {
		if r.class != "work" {
			continue
		}
		if r.startNS < last.endNS {
			t.Errorf("%+v started before %+v ended", r, last)
		}
		last = r
	}
}

// TestTwoTenantsShareOneGPU: together they take as long as one after the other,
// and the log shows them at once.
func TestTwoTenantsShareOneGPU(t *testing.T) {
	m := newMachine(t, "--gpus", "1", "--switch-us", "0")
	a, b := m.command(true, "spin", "20", "50000"), m.command(true, "spin", "20", "50000")
	for _, cmd := range []*exec.Cmd{a, b} {
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal("a mount namespace of its own needs root: ", err)
		}
	}
	for _, cmd := range []*exec.Cmd{a, b} {
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	o := m.overlap()
	if len(o.Tenants) != 2 || o.Submissions != 40 || o.Open != 0 || o.Lost != 0 {
		t.Fatalf("two tenants with 20 submissions each expected: %+v", o)
	}
	if o.Pairs == 0 || o.OverlapNS < 100e6 {
		t.Errorf("both were in flight for nearly 2 s, unless one began much later: %+v", o)
	}
	// 2 s of GPU time can not pass in less, whoever runs when.
	if o.BusyNS < 2e9 {
		t.Errorf("%d ns for 2 s of work: the GPU is not shared but doubled", o.BusyNS)
	}
}

// TestKernelsMeet: the kernels of a collective spin until all run, each in a
// process of its own.
func TestKernelsMeet(t *testing.T) {
	m := newMachine(t, "--gpus", "1")
	word := filepath.Join(t.TempDir(), "word")
	if err := os.WriteFile(word, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	a, b := m.command(true, "meet", word), m.command(true, "meet", word)
	for _, cmd := range []*exec.Cmd{a, b} {
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal("a mount namespace of its own needs root: ", err)
		}
	}
	for _, cmd := range []*exec.Cmd{a, b} {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// TestOneAfterTheOtherDoesNotOverlap is the witness of an arbiter that works.
func TestOneAfterTheOtherDoesNotOverlap(t *testing.T) {
	m := newMachine(t, "--gpus", "1")
	// Not two namespaces of their own: the second could get the first one's inode.
	for _, tenant := range []bool{true, false} {
		m.output(m.command(tenant, "spin", "5", "2000"))
	}
	o := m.overlap()
	if len(o.Tenants) != 2 || o.OverlapNS != 0 || o.Pairs != 0 {
		t.Errorf("no overlap of two tenants expected: %+v", o)
	}
	if o.BusyNS < 20e6 {
		t.Errorf("20 ms of work took %d ns", o.BusyNS)
	}
}

// TestKilledProcessLeavesNothing: its memory is free, the GPU goes on, its
// records end with it.
func TestKilledProcessLeavesNothing(t *testing.T) {
	m := newMachine(t, "--gpus", "1", "--memory", "1Gi")
	// A forked child that lives on does not hide the death.
	endless := m.command(true, "endless", strconv.Itoa(900<<20), "fork")
	m.start(endless)
	// Beside an endless kernel another process still runs: hardware slices.
	m.output(m.command(true, "spin", "2", "2000"))
	if o := m.overlap(); o.Open != 2 || o.Pairs == 0 {
		t.Errorf("two operations never end: %+v", o)
	}
	if err := endless.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = endless.Process.Wait()

	out := m.output(m.command(true, "memory"))
	if got, _ := strconv.Atoi(strings.TrimSpace(out)); got < 900<<20 {
		t.Errorf("%s bytes were left: those of the dead are not free", out)
	}
	before := m.overlap()
	m.output(m.command(true, "spin", "2", "2000"))
	after := m.overlap()
	if after.Open != 0 || after.OverlapNS != before.OverlapNS || after.Pairs != before.Pairs {
		t.Errorf("work of the dead overlaps with what came later: %+v, then %+v", before, after)
	}
	if m.count("process-death") < 1 {
		t.Error("the log does not say that the process died")
	}
}

// TestStoppedProcessIsPassedBy: a SIGSTOP does not stop the GPU for the others.
func TestStoppedProcessIsPassedBy(t *testing.T) {
	m := newMachine(t, "--gpus", "1", "--memory", "1Gi")
	endless := m.command(true, "endless", "1000")
	m.start(endless)
	if err := endless.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	m.output(m.command(true, "spin", "3", "3000"))
	if err := endless.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = endless.Wait()
}

// TestManyDieAtOnce: processes that are killed at any point wedge nothing.
func TestManyDieAtOnce(t *testing.T) {
	m := newMachine(t, "--gpus", "1", "--slice-us", "200", "--switch-us", "0")
	var killed []*exec.Cmd
	for i := range 12 {
		cmd := m.command(true, "spin", "1000", "300")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(5+7*i) * time.Millisecond) // any moment is a good one
		_ = cmd.Process.Kill()
		killed = append(killed, cmd)
	}
	for _, cmd := range killed {
		_ = cmd.Wait() // until then it may still be dying
	}
	m.output(m.command(true, "spin", "5", "1000"))
	if o := m.overlap(); o.Open != 0 {
		t.Errorf("%d operations of the dead are open", o.Open)
	}
}

func TestMemoryIsSharedByProcesses(t *testing.T) {
	m := newMachine(t, "--gpus", "1", "--memory", "256Mi", "--context-memory", "16Mi")
	holder := m.command(true, "endless", strconv.Itoa(100<<20))
	m.start(holder)
	defer func() { _ = holder.Process.Kill(); _ = holder.Wait() }()
	got, err := strconv.Atoi(strings.TrimSpace(m.output(m.command(true, "memory"))))
	if err != nil {
		t.Fatal(err)
	}
	// 256 - 100 - two contexts of 16 and two modules of 2, in steps of 1 MiB
	if want := 120 << 20; got > want || got < want-(1<<20) {
		t.Errorf("got %d bytes, want %d", got, want)
	}
}

func TestVisibleDevices(t *testing.T) {
	m := newMachine(t, "--gpus", "3", "--model", "Test GPU")
	list := func(env ...string) []string {
		cmd := m.command(false, "devices")
		cmd.Env = append(cmd.Env, env...)
		return strings.Split(strings.TrimSpace(m.output(cmd)), "\n")
	}
	all := list()
	if len(all) != 4 || all[0] != "0" || !strings.HasSuffix(all[1], "Test GPU") {
		t.Fatalf("three devices expected: %q", all)
	}
	uuid := func(i int) string { return "GPU-" + strings.Fields(all[1+i])[0] }
	for _, test := range []struct {
		description, value string
		want               []int // nil: no device
	}{
		{"one index", "1", []int{1}},
		{"order counts", "2,0", []int{2, 0}},
		{"up to the first wrong one", "0,7,1", []int{0}},
		{"minus one hides the rest", "1,-1,0", []int{1}},
		{"a UUID", uuid(2), []int{2}},
		{"a prefix of a UUID", uuid(1)[:16], []int{1}},
		{"UUIDs", uuid(1) + "," + uuid(0), []int{1, 0}},
		{"empty", "", nil},
		{"nothing right", "nonsense", nil},
		{"twice the same", "1,1", nil},
	} {
		t.Run(test.description, func(t *testing.T) {
			got := list("CUDA_VISIBLE_DEVICES=" + test.value)
			want := []string{"100"}
			if test.want != nil {
				want = []string{"0"}
			}
			for _, i := range test.want {
				want = append(want, all[1+i])
			}
			if strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("CUDA_VISIBLE_DEVICES=%s: got %q, want %q", test.value, got, want)
			}
		})
	}
	t.Run("no machine", func(t *testing.T) {
		if got := list("SIMGPU_MACHINE=/nonexistent"); got[0] != "100" {
			t.Errorf("cuInit without a machine gives %q", got)
		}
	})
}

// TestLogIsLosslessUntilFull: then records are counted, not silently dropped.
func TestLogIsLosslessUntilFull(t *testing.T) {
	m := newMachine(t, "--gpus", "1", "--log-records", "20")
	m.run("spin", "30", "10")
	if n := len(m.log()); n < 20 {
		t.Errorf("%d records of 20", n)
	}
	if o := m.overlap(); o.Lost < 10 {
		t.Errorf("%d lost, at least 10 expected", o.Lost)
	}
}

// TestEveryNameIsExported compares with the list of names.
func TestEveryNameIsExported(t *testing.T) {
	exported := func(library string) map[string]bool {
		out, err := exec.Command("nm", "-D", "--defined-only", filepath.Join(built.root, "lib", library)).Output()
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for line := range strings.Lines(string(out)) {
			f := strings.Fields(line)
			names[f[len(f)-1]] = true
		}
		return names
	}
	names := func(file, before, after string) []string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, before); ok {
				name, _, _ := strings.Cut(rest, after)
				names = append(names, name)
			}
		}
		return names
	}
	for _, l := range []struct{ library, list, after string }{
		{"libcuda.so.999.10", "exports.inc", ","},
		{"libnvidia-ml.so.999.10", "nvml/names.inc", ")"},
	} {
		have, want := exported(l.library), names(l.list, "X(", l.after)
		if len(want) < 300 {
			t.Fatalf("%s: only %d names", l.list, len(want))
		}
		for _, name := range want {
			if !have[name] {
				t.Errorf("%s does not export %s", l.library, name)
			}
			delete(have, name)
		}
		for name := range have {
			t.Errorf("%s exports %s, which is on no list", l.library, name)
		}
	}
}

// TestNumba drives Debian's numba, a client that nobody here wrote.
func TestNumba(t *testing.T) {
	m := newMachine(t, "--gpus", "1")
	for _, perThread := range []string{"0", "1"} {
		cmd := exec.Command("/usr/bin/python3", "testdata/numba_client.py", built.kernels)
		cmd.Env = append(os.Environ(), "SIMGPU_MACHINE="+m.dir, "NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM="+perThread,
			"NUMBA_CUDA_DRIVER="+filepath.Join(built.root, "lib", "libcuda.so.999.10"))
		if out := m.output(cmd); !strings.HasPrefix(out, "numba ok") {
			t.Errorf("numba says %q", out)
		}
	}
}

// TestToolRefuses: usage errors are 2, failures 1, and both say why.
func TestToolRefuses(t *testing.T) {
	m := newMachine(t, "--gpus", "1")
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{}, 2, "usage"},
		{[]string{"create", t.TempDir()}, 2, "--gpus"},
		{[]string{"create", "--gpus", "99", "/x"}, 2, "bad value '99' for --gpus"},
		{[]string{"create", "--gpus", "1", "--memory", "1Q", "/x"}, 2, "bad value '1Q' for --memory"},
		{[]string{"create", "--gpus", "1", m.dir}, 1, "File exists"},
		{[]string{"log", "/nonexistent"}, 1, "No such file"},
		{[]string{"inject", m.dir, "--gpu", "1", "--xid", "31"}, 2, "no such GPU"},
		{[]string{"inject", m.dir, "--xid", "0"}, 2, "values"},
		{[]string{"inject", m.dir, "--lost", "perhaps"}, 2, "values"},
		{[]string{"inject", m.dir, "--lost"}, 2, "values"},
		{[]string{"inject", "--lost", "on"}, 2, "a directory"},
	} {
		cmd := exec.Command(filepath.Join(built.root, "bin", "simgpu"), test.args...)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = io.Discard, &out
		_ = cmd.Run()
		if cmd.ProcessState.ExitCode() != test.code || !strings.Contains(out.String(), test.says) {
			t.Errorf("simgpu %q: exit code %d, %q", test.args, cmd.ProcessState.ExitCode(), out.String())
		}
	}
	m.tool("destroy", m.dir)
	if _, err := os.Stat(m.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", m.dir, err)
	}
}
