// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpu-shim/vgpu/hooks/oci"
)

const spec = `{ "process": {"env": ["A=1"]},
  "annotations": {"vgpu-shim.dev/gpus": "1"}, "linux": {"cgroupsPath": "a.slice:b:c"}, "unknown": 1.0 }`

func write(t *testing.T, content string, mode fs.FileMode) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, ConfigFile)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return dir
}

func load(t *testing.T, dir string) *Config {
	t.Helper()
	c, err := LoadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func stat(t *testing.T, dir string) *syscall.Stat_t {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, ConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t)
}

func content(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, ConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// only checks that nothing but the named files is in dir.
func only(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(names)
	if diff := cmp.Diff(names, got); diff != "" {
		t.Errorf("files in the bundle (-want +got):\n%s", diff)
	}
}

func TestConfigSummary(t *testing.T) {
	s, err := load(t, write(t, spec, 0o644)).Summary()
	if err != nil {
		t.Fatal(err)
	}
	if s.Annotations["vgpu-shim.dev/gpus"] != "1" || s.Linux.CgroupsPath != "a.slice:b:c" {
		t.Errorf("got %+v", s)
	}
}

func TestConfigWithoutEditIsNotTouched(t *testing.T) {
	dir := write(t, spec, 0o644)
	before := stat(t, dir)
	c := load(t, dir)
	if err := c.Apply(); err != nil {
		t.Fatal(err)
	}
	if err := c.Restore(); err != nil {
		t.Fatal(err)
	}
	after := stat(t, dir)
	if before.Ino != after.Ino || before.Mtim != after.Mtim || before.Ctim != after.Ctim {
		t.Error("the file was touched")
	}
	if content(t, dir) != spec {
		t.Error("the content changed")
	}
}

func TestConfigApplyReplacesAndRestoreBringsBack(t *testing.T) {
	dir := write(t, spec, 0o640)
	if os.Geteuid() == 0 {
		if err := os.Chown(filepath.Join(dir, ConfigFile), 12345, 23456); err != nil {
			t.Fatal(err)
		}
	}
	before := stat(t, dir)
	reader, err := os.Open(filepath.Join(dir, ConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()

	c := load(t, dir)
	if err := c.Apply(oci.Env("B=2")); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(content(t, dir), `"B=2"`) {
		t.Errorf("got %s", content(t, dir))
	}
	after := stat(t, dir)
	if after.Ino == before.Ino {
		t.Error("the file was written in place")
	}
	if after.Mode != before.Mode || after.Uid != before.Uid || after.Gid != before.Gid {
		t.Errorf("mode %o owner %d:%d, want %o %d:%d", after.Mode, after.Uid, after.Gid, before.Mode, before.Uid, before.Gid)
	}
	old := make([]byte, len(spec)+1)
	if n, _ := reader.Read(old); string(old[:n]) != spec {
		t.Error("somebody who had the file open does not read the old content")
	}
	only(t, dir, ConfigFile)

	if err := c.Restore(); err != nil {
		t.Fatal(err)
	}
	if content(t, dir) != spec {
		t.Errorf("restored to %s", content(t, dir))
	}
	if m := stat(t, dir); m.Mode != before.Mode || m.Uid != before.Uid || m.Gid != before.Gid {
		t.Error("mode or owner were not restored")
	}
	only(t, dir, ConfigFile)
}

// Each Apply begins with what was loaded, whether it was prepared or not.
func TestConfigPrepare(t *testing.T) {
	dir := write(t, spec, 0o644)
	c := load(t, dir)
	c.Prepare()
	for _, env := range []string{"B=2", "C=3"} {
		if err := c.Apply(oci.Env(env)); err != nil {
			t.Fatal(err)
		}
		if got := content(t, dir); !strings.Contains(got, env) || env != "B=2" && strings.Contains(got, "B=2") {
			t.Errorf("with %s it is %s", env, got)
		}
	}
	damaged := load(t, write(t, `{"linux": {"maskedPaths": 1}}`, 0o644))
	damaged.Prepare()
	if err := damaged.Apply(oci.Env("B=2")); err == nil || !strings.Contains(err.Error(), "maskedPaths") {
		t.Errorf("the error is %v", err)
	}
}

func TestConfigFailedApplyLeavesTheFile(t *testing.T) {
	for _, c := range []struct {
		description, spec string
		edit              oci.Edit
	}{
		{"an invalid edit", spec, oci.Env("x")},
		{"an invalid edit after a valid one", spec, oci.Mount{}},
		{"a spec that can not be edited", `{"mounts": 5}`, oci.Env("A=2")},
		{"a spec that is no JSON", `{`, oci.Env("A=2")},
	} {
		t.Run(c.description, func(t *testing.T) {
			dir := write(t, c.spec, 0o644)
			before := stat(t, dir)
			cfg := load(t, dir)
			err := cfg.Apply(oci.Env("A=2"), c.edit)
			if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, ConfigFile)) {
				t.Errorf("error is %v, want one that names the file", err)
			}
			if err := cfg.Restore(); err != nil {
				t.Fatal(err)
			}
			if stat(t, dir).Ino != before.Ino || content(t, dir) != c.spec {
				t.Error("the file changed")
			}
			only(t, dir, ConfigFile)
		})
	}
}

func TestConfigFailedReplaceLeavesNothing(t *testing.T) {
	dir := write(t, spec, 0o644)
	cfg := load(t, dir)
	path := filepath.Join(dir, ConfigFile)
	// A directory can not be replaced by a file.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := cfg.Apply(oci.Env("A=2")); err == nil {
		t.Error("succeeded")
	}
	only(t, dir, ConfigFile)
}

func TestLoadConfigRefuses(t *testing.T) {
	t.Run("a missing file", func(t *testing.T) {
		if _, err := LoadConfig(t.TempDir()); err == nil {
			t.Error("succeeded")
		}
	})
	t.Run("a symbolic link", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Symlink("/etc/hostname", filepath.Join(dir, ConfigFile)); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadConfig(dir); err == nil {
			t.Error("succeeded")
		}
	})
	t.Run("a fifo, without waiting for its writer", func(t *testing.T) {
		dir := t.TempDir()
		if err := syscall.Mkfifo(filepath.Join(dir, ConfigFile), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadConfig(dir); err == nil {
			t.Error("succeeded")
		}
	})
}

// FuzzConfig runs any file through edit and restore.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(spec))
	f.Add([]byte(`{}`))
	f.Add([]byte{})
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		dir, err := os.MkdirTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		if err := os.WriteFile(filepath.Join(dir, ConfigFile), data, 0o600); err != nil {
			t.Fatal(err)
		}
		c := load(t, dir)
		if _, err := c.Summary(); err != nil {
			return
		}
		if err := c.Apply(oci.Env("B=2")); err == nil && !strings.Contains(content(t, dir), `"B=2"`) {
			t.Errorf("the edit is not in %s", content(t, dir))
		}
		if err := c.Restore(); err != nil {
			t.Fatal(err)
		}
		if content(t, dir) != string(data) {
			t.Error("not restored byte for byte")
		}
		only(t, dir, ConfigFile)
	})
}
