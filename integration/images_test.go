// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// The simulated driver's version, in the names of its files.
const simulatedVersion = "999.10"

// parts are the further libraries of a driver, with the names by which programs and
// the driver's other parts load them.
var parts = []struct{ file, soname string }{
	{"libnvidia-ptxjitcompiler.so." + simulatedVersion, "libnvidia-ptxjitcompiler.so.1"},
	{"libnvidia-nvvm.so." + simulatedVersion, "libnvidia-nvvm.so.4"},
	{"libnvidia-gpucomp.so." + simulatedVersion, "libnvidia-gpucomp.so." + simulatedVersion},
	{"libnvcuvid.so." + simulatedVersion, "libnvcuvid.so.1"},
}

// wholeDriver installs the simulated driver below dir, with parts beside it.
func wholeDriver(t *testing.T, paths harness.Paths, dir string) harness.Paths {
	t.Helper()
	run(t, "cp", "-a", paths.Simulated, dir)
	for _, p := range parts {
		run(t, "gcc", "-shared", "-nostdlib", "-Wl,-soname,"+p.soname, "-o", filepath.Join(dir, "lib", p.file), "-x", "c", os.DevNull)
	}
	paths.Simulated = dir
	return paths
}

func run(t *testing.T, command ...string) {
	t.Helper()
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
}

// image is a root file system under construction.
type image struct {
	t     *testing.T
	paths harness.Paths
	dir   string
}

func (i image) write(name, content string) {
	i.t.Helper()
	path := filepath.Join(i.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		i.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		i.t.Fatal(err)
	}
}

func (i image) link(target, name string) {
	i.t.Helper()
	path := filepath.Join(i.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		i.t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		i.t.Fatal(err)
	}
}

// lib64 makes it one of a distribution that has its libraries in /usr/lib64, such as
// Fedora: the loader searches there and nowhere in Debian's directories.
func (i image) lib64() {
	i.t.Helper()
	run(i.t, "sh", "-c", `cd "$0/usr/lib" && mv */* ../lib64 && rmdir *`, i.dir)
	i.searches("/lib64/", "/usr/lib64/")
}

// lib makes it one of a distribution that has them in /usr/lib, to which /usr/lib64
// leads, such as Arch Linux.
func (i image) lib() {
	i.t.Helper()
	run(i.t, "sh", "-c", `cd "$0/usr/lib" && mv */* . && rm -r */ ../lib64 && ln -s lib ../lib64`, i.dir)
	i.searches("/lib/", "/usr/lib/")
}

// searches changes the directories that the loader searches in the place of Debian's.
// They are texts in it; a slash more changes no path.
func (i image) searches(lib, usrLib string) {
	i.t.Helper()
	loader := filepath.Join(i.dir, "lib64/ld-linux-x86-64.so.2")
	b, err := os.ReadFile(loader)
	if err != nil {
		i.t.Fatal(err)
	}
	for debian, other := range map[string]string{"/lib/x86_64-linux-gnu/": lib, "/usr/lib/x86_64-linux-gnu/": usrLib} {
		padded := other + strings.Repeat("/", len(debian)-len(other))
		if !bytes.Contains(b, []byte("\x00"+debian+"\x00")) {
			i.t.Fatalf("the loader does not search %q", debian)
		}
		b = bytes.ReplaceAll(b, []byte("\x00"+debian+"\x00"), []byte("\x00"+padded+"\x00"))
	}
	if err := os.WriteFile(loader, b, 0o755); err != nil {
		i.t.Fatal(err)
	}
}

// compat makes it one that brings libraries for forward compatibility, as NVIDIA's
// do: a driver of its own.
func (i image) compat() {
	i.t.Helper()
	driver, err := os.ReadFile(filepath.Join(i.paths.Simulated, "lib", "libcuda.so."+simulatedVersion))
	if err != nil {
		i.t.Fatal(err)
	}
	i.write("usr/local/cuda-12.4/compat/libcuda.so.999.20", string(driver))
	i.link("libcuda.so.999.20", "usr/local/cuda-12.4/compat/libcuda.so.1")
	i.link("libcuda.so.1", "usr/local/cuda-12.4/compat/libcuda.so")
	i.link("/etc/alternatives/cuda", "usr/local/cuda")
	i.link("/usr/local/cuda-12.4", "etc/alternatives/cuda")
}

