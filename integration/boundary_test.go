// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
	"github.com/vgpu-shim/vgpu/shim/mounts"
)

// What docs/threat-model.md promises of the borders between a container, its image,
// its pod's author and the host, on real containers.

// ociSpec is what the tests here read of a config.json.
type ociSpec struct {
	Process     struct{ Env []string }
	Annotations map[string]string
	Hooks       map[string][]any
	Linux       struct{ Devices []struct{ Path string } }
}

func (n *node) spec(id string) (s ociSpec) {
	n.T.Helper()
	b, err := os.ReadFile(filepath.Join(n.Containerd.BundlePath(id), "config.json"))
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		n.T.Fatal(err)
	}
	return s
}

// image makes a root file system of its own for a test, which may spoil it.
func (n *node) image(name string) string {
	n.T.Helper()
	dir := filepath.Join(n.Dir, name)
	if err := harness.BusyboxRootfs(n.Paths, dir); err != nil {
		n.T.Fatal(err)
	}
	return dir
}

// listing is all that is below a directory, with what could change of it.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%s %v", path, info.Mode())
		if info.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", b)
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// added is a mount that a container has only because it has a vGPU.
type added struct {
	destination string
	dir         bool
}

func (n *node) added() (all []added) {
	n.T.Helper()
	stock := n.Launch(harness.Spec{ID: "stock", Runtime: harness.RuncRuntime, Args: []string{"sleep", "100000"}})
	ours := n.Launch(harness.Spec{ID: "ours", Args: []string{"sleep", "100000"}})
	has := n.mounts(stock)
	for _, m := range n.mounts(ours) {
		destination, options := m[0], m[1:]
		if slices.ContainsFunc(has, func(o []string) bool { return o[0] == destination }) {
			continue
		}
		// The simulated GPU is what its processes write to.
		for _, option := range []string{"ro", "nosuid", "nodev"} {
			if !slices.Contains(options, option) && destination != "/dev/simgpu" {
				n.T.Errorf("%s is mounted %v, without %s", destination, options, option)
			}
		}
		info, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", ours.PID, destination))
		if err != nil {
			n.T.Fatal(err)
		}
		all = append(all, added{destination, info.IsDir()})
	}
	for _, c := range []*harness.Container{stock, ours} {
		if err := c.Remove(n.Ctx); err != nil {
			n.T.Fatal(err)
		}
	}
	return all
}

// mounts are those that a container sees, in their order: of each its place, then its
// options (proc_pid_mountinfo(5)).
func (n *node) mounts(c *harness.Container) (all [][]string) {
	n.T.Helper()
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", c.PID))
	if err != nil {
		n.T.Fatal(err)
	}
	for line := range strings.Lines(string(info)) {
		f := strings.Fields(line)
		all = append(all, append([]string{f[4]}, strings.Split(f[5], ",")...))
	}
	return all
}

