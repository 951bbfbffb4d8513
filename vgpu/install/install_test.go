// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// build writes a tree as make build leaves it, of placeholders that say content.
func build(t *testing.T, content string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{
		"bin/containerd-shim-vgpu-v1", "bin/vgpu", "bin/vgpud", "build/lib/libvgpu-cuda.so", "build/lib/libvgpu-nvml.so", "build/lib/libvgpu-opencl.so",
		"build/lib/obj-cuda/gate.o", "build/simgpu/bin/simgpu", "build/simgpu/lib/libcuda.so.999.10",
		"build/musl/lib/libvgpu-cuda.so", "build/musl/lib/ld-musl-x86_64.path",
	} {
		file(t, filepath.Join(dir, name), content)
	}
	if err := os.Symlink("libcuda.so.999.10", filepath.Join(dir, "build/simgpu/lib/libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "configs"), os.DirFS("../../configs")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func file(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

// snapshot is all that is below a directory.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		s, err := look(path)
		if err == nil {
			all[strings.TrimPrefix(path, dir)] = fmt.Sprintf("%v %d:%d %s %s", s.mode, s.uid, s.gid, s.link, s.data)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// options install below a directory of the test, without containerd, where no
// process has anything.
func options(t *testing.T, from string) Options {
	t.Helper()
	return Options{Root: t.TempDir(), Prefix: "/usr/local", From: from, Config: "/etc/containerd/config.toml", Version: "v1", Proc: t.TempDir()}
}

func install(t *testing.T, o Options) *Plan {
	t.Helper()
	p, err := Install(t.Context(), o)
	if err == nil {
		err = p.Apply()
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func uninstall(t *testing.T, o Options, force bool) *Plan {
	t.Helper()
	p, err := Uninstall(o, force)
	if err == nil {
		err = p.Apply()
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func unchanged(t *testing.T, o Options, before map[string]string) {
	t.Helper()
	if d := cmp.Diff(before, snapshot(t, o.Root)); d != "" {
		t.Errorf("not as it was before:\n%s", d)
	}
}

// says tells whether a plan has a note with all of these.
func says(p *Plan, parts ...string) bool {
	return slices.ContainsFunc(p.Notes, func(note string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(note, part) })
	})
}

func TestWhatIsInstalled(t *testing.T) {
	o := options(t, build(t, "one"))
	install(t, o)
	for path, want := range map[string]string{
		"/usr/local/bin/vgpu": "one", "/usr/local/bin/vgpud": "one", "/usr/local/bin/containerd-shim-vgpu-v1": "one",
		libraryDir + "/libvgpu-cuda.so": "one", libraryDir + "/libvgpu-nvml.so": "one", libraryDir + "/libvgpu-opencl.so": "one",
		libraryDir + "/simgpu/lib/libcuda.so.1": "one",
	} {
		if got, err := os.ReadFile(o.place(path)); string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	for path, part := range map[string]string{
		"/usr/local/lib/systemd/system/vgpud.service": "ExecStart=/usr/local/bin/vgpud\n",
		"/etc/vgpu/vgpud.toml":                        "gpus = \"auto\"",
		"/etc/vgpu/shim.toml":                         "allow_annotations",
	} {
		if got, err := os.ReadFile(o.place(path)); err != nil || !strings.Contains(string(got), part) {
			t.Errorf("%s: %v: %s", path, err, got)
		}
	}
	for path := range snapshot(t, o.Root) {
		if strings.Contains(path, "obj-") || strings.HasSuffix(path, "vgpu-tmp") || strings.Contains(path, "/musl") {
			t.Errorf("%s was installed", path)
		}
	}
}

// A directory of links may lie behind one itself.
func TestLinksLeadToTheVersionFromWhereTheyReallyAre(t *testing.T) {
	o := options(t, build(t, "one"))
	if err := errors.Join(os.MkdirAll(o.place("/var/usrlocal"), 0o755), os.Mkdir(o.place("/usr"), 0o755), os.Symlink("../var/usrlocal", o.place("/usr/local"))); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, o.Root)
	install(t, o)
	if got, err := os.ReadFile(o.place("/usr/local/bin/vgpu")); string(got) != "one" {
		t.Errorf("%q, %v", got, err)
	}
	uninstall(t, o, false)
	unchanged(t, o, before)
}

func TestASecondInstallChangesNothing(t *testing.T) {
	o := options(t, build(t, "one"))
	install(t, o)
	before := snapshot(t, o.Root)
	if p := install(t, o); len(p.Changes) != 0 || len(p.Notes) != 0 || len(p.Then) != 0 {
		t.Errorf("%+v", p)
	}
	unchanged(t, o, before)
	// Nor does one from what is installed.
	o.From = filepath.Join(o.Root, versionsDir, must(readManifest(o.place(manifestPath))).Current)
	if p := install(t, o); len(p.Changes) != 0 {
		t.Errorf("from the installed version: %+v", p)
	}
}

func must(m *manifest, _ *state, err error) *manifest {
	if err != nil {
		panic(err)
	}
	return m
}

func TestUninstallLeavesWhatWasThere(t *testing.T) {
	o := options(t, build(t, "one"))
	file(t, o.place("/usr/local/bin/other"), "other")
	before := snapshot(t, o.Root)
	install(t, o)
	o.From = build(t, "two")
	install(t, o)
	uninstall(t, o, false)
	unchanged(t, o, before)
	if p := uninstall(t, o, false); len(p.Changes) != 0 || !says(p, "nothing is installed") {
		t.Errorf("%+v", p)
	}
}

// Each change of a plan fails once, without having done anything and after having
// done all.
func TestAFailureInTheMiddleLeavesTheOldState(t *testing.T) {
	one, two := build(t, "one"), build(t, "two")
	for name, plan := range map[string]func(o Options) (*Plan, error){
		"first": func(o Options) (*Plan, error) { return Install(context.Background(), o) },
		"upgrade": func(o Options) (*Plan, error) {
			install(t, o)
			o.From = two
			return Install(context.Background(), o)
		},
		"uninstall": func(o Options) (*Plan, error) {
			install(t, o)
			return Uninstall(o, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(t, one)
			o.Containerd = containerds(t)["1.6.20"]
			// All is written and synced hundreds of times.
			if err := mountMemory(t, o.Root, "64m"); err != nil {
				t.Fatal(err)
			}
			file(t, o.place(o.Config), "version = 2\n")
			p, err := plan(o)
			if err != nil {
				t.Fatal(err)
			}
			if len(p.Changes) < 20 {
				t.Fatalf("only %d changes", len(p.Changes))
			}
			before := snapshot(t, o.Root)
			full := errors.New("no space left on device")
			step := 1
			if testing.Short() {
				step = 7
			}
			for i := 0; i < len(p.Changes); i += step {
				for _, done := range []bool{false, true} {
					n := -1
					err := apply(p.Changes, func(path string, s *state) error {
						if n++; n != i {
							return put(path, s)
						}
						if done {
							if err := put(path, s); err != nil {
								t.Fatal(err)
							}
						}
						return full
					})
					if !errors.Is(err, full) || !strings.Contains(err.Error(), p.Changes[i].Path) || !strings.Contains(err.Error(), "as it was before") {
						t.Fatalf("change %d: %v", i, err)
					}
					unchanged(t, o, before)
				}
			}
			if err := p.Apply(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A real failure of the file system, not of the test's making.
func TestAFullDiskLeavesTheOldState(t *testing.T) {
	o := options(t, build(t, "one"))
	if err := mountMemory(t, o.Root, "256k"); err != nil {
		t.Fatal(err)
	}
	file(t, filepath.Join(o.From, "bin/vgpud"), strings.Repeat("x", 1<<20))
	before := snapshot(t, o.Root)
	p, err := Install(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(); err == nil || !strings.Contains(err.Error(), "no space left on device") {
		t.Fatal(err)
	}
	unchanged(t, o, before)
}

func TestAChangedFileIsKept(t *testing.T) {
	o := options(t, build(t, "one"))
	install(t, o)
	const path, mine = configDir + "/vgpud.toml", "gpus = \"sim:2\"\n"
	file(t, o.place(path), mine)
	content := func(path string) string {
		b, err := os.ReadFile(o.place(path))
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	// The same version says nothing new.
	if p := install(t, o); len(p.Changes) != 0 || !says(p, path, "stays as it is") {
		t.Errorf("%+v", p)
	}
	o.From = build(t, "two")
	file(t, filepath.Join(o.From, "configs/vgpud.toml"), "# two\n")
	file(t, filepath.Join(o.From, "configs/shim.toml"), "# two\n")
	if p := install(t, o); !says(p, path, "stays as it is", path+".new") {
		t.Errorf("%q", p.Notes)
	}
	if content(path) != mine || content(path+".new") != "# two\n" {
		t.Errorf("%q, beside it %q", content(path), content(path+".new"))
	}
	if got := content(configDir + "/shim.toml"); got != "# two\n" {
		t.Errorf("what nobody changed is %q", got)
	}
	if p := install(t, o); len(p.Changes) != 0 {
		t.Errorf("again: %+v", p.Changes)
	}
	p := uninstall(t, o, false)
	if !says(p, path, "changed since: it stays") || content(path) != mine {
		t.Errorf("%q: %q", p.Notes, content(path))
	}
	var left []string
	for path := range snapshot(t, o.Root) {
		left = append(left, path)
	}
	slices.Sort(left)
	if want := []string{"", "/etc", "/etc/vgpu", path}; !slices.Equal(left, want) {
		t.Errorf("%q is left, want %q", left, want)
	}
}

func TestWhatIsNotOursIsNotReplaced(t *testing.T) {
	o := options(t, build(t, "one"))
	file(t, o.place("/usr/local/bin/vgpud"), "somebody else's")
	before := snapshot(t, o.Root)
	if _, err := Install(t.Context(), o); err == nil || !strings.Contains(err.Error(), "/usr/local/bin/vgpud is there, and \"vgpu install\" did not place it") {
		t.Error(err)
	}
	unchanged(t, o, before)
}

// process makes o.Proc show a process.
func process(t *testing.T, o Options, pid int, exe, mounted string) {
	t.Helper()
	dir := filepath.Join(o.Proc, fmt.Sprint(pid))
	file(t, filepath.Join(dir, "mountinfo"), "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n23 22 8:1 "+mounted+" /usr/lib64/libcuda.so.1 ro - ext4 /dev/sda1 rw\n")
	if err := os.Symlink(exe, filepath.Join(dir, "exe")); err != nil {
		t.Fatal(err)
	}
}

func versions(t *testing.T, o Options) []string {
	t.Helper()
	entries, err := os.ReadDir(o.place(versionsDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestAVersionStaysAsLongAsAContainerHasIt(t *testing.T) {
	o := options(t, build(t, "one"))
	install(t, o)
	one := versions(t, o)[0]
	library := filepath.Join(versionsDir, one, "lib/libvgpu-cuda.so")
	open, err := os.Open(o.place(library))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	process(t, o, 7, "/bin/train", library)
	o.From = build(t, "two")
	if p := install(t, o); len(versions(t, o)) != 2 || !says(p, one, "pid 7") {
		t.Errorf("%q: %q", versions(t, o), p.Notes)
	}
	was, _ := open.Stat()
	if is, err := os.Stat(o.place(library)); err != nil || !os.SameFile(was, is) {
		t.Errorf("another file is there: %v", err)
	}
	var busy Busy
	before := snapshot(t, o.Root)
	if _, err := Uninstall(o, false); !errors.As(err, &busy) || !strings.Contains(err.Error(), "pid 7") {
		t.Error(err)
	}
	unchanged(t, o, before)

	p := uninstall(t, o, true)
	if !says(p, one, "stays", "again later") || !slices.Contains(versions(t, o), one) {
		t.Errorf("%q: %q", versions(t, o), p.Notes)
	}
	// containerd deletes the container through its shim.
	if _, err := os.Lstat(o.place("/usr/local/bin/" + shimProgram)); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(o.place("/usr/local/bin/vgpud")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}

	o.Proc = t.TempDir()
	uninstall(t, o, false)
	if left := slices.Collect(maps.Keys(snapshot(t, o.Root))); len(left) != 1 {
		t.Errorf("%q is left", left)
	}
}

// A shim without a vGPU, too, is needed to the end of its container.
func TestAShimIsBusy(t *testing.T) {
	o := options(t, build(t, "one"))
	install(t, o)
	process(t, o, 8, filepath.Join(versionsDir, versions(t, o)[0], "bin", shimProgram), "/")
	if _, err := Uninstall(o, false); err == nil || !strings.Contains(err.Error(), "pid 8") {
		t.Error(err)
	}
}

func TestAnUpgradeTakesTheOldVersionAway(t *testing.T) {
	const label = "kubectl label node NODE vgpu-shim.dev/installed=true   # under Kubernetes"
	o := options(t, build(t, "one"))
	if p := install(t, o); !slices.Contains(p.Then, label) {
		t.Errorf("%q", p.Then)
	}
	one := versions(t, o)
	o.From = build(t, "two")
	p := install(t, o)
	if slices.Contains(p.Then, label) {
		t.Errorf("the label again: %q", p.Then)
	}
	if now := versions(t, o); len(now) != 1 || now[0] == one[0] {
		t.Errorf("%q, before %q", now, one)
	}
	if !slices.Contains(p.Then, "systemctl restart vgpud   # containers go on") {
		t.Errorf("%q", p.Then)
	}
}

func TestANewerManifestIsRefused(t *testing.T) {
	o := options(t, build(t, "one"))
	file(t, o.place(manifestPath), `{"version": 2, "product": "v9"}`)
	for _, err := range []error{second(Install(t.Context(), o)), second(Uninstall(o, true))} {
		if err == nil || !strings.Contains(err.Error(), "of a newer version of vgpu (v9)") {
			t.Error(err)
		}
	}
}

func second(_ *Plan, err error) error { return err }
