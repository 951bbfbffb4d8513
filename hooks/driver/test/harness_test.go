// SPDX-License-Identifier: Apache-2.0

// Package driver_test drives the built library from outside: C programs run in
// a mount namespace of their own, laid out like a container, against a fake
// driver and a fake vgpud. Needs root (for the mounts) and a C compiler.
package driver_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/hooks/driver/test/jail"
)

const patience = jail.Patience

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
	layout := jail.Layout{Names: []string{"libcuda.so.999.10", "libcuda.so.1", "libcuda.so"}}
	if tools.musl {
		layout.More, layout.NotHere = jailMusl, true
	}
	jail.Entered(layout)
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

// A program is a C program in a jail.
type program struct {
	*jail.Program
	t testing.TB
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
	cmd := jail.Command(t, arb.dir, filepath.Join(built, "libvgpu-cuda.so"), slices.Concat(tools.runner, args)...)
	cmd.Env = append(cmd.Env, env...)
	return &program{jail.Begin(t, cmd), t}
}
