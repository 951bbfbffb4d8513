// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// TestARunThatFailsLeavesNoRowsOfAnEarlierOne: they would be taken for its own.
func TestARunThatFailsLeavesNoRowsOfAnEarlierOne(t *testing.T) {
	t.Chdir(t.TempDir()) // where nothing was built
	out := filepath.Join(t.TempDir(), "bench.json")
	if err := writeJSON(out, []row{{name: "earlier"}}); err != nil {
		t.Fatal(err)
	}
	if err := run(out, false, "", ""); err == nil {
		t.Fatal("it ran")
	}
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the earlier rows: %v", err)
	}
}

func TestAnUnknownGroupIsRefused(t *testing.T) {
	if _, err := chosen("handovers"); err == nil || !strings.Contains(err.Error(), "handover, first") {
		t.Errorf("got %v", err)
	}
	if got, err := chosen("engine"); err != nil || len(got) != 2 || got[0].name != "floor" || got[1].name != "engine" {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestWhatIsNoNumberFailsItsGroup, and leaves the rows of others to be written.
func TestWhatIsNoNumberFailsItsGroup(t *testing.T) {
	for _, bad := range []row{{name: "bad", value: math.Inf(1)}, {name: "bad", more: map[string]float64{"part": math.NaN()}}} {
		b := &bench{rows: []row{{name: "good", value: 1}}}
		err := b.hold(t.Context(), group{name: "g", measure: func(b *bench, _ context.Context) error {
			b.row(bad)
			return nil
		}})
		if err == nil || !strings.Contains(err.Error(), "bad") {
			t.Errorf("got %v", err)
		}
		if err := writeJSON(filepath.Join(t.TempDir(), "bench.json"), b.rows); err != nil || len(b.rows) != 1 {
			t.Errorf("%d rows, %v", len(b.rows), err)
		}
	}
}

// TestAVGPUDThatEndedByItselfIsAnError: with rows that look spoilt by others, its group
// would only be measured again.
func TestAVGPUDThatEndedByItselfIsAnError(t *testing.T) {
	for _, test := range []struct {
		program, said string
		ends          bool
	}{{"echo crashed", "crashed", true}, {"exec sleep 1000", "", false}} {
		p, err := harness.StartProcess("vgpud", filepath.Join(t.TempDir(), "log"), exec.Command("sh", "-c", test.program))
		if err != nil {
			t.Fatal(err)
		}
		if test.ends {
			<-p.Done()
		}
		if err := stop(p); (err != nil) != test.ends || test.ends && !strings.Contains(err.Error(), test.said) {
			t.Errorf("%s: %v", test.program, err)
		}
		<-p.Done()
	}
}

// TestWhatAProgramStartedEndsWithIt: here a child that holds a lock.
func TestWhatAProgramStartedEndsWithIt(t *testing.T) {
	dir := t.TempDir()
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		b := &bench{paths: harness.Paths{Root: dir}}
		_, err := b.output(ctx, "sh", "-c", "(exec 9<lock; flock 9; : >started; exec sleep 1000) & wait")
		ended <- err
	}()
	if err := harness.Eventually(ctx, time.Minute, func() error {
		_, err := os.Stat(filepath.Join(dir, "started"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("what was ended had no error")
	}
	if err := harness.Eventually(t.Context(), time.Minute, func() error { return unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		t.Errorf("the child goes on: %v", err)
	}
}

func TestStepIsTheMedianOfItsRuns(t *testing.T) {
	lines := []string{
		"cpu: some",
		"BenchmarkHandOver/gpus=8/vgpus=16-2         \t    5000\t       300 ns/op\t       0 B/op",
		"BenchmarkHandOver/gpus=8/vgpus=16-2         \t    5000\t       100 ns/op\t       0 B/op",
		"BenchmarkHandOver/gpus=8/vgpus=16-2         \t    5000\t       200 ns/op\t       0 B/op",
		"BenchmarkHandOver/gpus=8/vgpus=1024-2       \t    5000\t       900 ns/op\t       0 B/op",
		"BenchmarkHandOver/gpus=1/vgpus=16           \t    5000\t       700 ns/op\t       0 B/op",
	}
	for _, want := range []struct {
		gpus, vgpus int
		ns          float64
	}{{8, 16, 200}, {8, 1024, 900}, {1, 16, 700}} {
		if ns, err := step(lines, want.gpus, want.vgpus); err != nil || ns != want.ns {
			t.Errorf("%d vGPUs on %d GPUs: %v, %v; want %v", want.vgpus, want.gpus, ns, err, want.ns)
		}
	}
	if _, err := step(lines, 8, 10); err == nil || !strings.Contains(err.Error(), "vgpus=10:") {
		t.Errorf("what was not measured: %v", err)
	}
}

// TestGroupsHaveRowsThatAreExplained: without rows a group could fail, and its run be
// whole.
func TestGroupsHaveRowsThatAreExplained(t *testing.T) {
	doc, err := os.ReadFile("../../docs/bench.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if len(g.rows) == 0 || !strings.Contains(string(doc), "`"+g.rows[0]+"`") || !strings.Contains(string(doc), "` | "+g.name+" |") {
			t.Errorf("docs/bench.md does not explain %s, with the rows %v", g.name, g.rows)
		}
	}
}

// The jobs take four minutes: to measure them again made the whole run too long, and nothing was left of it.
func TestAGroupForWhichThereIsNoTimeIsNotMeasuredAgain(t *testing.T) {
	b, times := &bench{size: size{again: 1}}, 0
	if err := b.hold(t.Context(), group{name: "jobs", measure: func(b *bench, _ context.Context) error {
		times++
		b.rows = append(b.rows, row{name: "slow", value: 2, budget: 1, rule: most})
		return nil
	}}); err != nil || times != 1 {
		t.Errorf("measured %d times: %v", times, err)
	}
}
