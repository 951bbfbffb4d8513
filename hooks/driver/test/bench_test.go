// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/hooks/driver/test/jail"
)

// BenchmarkLaunch measures what a launch costs beyond the bare call, in
// uncontended locked adds of the same run, and beside one that takes 4 us. VGPU_BENCH_AGAINST names another
// build of the library that is measured in turn with this one.
func BenchmarkLaunch(b *testing.B) {
	dir := b.TempDir()
	buildBench(b, dir, "bench")
	libraries := []string{filepath.Join(built, "libvgpu-cuda.so")}
	if other := os.Getenv("VGPU_BENCH_AGAINST"); other != "" {
		libraries = append(libraries, other)
	}
	for range b.N {
		for i, lib := range libraries {
			for unit, n := range overhead(b, dir, lib) {
				if i > 0 {
					unit = "other-" + unit
				}
				b.ReportMetric(n, unit)
			}
		}
	}
}

// BenchmarkStart measures how much longer a program that never calls CUDA takes
// from its start to its end if our library stands before the driver that it is
// linked with.
func BenchmarkStart(b *testing.B) {
	dir := b.TempDir()
	buildBench(b, dir, "start")
	for range b.N {
		a := newArbiter(b)
		for _, name := range []string{"libcuda.so", "libcuda.so.1"} { // for the library, and alone
			install(b, filepath.Join(dir, "bench.so"), filepath.Join(a.dir, name))
		}
		took := numbers(startIn(b, a, nil, filepath.Join(dir, "start")))
		b.Logf("%v ns", took)
		b.ReportMetric((took["library"]-took["driver"])/1000, "start-us")
		b.ReportMetric(took["library"]/took["driver"], "start-ratio")
	}
}

// buildBench makes the driver that costs nothing and a program for it, without
// the sanitizers of other tests.
func buildBench(b *testing.B, dir, name string) {
	b.Helper()
	driver := filepath.Join(dir, "bench.so")
	cc := []string{"-std=c11", "-O2", "-o"}
	if err := run("cc", append(cc, driver, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "testdata/bench_driver.c")...); err != nil {
		b.Fatal(err)
	}
	if err := run("cc", append(cc, filepath.Join(dir, name), "testdata/"+name+".c", driver)...); err != nil {
		b.Fatal(err)
	}
}

// numbers reads what a program says, names with numbers, to its end.
func numbers(p *program) map[string]float64 {
	p.t.Helper()
	said := map[string]float64{}
	for line := p.Line(); line != "done"; line = p.Line() {
		name, value, ok := strings.Cut(line, " ")
		n, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			p.t.Fatalf("the program said %q; stderr:\n%s", line, p.Stderr)
		}
		said[name] = n
	}
	return said
}

func overhead(b *testing.B, dir, lib string) map[string]float64 {
	a := newArbiter(b)
	a.auto.Store(true)
	install(b, filepath.Join(dir, "bench.so"), filepath.Join(a.dir, "libcuda.so"))
	took := numbers(startIn(b, a, []string{jail.LibraryVariable + "=" + lib}, filepath.Join(dir, "bench")))
	metrics := map[string]float64{"launch-ratio": took["explicit-4us"] / took["bare-4us"]}
	for _, kind := range []string{"explicit", "legacy", "per-thread"} {
		metrics[kind+"-adds"] = (took[kind] - took["bare"]) / took["add"]
	}
	b.Logf("%v ps a call", took)
	return metrics
}
