// SPDX-License-Identifier: Apache-2.0

// Package source opens the GPUs of this machine: the real ones through NVML, or
// simulated ones through the simulated driver's NVML. Both answer the same
// calls; what differs is where the library lies and how a container reaches the
// device.
package source

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// Config says which GPUs to open.
type Config struct {
	// GPUs is auto, nvml or sim:N.
	GPUs string
	// SimulatedRoot is where the simulated driver is installed; Machine the
	// directory of its machine, made if it is not there.
	SimulatedRoot, Machine string
	// DriverRoot is the directory below which the real driver is installed; empty: /.
	DriverRoot string
	// NVML is what the real driver is asked through; nil: the host's library.
	NVML nvml.Interface
	// Poll is how often the state of the GPUs is looked at that NVML does not
	// tell by itself; 5 s if it is 0.
	Poll time.Duration
	// Log takes what is worth knowing on the way; may be nil. It is called from
	// several goroutines.
	Log func(format string, args ...any)
}

// Open opens the GPUs. One inventory per process: NVML keeps global state.
func Open(cfg Config) (gpu.Inventory, error) {
	if cfg.Log == nil {
		cfg.Log = func(string, ...any) {}
	}
	if cfg.Poll == 0 {
		cfg.Poll = pollInterval
	}
	kind, n, err := gpu.ParseSource(cfg.GPUs)
	if err != nil {
		return nil, err
	}
	if kind == "sim" {
		return openSimulated(cfg, n)
	}
	inv, err := openNVML(cfg)
	if err != nil && kind == "auto" {
		return nil, fmt.Errorf("found no GPU: %w; for simulated ones use --gpus=sim:N, for example --gpus=sim:1", err)
	}
	if err != nil {
		return nil, err
	}
	return inv, nil
}

// inventory is an open NVML.
type inventory struct {
	name    string
	lib     nvml.Interface
	gpus    []gpu.GPU
	devices []nvml.Device // of the gpus
	lost    int           // GPUs that can not be told about
	driver  gpu.Driver

	poll     time.Duration
	patience int // lookPatience, but in tests
	log      func(format string, args ...any)
	there    map[string]bool // functions of the library, of optional
	calls    calls
	unheard  []atomic.Bool // devices that were lost when they were to be registered for events
	back     chan struct{} // has one when one of them is there again
}

var (
	_ gpu.Inventory = (*inventory)(nil)
	_ prober        = (*inventory)(nil)
)

func (i *inventory) Name() string       { return i.name }
func (i *inventory) GPUs() []gpu.GPU    { return i.gpus }
func (i *inventory) Driver() gpu.Driver { return i.driver }

// closePatience is more than a wait for events lasts.
const closePatience = 3 * waitInterval

func (i *inventory) Close() error {
	if !i.calls.close(closePatience) {
		return errors.New("failed to close NVML: the driver does not answer, a call is still under way")
	}
	if ret := i.lib.Shutdown(); ret != nvml.SUCCESS {
		return fmt.Errorf("failed to close NVML: %w", ret)
	}
	return nil
}

// needed are the functions that this package and the toolkit call. The bindings call
// them without a look whether they are there, which ends the process if they are not.
var needed = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2",
	"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPciInfo_v3",
	"nvmlDeviceGetHandleByUUID", "nvmlDeviceGetIndex", "nvmlDeviceGetMinorNumber", "nvmlDeviceIsMigDeviceHandle",
}

// optional are further functions that this package calls. Old libraries lack
// some: see has.
var optional = append([]string{
	"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeMode", "nvmlDeviceGetMigMode", "nvmlDeviceGetComputeRunningProcesses",
	"nvmlDeviceGetMPSComputeRunningProcesses", "nvmlSystemGetProcessName", "nvmlDeviceGetFieldValues", "nvmlDeviceGetRemappedRows",
	"nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetCurrentClocksEventReasons",
	"nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetGraphicsRunningProcesses", "nvmlSystemGetCudaDriverVersion",
	"nvmlDeviceGetBrand", "nvmlDeviceGetArchitecture", "nvmlDeviceGetCudaComputeCapability",
}, eventFunctions...)

