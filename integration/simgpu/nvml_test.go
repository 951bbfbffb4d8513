// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestNVML lists devices as go-nvml's users do, and compares with what the
// driver library says of them.
func TestNVML(t *testing.T) {
	m := newMachine(t, "--gpus", "2", "--memory", "1Gi", "--context-memory", "16Mi", "--model", "Test GPU")
	t.Setenv("SIMGPU_MACHINE", m.dir)
	lib := nvml.New(nvml.WithLibraryPath(filepath.Join(built.root, "lib", "libnvidia-ml.so.1")))
	ok := func(what string, r nvml.Return) {
		t.Helper()
		if r != nvml.SUCCESS {
			t.Fatalf("%s: %v", what, lib.ErrorString(r))
		}
	}
	ok("Init", lib.Init())
	defer func() { ok("Shutdown", lib.Shutdown()) }()

	version, r := lib.SystemGetDriverVersion()
	ok("SystemGetDriverVersion", r)
	if version != "999.10" {
		t.Errorf("driver version %s", version)
	}
	count, r := lib.DeviceGetCount()
	ok("DeviceGetCount", r)
	if count != 2 {
		t.Fatalf("%d devices", count)
	}
	cuda := strings.Split(strings.TrimSpace(m.run("devices")), "\n")[1:]
	for i := range count {
		d, r := lib.DeviceGetHandleByIndex(i)
		ok("DeviceGetHandleByIndex", r)
		uuid, r := d.GetUUID()
		ok("GetUUID", r)
		name, r := d.GetName()
		ok("GetName", r)
		pci, r := d.GetPciInfo()
		ok("GetPciInfo", r)
		bus := strings.ToLower(strings.TrimPrefix(cString(pci.BusId[:]), "0000"))
		if got := strings.TrimPrefix(uuid, "GPU-") + " " + bus + " " + name; got != cuda[i] {
			t.Errorf("device %d is %q to NVML and %q to CUDA", i, got, cuda[i])
		}
		if mode, r := d.GetAddressingMode(); r != nvml.SUCCESS || mode.Value != uint32(nvml.DEVICE_ADDRESSING_MODE_NONE) {
			t.Errorf("device %d has the addressing mode %v, %v", i, mode, r)
		}
		minor, r := d.GetMinorNumber()
		ok("GetMinorNumber", r)
		if minor != i {
			t.Errorf("minor number %d of device %d", minor, i)
		}
		again, r := lib.DeviceGetHandleByUUID(uuid)
		ok("DeviceGetHandleByUUID", r)
		if index, _ := again.GetIndex(); index != i {
			t.Errorf("UUID %s is device %d, not %d", uuid, index, i)
		}
		if again, r = lib.DeviceGetHandleByPciBusId(cString(pci.BusId[:])); r == nvml.SUCCESS {
			if index, _ := again.GetIndex(); index != i {
				t.Errorf("bus id is device %d, not %d", index, i)
			}
		} else {
			t.Errorf("DeviceGetHandleByPciBusId: %v", r)
		}
		if _, _, r := d.GetMigMode(); r != nvml.ERROR_NOT_SUPPORTED {
			t.Errorf("GetMigMode: %v", r)
		}
		major, _, r := d.GetCudaComputeCapability()
		ok("GetCudaComputeCapability", r)
		if major != 8 {
			t.Errorf("compute capability %d", major)
		}
		if _, r := d.GetHostVgpuMode(); r != nvml.ERROR_NOT_SUPPORTED {
			t.Errorf("a stub gives %v", r)
		}
	}
	if _, r := lib.DeviceGetHandleByIndex(2); r != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("handle of device 2 of 2: %v", r)
	}

	// Memory and processes, while one runs and after it was killed.
	d, _ := lib.DeviceGetHandleByIndex(0)
	holder := m.command(true, "endless", strconv.Itoa(100<<20))
	m.start(holder)
	const used = (100 + 16 + 2*2) << 20 // what it asked for, its context, its two modules
	memory, r := d.GetMemoryInfo()
	ok("GetMemoryInfo", r)
	if memory.Total != 1<<30 || memory.Used != used || memory.Free != memory.Total-memory.Used {
		t.Errorf("memory is %+v", memory)
	}
	v2, r := d.GetMemoryInfo_v2()
	ok("GetMemoryInfo_v2", r)
	if v2.Used != memory.Used {
		t.Errorf("memory is %+v and %+v", memory, v2)
	}
	processes, r := d.GetComputeRunningProcesses()
	ok("GetComputeRunningProcesses", r)
	if len(processes) != 1 || int(processes[0].Pid) != holder.Process.Pid || processes[0].UsedGpuMemory != used {
		t.Errorf("processes are %+v, want %d", processes, holder.Process.Pid)
	}
	_ = holder.Process.Kill()
	_ = holder.Wait()
	if memory, _ = d.GetMemoryInfo(); memory.Used != 0 {
		t.Errorf("%d bytes are used by nobody", memory.Used)
	}
	if processes, _ = d.GetComputeRunningProcesses(); len(processes) != 0 {
		t.Errorf("processes are %+v", processes)
	}

	// Events: an injected Xid, of the right device, once.
	set, r := lib.EventSetCreate()
	ok("EventSetCreate", r)
	defer func() { ok("EventSetFree", set.Free()) }()
	for i := range count {
		d, _ := lib.DeviceGetHandleByIndex(i)
		ok("RegisterEvents", d.RegisterEvents(nvml.EventTypeXidCriticalError, set))
	}
	if _, r := set.Wait(1); r != nvml.ERROR_TIMEOUT {
		t.Errorf("an event that nobody made: %v", r)
	}
	m.tool("inject", m.dir, "--gpu", "1", "--xid", "79")
	event, r := set.Wait(5000)
	ok("Wait", r)
	if index, _ := event.Device.GetIndex(); index != 1 || event.EventData != 79 || event.EventType != nvml.EventTypeXidCriticalError {
		t.Errorf("event is %+v of device %d", event, index)
	}
	if _, r := set.Wait(1); r != nvml.ERROR_TIMEOUT {
		t.Errorf("the event came twice: %v", r)
	}
}

func TestNVMLWithoutMachine(t *testing.T) {
	t.Setenv("SIMGPU_MACHINE", "/nonexistent")
	lib := nvml.New(nvml.WithLibraryPath(filepath.Join(built.root, "lib", "libnvidia-ml.so.999.10")))
	if r := lib.Init(); r != nvml.ERROR_DRIVER_NOT_LOADED {
		t.Errorf("Init gives %v", r)
	}
}

func cString[T int8 | uint8](b []T) string {
	var s strings.Builder
	for _, c := range b {
		if c == 0 {
			break
		}
		s.WriteByte(byte(c))
	}
	return s.String()
}
