// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// kill makes the first n changes of a plan and, of the next, only what a process
// leaves that is killed before it renames.
func kill(t *testing.T, p *Plan, n int) {
	t.Helper()
	for _, c := range p.Changes[:n] {
		if err := put(c.Path, c.after); err != nil {
			t.Fatal(err)
		}
	}
	if n == len(p.Changes) {
		return
	}
	if c := p.Changes[n]; c.after.isFile() {
		if err := os.WriteFile(temporary(c.Path), []byte("half of it"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// oneVersion fails the test if what the system sees is not of one version, or
// nothing.
func oneVersion(t *testing.T, o Options) {
	t.Helper()
	seen := map[string]bool{}
	for _, path := range []string{"/usr/local/bin/vgpu", "/usr/local/bin/vgpud", "/usr/local/bin/" + shimProgram, libraryDir + "/libvgpu-cuda.so", libraryDir + "/libvgpu-nvml.so", libraryDir + "/libvgpu-opencl.so"} {
		b, err := os.ReadFile(o.place(path))
		if err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
		seen[string(b)] = true
	}
	if len(seen) != 1 {
		t.Errorf("parts of several versions are in place: %v", seen)
	}
}

// A run that is killed leaves the old version or the new one. Whatever is run next
// does the rest: it leaves what it leaves after a run that was not killed.
func TestWhatAKilledRunLeftIsMended(t *testing.T) {
	one, two := build(t, "one"), build(t, "two")
	// All is written and synced hundreds of times.
	memory := t.TempDir()
	if err := mountMemory(t, memory, "64m"); err != nil {
		t.Fatal(err)
	}
	versions := containerds(t)
	for i, c := range []struct {
		description string
		containerd  string
		config      string
		upgrade     bool
	}{
		{"first", "", "", false},
		{"upgrade", "", "", true},
		{"first, with a block in containerd's configuration", versions["1.6.20"], debian, false},
		{"first, with a file beside it", versions["2.4.2"], "version = 3\nimports = [\"conf.d/*.toml\"]\n", false},
		{"first, without one", versions["2.4.2"], "", false},
	} {
		t.Run(c.description, func(t *testing.T) {
			t.Parallel()
			// fresh is a system in which nothing, or the old version, is installed.
			made := 0
			fresh := func() Options {
				t.Helper()
				o := options(t, one)
				o.Root, o.Containerd = filepath.Join(memory, fmt.Sprint(i, "-", made)), c.containerd
				made++
				for _, dir := range []string{"usr/lib", "etc/containerd"} { // as every system has
					if err := os.MkdirAll(o.place(dir), 0o755); err != nil {
						t.Fatal(err)
					}
				}
				if c.config != "" {
					file(t, o.place(o.Config), c.config)
				}
				if c.upgrade {
					install(t, o)
					o.From = two
				}
				return o
			}
			after := map[string]func(Options){
				"install":   func(o Options) { install(t, o) },
				"uninstall": func(o Options) { uninstall(t, o, false) },
			}
			if c.upgrade {
				after["the old version's install"] = func(o Options) {
					o.From = one
					install(t, o)
				}
			}
			want := map[string]map[string]string{}
			changes := 0
			for name, next := range after {
				o := fresh()
				changes = len(install(t, o).Changes)
				next(o)
				want[name] = snapshot(t, o.Root)
				os.RemoveAll(o.Root)
			}
			for n := range changes + 1 {
				for name, next := range after {
					o := fresh()
					p, err := Install(t.Context(), o)
					if err != nil {
						t.Fatal(err)
					}
					if c.containerd != "" && !configures(p, n) {
						break // containerd is asked several times for each plan
					}
					kill(t, p, n)
					oneVersion(t, o)
					next(o)
					if d := cmp.Diff(want[name], snapshot(t, o.Root)); d != "" {
						t.Errorf("%s after %d of %d changes leaves something else than without a kill:\n%s", name, n, changes, d)
					}
					os.RemoveAll(o.Root)
				}
				if t.Failed() {
					return
				}
			}
		})
	}
}

// configures tells whether change n of a plan, or the one before, is of containerd's
// configuration.
func configures(p *Plan, n int) bool {
	for _, c := range p.Changes[max(n-1, 0):min(n+1, len(p.Changes))] {
		if name := filepath.Base(c.Path); name == "config.toml" || name == Handler+".toml" {
			return true
		}
	}
	return false
}

// Two at once: one is told to wait for the other's end.
func TestTwoAtOnce(t *testing.T) {
	o := options(t, build(t, "one"))
	unlock, err := o.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Lock(); err == nil || !strings.Contains(err.Error(), "is under way in "+o.Root) {
		t.Errorf("the second got %v", err)
	}
	unlock()
	unlock, err = o.Lock()
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
