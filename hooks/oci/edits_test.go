// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMount(t *testing.T) {
	bind := func(dest string) Mount {
		return Mount{Destination: dest, Type: "bind", Source: "/src", Options: []string{"bind", "ro"}}
	}
	for _, c := range []struct {
		description string
		mount       Mount
		fails       string
	}{
		{"a file in a library directory", bind("/usr/lib64/libcuda.so.1"), ""},
		{"the private directory", bind("/.vgpu"), ""},
		{"the simulated GPU", bind("/dev/simgpu"), ""},
		{"below the simulated GPU", bind("/dev/simgpu/log"), ""},
		{"a relative destination", bind("usr/lib"), "clean path"},
		{"a destination with dots", bind("/usr/../proc"), "clean path"},
		{"a trailing slash", bind("/usr/"), "clean path"},
		{"no destination", bind(""), "clean path"},
		{"the root", bind("/"), "root"},
		{"/proc", bind("/proc"), "kernel"},
		{"below /proc", bind("/proc/self/x"), "kernel"},
		{"below /sys", bind("/sys/fs"), "kernel"},
		{"beside /proc", bind("/process"), ""},
		{"/dev", bind("/dev"), "/dev"},
		{"a device", bind("/dev/nvidia0"), "/dev"},
		{"beside the simulated GPU", bind("/dev/simgpu2"), "/dev"},
		{"a relative source", Mount{Destination: "/a", Type: "bind", Source: "src"}, "source"},
		{"a bind by option", Mount{Destination: "/a", Source: "src", Options: []string{"rbind"}}, "source"},
		{"a tmpfs", Mount{Destination: "/a", Type: "tmpfs", Source: "tmpfs"}, ""},
		{"no type", Mount{Destination: "/a"}, "type"},
		{"two options in one", Mount{Destination: "/a", Type: "bind", Source: "/s", Options: []string{"ro,suid"}}, "option"},
		{"an empty option", Mount{Destination: "/a", Type: "bind", Source: "/s", Options: []string{""}}, "option"},
		{"a NUL", bind("/a\x00b"), "clean path"},
	} {
		t.Run(c.description, func(t *testing.T) { applies(t, c.mount, c.fails) })
	}
}

func TestMountReplacesAtItsDestinationAndLiesAbove(t *testing.T) {
	const spec = `{"mounts": [
		{"destination": "/usr/lib64/libcuda.so.1/", "type": "bind", "source": "/theirs"},
		{"destination": "/usr/lib64", "type": "bind", "source": "/volume"}]}`
	m := Mount{Destination: "/usr/lib64/libcuda.so.1", Type: "bind", Source: "/ours", Options: []string{"bind"}}
	want := `{"mounts": [
		{"destination": "/usr/lib64", "type": "bind", "source": "/volume"},
		{"destination": "/usr/lib64/libcuda.so.1", "type": "bind", "source": "/ours", "options": ["bind"]}]}`
	if diff := cmp.Diff(tree(t, want), tree(t, edited(t, spec, m, m))); diff != "" {
		t.Error(diff)
	}
}

// What is mounted later obeys the same rules, and has its place to itself.
func TestLater(t *testing.T) {
	const theirs = `{"destination": "/usr/lib64", "type": "bind", "source": "/volume"}`
	const spec = `{"mounts": [{"destination": "/usr/lib64/libcuda.so.1/", "type": "bind", "source": "/theirs"}, ` + theirs + `]}`
	bind := Mount{Destination: "/usr/lib64/libcuda.so.1", Type: "bind", Source: "/ours", Options: []string{"bind"}}
	if diff := cmp.Diff(tree(t, `{"mounts": [`+theirs+`]}`), tree(t, edited(t, spec, Later{bind}, Later{bind}))); diff != "" {
		t.Error(diff)
	}
	wrong := bind
	wrong.Destination = "/proc/self/x"
	applies(t, Later{bind, wrong}, "kernel")
}