// An image in which what the vGPU's mounts go to is a symbolic link to a place that
// the host has: nothing is made, changed or mounted on the host, and the container has
// its vGPU all the same. Through /proc, which knows of other roots than the image's, no
// mount of the shim's goes anywhere.
func TestAnImageSteersNoMount(t *testing.T) {
	file := func(d string) string { return d }
	up := strings.Repeat("../", 20)
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v})
		all := n.added()
		if len(all) < 10 {
			t.Fatalf("a vGPU is only %v", all)
		}
		for _, c := range []struct {
			id    string
			of    func(destination string) string // which part of the path is the link
			leads string                          // what stands in it before the place on the host
		}{
			{"file", file, "/"},
			{"file-upwards", file, up},
			{"file-by-proc", file, "/proc/self/root/"},
			{"directory", filepath.Dir, "/"},
			{"directory-upwards", filepath.Dir, up},
			{"directory-by-proc", filepath.Dir, "/proc/1/root/"},
		} {
			t.Run(c.id, func(t *testing.T) {
				n := &node{n.Sub(t)}
				image, host := n.image(c.id), filepath.Join(n.Dir, c.id+"-host")
				for _, m := range all {
					n.there(filepath.Join(host, m.destination), m.dir)
					link := c.of(m.destination)
					// "/" is no link, and below /.vgpu is nothing of the image. An old runc
					// follows /dev by itself, in any container: CVE-2026-41579, which the
					// doctor looks for.
					if link == "/" || link == "/dev" || strings.HasPrefix(link, "/.vgpu/") {
						continue
					}
					n.lead(image, link, c.leads, host)
				}
				before := listing(t, host)
				s := harness.Spec{ID: c.id, Rootfs: image, Args: []string{"/vgpu/vecadd"}}
				if strings.HasPrefix(c.leads, "/proc/") && mounts.Supported() {
					_, err := n.Containerd.Launch(n.Ctx, s)
					if text := said(err); !strings.Contains(text, "failed to put the vGPU into container "+c.id) {
						t.Errorf("it says %s, %v", text, err)
					}
				} else {
					var result struct{ OK bool }
					harnesstest.LastJSON(t, n.Run(s), &result)
					if !result.OK {
						t.Error("the sum is not reported as right")
					}
				}
				if after := listing(t, host); !slices.Equal(before, after) {
					t.Errorf("the host has\n%s\nand had\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
				}
			})
		}
		n.NoOverlap()
	})
}

// An image that leads the libraries into the vGPU's directory, which is the host's: it
// is mounted read-only, so nothing can be made there, and the error says so.
func TestAnImageMakesNothingInItsVGPUsDirectory(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v})
		image := n.image("image")
		for _, dir := range []string{"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu"} {
			err := os.RemoveAll(filepath.Join(image, dir))
			if err == nil {
				err = os.Symlink("/.vgpu", filepath.Join(image, dir))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		_, err := n.Containerd.Launch(n.Ctx, harness.Spec{ID: "image", Rootfs: image, Args: []string{"sleep", "100000"}})
		if text := said(err); !strings.Contains(text, "/libcuda.so") || !strings.Contains(text, "read-only file system") {
			t.Errorf("it says %s, %v", text, err)
		}
		if err := n.CheckLeaks(n.Ctx); err != nil {
			t.Error(err)
		}
	})
}

// there makes a file or a directory, with all above it.
func (n *node) there(path string, dir bool) {
	n.T.Helper()
	var err error
	if dir {
		err = os.MkdirAll(path, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
		err = os.WriteFile(path, []byte("the host's"), 0o644)
	}
	if err != nil {
		n.T.Fatal(err)
	}
}

// lead makes a path of an image a link to the same path below the directory host.
// What was there is then in the image, where a link that is followed within it leads.
func (n *node) lead(image, path, leads, host string) {
	n.T.Helper()
	for above := filepath.Dir(path); above != "/"; above = filepath.Dir(above) {
		if info, err := os.Lstat(filepath.Join(image, above)); err == nil && info.Mode().Type() == fs.ModeSymlink {
			return // it is led there already
		}
	}
	at, moved := filepath.Join(image, path), filepath.Join(image, host, path)
	info, err := os.Lstat(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = os.MkdirAll(filepath.Dir(at), 0o755)
	case err == nil && info.Mode().Type() == fs.ModeSymlink:
		return // for another mount
	case err == nil:
		err = errors.Join(os.MkdirAll(filepath.Dir(moved), 0o755), os.Rename(at, moved))
	}
	if err == nil {
		err = os.Symlink(leads+strings.TrimPrefix(host+path, "/"), at)
	}
	if err != nil {
		n.T.Fatal(err)
	}
}

// descriptors are those of a process, with what each leads to, and whether a program
// that it starts gets it.
func descriptors(t *testing.T, pid int) (all map[int]string, inherited []int) {
	t.Helper()
	all = map[int]string{}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was closed meanwhile
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(info), "flags:")
		flags, err := strconv.ParseUint(strings.Fields(after)[0], 8, 64)
		if err != nil {
			t.Fatal(err)
		}
		all[fd] = to
		if flags&unix.O_CLOEXEC == 0 {
			inherited = append(inherited, fd)
		}
	}
	return all, inherited
}