// has says whether the library has a function of optional.
func (i *inventory) has(function string) bool { return i.there[function] }

// check makes sure that path is an NVML that can be used.
func check(path string) error {
	lib := dl.New(path, dl.RTLD_LAZY|dl.RTLD_LOCAL)
	if err := lib.Open(); err != nil {
		return fmt.Errorf("failed to load NVML: %w", err)
	}
	defer lib.Close()
	for _, name := range needed {
		if err := lib.Lookup(name); err != nil {
			return fmt.Errorf("%s is not an NVML that vgpud can use: %w", path, err)
		}
	}
	return nil
}

// load loads the NVML at path, a file or a soname.
func load(path string) (nvml.Interface, error) {
	if err := check(path); err != nil {
		return nil, err
	}
	return nvml.New(nvml.WithLibraryPath(path)), nil
}

// open initialises an NVML and reads the GPUs.
func open(cfg Config, name string, lib nvml.Interface) (_ *inventory, retErr error) {
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("failed to initialise NVML: %w", ret)
	}
	defer func() {
		if retErr != nil {
			_ = lib.Shutdown()
		}
	}()
	i := &inventory{name: name, lib: lib, poll: cfg.Poll, patience: lookPatience, log: cfg.Log}
	i.there = map[string]bool{}
	for _, name := range optional {
		i.there[name] = lib.Extensions().LookupSymbol(name) == nil
	}
	version, ret := lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("failed to read the driver's version: %w", ret)
	}
	i.driver.Version = version
	i.driver.CUDAVersion = i.cudaVersion()
	count, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("failed to count the GPUs: %w", ret)
	}
	if count == 0 {
		return nil, errors.New("the driver has no GPU")
	}
	for index := range count {
		d, g, err := describe(lib, index)
		if errors.Is(err, nvml.ERROR_GPU_IS_LOST) {
			// It must not take the others with it.
			cfg.Log("left out GPU number %d, which is lost, until vgpud starts anew: %v", index, err)
			i.lost++
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("GPU number %d: %w", index, err)
		}
		i.properties(d, &g)
		i.devices = append(i.devices, d)
		i.gpus = append(i.gpus, g)
	}
	if len(i.gpus) == 0 {
		return nil, fmt.Errorf("none of the %d GPUs can be reached: %w", count, nvml.ERROR_GPU_IS_LOST)
	}
	i.unheard, i.back = make([]atomic.Bool, len(i.gpus)), make(chan struct{}, 1)
	return i, nil
}

func describe(lib nvml.Interface, index int) (dev nvml.Device, g gpu.GPU, _ error) {
	dev, ret := lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, g, fmt.Errorf("failed to open it: %w", ret)
	}
	if g.UUID, ret = dev.GetUUID(); ret != nvml.SUCCESS {
		return nil, g, fmt.Errorf("failed to read its UUID: %w", ret)
	}
	if g.Model, ret = dev.GetName(); ret != nvml.SUCCESS {
		return nil, g, fmt.Errorf("failed to read its model: %w", ret)
	}
	memory, ret := dev.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return nil, g, fmt.Errorf("failed to read its memory: %w", ret)
	}
	g.MemoryBytes = memory.Total
	pci, ret := dev.GetPciInfo()
	if ret != nvml.SUCCESS {
		return nil, g, fmt.Errorf("failed to read its PCI address: %w", ret)
	}
	g.PCIBusID = cstring(pci.BusId[:])
	return dev, g, nil
}

// cstring is the text before the first NUL. The element type differs between
// versions of the bindings.
func cstring[T ~int8 | ~uint8](s []T) string {
	var b strings.Builder
	for _, c := range s {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}
