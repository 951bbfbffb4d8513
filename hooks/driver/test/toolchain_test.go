// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/hooks/driver/test/jail"
)

// Places in a jail's root. libraries stands for the directories that glibc
// searches by default.
const (
	muslReal      = ".vgpu-musl/libcuda.so"
	muslLibraries = ".vgpu-musl/lib"
	muslPath      = "etc/ld-musl-x86_64.path"
)

// toolchain builds the libraries and the C programs for one kind of container,
// and runs the programs.
type toolchain struct {
	kind   string // "" for this machine's own
	cc     string
	cflags []string
	make   []string // variables for the Makefiles
	runner []string // what stands before a program
	musl   bool
}

// VGPU_TEST_TOOLCHAIN names another toolchain than this machine's own; make
// test-arm64 and make test-musl say which tests make sense with it.
func newToolchain() (toolchain, error) {
	switch name := os.Getenv("VGPU_TEST_TOOLCHAIN"); name {
	case "":
		return toolchain{cc: "cc"}, nil
	case "arm64":
		const cc = "aarch64-linux-gnu-gcc"
		return toolchain{
			kind: name, cc: cc, make: []string{"CC=" + cc},
			// Debian keeps the C library of a cross compiler there.
			runner: []string{"/usr/bin/qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"},
		}, nil
	case "musl":
		const cc = "musl-gcc"
		return toolchain{
			kind: name, cc: cc, make: []string{"CC=" + cc, "LIBC=musl"}, musl: true,
			cflags: []string{`-DVGPU_REAL_PATH="/` + muslReal + `"`, "-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"},
		}, nil
	default:
		return toolchain{}, fmt.Errorf("VGPU_TEST_TOOLCHAIN: there is no toolchain %q, only arm64 and musl", name)
	}
}

// real is where the library expects the driver, searched where a program finds
// the library.
func (t toolchain) real() string {
	if t.musl {
		return "/" + muslReal
	}
	return "/.vgpu/libcuda.so"
}

func (t toolchain) searched() string {
	if t.musl {
		return "/" + muslLibraries
	}
	return "/" + jail.Libraries
}

// command runs a built program outside of any jail.
func command(args ...string) *exec.Cmd {
	args[0] = filepath.Join(built, args[0])
	args = slices.Concat(tools.runner, args)
	return exec.Command(args[0], args[1:]...)
}

// jailMusl adds what a container gets for musl: the library and the driver in a
// directory of their own, and the list of directories that musl searches.
func jailMusl(root string) error {
	if err := os.MkdirAll(filepath.Join(root, ".vgpu-musl"), 0o755); err != nil {
		return err
	}
	bind := func(from, to string) error {
		if err := unix.Mount(from, filepath.Join(root, to), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("failed to bind %s to %s: %w", from, to, err)
		}
		return nil
	}
	if err := os.Mkdir(filepath.Join(root, muslLibraries), 0o755); err != nil {
		return err
	}
	if err := bind(filepath.Join(root, jail.Libraries), muslLibraries); err != nil {
		return err
	}
	if err := bind(filepath.Join(filepath.Dir(jail.Library()), filepath.Base(muslPath)), muslPath); err != nil {
		return err
	}
	driver := filepath.Join(jail.Dir(), "libcuda.so")
	if _, err := os.Stat(driver); errors.Is(err, fs.ErrNotExist) {
		return nil // a test of the gate alone
	}
	if err := os.WriteFile(filepath.Join(root, muslReal), nil, 0o600); err != nil {
		return err
	}
	return bind(driver, muslReal)
}