// Each kind of image and of container: its process finds every library of the
// driver by name, is a client of its vGPU, and computes in its turns alone.
func TestImages(t *testing.T) {
	const compatEnv = "LD_LIBRARY_PATH=/usr/local/cuda/compat:/usr/local/nvidia/lib64"
	paths, err := harness.DefaultPaths()
	if err != nil {
		t.Fatal(err)
	}
	paths = wholeDriver(t, paths, filepath.Join(t.TempDir(), "driver"))
	n := harnesstest.StartFrom(t, paths, rootfs, harness.Options{
		Version: harness.Containerd24, Daemon: harness.DaemonOptions{LogLevel: "trace"},
	})
	var mu sync.Mutex
	ids := map[harness.Tenant]string{}

	nothing := func(image) {}
	t.Run("computes in", func(t *testing.T) {
		for _, c := range []struct {
			description string
			build       func(image) // on one with nothing but programs; nil: the tests' shared one
			spec        harness.Spec
			user        []string // whom the program becomes, with its groups
			check       func(t *testing.T, image string)
		}{
			{description: "an image without ldconfig"},
			{description: "an image with nothing but its program", build: nothing, spec: harness.Spec{ReadOnly: true, User: "1000:1000"}, check: withoutCUDA},
			{description: "an image with a static etc", build: func(i image) { i.write("etc/passwd", "root:x:0:0:root:/:/none\n") }, spec: harness.Spec{ReadOnly: true}},
			{description: "an image with libraries in lib64", build: image.lib64},
			{description: "an image whose lib64 leads to lib", build: image.lib},
			{description: "an image with a driver for forward compatibility", build: image.compat, spec: harness.Spec{Env: []string{compatEnv}, ReadOnly: true}},
			{description: "an image whose loader has cached that driver", build: func(i image) {
				i.compat()
				i.write("etc/ld.so.conf", "/usr/local/cuda-12.4/compat\n")
				run(t, "/sbin/ldconfig", "-r", i.dir)
			}},
			{description: "a process of a user with further groups", user: []string{"1000", "1000,44,109"}},
			{
				description: "a user namespace", build: func(i image) { run(t, "chown", "-hR", "100000:100000", i.dir) },
				spec: harness.Spec{Extra: []string{"--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"}},
			},
			{description: "the network of the host", spec: harness.Spec{Extra: []string{"--net-host"}}},
			{description: "a tmpfs over run", spec: harness.Spec{Mounts: []string{"type=tmpfs,src=tmpfs,dst=/run,options=mode=0755"}}},
			{description: "a privileged container", spec: harness.Spec{Extra: []string{"--privileged"}}},
			{description: "an image that asks for what the driver has", spec: harness.Spec{Env: []string{"NVIDIA_REQUIRE_CUDA=cuda>=13.0 brand=tesla,driver>=535"}}},
			{description: "an image whose requirement is turned off", spec: harness.Spec{Env: []string{"NVIDIA_REQUIRE_CUDA=cuda>=99.0", "NVIDIA_DISABLE_REQUIRE=1"}}},
		} {
			s := c.spec
			s.ID = strings.ReplaceAll(c.description, " ", "-")
			if c.build != nil {
				s.Rootfs = filepath.Join(n.Dir, "images", s.ID)
				if err := harness.BareRootfs(paths, s.Rootfs); err != nil {
					t.Fatal(err)
				}
				c.build(image{t, paths, s.Rootfs})
			}
			s.Args = []string{"/vgpu/finds"}
			if c.user != nil {
				s.Args = append(append(s.Args, "--user"), c.user...)
			}
			for _, p := range parts {
				s.Args = append(s.Args, p.soname, p.file)
			}
			s.Args = append(s.Args, "libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "--", "/vgpu/hog", "--ms", "0")
			t.Run(c.description, func(t *testing.T) {
				t.Parallel()
				n := n.Sub(t)
				container := n.Launch(s)
				n.Says(container, "running")
				v, err := n.VGPU(s.ID)
				if err != nil {
					t.Fatal(err)
				}
				if v.GetClients() != 1 {
					t.Errorf("its vGPU has %d clients: the process is none", v.GetClients())
				}
				for _, l := range ungated(t, container) {
					t.Errorf("the process has loaded %s", l)
				}
				if c.check != nil {
					c.check(t, s.Rootfs)
				}
				mu.Lock()
				defer mu.Unlock()
				for tenant, id := range n.VGPUIDs(n.Tenants(container)) {
					ids[tenant] = id
				}
			})
		}
	})
	if err := n.Containerd.RemoveAll(n.Ctx); err != nil { // or the last turn has no end yet
		t.Fatal(err)
	}
	n.InTurns(ids)
	n.NoOverlap()
}

// withoutCUDA checks that an image has no directory of CUDA's that it had not
// before: programs would take it for an installation.
func withoutCUDA(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Lstat(filepath.Join(dir, "usr/local")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the image has /usr/local now (%v)", err)
	}
}

// ungated are the libcuda that a container's process has loaded and that are
// neither ours nor the one behind it.
func ungated(t *testing.T, c *harness.Container) (all []string) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", c.PID))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if _, file, ok := strings.Cut(strings.TrimSpace(line), " /"); ok && strings.Contains(file, "/compat/") {
			all = append(all, "/"+file)
		}
	}
	return all
}