// No descriptor of vgpud, of a shim or of the library in a CUDA process reaches a
// program that one of them starts: a container has 0 to 2, and so has what is
// executed in it.
func TestNoDescriptorIsInherited(t *testing.T) {
	// What this test was started with is not theirs.
	mine, inherited := descriptors(t, os.Getpid())
	for fd := range mine {
		if !slices.Contains(inherited, fd) {
			delete(mine, fd)
		}
	}
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v})
		cuda := n.Launch(harness.Spec{ID: "cuda", Args: []string{"hog", "--ms", "0"}})
		idle := n.Launch(harness.Spec{
			ID: "idle", Annotations: map[string]string{"vgpu-shim.dev/bind": "early"}, Args: []string{"sh", "-c", "echo idle; exec sleep 100000"},
		})
		n.Says(cuda, "running")
		n.Says(idle, "idle")
		if all, _ := descriptors(t, idle.PID); len(all) != 3 {
			t.Errorf("a container has %v", all)
		}
		// The last one is that of the directory, which ls opens.
		if out, err := cuda.Exec(n.Ctx, "/bin/ls", "/proc/self/fd"); err != nil || !slices.Equal(strings.Fields(out), []string{"0", "1", "2", "3"}) {
			t.Errorf("what is executed has %q, %v", out, err)
		}
		for id, c := range map[string]*harness.Container{"cuda": cuda, "idle": idle} {
			shim, err := c.ShimPID()
			if err != nil {
				t.Fatal(err)
			}
			for what, pid := range map[string]int{"vgpud": n.Daemon.Process().PID(), "the shim": shim, "its process": c.PID} {
				all, inherited := descriptors(t, pid)
				for _, fd := range inherited {
					if fd > 2 && mine[fd] != all[fd] {
						t.Errorf("%s of %s would hand on descriptor %d, %s", what, id, fd, all[fd])
					}
				}
			}
		}
	})
}

