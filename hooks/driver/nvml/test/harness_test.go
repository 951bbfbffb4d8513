// SPDX-License-Identifier: Apache-2.0

// Package nvml_test drives libvgpu-nvml.so from outside: C programs run in a
// mount namespace of their own, laid out like a container, against the simulated
// NVML or a fake one, and a fake vgpud. Needs root (for the mounts) and a C
// compiler.
package nvml_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vgpu-shim/vgpu/hooks/driver/test/jail"
	"github.com/vgpu-shim/vgpu/integration/simgpu/simbuild"
)

const patience = jail.Patience

// role is set for what this binary does in a jail, beside tests.
const role = "VGPU_NVML_TEST_ROLE"

// What TestMain made: our library and the test programs by file name, and the
// simulated driver in a folder of its own.
var built, simulated string

func TestMain(m *testing.M) {
	jail.Entered(jail.Layout{Names: []string{"libnvidia-ml.so.999.10", "libnvidia-ml.so.1", "libnvidia-ml.so"}})
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

// A program is a C program, in a jail or beside the simulated NVML alone.
type program struct {
	*jail.Program
	t testing.TB
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
	cmd := jail.Command(t, v.dir, filepath.Join(built, "libvgpu-nvml.so"), args...)
	cmd.Env = append(cmd.Env, "SIMGPU_MACHINE="+machine)
	return &program{jail.Begin(t, cmd), t}
}

// bare runs a program over the machine without us.
func bare(t testing.TB, machine string, args ...string) *program {
	t.Helper()
	cmd := exec.Command(filepath.Join(built, args[0]), args[1:]...)
	cmd.Env = append(os.Environ(), "SIMGPU_MACHINE="+machine, "LD_LIBRARY_PATH="+filepath.Join(simulated, "lib"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	return &program{jail.Begin(t, cmd), t}
}

// all returns its lines until "done", and expects its end with status 0.
func (p *program) all() (lines []string) {
	p.t.Helper()
	for {
		switch l := p.Line(); l {
		case "":
			_ = p.Cmd.Wait()
			p.t.Fatalf("the program ended: %v; stderr:\n%s", p.Cmd.ProcessState, p.Stderr)
		case "done":
			if err := p.Cmd.Wait(); err != nil {
				p.t.Fatalf("%v; stderr:\n%s", err, p.Stderr)
			}
			return lines
		default:
			lines = append(lines, l)
		}
	}
}
