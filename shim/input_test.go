// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
)

// A config.json that is none is refused by its name, whatever is wrong with it, before
// anything is asked of vgpud.
func TestCreateRefusesAMalformedSpec(t *testing.T) {
	for description, spec := range map[string]string{
		"nothing":                          ``,
		"half of one":                      plainSpec[:40],
		"another document behind it":       plainSpec + `{}`,
		"zeros, as after a crash":          strings.Repeat("\x00", 4096),
		"a byte order mark":                "\ufeff" + plainSpec,
		"nested for ever":                  strings.Repeat(`{"process":`, 100_000),
		"an array":                         `[]`,
		"annotations that are a list":      specWith(`["vgpu-shim.dev/gpus"]`),
		"an annotation that is a number":   specWith(`{"vgpu-shim.dev/gpus": 1}`),
		"mounts that are no list":          `{"process": {}, "mounts": {"/a": "/b"}}`,
		"an environment of numbers":        `{"process": {"env": [1]}}`,
		"devices with a number that is no": `{"process": {}, "linux": {"devices": [{"major": 1e99}]}}`,
		"no process":                       `{"linux": {}}`,
		"no object":                        `null`,
	} {
		t.Run(description, func(t *testing.T) {
			f := newFixture(t, spec)
			if err := f.create(); err == nil || !strings.Contains(err.Error(), f.path("config.json")) || len(err.Error()) > 1000 {
				t.Errorf("error is %v, want a short one that names %s", err, f.path("config.json"))
			}
			f.called()
			f.untouched()
		})
	}
}

// large is a spec with n elements of each kind, and some paths and values of more than
// 4,000 bytes.
func large(n int, annotations map[string]string) string {
	long := strings.Repeat("/"+strings.Repeat("d", 249), 16)
	name := func(i int) string {
		if i%10 == 9 {
			return fmt.Sprint(long, "/", i)
		}
		return fmt.Sprint("/", i)
	}
	spec := map[string]any{
		"process": map[string]any{"env": []string{}}, "linux": map[string]any{"devices": []any{}, "resources": map[string]any{"devices": []any{}}},
		"annotations": annotations,
	}
	var mounts, devices []any
	var env []string
	for i := range n {
		mounts = append(mounts, map[string]any{"destination": name(i), "type": "bind", "source": name(i), "options": []string{"rbind"}})
		devices = append(devices, map[string]any{"path": fmt.Sprint("/dev/d", i), "type": "c", "major": 1, "minor": i})
		env = append(env, fmt.Sprintf("V%d=%s", i, name(i)))
	}
	spec["mounts"], spec["process"], spec["linux"] = mounts, map[string]any{"env": env}, map[string]any{"devices": devices}
	b, err := json.Marshal(spec)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// What is large and right works, and all of it is still there.
func TestCreateWithALargeSpec(t *testing.T) {
	const n = 10_000
	annotations := map[string]string{"vgpu-shim.dev/gpus": "1", "example.com/huge": strings.Repeat("x", 1<<20)}
	for i := range 10_000 {
		annotations[fmt.Sprintf("vgpu-shim.dev/c%d.weight", i)] = "7"
		annotations[fmt.Sprintf("example.com/%d", i)] = strings.Repeat("y", 100)
	}
	f := newFixture(t, large(n, annotations))
	if err := f.create(); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Process     struct{ Env []string }
		Mounts      []struct{ Destination string }
		Annotations map[string]string
		Linux       struct{ Devices []struct{ Path string } }
	}
	if err := json.Unmarshal([]byte(f.inner.spec), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Mounts) < n+8 || !strings.HasSuffix(got.Mounts[n-1].Destination, fmt.Sprint("/", n-1)) || len(got.Mounts[n-1].Destination) < 4000 ||
		got.Mounts[n].Destination != "/.vgpu" {
		t.Errorf("%d mounts", len(got.Mounts))
	}
	if len(got.Process.Env) != n+2 || len(got.Linux.Devices) != n+1 || len(got.Annotations) != len(annotations) ||
		got.Annotations["example.com/huge"] != annotations["example.com/huge"] {
		t.Errorf("%d variables, %d devices, %d annotations", len(got.Process.Env), len(got.Linux.Devices), len(got.Annotations))
	}
	if err := f.delete(); err != nil {
		t.Fatal(err)
	}
	f.vgpus(0)
}

// However much is wrong, the error fits into a message, and still says what to do.
func TestCreateRefusesALotShortly(t *testing.T) {
	many := map[string]string{}
	for i := range 10_000 {
		many[fmt.Sprintf("vgpu-shim.dev/c%d.wieght", i)] = strings.Repeat("9", 100)
	}
	for description, tc := range map[string]struct {
		annotations map[string]string
		allow       string
		says        string
	}{
		"a long value":          {map[string]string{"vgpu-shim.dev/memory": strings.Repeat("9", 10<<20)}, "*", "8Gi"},
		"a long key":            {map[string]string{"vgpu-shim.dev/" + strings.Repeat("k", 10<<20): "1"}, "*", "unknown key"},
		"many":                  {many, "*", "9992 more"},
		"many not allowed":      {many, "memory", "9992 more"},
		"a long one that is no": {map[string]string{"vgpu-shim.dev/" + strings.Repeat("k", 10<<20): "1"}, "memory", "not allowed"},
	} {
		t.Run(description, func(t *testing.T) {
			b, err := json.Marshal(tc.annotations)
			if err != nil {
				t.Fatal(err)
			}
			f := newFixture(t, specWith(string(b)))
			f.config.AllowAnnotations = []string{tc.allow}
			err = f.create()
			if !errdefs.IsInvalidArgument(errgrpc.ToNative(err)) || !strings.Contains(err.Error(), tc.says) || len(err.Error()) > 4000 {
				t.Errorf("error is %.300v", err)
			}
			f.called()
			f.untouched()
		})
	}
}