func TestDevice(t *testing.T) {
	ok := Device{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 0, FileMode: 0o666, Permissions: "rw"}
	with := func(change func(*Device)) Device {
		d := ok
		change(&d)
		return d
	}
	for _, c := range []struct {
		description string
		device      Device
		fails       string
	}{
		{"a character device", ok, ""},
		{"one in a directory", with(func(d *Device) { d.Path = "/dev/nvidia-caps/nvidia-cap1" }), ""},
		{"a block device", with(func(d *Device) { d.Type = "b" }), ""},
		{"outside /dev", with(func(d *Device) { d.Path = "/etc/passwd" }), "/dev"},
		{"/dev itself", with(func(d *Device) { d.Path = "/dev" }), "/dev"},
		{"out of /dev by dots", with(func(d *Device) { d.Path = "/dev/../etc/x" }), "clean path"},
		{"elsewhere on the host", with(func(d *Device) { d.Host = "/dev/null" }), ""},
		{"outside /dev on the host", with(func(d *Device) { d.Host = "/etc/shadow" }), "/dev"},
		{"out of /dev by dots on the host", with(func(d *Device) { d.Host = "/dev/../etc/x" }), "clean path"},
		{"a fifo", with(func(d *Device) { d.Type = "p" }), "type"},
		{"any device", with(func(d *Device) { d.Type = "a" }), "type"},
		{"a negative number, which is any", with(func(d *Device) { d.Minor = -1 }), "number"},
		{"a number that no device has", with(func(d *Device) { d.Major = 1 << 32 }), "number"},
		{"a set-user-id bit", with(func(d *Device) { d.FileMode = 0o4666 }), "mode"},
		{"no permissions", with(func(d *Device) { d.Permissions = "" }), "permissions"},
		{"unknown permissions", with(func(d *Device) { d.Permissions = "rx" }), "permissions"},
	} {
		t.Run(c.description, func(t *testing.T) { applies(t, c.device, c.fails) })
	}
}

func TestDeviceWinsOverWhatIsThere(t *testing.T) {
	// Theirs has another number under the same path, and denies ours after
	// allowing it in another order of letters.
	const spec = `{"linux": {
		"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 1, "minor": 3}, {"path": "/dev/b", "type": "b", "major": 1, "minor": 1}],
		"resources": {"devices": [
			{"allow": false, "access": "rwm"},
			{"allow": true, "type": "c", "major": 195, "minor": 0, "access": "wr"},
			{"allow": false, "type": "c", "major": 195, "access": "rwm"}]}}}`
	d := Device{Path: "/dev/nvidia0", Type: "c", Major: 195, Permissions: "rw"}
	want := `{"linux": {
		"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "uid": 0, "gid": 0}, {"path": "/dev/b", "type": "b", "major": 1, "minor": 1}],
		"resources": {"devices": [
			{"allow": false, "access": "rwm"},
			{"allow": false, "type": "c", "major": 195, "access": "rwm"},
			{"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rw"}]}}}`
	if diff := cmp.Diff(tree(t, want), tree(t, edited(t, spec, d, d))); diff != "" {
		t.Error(diff)
	}
}

