// SPDX-License-Identifier: Apache-2.0

// Package driver_test drives the built library from outside: C programs run in
// a mount namespace of their own, laid out like a container, against a fake
// driver and a fake vgpud. Needs root (for the mounts) and a C compiler.
package driver_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds every wait for something that must happen.
const patience = 20 * time.Second

// built is what TestMain made, by file name, with tools.
var (
	built string
	tools toolchain
)

func TestMain(m *testing.M) {
	var err error
	if tools, err = newToolchain(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if os.Getenv("VGPU_JAIL_DIR") != "" {
		fmt.Fprintln(os.Stderr, jail(os.Args[1:]))
		os.Exit(125)
	}
	os.Exit(func() int {
		dir := os.Getenv("VGPU_TEST_OUT") // what is built there stays
		if dir == "" {
			if dir, err = os.MkdirTemp("", "vgpu-driver"); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			defer os.RemoveAll(dir)
		}
		built = dir
		if err := build(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

func run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func build(dir string) error {
	args := append([]string{"-s", "-C", "..", "-j2", "OUT=" + dir, "CFLAGS_EXTRA=" + os.Getenv("VGPU_TEST_CFLAGS")}, tools.make...)
	if err := run("make", args...); err != nil {
		return err
	}
	cc := func(out string, args ...string) error {
		all := []string{"-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(dir, out)}
		return run(tools.cc, append(append(all, tools.cflags...), args...)...)
	}
	fake := func(out string, args ...string) error {
		return cc(out, append([]string{"-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "testdata/fake_driver.c", "testdata/fake_memory.c"}, args...)...)
	}
	gate, err := filepath.Glob("../../gate/*.c")
	if err != nil {
		return err
	}
	sanitize := strings.Fields(os.Getenv("VGPU_TEST_CFLAGS"))
	program := func(name string, args ...string) error {
		args = append(args, sanitize...)
		return cc(name, append([]string{"testdata/" + name + ".c"}, args...)...)
	}
	for _, err := range []error{
		fake("fake.so"),
		fake("fake-symbolic.so", "-Wl,-Bsymbolic"),
		fake("fake-extra.so", "-DEXTRA"),
		fake("fake-hidden.so", "-DHIDDEN"),
		fake("fake-old.so", "-DOLD"),
		// Linked with a driver, as on any build machine; run with ours.
		program("submit", filepath.Join(dir, "fake.so")),
		program("capture", filepath.Join(dir, "fake.so")),
		program("held", filepath.Join(dir, "fake.so")),
		program("memory", filepath.Join(dir, "fake.so"), "-pthread"),
		program("overlap", filepath.Join(dir, "fake.so"), "-rdynamic"),
		cc("plugin.so", append([]string{"-shared", "-fPIC", "testdata/plugin.c"}, sanitize...)...),
		program("unknown", filepath.Join(dir, "fake-extra.so")),
		program("loaded"),
		cc("bench.so", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "testdata/bench_driver.c"),
		program("alone", filepath.Join(dir, "bench.so")),
		program("showing", "../visible.c"),
		program("counts"),
		program("moments", append(gate, "-pthread", "-Wl,--wrap=sendmsg,--wrap=connect,--wrap=sched_yield,--wrap=mmap")...),
		// Linked with ours, as inside a container: every name must be there.
		program("process", filepath.Join(dir, "libvgpu-cuda.so"), "-Wl,--allow-shlib-undefined"),
		program("reconcile", filepath.Join(dir, "libvgpu-cuda.so"), "-pthread", "-Wl,--allow-shlib-undefined"),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// jail makes this process's root look like a container and becomes the program.
// It runs in a mount namespace of its own; nothing of the host's root changes.
func jail(args []string) error {
	root := os.Getenv("VGPU_JAIL_ROOT")
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=16m"); err != nil {
		return fmt.Errorf("failed to mount a root: %w", err)
	}
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := "/"+e.Name(), filepath.Join(root, e.Name())
		switch {
		case e.Type()&os.ModeSymlink != 0:
			target, err := os.Readlink(from)
			if err == nil {
				err = os.Symlink(target, to)
			}
			if err != nil {
				return err
			}
		case e.IsDir():
			if err := os.Mkdir(to, 0o755); err != nil {
				return err
			}
			if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
				return fmt.Errorf("failed to bind %s: %w", from, err)
			}
		}
	}
	// What the shim would mount: the directory, and our library under the
	// three names of the driver's file, one inode.
	lib, dir := filepath.Join(root, libraries), filepath.Join(root, ".vgpu")
	for _, d := range []string{lib, dir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(os.Getenv("VGPU_JAIL_DIR"), dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("failed to bind the directory: %w", err)
	}
	for _, name := range []string{"libcuda.so.999.10", "libcuda.so.1", "libcuda.so"} {
		to := filepath.Join(lib, name)
		if err := os.WriteFile(to, nil, 0o600); err != nil {
			return err
		}
		if err := unix.Mount(os.Getenv("VGPU_JAIL_LIB"), to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("failed to bind the library: %w", err)
		}
	}
	if tools.musl {
		if err := jailMusl(root); err != nil {
			return err
		}
	}
	if err := unix.Chroot(root); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	var env []string
	if !tools.musl {
		env = append(env, "LD_LIBRARY_PATH=/"+libraries)
	}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "VGPU_JAIL") && !strings.HasPrefix(e, "LD_LIBRARY_PATH=") {
			env = append(env, e)
		}
	}
	return fmt.Errorf("failed to start %s: %w", args[0], syscall.Exec(args[0], args, env))
}

// A program is a C program in a jail.
type program struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan string
	stderr *output
}

// output is what a program has written so far.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start runs one of the built programs beside arb, against the named driver.
func start(t testing.TB, arb *arbiter, driver string, env []string, args ...string) *program {
	t.Helper()
	install(t, filepath.Join(built, driver), filepath.Join(arb.dir, "libcuda.so"))
	args[0] = filepath.Join(built, args[0])
	return startIn(t, arb, env, args...)
}

func install(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func startIn(t testing.TB, arb *arbiter, env []string, args ...string) *program {
	t.Helper()
	p := &program{t: t, lines: make(chan string, 64), stderr: &output{}}
	p.cmd = exec.Command("/proc/self/exe", slices.Concat(tools.runner, args)...)
	p.cmd.Env = append(append(os.Environ(),
		"VGPU_JAIL_DIR="+arb.dir, "VGPU_JAIL_ROOT="+t.TempDir(), "VGPU_JAIL_LIB="+filepath.Join(built, "libvgpu-cuda.so")), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL, Setpgid: true}
	p.cmd.Stderr = p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("failed to start in a mount namespace (root is needed): %v", err)
	}
	go func() {
		sc := bufio.NewScanner(out)
		for sc.Scan() {
			p.lines <- sc.Text()
		}
		close(p.lines)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // with what it forked
		_ = p.cmd.Wait()
	})
	return p
}

// line returns the program's next line; "" at its end.
func (p *program) line() string {
	p.t.Helper()
	select {
	case l := <-p.lines:
		return l
	case <-time.After(patience):
		_ = p.cmd.Process.Signal(syscall.SIGABRT)
		p.t.Fatalf("the program says nothing; stderr:\n%s", p.stderr)
	}
	return ""
}

// expect checks the next line.
func (p *program) expect(want string) {
	p.t.Helper()
	if got := p.line(); got != want {
		if got != "" { // it goes on
			_ = p.cmd.Process.Kill()
		}
		_ = p.cmd.Wait()
		p.t.Fatalf("the program said %q, want %q; %v; stderr:\n%s", got, want, p.cmd.ProcessState, p.stderr)
	}
}

// says waits for something on stderr.
func (p *program) says(want string) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !strings.Contains(p.stderr.String(), want); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("stderr never said %q; it says:\n%s", want, p.stderr)
		}
	}
}

// silent checks that the program has not said anything yet.
func (p *program) silent() {
	p.t.Helper()
	select {
	case l := <-p.lines:
		p.t.Fatalf("the program went on: %q", l)
	default:
	}
}

// goOn lets the program pass its next await.
func (p *program) goOn() {
	p.t.Helper()
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		p.t.Fatalf("the program does not listen: %v; stderr:\n%s", err, p.stderr)
	}
}

// done expects the end, with status 0.
func (p *program) done() {
	p.t.Helper()
	p.expect("done")
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("%v; stderr:\n%s", err, p.stderr)
	}
}
