// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// anHour is a bound, in microseconds, at which what is held stays held.
const anHour = 3_600_000_000

func TestFullStreamHoldsWhoSubmits(t *testing.T) {
	for _, name := range []string{
		"explicit", "legacy", "per-thread", "threads", "handler", "dead", "synced", "no-memory", "captured", "callback",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newArbiter(t)
			a.auto.Store(true)
			// The fake driver allocates memory, in a signal handler too.
			p := start(t, a, "fake.so", []string{"TSAN_OPTIONS=report_signal_unsafe=0"}, "held", name)
			p.Expect("ready")
			a.client().page.QueueUS().Store(anHour)
			p.GoOn()
			p.Done()
		})
	}
}

func TestMarksGoWithTheirStreams(t *testing.T) {
	p, c := begin(t, nil, "held", "churn")
	p.Expect("churned")
	c.want(1)
	c.expect(wire.IdleMsg)
	p.GoOn()
	p.Done()
}

// bounded builds the programs of testdata/bound, once.
var bounded = sync.OnceValues(func() (string, error) {
	sim, err := simulated()
	if err != nil {
		return "", err
	}
	programs, err := filepath.Glob("testdata/bound/*.c")
	if err != nil {
		return "", err
	}
	for _, p := range programs {
		args := slices.Concat([]string{
			"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-I", "..", "-I", simulator + "/testdata", "-pthread",
			"-o", filepath.Join(built, "bound-"+strings.TrimSuffix(filepath.Base(p), ".c")),
			p, filepath.Join(sim, "lib", "libcuda.so.999.10"),
		}, tools.cflags, strings.Fields(os.Getenv("VGPU_TEST_CFLAGS")))
		if err := run(tools.cc, args...); err != nil {
			return "", err
		}
	}
	return sim, nil
})

// A record of the simulated GPU's log.
type operation struct {
	class, name          string
	submit, start, ended int64
}

// ranBounded runs a program of testdata/bound and returns what the simulated GPU
// did for it.
func ranBounded(t *testing.T, prepare func(c *client), args ...string) []operation {
	t.Helper()
	sim, err := bounded()
	if err != nil {
		t.Fatal(err)
	}
	kernels, err := filepath.Abs("../../../integration/kernels")
	if err != nil {
		t.Fatal(err)
	}
	a := newArbiter(t)
	a.auto.Store(true)
	machine, gpu := newMachine(t, sim)
	a.gpus = [][16]byte{gpu}
	install(t, filepath.Join(sim, "lib", "libcuda.so.999.10"), filepath.Join(a.dir, "libcuda.so"))
	args[0] = filepath.Join(built, "bound-"+args[0])
	p := startIn(t, a, []string{"SIMGPU_MACHINE=" + machine}, append([]string{args[0], kernels}, args[1:]...)...)
	p.Expect("ready")
	if c := a.client(); prepare != nil {
		prepare(c)
	}
	p.GoOn()
	p.Done()
	return operations(t, sim, machine)
}

