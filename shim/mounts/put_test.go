// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/hooks/oci"
)

// TestMain lets this program be a container's first process, too: asRoot names the
// directory that becomes its root, how, and what is mounted below.
func TestMain(m *testing.M) {
	if root := os.Getenv("MOUNTS_TEST_ROOT"); root != "" {
		if err := contain(root, os.Getenv("MOUNTS_TEST_READ_ONLY") != ""); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the test
		os.Exit(0)
	}
	if os.Getenv("MOUNTS_TEST_WITHOUT_PROC") != "" {
		err := unix.Mount("tmpfs", "/proc", "tmpfs", 0, "") // in a mount namespace of its own
		if err == nil {
			err = Make(nil).Put(0, "")
		}
		fmt.Printf("supported: %v, put: %v", Supported(), err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// contain makes a directory the root of this process, with a procfs where it has a
// place for one and a read-only file system on the directory volume.
func contain(root string, readOnly bool) error {
	err := unix.Mount(root, root, "", unix.MS_BIND, "")
	if _, no := os.Stat(filepath.Join(root, "proc")); err == nil && no == nil {
		err = unix.Mount("proc", filepath.Join(root, "proc"), "proc", 0, "")
	}
	if _, no := os.Stat(filepath.Join(root, "volume")); err == nil && no == nil {
		err = unix.Mount("tmpfs", filepath.Join(root, "volume"), "tmpfs", unix.MS_RDONLY, "")
	}
	if err == nil && readOnly {
		err = unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	if err == nil {
		err = unix.Chroot(root)
	}
	return err
}

// container is a process with a root directory and a mount namespace of its own.
type container struct {
	t      *testing.T
	pid    int
	rootfs string // on the host
	lib    string // a file of the host's, which says lib
}

// kind is which container.
type kind struct {
	readOnly bool
	user     bool // with a user namespace, whose root is owner on the host
}

const owner = 100000

// newContainer starts one whose root directory build has filled. It needs root.
func newContainer(t *testing.T, k kind, build func(rootfs string)) *container {
	t.Helper()
	dir := t.TempDir()
	c := &container{t: t, rootfs: filepath.Join(dir, "rootfs"), lib: filepath.Join(dir, "lib")}
	if err := errors.Join(os.Mkdir(c.rootfs, 0o755), os.WriteFile(c.lib, []byte("lib"), 0o755)); err != nil {
		t.Fatal(err)
	}
	build(c.rootfs)
	program, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "program"), program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	// Another root than the host's may not come here from the host's root directory.
	cmd := exec.Command("/program")
	cmd.Dir = "/"
	cmd.Env = []string{"MOUNTS_TEST_ROOT=/rootfs"}
	if k.readOnly {
		cmd.Env = append(cmd.Env, "MOUNTS_TEST_READ_ONLY=1")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Chroot: dir}
	if k.user {
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: owner, Size: 1000}}
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: ids, GidMappings: ids, Chroot: dir,
			Credential: &syscall.Credential{}, GidMappingsEnableSetgroups: true,
		}
		if err := filepath.WalkDir(c.rootfs, func(path string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, owner, owner))
		}); err != nil {
			t.Fatal(err)
		}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	said := make([]byte, 4096)
	n, _ := out.Read(said)
	if string(said[:n]) != "ready\n" {
		t.Fatalf("the container says %q", said[:n])
	}
	c.pid = cmd.Process.Pid
	return c
}

// on is a mount of a source of the host's, as vgpud asks for them.
func on(source, destination string) oci.Mount {
	return oci.Mount{Destination: destination, Type: "bind", Source: source, Options: []string{"bind", "ro", "nosuid", "nodev"}}
}

// has checks what the container reads at a path of its own.
func (c *container) has(path, want string) {
	c.t.Helper()
	got, err := os.ReadFile(fmt.Sprintf("/proc/%d/root%s", c.pid, path))
	if err != nil || string(got) != want {
		c.t.Errorf("%s has %q in the container, want %q, %v", path, got, want, err)
	}
}

