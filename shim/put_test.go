// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/vgpu-shim/vgpu/hooks/oci"
	"github.com/vgpu-shim/vgpu/shim/mounts"
)

// putSpec is a spec whose container has a root and a mount namespace of its own.
const putSpec = `{"process": {}, "root": {"path": "rootfs"}, "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]},
	"mounts": [{"destination": "/usr/lib64/libcuda.so.1", "type": "bind", "source": "/theirs"}, {"destination": "/data", "type": "bind", "source": "/data"}]}`

// The driver's files are mounted by the shim, once the runtime has made the container;
// what else the vGPU is stands in config.json.
func TestCreatePutsTheDriverIntoTheContainer(t *testing.T) {
	f := newFixture(t, putSpec)
	var places []string
	driver := &fakeMounts{put: func(pid int, rootfs string) error {
		f.called("create")
		if pid != 42 || rootfs != filepath.Join(f.bundle, "rootfs") {
			t.Errorf("the container is process %d with the root %s", pid, rootfs)
		}
		return nil
	}}
	f.service.mount = func(all []oci.Mount) mounting {
		f.called() // the runtime makes the container meanwhile
		for _, m := range all {
			places = append(places, m.Source+" "+m.Destination)
		}
		return driver
	}
	if err := f.create(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{
		"/real/libcuda.so.1 /.vgpu/libcuda.so",
		"/real/libnvidia-ml.so.1 /.vgpu/libnvidia-ml.so",
		"/real/musl/libcuda.so.1 /.vgpu-musl/libcuda.so",
		"/usr/lib/vgpu/libvgpu-cuda.so /usr/lib64/libcuda.so.1",
		"/usr/lib/vgpu/libvgpu-nvml.so /usr/lib64/libnvidia-ml.so.1",
		"/usr/lib/vgpu/musl/libvgpu-cuda.so /.vgpu-musl/lib/libcuda.so.1",
		"/usr/lib/vgpu/musl/libvgpu-nvml.so /.vgpu-musl/lib/libnvidia-ml.so.1",
	}, places); diff != "" {
		t.Errorf("it mounts (-want +got):\n%s", diff)
	}
	for s, want := range map[string]bool{
		`"/.vgpu"`: true, `"/dev/nvidia0"`: true, `"/data"`: true, "/usr/local/cuda/compat": true, "libcuda.so": false, "/theirs": false,
	} {
		if strings.Contains(f.inner.spec, s) != want {
			t.Errorf("%s in config.json is %v: %s", s, !want, f.inner.spec)
		}
	}
	f.called("create")
	driver.ended(t, "put")
}

// Where a mount of the shim's would not stay in the container, or the kernel can not,
// all stands in config.json.
func TestCreateLeavesMountsToTheRuntime(t *testing.T) {
	never := func([]oci.Mount) mounting {
		t.Error("the shim mounts")
		return &fakeMounts{}
	}
	for _, c := range []struct {
		description, old, new string
		mount                 func([]oci.Mount) mounting
	}{
		{"an old kernel", "", "", nil},
		{"no mount namespace", `, {"type": "mount"}`, "", never},
		{"somebody else's mount namespace", `{"type": "mount"}`, `{"type": "mount", "path": "/proc/1/ns/mnt"}`, never},
		{"a root that passes mounts on", `"namespaces"`, `"rootfsPropagation": "rshared", "namespaces"`, never},
	} {
		t.Run(c.description, func(t *testing.T) {
			f := newFixture(t, strings.Replace(putSpec, c.old, c.new, 1))
			f.service.mount = c.mount
			if err := f.create(); err != nil {
				t.Fatal(err)
			}
			for _, s := range []string{`"/.vgpu"`, `"/usr/lib64/libcuda.so.1"`, `"/.vgpu/libcuda.so"`} {
				if !strings.Contains(f.inner.spec, s) {
					t.Errorf("config.json is without %s: %s", s, f.inner.spec)
				}
			}
		})
	}
}

// A container into which the driver does not go is removed again, and all else undone.
func TestCreateRemovesAContainerWithoutDriver(t *testing.T) {
	f := newFixture(t, putSpec)
	driver := f.puts(errors.New("no room"))
	err := f.create()
	for _, s := range []string{"failed to put the vGPU into container c1", "no room"} {
		if err == nil || !strings.Contains(err.Error(), s) {
			t.Errorf("the error %v does not say %q", err, s)
		}
	}
	f.called("create", "kill 9", "wait", "delete")
	f.untouched()
	driver.ended(t, "put")
}

// Mounts that no container gets are let go.
func TestCreateThatFailsDropsTheMounts(t *testing.T) {
	for _, c := range []struct {
		description, spec string
		runtime           error
	}{
		{"in the runtime", putSpec, errors.New("no runtime")},
		{"in config.json", strings.Replace(putSpec, `"namespaces"`, `"maskedPaths": 1, "namespaces"`, 1), nil},
	} {
		t.Run(c.description, func(t *testing.T) {
			f := newFixture(t, c.spec)
			driver := f.puts(nil)
			f.inner.create = func(*taskv3.CreateTaskRequest) error { return c.runtime }
			if err := f.create(); err == nil {
				t.Fatal("it is created")
			}
			driver.ended(t, "drop")
			f.untouched()
		})
	}
}

// One whose process was killed before it started is created all the same: it is
// stopped, as under runc's shim.
func TestCreateOfAContainerThatIsKilledBeforeItStarts(t *testing.T) {
	f := newFixture(t, putSpec)
	f.puts(fmt.Errorf("no driver: %w", mounts.ErrEnded))
	if err := f.create(); err != nil {
		t.Fatal(err)
	}
	f.called("create")
}

// fakeMounts are mounts that go to no container.
type fakeMounts struct {
	put   func(pid int, rootfs string) error
	calls []string
}

func (m *fakeMounts) Put(pid int, rootfs string) error {
	m.calls = append(m.calls, "put")
	return m.put(pid, rootfs)
}

func (m *fakeMounts) Drop() { m.calls = append(m.calls, "drop") }

// ended checks how they were given away, once.
func (m *fakeMounts) ended(t *testing.T, how string) {
	t.Helper()
	if diff := cmp.Diff([]string{how}, m.calls); diff != "" {
		t.Errorf("the mounts' end (-want +got):\n%s", diff)
	}
}

// puts lets the shim's mounts come to this end.
func (f *fixture) puts(err error) *fakeMounts {
	m := &fakeMounts{put: func(int, string) error { return err }}
	f.service.mount = func([]oci.Mount) mounting { return m }
	return m
}
