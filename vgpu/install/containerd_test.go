// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// containerds are the two ends of what is supported, by version. Debian's has CRI
// built in, the other one has not.
func containerds(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{"1.6.20": "debian/containerd/usr/bin/containerd", "2.4.2": "containerd-2.4.2/bin/containerd"}
	for version, name := range found {
		path, err := filepath.Abs(filepath.Join("../../.tools", name))
		if err == nil {
			_, err = os.Stat(path)
		}
		if err != nil {
			t.Fatalf("containerd %s is not there, run make setup: %v", version, err)
		}
		found[version] = path
	}
	return found
}

// mountMemory mounts a file system of this size, as for tmpfs(5).
func mountMemory(t *testing.T, dir, size string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		return err
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return nil
}

// debian is as Debian 12 ships it.
const debian = `version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd/opt"
`

const systemd = `version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = true # no newline at the end`

// dump is what containerd reads once all is in its place; imports must be relative.
func dump(t *testing.T, o Options) Configuration {
	t.Helper()
	c, err := Dump(t.Context(), o.Containerd, o.place(o.Config))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestContainerdReadsWhatIsInstalledAndAllElseAsBefore(t *testing.T) {
	const (
		block = "config.toml"
		own   = "conf.d/vgpu.toml"
	)
	tree := build(t, "one")
	for version, program := range containerds(t) {
		for name, tc := range map[string]struct {
			config string // "": none
			where  map[string]string
			format string
			other  string // a runtime that must be there still
		}{
			"none":    {"", map[string]string{"1.6.20": block, "2.4.2": block}, "", ""},
			"Debian":  {debian, map[string]string{"1.6.20": block, "2.4.2": block}, "", ""},
			"systemd": {systemd, map[string]string{"1.6.20": block, "2.4.2": block}, "SystemdCgroup", "runc"},
			"imports": {"version = 2\nimports = [\"conf.d/*.toml\"]\n" + systemd[len("version = 2\n"):], map[string]string{"1.6.20": block, "2.4.2": own}, "version = 4", "runc"},
		} {
			t.Run(version+" "+name, func(t *testing.T) {
				o := options(t, tree)
				o.Containerd = program
				if tc.config != "" {
					file(t, o.place(o.Config), tc.config)
				}
				before := snapshot(t, o.Root)
				install(t, o)
				c := dump(t, o)
				r := c.Runtime(Handler)
				if r["runtime_type"] != "io.containerd.runc.v2" || r["runtime_path"] != "/usr/local/bin/"+shimProgram {
					t.Errorf("the runtime is %v", r)
				}
				if name == "systemd" || name == "imports" {
					if on, _ := table(r, "options")["SystemdCgroup"].(bool); !on {
						t.Errorf("not as runc's: %v", r)
					}
				}
				if tc.other != "" && c.Runtime(tc.other) == nil {
					t.Errorf("the runtime %s is gone", tc.other)
				}
				if version == "1.6.20" && c.defaultRuntime() == nil {
					t.Error("the default runtime is gone")
				}
				where := filepath.Join("/etc/containerd", tc.where[version])
				text, err := os.ReadFile(o.place(where))
				if err != nil || !strings.Contains(string(text), "containerd.runtimes.vgpu]") {
					t.Errorf("%s: %v: %s", where, err, text)
				}
				if tc.where[version] == block && tc.config != "" {
					if b, err := os.ReadFile(o.place(o.Config) + backup); err != nil || string(b) != tc.config {
						t.Errorf("the backup is %q, %v", b, err)
					}
				}
				if p := install(t, o); len(p.Changes) != 0 {
					t.Errorf("a second run: %+v", p.Changes)
				}
				uninstall(t, o, false)
				unchanged(t, o, before)
			})
		}
	}
}

// A file that is imported takes the place of the whole table there.
func TestAnImportThatHidesTheRuntimeIsNamed(t *testing.T) {
	o := options(t, build(t, "one"))
	o.Containerd = containerds(t)["1.6.20"]
	file(t, o.place(o.Config), "version = 2\nimports = [\"other.toml\"]\n")
	file(t, o.place("/etc/containerd/other.toml"), strings.Replace(systemd, ".runc", ".kata", 2))
	before := snapshot(t, o.Root)
	if _, err := Install(t.Context(), o); err == nil || !strings.Contains(err.Error(), o.place("/etc/containerd/other.toml")) || !strings.Contains(err.Error(), "runtime_path = ") {
		t.Error(err)
	}
	unchanged(t, o, before)
}

func TestWhatCanNotBeConfiguredIsRefusedWithWhatToDo(t *testing.T) {
	for name, tc := range map[string]struct{ config, says string }{
		"a runtime vgpu of somebody else": {strings.ReplaceAll(systemd, "runtimes.runc", "runtimes.vgpu"), "has a runtime \"vgpu\" already"},
		"the oldest format":               {"[grpc]\n  uid = 0\n", "containerd config migrate"},
		"no TOML":                         {"version = = 2\n", "failed to add the runtime"},
		"half a block":                    {debian + "\n" + blockBegin, "is there without the line"},
	} {
		for version, program := range containerds(t) {
			t.Run(version+" "+name, func(t *testing.T) {
				o := options(t, build(t, "one"))
				o.Containerd = program
				file(t, o.place(o.Config), tc.config)
				before := snapshot(t, o.Root)
				if _, err := Install(t.Context(), o); err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Error(err)
				}
				unchanged(t, o, before)
			})
		}
	}
}