// What can not be had is refused before anything is made, and the error says why
// and what to do.
func TestRefusedContainers(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24})
	for _, c := range []struct {
		description string
		spec        harness.Spec
		says        []string
	}{
		{
			"a quota for a privileged container",
			harness.Spec{Extra: []string{"--privileged"}, Annotations: map[string]string{"vgpu-shim.dev/memory": "1Gi"}},
			[]string{"vgpu-shim.dev/memory=1Gi", "privileged", "no quota"},
		},
		{
			"an image of a newer CUDA",
			harness.Spec{Env: []string{"NVIDIA_REQUIRE_CUDA=cuda>=13.9 brand=tesla,driver>=535"}},
			[]string{"CUDA 13.9", simulatedVersion, "up to 13.0", "NVIDIA_DISABLE_REQUIRE"},
		},
	} {
		t.Run(c.description, func(t *testing.T) {
			c.spec.ID, c.spec.Rootfs, c.spec.Args = "refused", rootfs, []string{"vecadd"}
			if _, err := n.Containerd.Launch(n.Ctx, c.spec); err == nil {
				t.Fatal("it started")
			} else {
				for _, word := range c.says {
					if !strings.Contains(said(err), word) {
						t.Errorf("the error does not say %q: %v", word, err)
					}
				}
			}
			if err := n.CheckLeaks(n.Ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// Two containers of one id, in two namespaces of one containerd, have a vGPU each.
func TestTheSameIDInTwoNamespaces(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: harness.DaemonOptions{LogLevel: "trace"}})
	tenants := map[harness.Tenant]*harness.Container{}
	for _, namespace := range []string{"", n.Containerd.Namespace + "-other"} {
		c := n.Launch(harness.Spec{ID: "twin", Namespace: namespace, Args: []string{"hog", "--ms", "0"}})
		for tenant, container := range n.Tenants(c) {
			tenants[tenant] = container
		}
	}
	ids := map[string]bool{}
	n.Wait(func() error {
		all, err := n.Daemon.VGPUs(n.Ctx)
		if err != nil {
			return err
		}
		clear(ids)
		for _, v := range all {
			if v.GetContainer().GetId() == "twin" && v.GetClients() == 1 && v.GetUsage().GetTurns() > 0 {
				ids[v.GetId()] = true
			}
		}
		if len(ids) != 2 {
			return fmt.Errorf("not yet two that took turns: %v", all)
		}
		return nil
	})
	if o := n.NoOverlap(); len(o.Tenants) != 2 || len(tenants) != 2 {
		t.Errorf("the simulated GPU has seen %v, the containers are %v", o.Tenants, tenants)
	}
}
