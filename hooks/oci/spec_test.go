// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sample has a field that nobody knows at every level that an edit rewrites,
// numbers that a float64 can not hold, and characters that HTML would escape.
const sample = `{
	"ociVersion": "1.99.0",
	"future": {"a": 18446744073709551615, "b": [1.10, null, "<&>"]},
	"process": {
		"args": ["sh", "-c", "a && b > c"],
		"env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"],
		"capabilities": {"bounding": ["CAP_KILL"]},
		"selinuxLabel": "system_u:system_r:container_t:s0:c1,c2",
		"user": {"uid": 1000, "gid": 1000, "additionalGids": [44, 109]},
		"newField": 9007199254740993
	},
	"mounts": [
		{"destination": "/proc", "type": "proc", "source": "proc", "newField": 1e400}
	],
	"hooks": {"prestart": [{"path": "/bin/x", "timeout": 5, "newField": true}], "newStage": []},
	"linux": {
		"seccomp": {"defaultAction": "SCMP_ACT_ERRNO"},
		"maskedPaths": ["/proc/kcore"],
		"mountLabel": "system_u:object_r:container_file_t:s0:c1,c2",
		"cgroupsPath": "system.slice:containerd:c1",
		"resources": {
			"devices": [{"allow": false, "access": "rwm", "newField": 1}],
			"unified": {"memory.high": "1000000"},
			"memory": {"limit": 9223372036854775807}
		},
		"devices": [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "newField": {}}]
	}
}`

// everything is one edit of each kind.
func everything() []Edit {
	return []Edit{
		Mount{Destination: "/.vgpu", Type: "bind", Source: "/run/vgpu/c/x", Options: []string{"bind", "ro"}},
		Mount{Destination: "/usr/lib64/libcuda.so.1", Type: "bind", Source: "/usr/lib/vgpu/l.so", Options: []string{"bind", "ro"}},
		Takeover{CUDA: "/usr/lib/vgpu/l.so", Keep: []string{"/.vgpu", "/.vgpu-musl"}},
		Device{Path: "/dev/nvidia0", Type: "c", Major: 195, Permissions: "rw", FileMode: 0o666},
		Env("NVIDIA_VISIBLE_DEVICES=void"),
		MaskCompat{},
	}
}

func edited(t *testing.T, spec string, edits ...Edit) string {
	t.Helper()
	s, err := Parse([]byte(spec))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(edits...); err != nil {
		t.Fatal(err)
	}
	out, err := s.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// tree is a JSON document with numbers as they are written.
func tree(t *testing.T, doc string) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(doc))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, doc)
	}
	return v
}

func TestSpecKeepsWhatItDoesNotKnow(t *testing.T) {
	want := tree(t, sample).(map[string]any)
	process := want["process"].(map[string]any)
	process["env"] = []any{"PATH=/bin", "NVIDIA_VISIBLE_DEVICES=void"}
	want["mounts"] = append(want["mounts"].([]any),
		tree(t, `{"destination": "/.vgpu", "type": "bind", "source": "/run/vgpu/c/x", "options": ["bind", "ro"]}`),
		tree(t, `{"destination": "/usr/lib64/libcuda.so.1", "type": "bind", "source": "/usr/lib/vgpu/l.so", "options": ["bind", "ro"]}`))
	linux := want["linux"].(map[string]any)
	linux["devices"] = append(linux["devices"].([]any),
		tree(t, `{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 438, "uid": 0, "gid": 0}`))
	for _, dir := range masked(t, edited(t, `{}`, MaskCompat{})) {
		linux["maskedPaths"] = append(linux["maskedPaths"].([]any), dir)
	}
	resources := linux["resources"].(map[string]any)
	resources["devices"] = append(resources["devices"].([]any),
		tree(t, `{"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rw"}`))

	if diff := cmp.Diff(want, tree(t, edited(t, sample, everything()...))); diff != "" {
		t.Errorf("the edited spec differs (-want +got):\n%s", diff)
	}
}

func TestEditsAreIdempotent(t *testing.T) {
	once := edited(t, sample, everything()...)
	twice := edited(t, once, everything()...)
	if diff := cmp.Diff(tree(t, once), tree(t, twice)); diff != "" {
		t.Errorf("a second application changes the spec:\n%s", diff)
	}
}

func TestSpecWithoutEditKeepsItsMeaning(t *testing.T) {
	if diff := cmp.Diff(tree(t, sample), tree(t, edited(t, sample))); diff != "" {
		t.Error(diff)
	}
}

func TestSpecMakesMissingSections(t *testing.T) {
	got := edited(t, `{"process":{},"linux":null,"mounts":null}`, everything()...)
	s, err := Parse([]byte(got))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.mounts.elements) != 2 || len(s.devices.elements) != 1 || len(s.rules.elements) != 1 || len(s.env.elements) != 1 {
		t.Errorf("got %s", got)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ description, spec, says string }{
		{"nothing", ``, "unexpected end"},
		{"null", `null`, "not an object"},
		{"an array", `[]`, "cannot unmarshal"},
		{"mounts that are no list", `{"mounts": {}}`, "mounts"},
		{"a mount that is no object", `{"mounts": [{}, 5]}`, "[1]"},
		{"a device number that is no integer", `{"linux": {"devices": [{"major": 1.5}]}}`, "devices"},
		{"two documents", `{} {}`, "after top-level"},
		{"a spelling that runc would take", `{"Mounts": []}`, `"Mounts"`},
		{"the same one level down", `{"linux": {"RESOURCES": {}}}`, `"RESOURCES"`},
	} {
		t.Run(c.description, func(t *testing.T) {
			_, err := Parse([]byte(c.spec))
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error is %v, want one that says %q", err, c.says)
			}
		})
	}
}
