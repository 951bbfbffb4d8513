// SPDX-License-Identifier: Apache-2.0

// Package gpu describes the physical GPUs of a node and what a container needs
// of the host's driver to use one.
//
// Inventory has two sources, both in package source: the real driver through
// NVML, and the simulated driver through the same NVML calls. This package
// itself links neither; what it computes (see TakeOver) is pure.
package gpu

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// GPU is one physical GPU.
type GPU struct {
	UUID        string // "GPU-..." as NVML prints it
	Model       string
	MemoryBytes uint64
	PCIBusID    string
	Brand       string // in the words of NVIDIA_REQUIRE_*, such as tesla; empty: not known
	// Architecture is such as Hopper, ComputeCapability such as 9.0; empty where the
	// driver does not say.
	Architecture, ComputeCapability string
	Devices                         []*v1.Device // its own device nodes
}

// Inventory is a source of GPUs. It is safe for concurrent use until Close.
type Inventory interface {
	// Name is what the operator asked for, resolved: "nvml" or "sim:N".
	Name() string
	// GPUs lists the GPUs in the driver's own order. One that was lost when the
	// inventory was opened is not among them.
	GPUs() []GPU
	// Free is how many bytes of a GPU's memory are free now, as the driver says.
	// Others than vgpud's containers may use it too. A driver that is not well
	// can keep the caller for ever.
	Free(uuid string) (uint64, error)
	// Processes is how many bytes of a GPU's memory each process uses now, by pid,
	// as the driver says: of allocations and of what the driver needs for it; 0 for
	// one of which the driver does not know how much. As with Free, it may keep the
	// caller for ever.
	Processes(uuid string) (map[int]uint64, error)
	// Watch tells how the GPUs are: first the present health of each, then each
	// change and each event. It returns when ctx ends, at once, whatever the
	// driver does. Who receives late delays what is told; nothing is left out.
	// Once the present health of a GPU was told, no later event of it is missed,
	// where the driver has events; one may be told twice. A GPU that was lost is
	// heard again a second after it was told well. At most one call at a time.
	Watch(ctx context.Context, changes chan<- Health)
	// Driver is what a container needs of the host's driver. It was computed
	// when the inventory was opened.
	Driver() Driver
	// Close waits a little for calls in progress. If the driver keeps one, it is
	// an error, and NVML stays open until the process ends.
	Close() error
}

// Driver is the host's driver as a container needs it, before the take-over.
type Driver struct {
	Version     string // such as 580.65.06
	CUDAVersion string // the newest that it serves, such as 13.0; empty: not known
	CUDA        string // host path of the real libcuda.so.<version>
	NVML        string // host path of the real libnvidia-ml.so.<version>
	// The same built for musl, of the same version; both are empty if there is
	// none.
	CUDAMusl, NVMLMusl string
	// Libraries are the other driver libraries.
	Libraries []Library
	// Mounts, Devices and Env go into the container as they are, and the Devices
	// of each GPU that it may be given.
	Mounts  []*v1.Mount
	Devices []*v1.Device
	Env     []string
}

// Library is a driver library that the dynamic linker must find in the
// container.
type Library struct {
	Source string   // host path
	Names  []string // file names under which it must be found
}

// MaxSimulated is how many GPUs a simulated machine can have.
const MaxSimulated = 16

// ParseSource reads which GPUs an operator wants: "auto" and "nvml" as they are,
// "sim:N" as "sim" and N.
func ParseSource(s string) (kind string, n int, _ error) {
	if s == "auto" || s == "nvml" {
		return s, 0, nil
	}
	if number, ok := strings.CutPrefix(s, "sim:"); ok {
		if n, err := strconv.Atoi(number); err == nil && 1 <= n && n <= MaxSimulated {
			return "sim", n, nil
		}
	}
	return "", 0, fmt.Errorf("gpus = %q: must be auto, nvml, or sim:N with N from 1 to %d", s, MaxSimulated)
}
