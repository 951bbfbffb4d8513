// SPDX-License-Identifier: Apache-2.0

package source

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"tags.cncf.io/container-device-interface/specs-go"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// simulatedMachine is where the simulated driver looks for its machine in a
// container, and machineEnv what it looks at before.
const (
	simulatedMachine = "/dev/simgpu"
	machineEnv       = "SIMGPU_MACHINE"
)

// openSimulated opens a simulated machine with n GPUs, which is made first if
// it is not there.
func openSimulated(cfg Config, n int) (gpu.Inventory, error) {
	cuda, err := versioned(filepath.Join(cfg.SimulatedRoot, "lib", "libcuda.so.1"))
	if err != nil {
		return nil, fmt.Errorf("failed to find the simulated driver (simulated.root): %w", err)
	}
	ml, err := versioned(filepath.Join(cfg.SimulatedRoot, "lib", "libnvidia-ml.so.1"))
	if err != nil {
		return nil, fmt.Errorf("failed to find the simulated driver (simulated.root): %w", err)
	}
	if err := makeMachine(cfg, n); err != nil {
		return nil, err
	}
	// Before the library is loaded: it reads the C environment once. Setenv
	// reaches that in a program that is linked with cgo.
	if err := os.Setenv(machineEnv, cfg.Machine); err != nil {
		return nil, fmt.Errorf("failed to name the simulated machine: %w", err)
	}
	lib, err := load(ml)
	if err != nil {
		return nil, err
	}
	i, err := open(cfg, "sim:"+strconv.Itoa(n), lib)
	if err != nil {
		return nil, fmt.Errorf("failed to open the simulated machine %s: %w", cfg.Machine, err)
	}
	if has := len(i.gpus) + i.lost; has != n {
		i.Close()
		return nil, fmt.Errorf("the simulated machine %s has %d GPUs, not %d: remove it, or name another (simulated.machine)", cfg.Machine, has, n)
	}
	// A device node for each, as real ones have, but it is /dev/null's: so that
	// who gets which can be seen from inside.
	for n := range i.gpus {
		i.gpus[n].Devices = []*v1.Device{{
			Path: simulatedMachine + strconv.Itoa(n), Type: "c", Major: 1, Minor: 3, FileMode: 0o666, Permissions: "rw",
		}}
	}
	i.driver.CUDA, i.driver.NVML = cuda, ml
	if i.driver.Libraries, err = otherLibraries(lib, cfg, i.driver.Version); err != nil {
		i.Close()
		return nil, err
	}
	i.driver.CUDAMusl, i.driver.NVMLMusl = muslBuild(cfg.SimulatedRoot, cuda, ml)
	i.driver.Mounts = []*v1.Mount{{
		Source: cfg.Machine, Destination: simulatedMachine, Type: "bind",
		Options: []string{"bind", "rw", "nosuid", "nodev", "noexec"},
	}}
	return i, nil
}

// otherLibraries are those that are installed beside the simulated driver, listed as
// a real driver's are.
func otherLibraries(lib nvml.Interface, cfg Config, version string) ([]gpu.Library, error) {
	// The toolkit finds nothing below a link, as which vgpu install makes this root.
	root, err := filepath.EvalSymlinks(cfg.SimulatedRoot)
	if err == nil {
		root, err = filepath.Abs(root)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to find the simulated driver (simulated.root): %w", err)
	}
	// It has no more than a few of a driver's files: that others are missing is not
	// worth knowing.
	cfg.DriverRoot, cfg.Log = root, func(string, ...any) {}
	_, common, err := listIn(lib, cfg, filepath.Join(root, "lib"))
	if err != nil {
		return nil, err
	}
	d := gpu.Driver{Version: version}
	if err := collect(&d, []*specs.ContainerEdits{common}); err != nil {
		return nil, err
	}
	return d.Libraries, nil
}

// muslBuild finds the driver's build for musl, below the other one. Without it,
// or with one of another version, containers get none.
func muslBuild(root, cuda, ml string) (muslCUDA, muslNVML string) {
	dir := filepath.Join(root, "musl", "lib")
	muslCUDA, err := versioned(filepath.Join(dir, "libcuda.so.1"))
	if err != nil || filepath.Base(muslCUDA) != filepath.Base(cuda) {
		return "", ""
	}
	muslNVML, err = versioned(filepath.Join(dir, "libnvidia-ml.so.1"))
	if err != nil || filepath.Base(muslNVML) != filepath.Base(ml) {
		return "", ""
	}
	return muslCUDA, muslNVML
}

// makeMachine creates the machine unless its directory has something in it.
func makeMachine(cfg Config, n int) error {
	entries, err := os.ReadDir(cfg.Machine)
	if err == nil && len(entries) > 0 {
		return nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("failed to look for the simulated machine: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(cfg.Machine), 0o700); err != nil {
		return fmt.Errorf("failed to make room for the simulated machine: %w", err)
	}
	tool := filepath.Join(cfg.SimulatedRoot, "bin", "simgpu")
	out, err := exec.Command(tool, "create", "--gpus", strconv.Itoa(n), cfg.Machine).CombinedOutput() //nolint:gosec // G204: root configures where it is
	if err != nil {
		return fmt.Errorf("failed to create the simulated machine: %s: %w: %s", tool, err, strings.TrimSpace(string(out)))
	}
	cfg.Log("created a simulated machine with %d GPUs in %s", n, cfg.Machine)
	return nil
}

// versioned is the real file behind the symbolic links of a library.
func versioned(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	return filepath.Abs(real)
}