// mounted are the places of mounts that a process sees below a directory, with their
// options.
func mounted(t *testing.T, pid any, dir string) map[string][]string {
	t.Helper()
	info, err := os.ReadFile(fmt.Sprintf("/proc/%v/mountinfo", pid))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); strings.HasPrefix(f[4], dir) {
			all[f[4]] = strings.Split(f[5], ",")
		}
	}
	return all
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(target, path)); err != nil {
		t.Fatal(err)
	}
}

func TestPut(t *testing.T) {
	for _, c := range []struct {
		description string
		kind
	}{
		{"a container", kind{}},
		{"a read-only one", kind{readOnly: true}},
		{"one with a user namespace", kind{user: true}},
		{"a read-only one with a user namespace", kind{readOnly: true, user: true}},
	} {
		t.Run(c.description, func(t *testing.T) {
			box := newContainer(t, c.kind, func(rootfs string) { write(t, rootfs+"/usr/lib/lib.so.1", "the image's") })
			dir := filepath.Join(filepath.Dir(box.lib), "dir")
			write(t, dir+"/inner", "inner")
			write(t, dir+"/place", "")
			places := []string{"/usr/lib/lib.so.1", "/usr/lib64/lib.so.1", "/.private", "/.private/place"}
			if err := Make([]oci.Mount{
				on(box.lib, places[0]), on(box.lib, places[1]), on(dir, places[2]), on(box.lib, places[3]),
			}).Put(box.pid, box.rootfs); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{places[0], places[1], places[3]} {
				box.has(path, "lib")
			}
			box.has("/.private/inner", "inner")
			seen := mounted(t, box.pid, "/")
			for _, path := range places {
				for _, option := range []string{"ro", "nosuid", "nodev"} {
					if !slices.Contains(seen[path], option) {
						t.Errorf("%s is mounted %v, without %s", path, seen[path], option)
					}
				}
			}
			// The host has empty places in the root file system, and no mount there.
			if on := mounted(t, "self", filepath.Dir(box.rootfs)); len(on) > 0 {
				t.Errorf("the host has the mounts %v", on)
			}
			for path, want := range map[string]string{places[0]: "the image's", places[1]: ""} {
				if got, err := os.ReadFile(box.rootfs + path); err != nil || string(got) != want {
					t.Errorf("on the host %s has %q, want %q, %v", path, got, want, err)
				}
			}
			want := uint32(0)
			if c.user {
				want = owner
			}
			for path, mode := range map[string]uint32{"/usr/lib64": unix.S_IFDIR, places[1]: unix.S_IFREG, places[2]: unix.S_IFDIR} {
				var st unix.Stat_t
				if err := unix.Lstat(box.rootfs+path, &st); err != nil || st.Uid != want || st.Gid != want || st.Mode != mode|0o755 {
					t.Errorf("%s has owner %d:%d and mode %o, want %d and %o, %v", path, st.Uid, st.Gid, st.Mode, want, mode|0o755, err)
				}
			}
		})
	}
}

// A link in a root file system is followed within it, also where it leads to nothing
// yet.
func TestPutFollowsLinksWithinTheRoot(t *testing.T) {
	up := strings.Repeat("../", 20)
	for _, c := range []struct {
		description, path, leads string // of the link
		at                       string // the mount, if not at path
		want                     string // where it is
	}{
		{"to a file", "/usr/lib/lib.so", "lib.so.1", "", "/usr/lib/lib.so.1"},
		{"to a file that is missing, with its directory", "/usr/lib/lib.so", "../lib64/deep/lib.so.1", "", "/usr/lib64/deep/lib.so.1"},
		{"to a directory that is missing", "/usr/lib64", "/opt/lib", "/usr/lib64/lib.so", "/opt/lib/lib.so"},
		{"to a link", "/usr/lib64", "lib32", "/usr/lib64/lib.so", "/usr/there/lib.so"},
		{"upwards", "/usr/lib64", up + "opt", "/usr/lib64/lib.so", "/opt/lib.so"},
	} {
		t.Run(c.description, func(t *testing.T) {
			box := newContainer(t, kind{}, func(rootfs string) {
				write(t, rootfs+"/usr/lib/lib.so.1", "")
				link(t, "there", rootfs+"/usr/lib32")
				link(t, c.leads, rootfs+c.path)
			})
			at := c.at
			if at == "" {
				at = c.path
			}
			if err := Make([]oci.Mount{on(box.lib, at)}).Put(box.pid, box.rootfs); err != nil {
				t.Fatal(err)
			}
			box.has(c.want, "lib")
			if _, ok := mounted(t, box.pid, "/")[c.want]; !ok {
				t.Errorf("it is not at %s: %v", c.want, mounted(t, box.pid, "/"))
			}
		})
	}
}

