// SPDX-License-Identifier: Apache-2.0

// Package nvml_test drives libvgpu-nvml.so from outside: C programs run in a
// mount namespace of their own, laid out like a container, against the simulated
// NVML or a fake one, and a fake vgpud. Needs root (for the mounts) and a C
// compiler.
package nvml_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/integration/simgpu/simbuild"
)

// patience bounds every wait for something that must happen.
const patience = 20 * time.Second

// role is set for what this binary does in a jail, beside tests.
const role = "VGPU_NVML_TEST_ROLE"

// What TestMain made: our library and the test programs by file name, and the
// simulated driver in a folder of its own.
var built, simulated string

func TestMain(m *testing.M) {
	if os.Getenv("VGPU_JAIL_DIR") != "" {
		fmt.Fprintln(os.Stderr, jail(os.Args[1:]))
		os.Exit(125)
	}
	if os.Getenv(role) != "" {
		if err := goClient(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "vgpu-nvml")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		built, simulated = dir, filepath.Join(dir, "simgpu")
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
	sanitize := os.Getenv("VGPU_TEST_CFLAGS")
	if err := run("make", "-s", "-C", "..", "-j2", "OUT="+dir, "CFLAGS_EXTRA="+sanitize); err != nil {
		return err
	}
	if err := simbuild.Into(simulated, "../../../..", ""); err != nil {
		return err
	}
	flags := []string{"-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"}
	fake := filepath.Join(dir, "fake.so")
	if err := run("cc", append(flags, "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", fake, "testdata/fake_nvml.c")...); err != nil {
		return err
	}
	programs, err := filepath.Glob("testdata/*.c")
	if err != nil {
		return err
	}
	for _, c := range programs {
		name := strings.TrimSuffix(filepath.Base(c), ".c")
		if name == "fake_nvml" {
			continue
		}
		// Linked with ours, as inside a container: every name must be there.
		args := append(append(flags, strings.Fields(sanitize)...), "-o", filepath.Join(dir, name), c,
			filepath.Join(dir, "libvgpu-nvml.so"), "-Wl,--allow-shlib-undefined")
		if err := run("cc", args...); err != nil {
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
	// What the shim would mount: the directory, and our library under the three
	// names of the real one, one inode.
	lib, dir := filepath.Join(root, "vgpulib"), filepath.Join(root, ".vgpu")
	for _, d := range []string{lib, dir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(os.Getenv("VGPU_JAIL_DIR"), dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("failed to bind the directory: %w", err)
	}
	for _, name := range []string{"libnvidia-ml.so.999.10", "libnvidia-ml.so.1", "libnvidia-ml.so"} {
		to := filepath.Join(lib, name)
		if err := os.WriteFile(to, nil, 0o600); err != nil {
			return err
		}
		if err := unix.Mount(os.Getenv("VGPU_JAIL_LIB"), to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("failed to bind the library: %w", err)
		}
	}
	if err := unix.Chroot(root); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	env := []string{"LD_LIBRARY_PATH=/vgpulib"}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "VGPU_JAIL") && !strings.HasPrefix(e, "LD_LIBRARY_PATH=") {
			env = append(env, e)
		}
	}
	return fmt.Errorf("failed to start %s: %w", args[0], syscall.Exec(args[0], args, env))
}

// A program is a C program, in a jail or beside the simulated NVML alone.
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

// start runs one of the built programs in a jail beside v, over the machine.
func start(t testing.TB, v *vgpud, machine string, args ...string) *program {
	t.Helper()
	return startOver(t, v, filepath.Join(simulated, "lib", "libnvidia-ml.so.999.10"), machine, args...)
}

// startOver is start, over another NVML.
func startOver(t testing.TB, v *vgpud, real, machine string, args ...string) *program {
	t.Helper()
	data, err := os.ReadFile(real)
	if err == nil {
		err = os.WriteFile(filepath.Join(v.dir, "libnvidia-ml.so"), data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !filepath.IsAbs(args[0]) {
		args[0] = filepath.Join(built, args[0])
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "SIMGPU_MACHINE="+machine,
		"VGPU_JAIL_DIR="+v.dir, "VGPU_JAIL_ROOT="+t.TempDir(), "VGPU_JAIL_LIB="+filepath.Join(built, "libvgpu-nvml.so"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL, Setpgid: true}
	return begin(t, cmd)
}

// bare runs a program over the machine without us.
func bare(t testing.TB, machine string, args ...string) *program {
	t.Helper()
	cmd := exec.Command(filepath.Join(built, args[0]), args[1:]...)
	cmd.Env = append(os.Environ(), "SIMGPU_MACHINE="+machine, "LD_LIBRARY_PATH="+filepath.Join(simulated, "lib"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	return begin(t, cmd)
}

func begin(t testing.TB, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{t: t, cmd: cmd, lines: make(chan string, 256), stderr: &output{}}
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

// all returns its lines until "done", and expects its end with status 0.
func (p *program) all() (lines []string) {
	p.t.Helper()
	for {
		switch l := p.line(); l {
		case "":
			_ = p.cmd.Wait()
			p.t.Fatalf("the program ended: %v; stderr:\n%s", p.cmd.ProcessState, p.stderr)
		case "done":
			if err := p.cmd.Wait(); err != nil {
				p.t.Fatalf("%v; stderr:\n%s", err, p.stderr)
			}
			return lines
		default:
			lines = append(lines, l)
		}
	}
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
