// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/install"
)

// script writes a program of the shell.
func script(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// wellMachine puts programs first in PATH that answer as containerd, runc and ctr
// do on a machine where all is well, and returns their directory.
func wellMachine(t *testing.T, libraries []*v1.DriverLibrary) string {
	t.Helper()
	dir := t.TempDir()
	seen := sight{Files: map[string]string{}, Socket: true}
	for _, l := range libraries {
		// One that is not there has a fault of its own.
		seen.Files["/usr/lib64/"+l.GetName()], _ = hashFile(l.GetLibrary())
	}
	b, err := json.Marshal(seen)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "seen.json"), b, 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "dump.toml"), []byte(`version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.vgpu]
runtime_path = "/bin/true"
pod_annotations = ["vgpu-shim.dev/*"]
`), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	script(t, filepath.Join(dir, "containerd"), `[ "$1" = --version ] && exec echo containerd github.com/containerd/containerd/v2 v2.4.2 abc; cat `+dir+"/dump.toml\n")
	script(t, filepath.Join(dir, "runc"), "echo runc version 1.5.3\n")
	script(t, filepath.Join(dir, "ctr"), `case " $* " in *" run "*) cat `+dir+"/seen.json ;; esac\n")
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

func TestVulnerabilitiesOfRunc(t *testing.T) {
	for version, want := range map[string]struct {
		result string
		cves   []string // that it has
		not    []string // and has not
	}{
		"1.5.3":         {checkOK, nil, nil},
		"1.6.0-rc.1":    {checkOK, nil, nil},
		"1.4.4":         {checkOK, nil, nil},
		"1.3.7":         {checkOK, nil, nil},
		"1.5.2":         {checkFault, []string{"CVE-2026-119101"}, []string{"CVE-2026-41579"}},
		"1.5.0-rc.2":    {checkFault, []string{"CVE-2026-41579"}, []string{"CVE-2025-31133"}},
		"1.3.3":         {checkFault, []string{"CVE-2026-41579"}, []string{"CVE-2025-31133", "CVE-2024-21626"}},
		"1.2.8":         {checkFault, []string{"CVE-2026-41579"}, []string{"CVE-2025-31133"}},
		"1.4.0-rc.2":    {checkFault, []string{"CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"}, []string{"CVE-2024-45310"}},
		"1.1.13":        {checkFault, []string{"CVE-2024-45310", "CVE-2025-52881"}, []string{"CVE-2024-21626"}},
		"1.1.11":        {checkFault, []string{"CVE-2024-21626", "CVE-2024-45310"}, nil},
		"1.0.3":         {checkFault, []string{"CVE-2024-21626"}, nil},
		"1.1.5+ds1":     {checkSkipped, []string{"CVE-2024-21626", "1.1.5+ds1-1+deb12u1 is a distribution's"}, nil},
		"1.1.12-0ubu~1": {checkSkipped, []string{"CVE-2024-45310"}, []string{"CVE-2024-21626"}},
	} {
		h := &host{}
		h.runc.version = "runc version " + version + "\ncommit: " + version + "-1+deb12u1\nspec: 1.0.2-dev\n"
		f := checkRunc(&patient{host: h})
		if len(f) != 1 || f[0].Result != want.result {
			t.Errorf("%s: %+v", version, f)
			continue
		}
		for _, cve := range want.cves {
			if !strings.Contains(f[0].Detail, cve) {
				t.Errorf("%s has %s: %+v", version, cve, f)
			}
		}
		for _, cve := range want.not {
			if strings.Contains(f[0].Detail, cve) {
				t.Errorf("%s has not %s: %+v", version, cve, f)
			}
		}
	}
}

// Whoever may create a pod must not say which pod it is.
func TestPatternsOfPodAnnotations(t *testing.T) {
	for pattern, bad := range map[string]bool{
		"vgpu-shim.dev/*":                false,
		"example.com/*":                  false,
		"io.kubernetes.cri-o.*":          false,
		"io.kubernetes.cri.*":            true,
		"io.kubernetes.cri.sandbox-uid":  true,
		"io.kubernetes.cri.some-new-one": true,
		"io.kubernetes.*":                true,
		"io.kubernetes.cr?.sandbox-*":    true,
		"*uid":                           true,
		"*sandbox-namespace":             true,
		"[a-z]*.cri.container-name":      true,
		"*":                              true,
	} {
		config := install.Configuration{"plugins": map[string]any{"io.containerd.grpc.v1.cri": map[string]any{
			"containerd": map[string]any{"runtimes": map[string]any{"vgpu": map[string]any{
				"runtime_path": "/bin/true", "pod_annotations": []any{"vgpu-shim.dev/*", pattern},
			}}},
		}}}
		p := &patient{host: &host{}}
		p.host.containerd.config = config
		f := checkContainerd(p)
		want := checkOK
		if bad {
			want = checkFault
		}
		if len(f) != 1 || f[0].Result != want || bad && !strings.Contains(f[0].Detail, strconv.Quote(pattern)) {
			t.Errorf("%s: %+v", pattern, f)
		}
	}
}