// The kernel vouches for no way upwards while something is renamed, anywhere.
func TestLookUpBesideRenames(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/lib/lib.so", "")
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		names := [2]string{dir + "/a", dir + "/b"}
		err := os.WriteFile(names[0], nil, 0o600)
		for err == nil {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
				err = os.Rename(names[0], names[1])
				names[0], names[1] = names[1], names[0]
			}
		}
		stopped <- err
	}()
	for range 10000 {
		fd, err := lookUp(root, strings.Repeat("lib/../", 20)+"lib/lib.so", unix.O_PATH)
		if err != nil {
			t.Error(err)
			break
		}
		unix.Close(fd)
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestPutRefuses(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	write(t, outside, "the host's")
	for _, c := range []struct {
		description string
		build       func(rootfs string)
		at          string
		says        string
		made        string // nothing is made there
	}{
		{"a link through another's root", func(r string) { link(t, "/proc/self/root"+outside, r+"/lib.so") }, "/lib.so", "symbolic links", ""},
		{"a directory through another's root", func(r string) { link(t, "/proc/self/root"+filepath.Dir(outside), r+"/lib") }, "/lib/new.so", "symbolic links", filepath.Dir(outside) + "/new.so"},
		{"a link into a kernel file system", func(r string) { link(t, "/proc/uptime", r+"/lib.so") }, "/lib.so", "kernel file system", ""},
		{"a loop", func(r string) { link(t, "lib.so", r+"/lib.so") }, "/lib.so", "symbolic links", ""},
		{"a directory where a file goes", func(r string) { write(t, r+"/lib.so/x", "") }, "/lib.so", "is a directory", ""},
		{"a file above", func(r string) { write(t, r+"/lib", "") }, "/lib/lib.so", "not a directory", ""},
		{"a read-only volume", func(r string) { write(t, r+"/volume/x", "") }, "/volume/lib.so", "read-only file system", "ROOT/volume/lib.so"},
	} {
		t.Run(c.description, func(t *testing.T) {
			box := newContainer(t, kind{}, func(rootfs string) {
				write(t, rootfs+"/proc/x", "")
				c.build(rootfs)
			})
			err := Make([]oci.Mount{on(box.lib, c.at)}).Put(box.pid, box.rootfs)
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), box.lib+" on "+c.at) {
				t.Errorf("the error is %v, want one that says %q", err, c.says)
			}
			for path := range mounted(t, box.pid, "/") {
				if strings.Contains(path, "lib") {
					t.Errorf("%s is mounted", path)
				}
			}
			if _, err := os.Lstat(strings.Replace(c.made, "ROOT", box.rootfs, 1)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", c.made, err)
			}
			if got, err := os.ReadFile(outside); err != nil || string(got) != "the host's" {
				t.Errorf("the host's file has %q, %v", got, err)
			}
		})
	}
}

func TestPutNeedsAContainerAndASource(t *testing.T) {
	box := newContainer(t, kind{}, func(string) {})
	for _, c := range []struct {
		description  string
		pid          int
		source, says string
	}{
		{"a process of the host's", os.Getpid(), box.lib, "host's mount namespace"},
		{"a process that is gone", 1 << 30, box.lib, "no such file"},
		{"a source that is missing", box.pid, box.lib + "-missing", box.lib + "-missing"},
	} {
		t.Run(c.description, func(t *testing.T) {
			err := Make([]oci.Mount{on(c.source, "/lib.so")}).Put(c.pid, box.rootfs)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the error is %v, want one that says %q", err, c.says)
			}
			if _, err := os.Lstat(filepath.Join(box.rootfs, "lib.so")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a place was made: %v", err)
			}
		})
	}
}