func operations(t testing.TB, sim, machine string) (ops []operation) {
	t.Helper()
	out, err := command("simgpu/bin/simgpu", "log", machine).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	column := map[string]int{}
	for i, name := range strings.Split(lines[0], "\t") {
		column[name] = i
	}
	for _, line := range lines[1:] {
		f := strings.Split(line, "\t")
		submit, err := strconv.ParseInt(f[column["submit_ns"]], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		start, err := strconv.ParseInt(f[column["start_ns"]], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ended, err := strconv.ParseInt(f[column["end_ns"]], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, operation{f[column["class"]], f[column["name"]], submit, start, ended})
	}
	sort.SliceStable(ops, func(i, j int) bool { return ops[i].submit < ops[j].submit })
	return ops
}

func named(ops []operation, name string) (some []operation) {
	for _, o := range ops {
		if strings.HasPrefix(o.name, name) {
			some = append(some, o)
		}
	}
	return some
}

// inFlight is how many pieces of work were submitted and not over, itself counted,
// when each was submitted, from the first on; in rising order.
func inFlight(ops []operation, first int) (found []int) {
	ends := make([]int64, 0, len(ops))
	after := func(ns int64) int { return sort.Search(len(ends), func(k int) bool { return ends[k] > ns }) }
	for i, o := range ops {
		if i >= first {
			found = append(found, len(ends)-after(o.submit)+1)
		}
		ends = slices.Insert(ends, after(o.ended), o.ended)
	}
	slices.Sort(found)
	return found
}

// isBounded checks what was in flight. When the machine does not let the simulated
// GPU run for a while, its work stands still, and more is let through for that
// time: a quarter of the submissions may have found more.
func isBounded(t *testing.T, ops []operation, first, pieces int) {
	t.Helper()
	found := inFlight(ops, first)
	usual, largest := found[len(found)*3/4], found[len(found)-1]
	t.Logf("%d and at most %d in flight, %d fill the bound", usual, largest, pieces)
	if usual > 2*pieces {
		t.Errorf("%d pieces of work were in flight, want at most 2 * %d", usual, pieces)
	}
}

// expecting makes others expected until then.
func expecting(until uint64) func(*client) {
	return func(c *client) { c.page.ExpectedNS().Store(until) }
}

// What is in flight is bounded in time. The witness counts pieces, each of which
// takes at least its time: a slow machine has fewer of them in flight.
func TestWorkInFlightIsBounded(t *testing.T) {
	wanted := func(c *client) { c.want(1) }
	short := func(us uint32) func(*client) {
		return func(c *client) { c.page.QueueUS().Store(us) }
	}
	for _, test := range []struct {
		description string
		args        []string
		prepare     func(c *client)
		work        string // its records
		pieces      int    // that fill the bound
		from        int    // counted from this one on
	}{
		{"alone", []string{"stream", "1500", "200"}, nil, "cuLaunchKernel", 250, 0},
		{"alone by vgpud's word", []string{"stream", "5000", "50"}, short(10000), "cuLaunchKernel", 200, 0},
		{"wanted", []string{"stream", "5000", "50"}, wanted, "cuLaunchKernel", 40, 0},
		{"others expected", []string{"stream", "5000", "50"}, expecting(1 << 62), "cuLaunchKernel", 40, 0},
		{"pieces that are longer than the bound", []string{"stream", "150", "4000"}, wanted, "cuLaunchKernel", 2, 100},
		{"legacy stream", []string{"legacy", "3000", "50"}, wanted, "cuLaunchKernel", 40, 0},
		{"eight streams", []string{"streams", "3000", "50"}, short(20000), "cuLaunchKernel", 400, 0},
		{"per-thread streams", []string{"threads", "3000", "50"}, short(10000), "cuLaunchKernel", 200, 0},
		{"threads on one stream", []string{"shared", "3000", "50"}, wanted, "cuLaunchKernel", 40, 0},
		{"graphs", []string{"graphs", "500", "50"}, short(20000), "cuGraphLaunch", 40, 0},
	} {
		t.Run(test.description, func(t *testing.T) {
			ops := named(ranBounded(t, test.prepare, append([]string{"queue"}, test.args...)...), test.work)
			isBounded(t, ops, test.from, test.pieces)
		})
	}
}

// After short kernels come long ones: once some of them are over, few are in flight.
// Not so long that the stream seems to stand still, which would give it more room.
func TestBoundFollowsTheLengthOfWork(t *testing.T) {
	ops := named(ranBounded(t, func(c *client) { c.page.QueueUS().Store(10000) },
		"queue", "stream", "1200", "200", "1000"), "cuLaunchKernel:spin_us")
	isBounded(t, ops, len(ops)-100, 10)
}

// While somebody waits that holds for a program, too, that waits for ever so few pieces
// which are long; but for the first of them, as nobody knows yet what they take.
func TestFewLongPiecesAreBounded(t *testing.T) {
	for _, us := range budgets {
		t.Run(strconv.Itoa(int(us)), func(t *testing.T) {
			ops := named(ranBounded(t, wantedWithin(us), "syncs_often", "20", "10", "4000"), "cuLaunchKernel")
			isBounded(t, ops, 10, 2)
		})
	}
}

// budgets are drain budgets, in microseconds: the default one, and a longer one.
var budgets = []uint32{0, 3000}

// wantedWithin says that somebody else waits, and what a drain may take then.
func wantedWithin(us uint32) func(*client) {
	return func(c *client) {
		c.page.DrainUS().Store(us)
		c.want(1)
	}
}

// early is how many of ops, each of which takes us microseconds, came when the one before
// had not run for half of its time.
func early(ops []operation, us int64) (n int) {
	for i := 1; i < len(ops); i++ {
		if ops[i].submit-ops[i-1].start < us*1000/2 {
			n++
		}
	}
	return n
}

// While somebody waits and a piece runs that is about as long as the bound, the next one comes when
// that is nearly over, not at once: a turn that ends meanwhile drains one of them, not two. Some
// are enough: on a busy machine, where threads wake up late, they come at once (see below).
func TestALongPieceIsQueuedShortlyBeforeItsTurn(t *testing.T) {
	const first = 100 // until it is known what a piece takes, and the many of before are over
	for _, us := range budgets {
		t.Run(strconv.Itoa(int(us)), func(t *testing.T) {
			ops := named(ranBounded(t, wantedWithin(us), "queue", "stream", "400", "4000"), "cuLaunchKernel:spin_us")
			after := ops[first:]
			n := early(after, 4000)
			t.Logf("%d of %d pieces were queued behind one that had just begun", n, len(after))
			if n > len(after)-10 {
				t.Errorf("all but %d of %d pieces were", len(after)-n, len(after))
			}
		})
	}
}

// A piece that took less than those before was over before the next one came, and the GPU ran
// dry, as it does where a thread wakes up late. So the next ones come at once for a while.
func TestPiecesAreQueuedAtOnceWhereTheGPURanDry(t *testing.T) {
	const long, some = 160, 60
	ops := named(ranBounded(t, func(c *client) { c.want(1) }, "queue", "stream", strconv.Itoa(long), "4000", "1000"), "cuLaunchKernel:spin_us")
	after := ops[long+5 : long+some]
	if n := early(after, 1000); n < 10 { // some are enough, as above
		t.Errorf("%d of %d pieces were queued behind one that had just begun", n, len(after))
	}
}

func TestNoMarkInAProgramThatSynchronisesOften(t *testing.T) {
	for _, us := range []uint32{0, 2000} { // the bound by default, and one that is as short as the drain budget
		t.Run(strconv.Itoa(int(us)), func(t *testing.T) {
			ops := ranBounded(t, func(c *client) {
				c.page.QueueUS().Store(us)
				expecting(1)(c) // nobody since long ago
			}, "syncs_often", "100", "15", "10")
			if n := len(named(ops, "cuEventRecord")); n != 0 {
				t.Errorf("%d events were recorded, want none", n)
			}
			if n := len(named(ops, "cuLaunchKernel")); n != 1500 {
				t.Errorf("%d launches, want 1500", n)
			}
		})
	}
}

// What is in flight depends on the submission that is held.
func TestBoundDoesNotHang(t *testing.T) {
	for _, name := range []string{"meets_later", "writes_later"} {
		for _, wanted := range []uint32{0, 1} {
			t.Run(name+" "+strconv.Itoa(int(wanted)), func(t *testing.T) {
				ranBounded(t, func(c *client) { c.want(wanted) }, name)
			})
		}
	}
}
