// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/hooks/driver/test/jail"
)

// straced starts a program in a jail under strace, which writes to the file that
// is returned. env can name another library (jail.LibraryVariable).
func straced(t *testing.T, a *arbiter, driver string, env []string, args ...string) (*program, string) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal("strace is needed")
	}
	install(t, filepath.Join(built, driver), filepath.Join(a.dir, "libcuda.so"))
	trace := filepath.Join(t.TempDir(), "trace")
	args[0] = filepath.Join(built, args[0])
	// The leak check of a sanitizer can not run under strace.
	env = append(env, "ASAN_OPTIONS=detect_leaks=0")
	return startIn(t, a, env, append([]string{strace, "-f", "-o", trace}, args...)...), trace
}

func lines(t *testing.T, file string) []string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// A million launches, ten thousand of them with a wait behind that ends the turn's
// use of the GPU: as many system calls as the driver itself makes, none.
func TestProcessAloneMakesNoSystemCall(t *testing.T) {
	for name, env := range map[string][]string{
		"the driver alone": {jail.LibraryVariable + "=" + filepath.Join(built, "bench.so")},
		"with the library": nil,
	} {
		t.Run(name, func(t *testing.T) {
			a := newArbiter(t)
			a.auto.Store(true)
			p, trace := straced(t, a, "bench.so", env, "alone")
			p.Expect("begin")
			p.Expect("end")
			if env == nil {
				a.client().is("IDLE")
			}
			p.GoOn()
			p.Done()
			inside, found := false, 0
			for _, line := range lines(t, trace) {
				switch {
				case strings.Contains(line, `"begin\n"`):
					inside = true
				case strings.Contains(line, `"end\n"`):
					inside, found = false, found+1
				case inside:
					t.Error(line)
				}
			}
			if found != 1 {
				t.Errorf("the trace lacks the loop:\n%s", strings.Join(lines(t, trace), "\n"))
			}
		})
	}
}

// What the dynamic loader does for each file that it maps.
var ofTheLoader = regexp.MustCompile(`^(openat|read|pread64|fstat|newfstatat|mmap|mprotect|munmap|close|brk|readlink|access)$`)

// Invariant 10, by the list of all calls: for a program that never calls CUDA the
// loader maps one file more, and nothing else is different.
func TestProcessWithoutCUDACallMakesNoSystemCallOfOurs(t *testing.T) {
	call := regexp.MustCompile(`^\d+ +(\w+)\(`)
	calls := func(env []string) (map[string]int, int) {
		p, trace := straced(t, newArbiter(t), "fake.so", env, "process", "inert")
		p.Done()
		n, opened := map[string]int{}, 0
		for _, line := range lines(t, trace) {
			if m := call.FindStringSubmatch(line); m != nil {
				n[m[1]]++
				if m[1] == "openat" && strings.Contains(line, "libcuda.so") && !strings.Contains(line, "= -1") {
					opened++
				}
			}
		}
		return n, opened
	}
	bare, one := calls([]string{jail.LibraryVariable + "=" + filepath.Join(built, "fake.so")})
	ours, two := calls(nil)
	if one != 1 || two != 2 {
		t.Fatalf("%d and %d files of a driver were loaded, want 1 and 2", one, two)
	}
	for name, n := range ours {
		if n != bare[name] && !ofTheLoader.MatchString(name) {
			t.Errorf("%s: %d times, without the library %d", name, n, bare[name])
		}
	}
}
