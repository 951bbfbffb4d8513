// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// checkDriver looks whether the files of the driver can be loaded here.
func checkDriver(p *patient) []finding {
	return eachLibrary(p, func(l *v1.DriverLibrary) finding {
		if _, err := gpu.Exports(l.GetDriver()); err != nil {
			return fault("install the driver again, and restart vgpud", "%s", err)
		}
		return ok("%s, version %s", l.GetDriver(), p.info.GetDriverVersion())
	})
}

// checkLibrary looks whether the libraries in the driver's place can be.
func checkLibrary(p *patient) []finding {
	return eachLibrary(p, func(l *v1.DriverLibrary) finding {
		if _, err := gpu.Exports(l.GetLibrary()); err != nil {
			return fault("run vgpu install, or set the section [library] of vgpud.toml, and restart vgpud", "%s", err)
		}
		return ok("%s", l.GetLibrary())
	})
}

// checkNames looks for what the driver has and the library in its place does not.
// One that looks like a submission is not gated, one that looks like a change of a
// GPU not refused; others do no harm.
func checkNames(p *patient) []finding {
	return eachLibrary(p, func(l *v1.DriverLibrary) finding {
		unknown, err := gpu.Unknown(l.GetDriver(), l.GetLibrary())
		if err != nil {
			return finding{Result: checkSkipped, Detail: err.Error()}
		}
		only := func(looks func(string) bool) []string {
			return slices.DeleteFunc(slices.Clone(unknown), func(name string) bool { return !looks(name) })
		}
		submit, change := only(gpu.Submits), only(gpu.Changes)
		switch {
		case len(submit) > 0:
			return fault("upgrade vgpu: containers that call them compute outside their turns",
				"%s exports %s, which the library does not gate", l.GetName(), some(submit))
		case len(change) > 0:
			return fault("upgrade vgpu: who is root in a container can change by them what all share",
				"%s exports %s, which the library does not refuse", l.GetName(), some(change))
		case len(unknown) > 0:
			return ok("%s exports %s, which the library does not know; none looks like a submission or a change, and all reach the driver", l.GetName(), some(unknown))
		}
		return ok("the library knows all that %s exports", l.GetName())
	})
}

func eachLibrary(p *patient, look func(*v1.DriverLibrary) finding) (all []finding) {
	for _, l := range p.info.GetLibraries() {
		all = append(all, look(l))
	}
	if len(all) == 0 {
		return []finding{{Result: checkSkipped, Detail: "vgpud does not say which files it uses: it is an older one"}}
	}
	return all
}

