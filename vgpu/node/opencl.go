// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// openCLDevices tells the OpenCL layer which devices are GPUs that its vGPU may be
// given: hooks/gate/wire.h has the form. cpu: one that is a CPU stands for the first.
func openCLDevices(gpus []gpu.GPU, cpu bool) []byte {
	var b bytes.Buffer
	for _, g := range gpus {
		fmt.Fprintf(&b, "%s %s\n", g.UUID, g.PCIBusID)
	}
	if cpu {
		b.WriteString("cpu\n")
	}
	return b.Bytes()
}

// openCLDriver begins the name of the library that PoCL loads for a kind of device when
// a program asks for devices. A process that has it and not our layer computes past that.
const openCLDriver = "libpocl-devices-"

// loadPatience is how long a loader may take between the device's library and the
// layer: ocl-icd counts the devices before it looks for layers.
const loadPatience = time.Second

// pastTheLayer adds those to the processes on GPUs that compute on a CPU that stands for
// one, in the container of a vGPU, and have not loaded our layer: one that knows no
// layers, was not told of ours, or could not load it, of which no loader says a word. A
// real GPU's driver has them on its list; here nobody has.
func (d *Daemon) pastTheLayer(processes []*v1.Process, before, after owners) []*v1.Process {
	gpus := d.inventory.GPUs()
	if !d.loop.openCLOnCPU || len(gpus) == 0 {
		return processes
	}
	var found []*v1.Process
	for _, pid := range allProcesses() {
		if slices.ContainsFunc(processes, func(p *v1.Process) bool { return int(p.GetPid()) == pid }) || !withoutLayer(pid) {
			continue
		}
		p := &v1.Process{Pid: uint32(pid)}
		after.attribute(p, before)
		if p.GetInside() == "" {
			continue
		}
		if p.Gpu = after.gpuOf(p.GetInside()); p.Gpu == "" {
			p.Gpu = gpus[0].UUID
		}
		found = append(found, p)
	}
	if len(found) == 0 {
		return processes
	}
	if slices.ContainsFunc(found, func(p *v1.Process) bool { return d.told[use{p.GetGpu(), p.GetPid()}] == nil }) {
		time.Sleep(loadPatience)
	}
	for _, p := range found {
		if withoutLayer(int(p.GetPid())) && lookUp(p) {
			processes = append(processes, p)
		}
	}
	return processes
}

// allProcesses are those that are now.
func allProcesses() (pids []int) {
	entries, _ := os.ReadDir("/proc") // what was read before an error counts
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// withoutLayer says whether a process has a device of OpenCL and not our layer.
func withoutLayer(pid int) bool {
	maps, err := os.Open(procFile(pid, "maps"))
	if err != nil {
		return false
	}
	defer maps.Close()
	device := false
	for s := bufio.NewScanner(maps); s.Scan(); {
		// The name comes last: proc_pid_maps(5).
		name := path.Base(s.Text())
		if name == gpu.OpenCLFile {
			return false
		}
		device = device || strings.HasPrefix(name, openCLDriver)
	}
	return device
}