// Each fault of the machine itself, by what the doctor found there.
func TestEachFaultOfTheMachineIsFound(t *testing.T) {
	runtime := func(fields map[string]any) install.Configuration {
		return install.Configuration{"plugins": map[string]any{"io.containerd.cri.v1.runtime": map[string]any{
			"containerd": map[string]any{"runtimes": map[string]any{"vgpu": fields}},
		}}}
	}
	real := &v1.InfoResponse{Source: "nvml", DriverVersion: "570.86.15"}
	for name, tc := range map[string]struct {
		check  func(*patient) []finding
		make   func(*patient)
		result string
		says   string
	}{
		"no driver": {checkModule, func(p *patient) { p.info = real }, checkFault, "is not loaded"},
		"another driver": {checkModule, func(p *patient) {
			p.info, p.host.module = real, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  565.57.01  Thu"
		}, checkFault, "565.57.01, the driver's library 570.86.15"},
		"the same driver": {checkModule, func(p *patient) {
			p.info, p.host.module = real, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release"
		}, checkOK, "570.86.15"},
		"simulated":    {checkModule, func(p *patient) { p.info = &v1.InfoResponse{Source: "sim:1"} }, checkOK, "simulated"},
		"nobody knows": {checkModule, func(p *patient) { p.err = errors.New("no vgpud") }, checkSkipped, "did not answer"},

		"no cgroups": {checkCgroups, func(*patient) {}, checkFault, "no control groups"},
		"cgroup v2":  {checkCgroups, func(p *patient) { p.host.cgroups = "2" }, checkOK, "version 2"},
		"cgroup v1": {checkCgroups, func(p *patient) {
			p.host.cgroups, p.host.legacy = "1", map[string]bool{"devices": true, "freezer": true}
		}, checkOK, "version 1"},
		"without freezer": {checkCgroups, func(p *patient) { p.host.cgroups, p.host.legacy = "1", map[string]bool{"devices": true} }, checkFault, "without freezer"},

		"room":     {checkSpace, func(p *patient) { p.host.room = map[string]room{"/run/vgpu": {1 << 30, 1 << 20}} }, checkOK, "/run/vgpu"},
		"no room":  {checkSpace, func(p *patient) { p.host.room = map[string]room{"/run/vgpu": {1 << 20, 1 << 20}} }, checkFault, "/run/vgpu has room"},
		"no files": {checkSpace, func(p *patient) { p.host.room = map[string]room{"/run/vgpu": {1 << 30, 10}} }, checkFault, "in 10 files"},

		"a socket for all":  {checkPermissions, func(p *patient) { p.host.owned = map[string]access{"/s": {0, 0o666, true}} }, checkFault, "/s can be used by others"},
		"somebody's":        {checkPermissions, func(p *patient) { p.host.owned = map[string]access{"/l.so": {7, 0o755, false}} }, checkFault, "belongs to user 7"},
		"writable":          {checkPermissions, func(p *patient) { p.host.owned = map[string]access{"/l.so": {0, 0o775, false}} }, checkFault, "can be changed by others"},
		"a file to be read": {checkPermissions, func(p *patient) { p.host.owned = map[string]access{"/l.so": {0, 0o755, false}} }, checkOK, "root alone"},

		"no containerd": {checkContainerd, func(p *patient) { p.host.containerd.err = errors.New("not in PATH") }, checkFault, "not in PATH"},
		"old":           {checkContainerd, func(p *patient) { p.host.containerd.version = "1.5.9" }, checkFault, "1.5.9 is too old"},
		"bad TOML":      {checkContainerd, func(p *patient) { p.host.containerd.bad = errors.New("no TOML") }, checkFault, "no TOML"},
		"CRI disabled":  {checkContainerd, func(p *patient) { p.host.containerd.config = install.Configuration{"disabled_plugins": []any{"cri"}} }, checkOK, "CRI is disabled"},
		"without CRI":   {checkContainerd, func(p *patient) { p.host.containerd.config = install.Configuration{} }, checkOK, "without CRI"},
		"no handler":    {checkContainerd, func(p *patient) { p.host.containerd.config = runtime(nil) }, checkFault, `no runtime "vgpu"`},
		"no shim": {checkContainerd, func(p *patient) {
			p.host.containerd.config = runtime(map[string]any{"runtime_path": "/does/not/exist"})
		}, checkFault, "/does/not/exist"},

		"no ctr":    {checkContainer, func(p *patient) { p.host.probe = &probed{absent: errors.New("no ctr")} }, checkSkipped, "no ctr"},
		"not run":   {checkContainer, func(p *patient) { p.host.probe = &probed{err: errors.New("no shim")} }, checkFault, "did not run: no shim"},
		"no socket": {checkContainer, func(p *patient) { p.host.probe = &probed{} }, checkFault, "without vgpud's socket"},
		"the driver's": {checkContainer, func(p *patient) {
			p.host.probe = &probed{seen: sight{Socket: true, Files: map[string]string{"/usr/lib64/libcuda.so.9": "00"}}}
		}, checkFault, "/usr/lib64/libcuda.so.9 is not /bin/true"},
		"nothing there": {checkContainer, func(p *patient) { p.host.probe = &probed{seen: sight{Socket: true}} }, checkFault, "libcuda.so.9 is not in the driver's place"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &patient{host: &host{}, info: &v1.InfoResponse{Libraries: []*v1.DriverLibrary{{Name: "libcuda.so.9", Library: "/bin/true"}}}}
			tc.make(p)
			f := tc.check(p)
			if len(f) != 1 || f[0].Result != tc.result || !strings.Contains(f[0].Detail, tc.says) || (tc.result == checkFault) != (f[0].Advice != "") {
				t.Errorf("%+v", f)
			}
		})
	}
}

