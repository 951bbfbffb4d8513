// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// BenchmarkLaunch measures what a launch costs beyond the bare call, in
// uncontended locked adds of the same run. VGPU_BENCH_AGAINST names another
// build of the library that is measured in turn with this one.
func BenchmarkLaunch(b *testing.B) {
	dir := b.TempDir()
	cc := func(out string, args ...string) {
		if err := run("cc", append([]string{"-std=c11", "-O2", "-o", filepath.Join(dir, out)}, args...)...); err != nil {
			b.Fatal(err)
		}
	}
	cc("bench.so", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "testdata/bench_driver.c")
	cc("bench", "testdata/bench.c", filepath.Join(dir, "bench.so"))
	libraries := []string{filepath.Join(built, "libvgpu-cuda.so")}
	if other := os.Getenv("VGPU_BENCH_AGAINST"); other != "" {
		libraries = append(libraries, other)
	}
	for range b.N {
		for i, lib := range libraries {
			for kind, adds := range overhead(b, dir, lib) {
				if i > 0 {
					kind = "other-" + kind
				}
				b.ReportMetric(adds, kind+"-adds")
			}
		}
	}
}

func overhead(b *testing.B, dir, lib string) map[string]float64 {
	a := newArbiter(b)
	a.auto.Store(true)
	install(b, filepath.Join(dir, "bench.so"), filepath.Join(a.dir, "libcuda.so"))
	p := startIn(b, a, []string{"VGPU_JAIL_LIB=" + lib}, filepath.Join(dir, "bench"))
	took := map[string]float64{}
	for line := p.line(); line != "done"; line = p.line() {
		name, ps, ok := strings.Cut(line, " ")
		n, err := strconv.ParseFloat(ps, 64)
		if !ok || err != nil {
			b.Fatalf("the program said %q; stderr:\n%s", line, p.stderr)
		}
		took[name] = n
	}
	adds := map[string]float64{}
	for name, n := range took {
		if name != "add" && name != "bare" {
			adds[name] = (n - took["bare"]) / took["add"]
		}
	}
	b.Logf("%v ps a call", took)
	return adds
}
