// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/vgpu-shim/vgpu/integration/box"
	"github.com/vgpu-shim/vgpu/integration/harness"
)

// options are what differs between invocations.
type options struct {
	short bool
	out   string // folder for output
	doc   string // the document that gets the tables, if any

	causes      string // differences.tsv
	only, tests string // regular expressions
}

// run is a suite with one version of containerd and one runtime.
type run struct {
	suite   suite
	version harness.Version
	runtime runtimeCase
}

func (r run) name() string {
	return fmt.Sprintf("%s-%s-%s", r.suite.name, r.version, r.runtime.name)
}

func (r run) sameSuite(other run) bool {
	return r.suite.name == other.suite.name && r.version == other.version
}

// plan lists the runs; that with the stock runtime comes first of each suite and
// version.
func plan(short bool, only *regexp.Regexp) []run {
	var all []run
	for _, s := range suites {
		versions, told := s.versions, s.runtimes
		if short {
			versions, told = versions[:1], s.shortRuntimes
		}
		for _, v := range versions {
			for _, c := range runtimes {
				r := run{s, v, c}
				if slices.Contains(told, c.name) && only.MatchString(r.name()) {
					all = append(all, r)
				}
			}
		}
	}
	return all
}

// execute runs r in a box and returns its results. tests selects some, all if
// empty; attempt tells outputs apart.
func (o options) execute(ctx context.Context, r run, tests string, attempt int) (results, error) {
	file := filepath.Join(o.out, r.name())
	if attempt > 0 {
		file += fmt.Sprintf("-%d", attempt)
	}
	file, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	report := file + ".json"
	if err := os.RemoveAll(report); err != nil {
		return nil, err
	}
	out, err := os.OpenFile(file+".log", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	begin := time.Now()
	if err := box.Run(ctx, "conformance-"+r.name(), out, "inside", r.suite.name, string(r.version), r.runtime.name, tests, report); err != nil {
		return nil, fmt.Errorf("%s: %w; its output is in %s.log", r.name(), err, file)
	}
	got, err := r.suite.parse(file+".log", report)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.name(), err)
	}
	if len(got) == 0 {
		return nil, fmt.Errorf("%s: no test ran; its output is in %s.log", r.name(), file)
	}
	fmt.Printf("%-32s %4d passed, %3d failed, %3d skipped in %3.0f s\n", r.name(),
		got.count(passed), got.count(failed), got.count(skipped), time.Since(begin).Seconds())
	return got, nil
}

// parseInside is the run that execute told the box about.
func parseInside(args []string) *inside {
	paths, err := harness.DefaultPaths()
	if err != nil || len(args) != 5 {
		fmt.Fprintln(os.Stderr, "conformance: inside:", err, args)
		os.Exit(2)
	}
	in := &inside{paths: paths, version: harness.Version(args[1]), tests: args[3], report: args[4]}
	in.suite = suites[slices.IndexFunc(suites, func(s suite) bool { return s.name == args[0] })]
	in.runtime = runtimes[slices.IndexFunc(runtimes, func(c runtimeCase) bool { return c.name == args[2] })]
	return in
}

// conform runs what o asks for, and fails if a difference has no cause.
func conform(ctx context.Context, o options) error {
	if os.Geteuid() != 0 {
		return errors.New("real containers need root: run this as root")
	}
	only, err := regexp.Compile(o.only)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o700); err != nil {
		return err
	}
	causes, err := loadCauses(o.causes)
	if err != nil {
		return err
	}
	runs := plan(o.short, only)
	if len(runs) == 0 {
		return fmt.Errorf("no run is named %s", o.only)
	}
	rep := &report{}
	if rep.rows, err = o.all(ctx, runs); err != nil {
		return err
	}
	for _, row := range rep.rows {
		rep.unexplained += explain(row.differences, causes)
		for _, d := range row.differences {
			fmt.Printf("%s: %s: %s with runc's shim, %s with ours: %s\n", d.run.name(), d.test, d.stock, d.ours, cmp.Or(d.cause, "NO CAUSE GIVEN"))
		}
	}
	for _, c := range causes {
		if !c.used && o.doc != "" {
			return fmt.Errorf("%s: no run has the difference of tests %s", o.causes, c.tests)
		}
	}
	if o.doc != "" {
		if err := rep.write(o.doc); err != nil {
			return err
		}
	}
	fmt.Println(rep.closing())
	if rep.unexplained > 0 {
		return fmt.Errorf("%d outcomes differ from those with runc's shim, with no cause in %s", rep.unexplained, o.causes)
	}
	return nil
}

// atOnce is how many runs go on at a time. They wait more than they compute.
const atOnce = 3

// all executes runs, those of a suite and version in turn, the first of which is
// that with the stock runtime.
func (o options) all(ctx context.Context, runs []run) ([]row, error) {
	whole := ctx // ends for a reason of its own; ctx also after an error of a run
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rows := make([]row, len(runs))
	errs := make([]error, len(runs))
	var group sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for first := range runs {
		if first > 0 && runs[first].sameSuite(runs[first-1]) {
			continue // the goroutine of that suite does it
		}
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			for i := first; i < len(runs) && runs[i].sameSuite(runs[first]) && ctx.Err() == nil; i++ {
				if rows[i], errs[i] = o.one(ctx, runs[i], rows[first].results); errs[i] != nil {
					cancel()
				}
			}
		})
	}
	group.Wait()
	return rows, errors.Join(append(errs, whole.Err())...)
}

// one executes a run, and compares its results with those of the stock runtime.
func (o options) one(ctx context.Context, r run, old results) (row, error) {
	tests := o.tests
	if o.short && tests == "" {
		tests = r.suite.short
	}
	got, err := o.execute(ctx, r, tests, 0)
	if err != nil || r.runtime.name == stock {
		return row{run: r, results: got}, err
	}
	differences, again, err := o.judge(ctx, r, old, got)
	return row{run: r, results: got, differences: differences, again: again}, err
}

func loadCauses(file string) ([]*cause, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	causes, err := readCauses(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return causes, nil
}

// tries is how often a test is run that differs.
const tries = 3

// judge compares the results of a run with those of the stock runtime. Tests
// that differ are run again, with both: on a busy machine one or the other fails now
// and then. Those that agree then are not returned as differences.
func (o options) judge(ctx context.Context, r run, old, got results) (all []difference, again []string, err error) {
	all = compare(r, old, got)
	other := r
	other.runtime = runtimes[0]
	stocks, ours := []results{old}, []results{got}
	for len(all) > 0 && len(ours) < tries {
		var names []string
		for _, d := range all {
			names = append(names, d.test)
		}
		tests := r.suite.selecting(names)
		a, err := o.execute(ctx, other, tests, len(stocks))
		if err != nil {
			return nil, nil, err
		}
		b, err := o.execute(ctx, r, tests, len(ours))
		if err != nil {
			return nil, nil, err
		}
		stocks, ours = append(stocks, a), append(ours, b)
		var agreed []string
		all, agreed = remaining(all, stocks, ours)
		again = append(again, agreed...)
	}
	return all, again, nil
}