func TestWithoutCRIThereIsNothingToConfigure(t *testing.T) {
	o := options(t, build(t, "one"))
	o.Containerd = containerds(t)["2.4.2"]
	// As Docker ships it.
	const docker = "#root = \"/var/lib/containerd\"\ndisabled_plugins = [\"cri\"]\n"
	file(t, o.place(o.Config), docker)
	p := install(t, o)
	if b, err := os.ReadFile(o.place(o.Config)); err != nil || string(b) != docker || !says(p, "CRI is disabled") {
		t.Errorf("%q, %v: %q", b, err, p.Notes)
	}
}

func TestLaterEditsOfOthersStay(t *testing.T) {
	o := options(t, build(t, "one"))
	o.Containerd = containerds(t)["1.6.20"]
	file(t, o.place(o.Config), debian)
	install(t, o)
	text, err := os.ReadFile(o.place(o.Config))
	if err != nil {
		t.Fatal(err)
	}
	const above, below = "# mine\n", "\n[debug]\n  level = \"debug\"\n"
	file(t, o.place(o.Config), above+string(text)+below)
	if p := install(t, o); len(p.Changes) != 0 {
		t.Errorf("%+v", p.Changes)
	}
	uninstall(t, o, false)
	if got, err := os.ReadFile(o.place(o.Config)); err != nil || string(got) != above+debian+below {
		t.Errorf("%v: %s", err, got)
	}
}

func TestABlockThatWasChangedStays(t *testing.T) {
	o := options(t, build(t, "one"))
	o.Containerd = containerds(t)["1.6.20"]
	file(t, o.place(o.Config), debian)
	install(t, o)
	text, err := os.ReadFile(o.place(o.Config))
	if err != nil {
		t.Fatal(err)
	}
	mine := strings.Replace(string(text), "pod_annotations = [", "pod_annotations = [\"example.com/*\", ", 1)
	file(t, o.place(o.Config), mine)
	o.From = build(t, "two")
	if p := install(t, o); !says(p, "the block of vgpu", "stays as it is") {
		t.Errorf("%q", p.Notes)
	}
	if p := uninstall(t, o, false); !says(p, "the block of vgpu", "it stays") {
		t.Errorf("%q", p.Notes)
	}
	if got, err := os.ReadFile(o.place(o.Config)); err != nil || string(got) != mine {
		t.Errorf("%v: %s", err, got)
	}
}

// A link to the configuration stays one.
func TestALinkedConfigurationIsEditedWhereItIs(t *testing.T) {
	o := options(t, build(t, "one"))
	o.Containerd = containerds(t)["1.6.20"]
	file(t, o.place("/opt/c.toml"), debian)
	if err := os.Mkdir(o.place("/etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(o.place("/etc/containerd"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../opt/c.toml", o.place(o.Config)); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, o.Root)
	install(t, o)
	if _, err := os.Readlink(o.place(o.Config)); err != nil {
		t.Error(err)
	}
	if dump(t, o).Runtime(Handler) == nil {
		t.Error("no runtime")
	}
	uninstall(t, o, false)
	unchanged(t, o, before)
}

func TestContainerdThatDoesNotAnswerIsAnError(t *testing.T) {
	o := options(t, build(t, "one"))
	o.Containerd = filepath.Join(t.TempDir(), "containerd")
	file(t, o.Containerd, "#!/bin/sh\necho broken >&2; exit 1\n")
	file(t, o.place(o.Config), debian)
	if _, err := Install(t.Context(), o); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Error(err)
	}
}

func TestVersionsOfContainerd(t *testing.T) {
	for want, program := range containerds(t) {
		if got, err := ContainerdVersion(t.Context(), program); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	if got, err := ContainerdVersion(t.Context(), "/bin/echo"); err == nil {
		t.Errorf("echo is containerd %q", got)
	}
}

// What goes in comes out, byte for byte, wherever others write around it.
func TestABlockIsCutAsItWasInserted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.SampledFrom([]string{"", "\n", "\n\n", "a = 1", "[t]\n", "# <<< vgpu\n", "# >>> vgpu", "\r\n"})
		text := strings.Join(rapid.SliceOf(line).Draw(t, "text"), "")
		ours := block(strings.Join(rapid.SliceOf(rapid.SampledFrom([]string{"[v]\n", "x = 2\n", "# c\n"})).Draw(t, "ours"), ""))
		with := insert(text, text, ours)
		above, below := rapid.SampledFrom([]string{"", "# above\n"}).Draw(t, "above"), rapid.SampledFrom([]string{"", "# below\n"}).Draw(t, "below")
		rest, got, err := cut(above + with + below)
		if err != nil || rest != above+text+below || got != ours {
			t.Fatalf("%q and %q, %v", rest, got, err)
		}
		if again := insert(with, text, ours); again != with {
			t.Fatalf("put back at another place: %q", again)
		}
	})
}

// The diffs are ones that others can apply.
func TestDiffsCanBeApplied(t *testing.T) {
	o := options(t, build(t, "one"))
	o.Containerd = containerds(t)["2.4.2"]
	for name, config := range map[string]string{"a newline": debian, "none": systemd} {
		t.Run(name, func(t *testing.T) {
			o.Root = t.TempDir()
			file(t, o.place(o.Config), config)
			p, err := Install(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(p.Changes, func(c Change) bool { return c.Path == o.place(o.Config) })
			after, err := applied(t, config, p.Changes[i].Diff())
			if err != nil || after != string(p.Changes[i].after.data) {
				t.Errorf("%v:\n%s", err, after)
			}
		})
	}
}
