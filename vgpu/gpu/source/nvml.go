// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// openNVML opens the real driver.
func openNVML(cfg Config) (gpu.Inventory, error) {
	lib := cfg.NVML
	if lib == nil {
		var err error
		if lib, err = load("libnvidia-ml.so.1"); err != nil {
			return nil, err
		}
	}
	i, err := open(cfg, "nvml", lib)
	if err != nil {
		return nil, err
	}
	gen, common, err := listDriver(i.lib, cfg)
	if err != nil {
		i.Close()
		return nil, err
	}
	edits := []*specs.ContainerEdits{common}
	for n := range i.gpus {
		g := &i.gpus[n]
		devices, err := gen.GetDeviceSpecsByID(g.UUID)
		if err != nil {
			i.Close()
			return nil, fmt.Errorf("failed to list the device nodes of %s: %w", g.UUID, err)
		}
		for d := range devices {
			own := devices[d].ContainerEdits
			if g.Devices, err = addDevices(g.Devices, own.DeviceNodes); err != nil {
				i.Close()
				return nil, err
			}
			own.DeviceNodes = nil
			edits = append(edits, &own)
		}
	}
	if err := collect(&i.driver, edits); err != nil {
		i.Close()
		return nil, err
	}
	all := i.driver.Devices
	for _, g := range i.gpus {
		all = append(all[:len(all):len(all)], g.Devices...)
	}
	if err := linkDevices(filepath.Join(cmp.Or(cfg.DriverRoot, "/"), "dev"), all); err != nil {
		cfg.Log("containers whose cgroup systemd manages lose their GPUs when systemd is reloaded: %v", err)
	}
	return i, nil
}

// listDriver lists the files of the driver. The toolkit knows what belongs to it, and
// looks where distributions install it. On some nodes it stands elsewhere, as in
// /usr/local/nvidia: then it is all where the NVML lies that was loaded.
func listDriver(lib nvml.Interface, cfg Config) (nvcdi.Interface, *specs.ContainerEdits, error) {
	gen, common, err := listIn(lib, cfg)
	if err == nil {
		return gen, common, nil
	}
	maps, readErr := os.ReadFile("/proc/self/maps")
	dir := loadedFrom(string(maps), "libnvidia-ml.so.")
	if readErr != nil || dir == "" {
		return nil, nil, err
	}
	gen, common, again := listIn(lib, cfg, dir)
	if again != nil {
		return nil, nil, errors.Join(err, again)
	}
	cfg.Log("the driver is none that the dynamic linker finds by itself: its files are taken from %s", dir)
	return gen, common, nil
}

// listIn looks in these directories; in the usual ones if none is named.
func listIn(lib nvml.Interface, cfg Config, dirs ...string) (nvcdi.Interface, *specs.ContainerEdits, error) {
	// All hooks are off: they would run ldconfig and make links in the container, and
	// the take-over leaves nothing for them to do (see library). The sockets of the
	// host's daemons are left out: by the one of MPS a container starts a server that
	// others meet, by those of nvidia-persistenced and the fabric manager it sets what
	// all share.
	gen, err := nvcdi.New(
		nvcdi.WithNvmlLib(lib),
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithDriverRoot(cmp.Or(cfg.DriverRoot, "/")),
		nvcdi.WithDisabledHooks(nvcdi.AllHooks),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils, nvcdi.FeatureDisableIPCDiscoverer),
		nvcdi.WithLogger(toolkitLog(cfg.Log)),
		nvcdi.WithLibrarySearchPaths(dirs),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to look at the driver: %w", err)
	}
	common, err := gen.GetCommonEdits()
	if err != nil {
		return nil, nil, fmt.Errorf("failed to list the driver's files: %w", err)
	}
	return gen, common.ContainerEdits, nil
}

// loadedFrom is the directory of a library that this process has loaded, out of
// /proc/PID/maps (proc_pid_maps(5)); empty if it has not.
func loadedFrom(maps, name string) string {
	for line := range strings.Lines(maps) {
		_, file, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "/")
		if file = "/" + file; ok && strings.HasPrefix(path.Base(file), name) {
			return path.Dir(file)
		}
	}
	return ""
}

