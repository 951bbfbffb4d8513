// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/vgpu-shim/vgpu/vgpu/install"
)

// kernelModule is the version in /proc/driver/nvidia/version, of the open module
// too ("Open Kernel Module for x86_64").
var kernelModule = regexp.MustCompile(`Kernel Module\s+(?:for \S+\s+)?(\d+\.\d+(?:\.\d+)?)`)

// checkModule looks for the driver's part in the kernel.
func checkModule(p *patient) []finding {
	simulated := strings.HasPrefix(p.info.GetSource(), "sim:")
	m := kernelModule.FindStringSubmatch(p.host.module)
	switch {
	case m == nil && simulated:
		return []finding{ok("NVIDIA's is not loaded, and the GPUs are simulated")}
	case m == nil && p.err != nil:
		return []finding{{Result: checkSkipped, Detail: "NVIDIA's is not loaded; whether GPUs are simulated, vgpud knows, which did not answer"}}
	case m == nil:
		return []finding{fault("install NVIDIA's driver, and run \"modprobe nvidia\"; without a GPU, set gpus = \"sim:1\" in vgpud.toml", "NVIDIA's kernel module is not loaded")}
	case !simulated && p.info.GetDriverVersion() != "" && p.info.GetDriverVersion() != m[1]:
		return []finding{fault("load the module of the driver that is installed (restart the machine), then restart vgpud", "the kernel module is version %s, the driver's library %s", m[1], p.info.GetDriverVersion())}
	}
	return []finding{ok("NVIDIA's kernel module, version %s", m[1])}
}

// oldest is the oldest containerd that is supported.
const oldest = "1.6.0"

// criAnnotations are those by which CRI tells a runtime which container of which pod
// it is (containerd, internal/cri/annotations).
var criAnnotations = []string{
	"io.kubernetes.cri.container-type", "io.kubernetes.cri.container-name", "io.kubernetes.cri.sandbox-id",
	"io.kubernetes.cri.sandbox-name", "io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-uid",
}

func checkContainerd(p *patient) []finding {
	c := p.host.containerd
	if c.err != nil {
		return []finding{fault("install containerd, or name it with --containerd", "%s", c.err)}
	}
	version, known := parseRelease(c.version)
	supported, _ := parseRelease(oldest)
	if known && version.before(supported) {
		return []finding{fault("upgrade containerd to 1.6 or later", "version %s is too old", c.version)}
	}
	if c.bad != nil {
		return []finding{fault("mend its configuration, then restart it", "%s", c.bad)}
	}
	r := c.config.Runtime(install.Handler)
	switch {
	case c.config.CRIDisabled():
		return []finding{ok("version %s; CRI is disabled, so it needs no handler", c.version)}
	case r == nil && !c.config.HasCRI():
		return []finding{ok("version %s, without CRI, so it needs no handler", c.version)}
	case r == nil:
		return []finding{fault("for Kubernetes, run vgpu install and restart containerd; ctr, nerdctl and docker do without",
			"version %s; its configuration has no runtime %q", c.version, install.Handler)}
	}
	shim := text(r, "runtime_path")
	if info, err := os.Stat(shim); err != nil || info.Mode()&0o111 == 0 {
		return []finding{fault("run vgpu install, and restart containerd", "the runtime %q is to start %s, which is not there, or no program", install.Handler, or(shim, "a shim from PATH"))}
	}
	patterns, _ := r["pod_annotations"].([]any)
	for _, a := range patterns {
		pattern := fmt.Sprint(a)
		// CRI writes those itself; a pod that could would be taken for another one.
		matches := func(key string) bool {
			hit, _ := path.Match(pattern, key) // as CRI matches them
			return hit
		}
		if slices.ContainsFunc(criAnnotations, matches) || strings.HasPrefix(pattern, "io.kubernetes.cri.") {
			return []finding{fault("take it out of pod_annotations: vgpu-shim.dev/* suffices", "the runtime %q lets pods set CRI's own annotations (%q)", install.Handler, pattern)}
		}
	}
	return []finding{ok("version %s; the runtime %q starts %s", c.version, install.Handler, shim)}
}

func checkCgroups(p *patient) []finding {
	switch {
	case p.host.cgroups == "2":
		return []finding{ok("version 2")}
	case p.host.cgroups == "":
		return []finding{fault("mount control groups on /sys/fs/cgroup (systemd does)", "no control groups are mounted")}
	}
	var missing []string
	for _, needed := range []string{"devices", "freezer"} { // containers; engine.overrun = "freeze"
		if !p.host.legacy[needed] {
			missing = append(missing, needed)
		}
	}
	if len(missing) > 0 {
		return []finding{fault("mount them below /sys/fs/cgroup, or boot with systemd.unified_cgroup_hierarchy=1", "version 1, without %s", strings.Join(missing, ", "))}
	}
	return []finding{ok("version 1, which containerd will not support for ever")}
}

// What must be free: a vGPU takes some KiB, a store that grows some MiB.
const (
	roomBytes = 64 << 20
	roomFiles = 1000
)

func checkSpace(p *patient) []finding {
	var faults []finding
	for _, where := range slices.Sorted(maps.Keys(p.host.room)) {
		if r := p.host.room[where]; r.bytes < roomBytes || r.files < roomFiles {
			faults = append(faults, fault("make room: containers can not be created without", "%s has room for %s in %d files", where, gib(r.bytes), r.files))
		}
	}
	return unless(faults, "there is room in "+strings.Join(slices.Sorted(maps.Keys(p.host.room)), ", "))
}

func checkPermissions(p *patient) []finding {
	var faults []finding
	for _, where := range slices.Sorted(maps.Keys(p.host.owned)) {
		a := p.host.owned[where]
		switch {
		case a.uid != 0:
			faults = append(faults, fault("chown root "+where, "%s belongs to user %d", where, a.uid))
		case a.private && a.mode.Perm()&0o077 != 0:
			faults = append(faults, fault("chmod go= "+where, "%s can be used by others than root (%v)", where, a.mode))
		case a.mode.Perm()&0o022 != 0:
			faults = append(faults, fault("chmod go-w "+where, "%s can be changed by others than root (%v)", where, a.mode))
		}
	}
	return unless(faults, "root alone may use vgpud's socket, and change what containers get")
}