// runc mounts a device from the same path of the host then, and fails where there
// is none: "error creating device nodes: no such file or directory".
func TestDeviceThatTheHostHasElsewhereIsMountedInAUserNamespace(t *testing.T) {
	const (
		none   = `{"linux": {"namespaces": [{"type": "pid"}]}}`
		user   = `{"mounts": [{"destination": "/dev"}], "linux": {"namespaces": [{"type": "pid"}, {"type": "user"}]}}`
		rules  = `"resources": {"devices": [{"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rw"}]}`
		node   = `"devices": [{"path": "/dev/simgpu0", "type": "c", "major": 1, "minor": 3, "uid": 0, "gid": 0}]`
		others = `{"linux": {"namespaces": [{"type": "pid"}], ` + node + `, ` + rules + `}}`
	)
	elsewhere := Device{Path: "/dev/simgpu0", Type: "c", Major: 1, Minor: 3, Permissions: "rw", Host: "/dev/null"}
	same := elsewhere
	same.Host = ""
	for _, c := range []struct {
		description, spec string
		device            Device
		want              string
	}{
		{"no user namespace", none, elsewhere, others},
		{"a user namespace", user, elsewhere, `{"mounts": [{"destination": "/dev"},
			{"destination": "/dev/simgpu0", "type": "bind", "source": "/dev/null", "options": ["bind", "rw", "nosuid", "noexec"]}],
			"linux": {"namespaces": [{"type": "pid"}, {"type": "user"}], ` + rules + `}}`},
		{"a user namespace, and a node at the same path", user, same, `{"mounts": [{"destination": "/dev"}],
			"linux": {"namespaces": [{"type": "pid"}, {"type": "user"}], ` + node + `, ` + rules + `}}`},
	} {
		t.Run(c.description, func(t *testing.T) {
			if diff := cmp.Diff(tree(t, c.want), tree(t, edited(t, c.spec, c.device, c.device))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEnv(t *testing.T) {
	for _, c := range []struct {
		description string
		env         Env
		fails       string
	}{
		{"a value", "A=b", ""},
		{"an empty value", "A=", ""},
		{"a value with an equals sign", "A=b=c", ""},
		{"no value", "A", "NAME=value"},
		{"no name", "=b", "NAME=value"},
		{"nothing", "", "NAME=value"},
		{"a NUL", "A=b\x00LD_PRELOAD=x", "NAME=value"},
	} {
		t.Run(c.description, func(t *testing.T) { applies(t, c.env, c.fails) })
	}
	t.Run("a spec without a process", func(t *testing.T) {
		s, err := Parse([]byte(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(Env("A=b")); err == nil {
			t.Error("succeeded")
		}
	})
}

func TestEnvReplacesEachOfItsName(t *testing.T) {
	const spec = `{"process": {"env": ["A=1", "AB=2", "A", "A=3", "B=A=4"]}}`
	want := `{"process": {"env": ["A=new", "AB=2", "B=A=4"]}}`
	if diff := cmp.Diff(tree(t, want), tree(t, edited(t, spec, Env("A=new")))); diff != "" {
		t.Error(diff)
	}
}

// applies applies the edit to the sample and wants an error that says fails,
// or none, and after an error a spec that is as it was.
func applies(t *testing.T, e Edit, fails string) {
	t.Helper()
	s, err := Parse([]byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	err = s.Apply(e)
	if fails == "" {
		if err != nil {
			t.Errorf("failed: %v", err)
		}
		return
	}
	if err == nil || !strings.Contains(err.Error(), fails) {
		t.Errorf("error is %v, want one that says %q", err, fails)
	}
	out, err := s.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tree(t, sample), tree(t, string(out))); diff != "" {
		t.Errorf("the failed edit changed the spec:\n%s", diff)
	}
}

func TestEnvListKeepsWhatIsThere(t *testing.T) {
	for _, c := range []struct{ description, env, want string }{
		{"no environment", `[]`, `["A=/x"]`},
		{"others", `["B=/y"]`, `["B=/y", "A=/x"]`},
		{"its own list", `["A=/y:/z", "B=1"]`, `["A=/x:/y:/z", "B=1"]`},
		{"an empty one", `["A="]`, `["A=/x"]`},
		{"ours among others", `["A=/y:/x"]`, `["A=/x:/y"]`},
		{"two: programs see the first", `["A=/y", "A=/z"]`, `["A=/x:/y"]`},
		{"a longer name", `["AB=/y"]`, `["AB=/y", "A=/x"]`},
	} {
		t.Run(c.description, func(t *testing.T) {
			e := EnvList{Name: "A", First: "/x"}
			got := tree(t, edited(t, `{"process": {"env": `+c.env+`}}`, e, e))
			if diff := cmp.Diff(tree(t, `{"process": {"env": `+c.want+`}}`), got); diff != "" {
				t.Error(diff)
			}
		})
	}
	applies(t, EnvList{Name: "A", First: "/x:/y"}, "invalid entry")
	applies(t, EnvList{Name: "A"}, "invalid entry")
}
