// SPDX-License-Identifier: Apache-2.0

package opencl

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// program is one that nobody here wrote, or a few lines in its language.
type program struct {
	name, does string
	args       []string
	// result is what must be the same alone and beside others; version is in its first
	// group.
	result  *regexp.Regexp
	version *regexp.Regexp
	same    string // what result is, for the table
	idle    bool   // it only looks
	memory  string // what its container has of it, which is 2Gi otherwise
}

// darktable develops a picture of its own, no step of it on the CPU. Where it runs, and its configuration:
// integration/setup/opencl.sh.
const darktable = `
cp -r /built/darktable/config "$XDG_DATA_HOME"
cd /usr/share/darktable/kernels
darktable-cli --version
darktable-cli /usr/share/darktable/style/image-1.jpg "$XDG_DATA_HOME/picture.pfm" --width 300 --height 300 --core --library :memory: \
	--configdir "$XDG_DATA_HOME" --cachedir /built/darktable/cache --conf opencl=TRUE -d perf | tee "$XDG_DATA_HOME/steps"
if grep 'on CPU' "$XDG_DATA_HOME/steps"; then exit 1; fi
sha256sum <"$XDG_DATA_HOME/picture.pfm"`

var programs = []program{
	{
		name: "clinfo", does: "lists platforms and devices", same: "all it lists", idle: true,
		args:    []string{"/usr/bin/clinfo", "--raw"},
		result:  regexp.MustCompile(`(?s).+`),
		version: regexp.MustCompile(`CL_PLATFORM_VERSION\s+(OpenCL \S+ PoCL \S+)`),
	},
	{
		name: "clpeak", does: "measures what a launch and a transfer cost", same: "that it is measured (the numbers are the machine's)",
		memory:  "128Mi", // it transfers a part of what there is
		args:    []string{"/usr/bin/clpeak", "--kernel-latency", "--transfer-bandwidth"},
		result:  regexp.MustCompile(`(?m)^ +[a-zA-Z][a-zA-Z0-9 ()-]+:`),
		version: regexp.MustCompile(`Driver version\s*:\s*(\S+)`),
	},
	{
		name: "darktable", does: "develops and scales a photograph", same: "every byte of the picture, each step on the device",
		args:    []string{"/bin/sh", "-ec", darktable},
		result:  regexp.MustCompile("(?m)processed `.*' on GPU, .*|^[0-9a-f]{64} .*"),
		version: regexp.MustCompile(`(?m)^this is darktable-cli (\S+)`),
	},
	{
		name: "hashcat", does: "looks for the word of an MD5 sum among all of four letters", same: "the word",
		args:    []string{"/usr/bin/hashcat", "--potfile-disable", "-m", "0", "-a", "3", "aa0fa957ba9aa0ab13947d5f2b9c6581", "?l?l?l?l"},
		result:  regexp.MustCompile(`[0-9a-f]{32}:vgpu|Status\.+: .*`),
		version: regexp.MustCompile(`(?m)^hashcat \(v(\S+)\) starting`),
	},
	{
		name: "PyOpenCL", does: "arrays, a kernel from source, a reduction, an image", same: "sums and pixels",
		args:    []string{"/usr/bin/python3", "/testdata/arrays.py"},
		result:  regexp.MustCompile(`(?m)^(\d+ sum|image).*`),
		version: regexp.MustCompile(`(?m)^pyopencl (\S+)`),
	},
}

// meet begins a program when all of a meeting have come.
const meet = `: >/meeting/$1; until [ $(ls /meeting | wc -l) -ge $2 ]; do sleep 0.01; done; shift 2; exec "$@"`

// runAt runs a program in so many containers at once, and returns what each says.
func (n node) runAt(p program, of int) (said []string, containers []*harness.Container) {
	n.T.Helper()
	meeting := n.T.TempDir()
	testdata, err := filepath.Abs("testdata")
	if err != nil {
		n.T.Fatal(err)
	}
	for i := range of {
		args := append([]string{"/bin/sh", "-c", meet, "sh", fmt.Sprint(i), fmt.Sprint(of)}, p.args...)
		containers = append(containers, n.launch(harness.Spec{
			ID: fmt.Sprintf("%s-%d-%d", strings.ToLower(p.name), of, i), Args: args,
			Annotations: map[string]string{"vgpu-shim.dev/memory": cmp.Or(p.memory, "2Gi")},
			Mounts: []string{
				fmt.Sprintf("type=bind,src=%s,dst=/meeting,options=rbind:rw", meeting),
				fmt.Sprintf("type=bind,src=%s,dst=/testdata,options=rbind:ro", testdata),
			},
		}))
	}
	for _, c := range containers {
		said = append(said, n.exits(c))
	}
	return said, containers
}