// collect turns CDI edits into a Driver.
func collect(d *gpu.Driver, edits []*specs.ContainerEdits) error {
	for _, e := range edits {
		for _, m := range e.Mounts {
			name := path.Base(m.ContainerPath)
			switch {
			case name == "libcuda.so."+d.Version:
				d.CUDA = m.HostPath
			case name == "libnvidia-ml.so."+d.Version:
				d.NVML = m.HostPath
			case plainLibrary(m.ContainerPath):
				d.Libraries = append(d.Libraries, library(m.HostPath, name))
			default:
				for _, name := range library(m.HostPath, name).Names {
					d.Mounts = append(d.Mounts, &v1.Mount{
						Source: m.HostPath, Destination: path.Join(path.Dir(m.ContainerPath), name), Type: "bind",
						Options: mountOptions(m.Options),
					})
				}
			}
		}
		var err error
		if d.Devices, err = addDevices(d.Devices, e.DeviceNodes); err != nil {
			return err
		}
		d.Env = append(d.Env, e.Env...)
	}
	if d.CUDA == "" || d.NVML == "" {
		return errors.New("the driver's libcuda.so." + d.Version + " or libnvidia-ml.so." + d.Version + " was not found; is the CUDA part of the driver installed?")
	}
	return nil
}

// addDevices adds device nodes to those that are there, each path once.
func addDevices(all []*v1.Device, nodes []*specs.DeviceNode) ([]*v1.Device, error) {
	for _, n := range nodes {
		dev, err := device(n)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(all, func(o *v1.Device) bool { return o.GetPath() == dev.GetPath() }) {
			all = append(all, dev)
		}
	}
	return all, nil
}

// plainLibrary: found by the dynamic linker in its default directories. Others,
// such as vdpau/ or gbm/, are looked up by their path and stay where they are.
func plainLibrary(p string) bool {
	name := path.Base(p)
	if !strings.HasPrefix(name, "lib") || !strings.Contains(name, ".so") {
		return false
	}
	switch path.Base(path.Dir(p)) {
	case "lib", "lib64", "x86_64-linux-gnu", "aarch64-linux-gnu", "current":
		return true
	}
	return false
}

// library is a file of the driver under all names by which it is looked for: its
// own; if it is a library its soname, under which the driver's parts and programs
// load it; and the name for linking, if the host has a link of that name beside it.
// They are what ldconfig and the toolkit's create-symlinks would make in the
// container, which then needs neither.
func library(host, name string) gpu.Library {
	l := gpu.Library{Source: host, Names: []string{name}}
	f, err := elf.Open(host)
	if err != nil {
		return l
	}
	defer f.Close()
	base, _, isLibrary := strings.Cut(name, ".so")
	if !isLibrary {
		return l
	}
	add := func(other string) {
		if other != "" && other == filepath.Base(other) && !slices.Contains(l.Names, other) {
			l.Names = append(l.Names, other)
		}
	}
	if so, err := f.DynString(elf.DT_SONAME); err == nil && len(so) == 1 {
		add(so[0])
	}
	link := base + ".so"
	if _, err := os.Lstat(filepath.Join(filepath.Dir(host), link)); err == nil {
		add(link)
	}
	add(fixedLinks[base])
	return l
}

// fixedLinks are names that the toolkit makes on every node, whether the host has
// them or not: programs rely on them.
var fixedLinks = map[string]string{
	"libnvidia-opticalflow": "libnvidia-opticalflow.so",
	"libGLX_nvidia":         "libGLX_indirect.so.0",
}

// mountOptions makes CDI's options fit what the take-over allows: read-only
// unless said otherwise, no devices, no set-uid programs.
func mountOptions(cdi []string) []string {
	out := []string{"bind", "nosuid", "nodev"}
	rw := slices.Contains(cdi, "rw")
	for _, o := range cdi {
		switch o {
		case "bind", "rbind", "ro", "rw", "nosuid", "nodev":
		default:
			out = append(out, o)
		}
	}
	if !rw {
		out = append(out, "ro")
	}
	return out
}

// device reads the number of a device node where CDI left it out, which it may:
// runtimes fill it in.
func device(n *specs.DeviceNode) (*v1.Device, error) {
	host := n.HostPath
	if host == "" {
		host = n.Path
	}
	var st unix.Stat_t
	if err := unix.Stat(host, &st); err != nil {
		return nil, fmt.Errorf("failed to look at device node %s: %w", host, err)
	}
	d := &v1.Device{
		Path: n.Path, Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev)),
		FileMode: st.Mode & 0o777, Uid: st.Uid, Gid: st.Gid, Permissions: n.Permissions,
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		d.Type = "c"
	case unix.S_IFBLK:
		d.Type = "b"
	default:
		return nil, fmt.Errorf("%s is not a device node", host)
	}
	if d.Permissions == "" {
		d.Permissions = "rwm"
	}
	return d, nil
}

// toolkitLog gives the toolkit's warnings and errors to our log.
type toolkitLog func(format string, args ...any)

func (l toolkitLog) Tracef(string, ...any)          {}
func (l toolkitLog) Debugf(string, ...any)          {}
func (l toolkitLog) Infof(string, ...any)           {}
func (l toolkitLog) Warningf(f string, args ...any) { l("driver: "+f, args...) }
func (l toolkitLog) Errorf(f string, args ...any)   { l("driver: "+f, args...) }
