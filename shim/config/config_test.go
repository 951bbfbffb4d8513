// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shim.toml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoad(t *testing.T) {
	yes, no := true, false
	defaults := Config{Address: DefaultAddress, DefaultCount: 1, AllowAnnotations: []string{"*"}}
	with := func(change func(*Config)) Config {
		c := defaults
		change(&c)
		return c
	}
	whole := file(t, `
version = 1
address = "/run/a.sock"
default_count = 2
allow_annotations = ["memory", "weight"]
[runc]
binary_name = "crun"
root = "/run/r"
systemd_cgroup = true
shim_cgroup = "/shims"
`)
	wholeConfig := Config{
		Address: "/run/a.sock", DefaultCount: 2, AllowAnnotations: []string{"memory", "weight"},
		Runc: Runc{BinaryName: "crun", Root: "/run/r", SystemdCgroup: &yes, ShimCgroup: "/shims"},
	}
	other := file(t, `address = "/run/other.sock"`)

	for _, c := range []struct {
		description string
		sources     Sources
		want        Config
	}{
		{"nothing", Sources{}, defaults},
		{"nothing, under runc's name", Sources{Program: "/usr/bin/containerd-shim-runc-v2"}, with(func(c *Config) { c.DefaultCount = 0 })},
		{"a default file that does not exist", Sources{DefaultFile: "/nonexistent/shim.toml"}, defaults},
		{"a whole file", Sources{DefaultFile: whole}, wholeConfig},
		{"a file that is named goes before the default one", Sources{File: whole, DefaultFile: other}, wholeConfig},
		{"the runtime options' file goes before both", Sources{ConfigPath: whole, File: other, DefaultFile: other}, wholeConfig},
		{
			"the runtime options' body goes before the file, key by key",
			Sources{File: whole, ConfigBody: []byte("default_count = 0\nallow_annotations = ['gpus']\n[runc]\nroot = '/run/q'")},
			Config{
				Address: "/run/a.sock", DefaultCount: 0, AllowAnnotations: []string{"gpus"},
				Runc: Runc{BinaryName: "crun", Root: "/run/q", SystemdCgroup: &yes, ShimCgroup: "/shims"},
			},
		},
		{
			"the keys of CRI's table, as containerd passes it on",
			Sources{ConfigBody: []byte("TypeUrl = 'x'\nBinaryName = 'crun'\nSystemdCgroup = false\nRoot = '/r'\nIoUid = 5\nNoPivotRoot = true\ndefault_count = 3\n")},
			with(func(c *Config) {
				c.DefaultCount = 3
				c.Runc = Runc{BinaryName: "crun", SystemdCgroup: &no, Root: "/r", IoUID: 5, NoPivotRoot: true}
			}),
		},
		{
			"limits, key by key, as text or as numbers",
			Sources{File: file(t, "[limits]\nmemory = '8Gi'\nweight = 200\nmin-share = 0.5"), ConfigBody: []byte("[limits]\nweight = '100'")},
			with(func(c *Config) { c.Limits = request.Limits{"memory": "8Gi", "weight": "100", "min-share": "0.5"} }),
		},
		{"images' requirements not looked at", Sources{ConfigBody: []byte("disable_require = true")}, with(func(c *Config) { c.DisableRequire = true })},
		{"no annotation allowed", Sources{ConfigBody: []byte("allow_annotations = []")}, with(func(c *Config) { c.AllowAnnotations = []string{} })},
	} {
		t.Run(c.description, func(t *testing.T) {
			got, err := Load(c.sources)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestLoadRefuses(t *testing.T) {
	for _, c := range []struct {
		description string
		sources     Sources
		says        []string
	}{
		{"a named file that does not exist", Sources{File: "/nonexistent/shim.toml"}, []string{"/nonexistent/shim.toml"}},
		{"an options' file that does not exist", Sources{ConfigPath: "/nonexistent/shim.toml"}, []string{"/nonexistent/shim.toml"}},
		{"an unknown key", Sources{ConfigBody: []byte("addr = '/x'")}, []string{"unknown key addr"}},
		{"an unknown key in a table", Sources{ConfigBody: []byte("[runc]\nx = 1")}, []string{"unknown key runc.x"}},
		{"a newer version", Sources{ConfigBody: []byte("version = 2")}, []string{"version is 2"}},
		{"a relative address", Sources{ConfigBody: []byte("address = 'vgpud.sock'")}, []string{"vgpud.sock", "absolute"}},
		{"an address that no socket has", Sources{ConfigBody: []byte("address = '/" + strings.Repeat("x", 4000) + "'")}, []string{"address", "4001 bytes", "107"}},
		{"a negative count", Sources{ConfigBody: []byte("default_count = -1")}, []string{"default_count", "-1"}},
		// The control API has 32 bits for it: this one would be 1.
		{"a count that is too large", Sources{ConfigBody: []byte("default_count = 4294967297")}, []string{"default_count", "4294967297", "0 to 16"}},
		{"a bad pattern", Sources{ConfigBody: []byte("allow_annotations = ['[']")}, []string{"allow_annotations", "["}},
		{"a limit of what has none", Sources{ConfigBody: []byte("[limits]\nmodel = 'A100'")}, []string{"limits", "model", "memory"}},
		{"a limit that is no value", Sources{ConfigBody: []byte("[limits]\nmemory = ['8Gi']")}, []string{"limits", "memory", "quantity"}},
		{"a value of another type", Sources{ConfigBody: []byte("version = 1\naddress = 5")}, []string{"line 2"}},
		{"no TOML, in a file", Sources{File: file(t, "{}")}, []string{"shim.toml", "line 1"}},
	} {
		t.Run(c.description, func(t *testing.T) {
			_, err := Load(c.sources)
			if err == nil {
				t.Fatal("succeeded")
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("error %q does not say %q", err, s)
				}
			}
		})
	}
}

func TestAnnotations(t *testing.T) {
	all := map[string]string{
		"io.kubernetes.cri.container-name": "app",
		"vgpu-shim.dev/memory":             "8Gi",
		"vgpu-shim.dev/app.weight":         "5",
	}
	for _, c := range []struct {
		description string
		allow       []string
		denied      string
	}{
		{"everything", []string{"*"}, ""},
		{"each by name", []string{"memory", "weight"}, ""},
		{"each by its whole name", []string{"vgpu-shim.dev/memory", "vgpu-shim.dev/app.weight"}, ""},
		{"a pattern", []string{"mem*", "*.weight"}, ""},
		{"one of them", []string{"memory"}, "vgpu-shim.dev/app.weight"},
		{"one by another container's name", []string{"memory", "web.weight"}, "vgpu-shim.dev/app.weight"},
		{"none", nil, "vgpu-shim.dev/memory"},
	} {
		t.Run(c.description, func(t *testing.T) {
			got, err := Config{AllowAnnotations: c.allow}.Annotations(all)
			if c.denied != "" {
				if err == nil || !strings.Contains(err.Error(), c.denied+"=") {
					t.Errorf("error is %v, want one that names %s", err, c.denied)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{"vgpu-shim.dev/memory": "8Gi", "vgpu-shim.dev/app.weight": "5"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTheShippedConfigurationIsTheDefault(t *testing.T) {
	const shipped = "../../configs/shim.toml"
	want, err := Load(Sources{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := Load(Sources{File: shipped})
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	// What is commented out, as it depends, are keys that there are; and none is missing.
	text, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile(`(?m)^# ([a-z_-]+ = )`).ReplaceAllString(string(text), "$1")
	whole, err := Load(Sources{File: file(t, all)})
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(request.LimitKeys(), slices.Sorted(maps.Keys(whole.Limits))); diff != "" {
		t.Errorf("%s has other limits than there are: -want +got:\n%s", shipped, diff)
	}
	runc, _ := reflect.TypeFor[document]().FieldByName("Runc")
	for _, of := range []reflect.Type{reflect.TypeFor[document](), runc.Type} {
		for i := range of.NumField() {
			if key := of.Field(i).Tag.Get("toml"); key == strings.ToLower(key) && !regexp.MustCompile(`(?m)^(`+key+` = |\[`+key+`\]$)`).MatchString(all) {
				t.Errorf("%s does not know %s", shipped, key)
			}
		}
	}
}