// What a thread of Put's changes stays its own: the process has its mount namespace,
// its descriptors and its umask as before.
func TestPutChangesNothingOfTheProcess(t *testing.T) {
	box := newContainer(t, kind{user: true}, func(string) {})
	state := func() string {
		ns, err := os.Readlink("/proc/self/ns/mnt")
		fds, err2 := os.ReadDir("/proc/self/fd")
		status, err3 := os.ReadFile("/proc/self/status")
		if err := errors.Join(err, err2, err3); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for line := range strings.Lines(string(status)) {
			if strings.HasPrefix(line, "Uid:") || strings.HasPrefix(line, "Gid:") || strings.HasPrefix(line, "Umask:") || strings.HasPrefix(line, "CapEff:") {
				ids = append(ids, line)
			}
		}
		return fmt.Sprint(ns, len(fds), ids)
	}
	before := state()
	for i := range 20 {
		if err := Make([]oci.Mount{on(box.lib, fmt.Sprintf("/lib/%d.so", i))}).Put(box.pid, box.rootfs); err != nil {
			t.Fatal(err)
		}
	}
	if after := state(); after != before {
		t.Errorf("the process has %s, and had %s", after, before)
	}
	// The threads that were in the container end a moment later.
	eventually(t, "all threads are back", func() bool { return len(threadsOutside(t, before)) == 0 })
}

// threadsOutside are those of this process that are not in the mount namespace that
// state begins with.
func threadsOutside(t *testing.T, state string) (all []string) {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		ns, err := os.Readlink("/proc/self/task/" + thread.Name() + "/ns/mnt")
		if err == nil && !strings.HasPrefix(state, ns) {
			all = append(all, thread.Name())
		}
	}
	return all
}

// Supported says what the kernel's version says, where children are known.
func TestSupported(t *testing.T) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if want := major > 5 || major == 5 && minor >= 12; Supported() != want {
		t.Errorf("Linux %d.%d: %v", major, minor, !want)
	}
}

func TestFits(t *testing.T) {
	for options, want := range map[string]bool{
		"bind,ro,nosuid,nodev": true, "bind,rprivate,rw,noexec": true, "rbind,ro": false, "bind,ro,relatime": false, "": true,
	} {
		var list []string
		if options != "" {
			list = strings.Split(options, ",")
		}
		if got := Fits(oci.Mount{Type: "bind", Options: list}); got != want {
			t.Errorf("%q fits: %v", options, got)
		}
	}
	if Fits(oci.Mount{Type: "tmpfs"}) {
		t.Error("a tmpfs fits")
	}
}

// Its parent has not waited for it yet, as for a container's that somebody has killed.
func TestPutTellsOfAProcessThatHasEnded(t *testing.T) {
	box := newContainer(t, kind{}, func(string) {})
	ended := exec.Command("true")
	if err := ended.Start(); err != nil {
		t.Fatal(err)
	}
	defer ended.Wait() //nolint:errcheck // it ends with 0
	if err := unix.Waitid(unix.P_PID, ended.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{ended.Process.Pid, 1 << 30} {
		if err := Make([]oci.Mount{on(box.lib, "/lib.so")}).Put(pid, box.rootfs); !errors.Is(err, ErrEnded) {
			t.Errorf("the error of process %d is %v", pid, err)
		}
	}
}

// Mounts that are dropped hold nothing any more.
func TestDrop(t *testing.T) {
	lib := filepath.Join(t.TempDir(), "lib")
	write(t, lib, "lib")
	m := Make([]oci.Mount{on(lib, "/lib.so")})
	eventually(t, "the mount is made", func() bool { return open(t, lib) })
	m.Drop()
	eventually(t, "it is gone", func() bool { return !open(t, lib) })
}

// While mounts wait for their places nobody else waits for the end of what the process
// has closed, and nothing that it starts has them.
func TestMountsThatWait(t *testing.T) {
	lib := filepath.Join(t.TempDir(), "lib")
	write(t, lib, "lib")
	r, w, err := os.Pipe() // known to the runtime's poller
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	m := Make([]oci.Mount{on(lib, "/lib.so")})
	defer m.Drop()
	eventually(t, "the mount is made", func() bool { return open(t, lib) })
	if fds, err := filepath.Glob("/proc/self/fd/*"); err != nil || has(t, fds, lib) {
		t.Errorf("the process has the mounts, too, %v", err)
	}
	w.Close()
	if err := r.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the pipe is not at its end: %v", err)
	}
}