// A program gives the same result beside one and beside three others as alone. Short form:
// beside one.
func TestProgramsGiveTheSameResultTogether(t *testing.T) {
	n := start(t, true)
	together := []int{2, 4}
	if testing.Short() {
		together = []int{2}
	}
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			n := node{n.Sub(t), n.rootfs}
			alone, _ := n.runAt(p, 1)
			want := strings.Join(p.result.FindAllString(alone[0], -1), "\n")
			version := p.version.FindStringSubmatch(alone[0])
			if want == "" || version == nil {
				t.Fatalf("alone it says\n%s", alone[0])
			}
			for _, of := range together {
				said, containers := n.runAt(p, of)
				for i, s := range said {
					if got := strings.Join(p.result.FindAllString(s, -1), "\n"); got != want {
						t.Errorf("beside %d others %s says\n%s\nalone\n%s", of-1, containers[i].ID, got, want)
					}
				}
				for _, c := range containers {
					last := n.gone(c)
					if last.Ungated != 0 || p.idle != (last.Usage.Submissions == 0) {
						t.Errorf("vgpu ps shows %+v of %s", last, c.ID)
					}
				}
			}
			if !t.Failed() {
				table.Programs = append(table.Programs, programRow{p.name, version[1], p.does, p.same})
			}
		})
	}
}

// What the container has of memory is what OpenCL tells.
func TestDeviceTellsTheContainersMemory(t *testing.T) {
	n := start(t, true)
	for memory, want := range map[string]string{"1Gi": "1073741824", "512Mi": "536870912"} {
		c := n.launch(harness.Spec{
			ID: "m" + strings.ToLower(memory), Args: []string{"/usr/bin/clinfo", "--raw"},
			Annotations: map[string]string{"vgpu-shim.dev/memory": memory},
		})
		out := n.exits(c)
		for _, info := range []string{"CL_DEVICE_GLOBAL_MEM_SIZE", "CL_DEVICE_MAX_MEM_ALLOC_SIZE"} {
			if !regexp.MustCompile(info + `\s+` + want + `\n`).MatchString(out) {
				t.Errorf("%s: no %s of %s in\n%s", memory, info, want, out)
			}
		}
	}
}

// An image without any OpenCL has a variable and two files more, and its programs run as
// under the stock runtime: one that needs no loader at all, and one that looks for
// OpenCL's and finds none. They say all on one stream: of two that go to one file containerd's
// shim may lose one.
func TestImageWithoutALoaderIsLeftAlone(t *testing.T) {
	n := start(t, true)
	out := n.Run(harness.Spec{ID: "plain", Args: []string{"/bin/sh", "-c", "echo $OPENCL_LAYERS; cat /etc/OpenCL/layers/vgpu.lay"}})
	if out != "/.vgpu/libvgpu-opencl.so\n/.vgpu/libvgpu-opencl.so\n" {
		t.Errorf("it says %q", out)
	}
	overlay, err := n.Overlay() // this machine's programs alone
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		rootfs string
		args   []string
		says   string
	}{
		"static": {busybox, []string{"/bin/sh", "-c", "sha256sum /bin/busybox; id; echo sums $((6 * 7)); exit 3"}, "sums 42"},
		"looks": {overlay.Rootfs, []string{"/usr/bin/python3", "-c", `
import ctypes, sys
try:
    ctypes.CDLL("libOpenCL.so.1")
except OSError as e:
    print(e)
print(sum(range(1000)))
sys.exit(3)`}, "libOpenCL.so.1: cannot open shared object file"},
	} {
		run := func(runtime string) (string, int) {
			t.Helper()
			c := n.Launch(harness.Spec{ID: name + strings.ReplaceAll(runtime, ".", "-"), Runtime: runtime, Rootfs: c.rootfs, Args: c.args})
			status, err := c.Wait(n.Ctx)
			if err != nil {
				t.Fatal(err)
			}
			return c.Output(), status
		}
		want, status := run(harness.RuncRuntime)
		got, ours := run("")
		if got != want || ours != status || status != 3 || !strings.Contains(want, c.says) {
			t.Errorf("%s: under us it says %q (exit status %d), under runc's shim %q (%d)", name, got, ours, want, status)
		}
	}
}