// While runc makes a container its shim has the driver's mounts ready. Nothing that it
// starts gets hold of one, and when they have their places it has none any more.
func TestMountsThatWaitAreNotInherited(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		o := theOne(t, v).another(t)
		library, err := os.Stat(o.Paths.Library)
		if err != nil {
			t.Fatal(err)
		}
		wait, release := o.during(o.Ctx, "before create", o.create)
		shim, err := o.c.ShimPID()
		if err != nil {
			t.Fatal(err)
		}
		// of are the descriptors of a process, of whichever of its threads, that are of
		// our library.
		of := func(pid int) []string {
			fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/fd/*", pid))
			if err != nil {
				t.Fatal(err)
			}
			return slices.DeleteFunc(fds, func(fd string) bool {
				info, err := os.Stat(fd)
				return err != nil || !os.SameFile(info, library)
			})
		}
		o.Wait(func() error {
			if len(of(shim)) == 0 {
				return fmt.Errorf("the shim has no mount: %w", errNotYet)
			}
			return nil
		})
		started := children(t, shim)
		if len(started) == 0 {
			t.Error("runc is not there")
		}
		for _, pid := range started {
			if got := of(pid); len(got) > 0 {
				t.Errorf("the shim's child %d has the mounts %v", pid, got)
			}
		}
		release()
		if err := wait(); err != nil {
			t.Fatal(err)
		}
		o.Wait(func() error { // the thread ends a moment later
			if got := of(shim); len(got) > 0 {
				return fmt.Errorf("the shim still has the mounts %v: %w", got, errNotYet)
			}
			return nil
		})
		o.must(o.start, o.exec, o.kill, o.delete)
		o.nothing()
	})
}

// children are the processes that one has started.
func children(t *testing.T, pid int) (all []int) {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		b, err := os.ReadFile(list)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a thread that has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range strings.Fields(string(b)) {
			child, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, child)
		}
	}
	return all
}

// What vgpud and the shim leave on the host is root's alone, but what the container
// gets: the directory of its vGPU, which lies in one that is. In the container there is
// that one socket, nothing of theirs listens without a path, and the host mounts nothing.
func TestTheHostsFilesAreRootsAlone(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v})
		c := n.Launch(harness.Spec{ID: "cuda", Args: []string{"hog", "--ms", "0"}})
		n.Says(c, "running")
		user := n.Launch(harness.Spec{ID: "user", User: "1000:1000", Args: []string{"hog", "--ms", "0"}})
		n.Says(user, "running")

		theirs := map[string]fs.FileMode{
			"": fs.ModeDir | 0o755, "sock": fs.ModeSocket | 0o666, "vgpu.json": 0o444, "libcuda.so": 0o444, "libnvidia-ml.so": 0o444,
			"libvgpu-opencl.so": 0o444, "vgpu.lay": 0o444, "gpus": 0o444,
		}
		dirs := 0
		err := filepath.WalkDir(n.Daemon.State, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			if of, isIn := strings.CutPrefix(path, filepath.Join(n.Daemon.State, "c")+"/"); isIn {
				_, name, _ := strings.Cut(of, "/")
				if want, known := theirs[name]; !known || info.Mode() != want {
					t.Errorf("a container has %q, %v", name, info.Mode())
				}
				if name == "" {
					dirs++
				}
				return nil
			}
			if want := map[bool]fs.FileMode{true: 0o700, false: 0o600}[d.IsDir()]; info.Mode().Perm() != want {
				t.Errorf("%s is %v, want %v", path, info.Mode(), want)
			}
			return nil
		})
		if err != nil || dirs != 2 {
			t.Errorf("%d directories of vGPUs, %v", dirs, err)
		}
		for name, want := range map[string]fs.FileMode{".": fs.ModeDir | 0o700, "vgpu.json": 0o600, "address": 0o600} {
			path := filepath.Join(n.Containerd.BundlePath("cuda"), name)
			// What containerd has made is as containerd has made it.
			if info, err := os.Stat(path); err != nil || info.Mode()&^0o111 != want&^0o111 {
				t.Errorf("%s is %v, %v, want %v", path, info.Mode(), err, want)
			}
		}

		address, err := os.ReadFile(filepath.Join(n.Containerd.BundlePath("cuda"), "address"))
		if err != nil {
			t.Fatal(err)
		}
		socket, isPath := strings.CutPrefix(string(address), "unix://")
		if info, err := os.Stat(socket); !isPath || err != nil || info.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("the shim listens on %s, %v, %v", address, info, err)
		}
		if info, err := os.Stat(filepath.Dir(socket)); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("the directory of its socket is %v, %v", info.Mode(), err)
		}

		out, err := c.Exec(n.Ctx, "/bin/find", "/", "-type", "s")
		if err != nil || strings.TrimSpace(out) != "/.vgpu/sock" {
			t.Errorf("the container has the sockets %q, %v", out, err)
		}
		shim, err := c.ShimPID()
		if err != nil {
			t.Fatal(err)
		}
		abstract, err := os.ReadFile("/proc/net/unix")
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range []int{n.Daemon.Process().PID(), shim} {
			all, _ := descriptors(t, pid)
			for line := range strings.Lines(string(abstract)) {
				f := strings.Fields(line)
				if len(f) == 8 && strings.HasPrefix(f[7], "@") && slices.Contains(slices.Collect(maps.Values(all)), "socket:["+f[6]+"]") {
					t.Errorf("process %d has a socket that any network namespace of its own reaches: %s", pid, line)
				}
			}
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil || strings.Contains(string(mounts), n.Dir) || strings.Contains(string(mounts), filepath.Base(n.Paths.Library)) {
			t.Errorf("of the vGPU's something is mounted on the host, %v:\n%s", err, mounts)
		}
	})
}

// Nobody gets a GPU, or more than the annotations ask for, by what an image or whoever
// starts a container says in its environment or labels; and no hook is added that
// could run with that environment.
func TestEnvironmentAndLabelsGrantNothing(t *testing.T) {
	asks := map[string]string{
		"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all", "NVIDIA_DISABLE_REQUIRE": "1", "CUDA_VISIBLE_DEVICES": "0,1",
		"VGPU_SHIM_CONFIG": "/evil.toml", "vgpu-shim.dev/gpus": "2", "LD_PRELOAD": "/proc/self/cwd/evil.so",
		"io.containerd.runc.v2.group": "evil", "io.kubernetes.cri.container-type": "sandbox",
	}
	var env []string
	for _, key := range slices.Sorted(maps.Keys(asks)) {
		env = append(env, key+"="+asks[key])
	}
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v, Daemon: harness.DaemonOptions{GPUs: "sim:2"}})
		const image = "example.com/evil:1"
		archive := filepath.Join(n.Dir, "image.tar")
		writeImage(t, archive, image, map[string]any{
			"Env": env, "Labels": asks, "Cmd": []string{"/bin/busybox", "sh", "-c", "busybox env; busybox ls /dev /.vgpu; exec busybox sleep 100000"},
		})
		if out, err := n.Containerd.CtrCommand(n.Ctx, "image", "import", archive).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		one := n.Launch(harness.Spec{ID: "one", Image: image, Env: env})
		n.Says(one, "NVIDIA_VISIBLE_DEVICES=void")
		if v, err := n.VGPU("one"); err != nil || v.GetCount() != 1 {
			t.Errorf("it has %d GPUs, %v", v.GetCount(), err)
		}
		if s := n.spec("one"); len(s.Hooks) != 0 {
			t.Errorf("it has the hooks %v", s.Hooks)
		}
		if err := one.Remove(n.Ctx); err != nil {
			t.Fatal(err)
		}

		// Under a handler that gives none by itself it is runc's container.
		f, err := os.OpenFile(filepath.Join(n.Daemon.Dir, "shim.toml"), os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString("default_count = 0\n")
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		configs := map[string]string{}
		for _, runtime := range []string{harness.VGPURuntime, harness.RuncRuntime} {
			c := n.Launch(harness.Spec{ID: "none", Runtime: runtime, Image: image, Env: env})
			n.Says(c, "NVIDIA_VISIBLE_DEVICES=all")
			n.Says(c, "ls: /.vgpu: No such file or directory")
			if _, err := n.VGPU("none"); err == nil || strings.Contains(c.Output(), "simgpu") {
				t.Errorf("%s: it has a vGPU (%v), and in it there is %s", runtime, err, c.Output())
			}
			b, err := os.ReadFile(filepath.Join(n.Containerd.BundlePath("none"), "config.json"))
			if err != nil {
				t.Fatal(err)
			}
			configs[runtime] = string(b)
			if err := c.Remove(n.Ctx); err != nil {
				t.Fatal(err)
			}
		}
		if configs[harness.VGPURuntime] != configs[harness.RuncRuntime] {
			t.Errorf("config.json differs:\n%s\n%s", configs[harness.VGPURuntime], configs[harness.RuncRuntime])
		}
	})
}

// writeImage writes an image of busybox alone, as docker save does.
func writeImage(t *testing.T, path, name string, config map[string]any) {
	t.Helper()
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	archive(t, &layer, map[string][]byte{"bin/busybox": program})
	about, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest.FromBytes(layer.Bytes()).String()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		t.Fatal(err)
	}
	var whole bytes.Buffer
	archive(t, &whole, map[string][]byte{"config.json": about, "layer.tar": layer.Bytes(), "manifest.json": manifest})
	if err := os.WriteFile(path, whole.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func archive(t *testing.T, to io.Writer, files map[string][]byte) {
	t.Helper()
	w := tar.NewWriter(to)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
