// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAContainerGetsTheMuslLibrariesToo(t *testing.T) {
	with := takeOver
	with.Musl = MuslIn("/opt/vgpu/musl", "amd64")
	d := driver()
	d.CUDAMusl, d.NVMLMusl = "/host/musl/libcuda.so.580.65.06", "/host/musl/libnvidia-ml.so.580.65.06"
	want := []string{
		"/.vgpu-musl/libcuda.so <- /host/musl/libcuda.so.580.65.06 bind,ro,nosuid,nodev",
		"/.vgpu-musl/libnvidia-ml.so <- /host/musl/libnvidia-ml.so.580.65.06 bind,ro,nosuid,nodev",
		"/.vgpu-musl/lib/libcuda.so.580.65.06 <- /opt/vgpu/musl/libvgpu-cuda.so bind,ro,nosuid,nodev",
		"/.vgpu-musl/lib/libcuda.so.1 <- /opt/vgpu/musl/libvgpu-cuda.so bind,ro,nosuid,nodev",
		"/.vgpu-musl/lib/libcuda.so <- /opt/vgpu/musl/libvgpu-cuda.so bind,ro,nosuid,nodev",
		"/.vgpu-musl/lib/libnvidia-ml.so.580.65.06 <- /opt/vgpu/musl/libvgpu-nvml.so bind,ro,nosuid,nodev",
		"/.vgpu-musl/lib/libnvidia-ml.so.1 <- /opt/vgpu/musl/libvgpu-nvml.so bind,ro,nosuid,nodev",
		"/.vgpu-musl/lib/libnvidia-ml.so <- /opt/vgpu/musl/libvgpu-nvml.so bind,ro,nosuid,nodev",
		"/etc/ld-musl-x86_64.path <- /opt/vgpu/musl/ld-musl-x86_64.path bind,ro,nosuid,nodev",
	}
	musl, others := split(t, with, d)
	if diff := cmp.Diff(want, musl); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// What the other C library gets is what it gets without.
	if _, without := split(t, takeOver, driver()); !cmp.Equal(without, others) {
		t.Errorf("(-without +with)\n%s", cmp.Diff(without, others))
	}
}

func TestWithoutBothBuildsThereIsNothingForMusl(t *testing.T) {
	with, d := takeOver, driver()
	with.Musl = MuslIn("/opt/vgpu/musl", "amd64")
	if musl, _ := split(t, with, d); musl != nil {
		t.Errorf("the driver has no build for musl: %q", musl)
	}
	d.CUDAMusl, d.NVMLMusl = "/host/musl/libcuda.so.1", "/host/musl/libnvidia-ml.so.1"
	if musl, _ := split(t, takeOver, d); musl != nil {
		t.Errorf("we have no build for musl: %q", musl)
	}
}

// split are the lines of the edits that musl is in, and all others.
func split(t *testing.T, take TakeOver, d Driver) (musl, others []string) {
	t.Helper()
	e, err := take.Edits(d, "/run/vgpu/c/x")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines(e) {
		if strings.Contains(l, "musl") {
			musl = append(musl, l)
		} else {
			others = append(others, l)
		}
	}
	return musl, others
}

func TestMuslReadsAFileNamedAfterTheMachine(t *testing.T) {
	for arch, want := range map[string]string{"amd64": "/d/ld-musl-x86_64.path", "arm64": "/d/ld-musl-aarch64.path"} {
		if got := MuslIn("/d", arch).Path; got != want {
			t.Errorf("%s: %s, want %s", arch, got, want)
		}
	}
}

func TestMuslLibrariesAreChecked(t *testing.T) {
	const all = "/.vgpu-musl/lib\n/lib\n/usr/local/lib\n/usr/lib\n"
	for name, tc := range map[string]struct {
		cuda, nvml, list string // what each needs; what the list says
		says             string // "": nothing is wrong
	}{
		"as they are built":                     {RealCUDAMusl, RealNVMLMusl, all, ""},
		"one that is built for glibc":           {RealCUDA, RealNVMLMusl, all, "libvgpu-cuda.so is not built for musl"},
		"the one in the place of the other one": {RealCUDAMusl, RealCUDAMusl, all, "libvgpu-nvml.so is not built for musl"},
		"no library":                            {RealCUDAMusl, "", all, "libvgpu-nvml.so"},
		"a list without our directory":          {RealCUDAMusl, RealNVMLMusl, "/lib\n/usr/local/lib\n/usr/lib\n", "does not begin with /.vgpu-musl/lib"},
		"our directory after another one":       {RealCUDAMusl, RealNVMLMusl, "/lib\n" + all, "does not begin with /.vgpu-musl/lib"},
		"a list without a default directory":    {RealCUDAMusl, RealNVMLMusl, "/.vgpu-musl/lib\n/lib\n/usr/local/lib\n", "is without /usr/lib"},
		"no list":                               {RealCUDAMusl, RealNVMLMusl, "", "list of directories"},
	} {
		t.Run(name, func(t *testing.T) {
			m := MuslIn(t.TempDir(), runtime.GOARCH)
			needing(t, m.CUDA, tc.cuda)
			needing(t, m.NVML, tc.nvml)
			if tc.list != "" {
				if err := os.WriteFile(m.Path, []byte(tc.list), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := m.Check()
			if tc.says == "" && err != nil {
				t.Fatal(err)
			}
			if tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
				t.Fatalf("%v does not say %q", err, tc.says)
			}
		})
	}
}

// needing links a shared object that needs another one, if it is to need one.
func needing(t *testing.T, path, need string) {
	t.Helper()
	if need == "" {
		return
	}
	source, needed := filepath.Join(t.TempDir(), "l.c"), filepath.Join(t.TempDir(), "needed.so")
	if err := os.WriteFile(source, []byte("int vgpu;"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"-Wl,-soname," + need, "-o", needed, source},
		{"-Wl,--no-as-needed", "-o", path, source, needed},
	} {
		if out, err := exec.Command("cc", append([]string{"-shared", "-fPIC", "-nostdlib"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}