// Mounts that can not be made hold nothing either, before anybody has asked for them: no
// copies of the process's descriptors, nor what was made.
func TestMountsThatFail(t *testing.T) {
	lib := filepath.Join(t.TempDir(), "lib")
	write(t, lib, "lib")
	mine, err := os.Open(lib)
	if err != nil {
		t.Fatal(err)
	}
	m := Make([]oci.Mount{on(lib, "/lib.so"), on(lib+"-missing", "/missing.so")})
	eventually(t, "it has failed", func() bool { return len(m.result) == 1 })
	mine.Close()
	eventually(t, "no thread has a descriptor", func() bool { return !open(t, lib) })
	if err := m.Put(os.Getpid(), "/"); !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), lib+"-missing") {
		t.Errorf("the error is %v", err)
	}
	m = Make([]oci.Mount{on(lib+"-missing", "/missing.so")})
	m.Drop()
}

// Go's runtime polls on whatever thread starts to collect garbage.
func TestTheRuntimeWorksOnTheThread(t *testing.T) {
	r, w, err := os.Pipe() // so that there is something to poll
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := <-onThread(func() error {
		_, err := clones(nil)
		runtime.GC()
		return err
	}); err != nil {
		t.Error(err)
	}
}

// What runs beside it, such as another container's runc, may have asked to be killed at
// the end of the thread that started it, which Go's runtime has back by then.
func TestThreadsThatHaveChildrenDoNotEnd(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	goroutines := runtime.NumGoroutine()
	var children []*exec.Cmd
	var inputs []io.Closer
	for range 40 {
		cmd := exec.Command("cat")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		in, err := cmd.StdinPipe()
		if err == nil {
			runtime.LockOSThread()
			err = cmd.Start()
			runtime.UnlockOSThread()
		}
		if err != nil {
			t.Fatal(err)
		}
		children, inputs = append(children, cmd), append(inputs, in)
		var thread string
		if err := <-onThread(func() error {
			thread = fmt.Sprintf("/proc/self/task/%d", unix.Gettid())
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the thread has ended", func() bool {
			_, err := os.Stat(thread)
			return errors.Is(err, os.ErrNotExist)
		})
	}
	for i, child := range children {
		inputs[i].Close()
		if err := child.Wait(); err != nil {
			t.Errorf("child %d: %v", i, err)
		}
	}
	eventually(t, "the others are Go's again", func() bool { return runtime.NumGoroutine() <= goroutines })
}

// Where nobody can say which threads have children, none is ended.
func TestChildrenThatNobodyKnows(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"MOUNTS_TEST_WITHOUT_PROC=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if want := "supported: false, put: failed to mount in the container: open /proc/thread-self/children: no such file or directory"; err != nil || string(out) != want {
		t.Errorf("it says %q, %v; want %q", out, err, want)
	}
}

// open tells whether a thread of this process has a descriptor of a file.
func open(t *testing.T, path string) bool {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/task/*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	return has(t, fds, path)
}

// has tells whether one of these descriptors is of a file.
func has(t *testing.T, fds []string, path string) bool {
	t.Helper()
	want, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(fds, func(fd string) bool {
		info, err := os.Stat(fd)
		return err == nil && os.SameFile(want, info)
	})
}

// eventually waits until it is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	looks := time.NewTicker(time.Millisecond)
	defer looks.Stop()
	for deadline := time.Now().Add(time.Minute); !so(); <-looks.C {
		if time.Now().After(deadline) {
			t.Fatalf("it is not so that %s", what)
		}
	}
}