func TestThePermissionsOfThisMachineAreSeen(t *testing.T) {
	address := serve(t, vgpud{well: true})
	wellMachine(t, nil)
	if err := os.Chmod(address, 0o666); err != nil {
		t.Fatal(err)
	}
	code, stdout, _ := vgpu(t, "doctor", "--address", address)
	if code != 1 || !strings.Contains(stdout, address+" can be used by others than root") || !strings.Contains(stdout, "-> chmod go= "+address) {
		t.Errorf("exit code %d: %s", code, stdout)
	}
}

// Programs that hang are given up, and what a container left is taken away.
func TestTheDoctorDoesNotHang(t *testing.T) {
	dir := wellMachine(t, nil)
	for _, name := range []string{"containerd", "runc", "ctr"} {
		// Its child keeps the pipes.
		script(t, filepath.Join(dir, name), "cd "+dir+`; echo "$0 $*" >>called
case " $* " in *" delete "*|*" remove "*) exit ;; esac
sh -c 'echo $$ >>children; exec sleep 1000' & wait
`)
	}
	t.Cleanup(func() {
		children, err := os.ReadFile(filepath.Join(dir, "children"))
		if err != nil {
			t.Error(err)
		}
		for _, child := range strings.Fields(string(children)) {
			pid, err := strconv.Atoi(child)
			if err == nil {
				err = syscall.Kill(pid, syscall.SIGKILL)
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	code, stdout, _ := vgpu(t, "doctor", "--timeout", "500ms", "--address", serve(t, vgpud{well: true}))
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	for _, says := range []string{"containerd --version: it did not end in time", "runc --version: it did not end in time", "did not run: no end within 3s"} {
		if !strings.Contains(stdout, says) {
			t.Errorf("%q is not in\n%s", says, stdout)
		}
	}
	called, err := os.ReadFile(filepath.Join(dir, "called"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"task delete --force vgpu-doctor-", "container delete vgpu-doctor-", "namespaces remove vgpu-doctor-"} {
		if !strings.Contains(string(called), part) {
			t.Errorf("%q was not called:\n%s", part, called)
		}
	}
}

func TestWhatTheProbeSees(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"usr/lib/x86_64-linux-gnu/libcuda.so.9", "usr/lib64/libnvidia-ml.so.1", "usr/lib64/libc.so.6"} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := observe(root)
	if err != nil || s.Socket || len(s.Files) != 2 {
		t.Fatalf("%+v, %v", s, err)
	}
	want, err := hashFile(filepath.Join(root, "usr/lib64/libnvidia-ml.so.1"))
	if err != nil || s.Files["/usr/lib64/libnvidia-ml.so.1"] != want || want == s.Files["/usr/lib/x86_64-linux-gnu/libcuda.so.9"] {
		t.Errorf("%+v, %v", s, err)
	}
}