// some is a list for people: the first few, and how many more there are.
func some(names []string) string {
	const most = 8
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// checkGPUs looks for GPUs that take no grants.
func checkGPUs(p *patient) []finding {
	var faults []finding
	for _, g := range p.gpus {
		if g.GetState() == "UNHEALTHY" {
			faults = append(faults, fault("see the kernel's log, and nvidia-smi -q -i "+g.GetUuid(), "%s takes no grants: %s", g.GetUuid(), g.GetReason()))
		}
	}
	if len(p.gpus) == 0 {
		faults = append(faults, fault("see vgpud's log (\"journalctl -u vgpud\")", "there is no GPU"))
	}
	return unless(faults, "no GPU is UNHEALTHY")
}

// checkGate looks for containers that compute, or may compute, outside their
// turns.
func checkGate(p *patient) []finding {
	var faults []finding
	for _, v := range p.vgpus {
		who := name(v)
		if n := v.GetUngated(); n > 0 {
			faults = append(faults, fault("upgrade vgpu, then start the container anew", "%s: %d look-ups of functions that submit work could not be gated", who, n))
		}
		if v.GetState() == "OVERRUN" {
			faults = append(faults, fault("see what it runs; engine.overrun in vgpud.toml says what becomes of such", "%s did not drain in time: others are granted beside it", who))
		}
	}
	return unless(faults, "no container is known to compute outside its turns")
}

// checkProcesses looks for processes that use a GPU and are clients of no vGPU.
func checkProcesses(p *patient) []finding {
	if p.processes == nil {
		return []finding{{Result: checkSkipped, Detail: "vgpud does not say which processes use GPUs: it is an older one"}}
	}
	var found []finding
	for _, q := range p.processes.GetProcesses() {
		if q.GetVgpu() != "" {
			continue
		}
		f := unmanaged(q)
		f.Process = asProcess(q)
		found = append(found, f)
	}
	for _, uuid := range p.processes.GetSilentGpus() {
		found = append(found, finding{Result: checkSkipped, Detail: "the driver does not say which processes use " + uuid})
	}
	return unless(found, "all processes on GPUs are clients of vGPUs")
}

// unmanaged says what to do about one of them. Its name and cgroup are not ours, and
// go to a terminal.
func unmanaged(q *v1.Process) finding {
	who := fmt.Sprintf("process %d (%q, cgroup %q)", q.GetPid(), q.GetCommand(), q.GetCgroup())
	uses := fmt.Sprintf("%s of %s", mib(q.GetMemoryBytes()), q.GetGpu())
	switch {
	case q.GetGone():
		return fault("another process, such as one that it forked, has the driver's files open: find it (\"fuser -v /dev/nvidia*\") and end it; it may be in another container than the one that is named",
			"process %d%s is gone, and the driver still counts %s for it", q.GetPid(), whose(q), uses)
	case q.GetInside() != "" && loaderWithoutLayer(q.GetPid()):
		return fault("it computes whenever it likes: its OpenCL loader is too old for layers (ocl-icd before 2.3, Khronos's of before 2021), could not load /.vgpu/libvgpu-opencl.so (LD_DEBUG=files in its environment shows whether it tried), or knows only the variable OPENCL_LAYERS, which the process has lost (ssh, cron); until then end the process (docs/opencl.md)",
			"%s%s uses %s, and its OpenCL loader has not loaded our layer", who, whose(q), uses)
	case q.GetInside() != "":
		return fault("it computes whenever it likes: its container has a driver library of its own, in the image, in a volume or by LD_LIBRARY_PATH; take that away and start the container anew, until then end the process (docs/limits.md)",
			"%s%s uses %s past the library", who, whose(q), uses)
	}
	return fault("it computes whenever it likes: end it, or start its container with the vgpu runtime and without the driver's own files; its cgroup shows who started it; what only draws, as a display server, may stay",
		"%s uses %s and is of no vGPU", who, uses)
}

// loaderWithoutLayer says whether a process has an OpenCL loader in its memory that has
// not loaded our layer.
func loaderWithoutLayer(pid uint32) bool {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	return err == nil && bytes.Contains(maps, []byte("/libOpenCL.so")) && !bytes.Contains(maps, []byte("/libvgpu-opencl.so"))
}

// whose names the container of a process, where that is known.
func whose(q *v1.Process) string {
	if q.GetInside() == "" {
		return ""
	}
	text := fmt.Sprintf(" of vGPU %s, container %s/%s", q.GetInside(), q.GetContainer().GetNamespace(), q.GetContainer().GetId())
	if p := q.GetPod(); p != nil {
		text += fmt.Sprintf(", pod %s/%s", p.GetNamespace(), p.GetName())
	}
	return text + ","
}

// checkConnections looks for processes that do not speak the protocol.
func checkConnections(p *patient) []finding {
	var faults []finding
	for _, v := range p.vgpus {
		if n := v.GetRubbish(); n > 0 {
			faults = append(faults, fault("see vgpud's log for what came first", "%s: %d connections were closed because of what came over them", name(v), n))
		}
	}
	return unless(faults, "all processes speak the protocol")
}

func unless(faults []finding, well string) []finding {
	if len(faults) > 0 {
		return faults
	}
	return []finding{ok("%s", well)}
}

// name is how a fault names a vGPU.
func name(v *v1.VGPU) string {
	return fmt.Sprintf("%s (%s/%s)", v.GetId(), v.GetContainer().GetNamespace(), v.GetContainer().GetId())
}
