// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestWhetherContainerdKnowsTheHandler(t *testing.T) {
	listed := func(names ...string) *cri.StatusResponse {
		s := &cri.StatusResponse{Info: map[string]string{"config": "{}"}}
		for _, n := range names {
			s.RuntimeHandlers = append(s.RuntimeHandlers, &cri.RuntimeHandler{Name: n})
		}
		return s
	}
	configured := func(config string) *cri.StatusResponse {
		return &cri.StatusResponse{Info: map[string]string{"config": config}}
	}
	for _, test := range []struct {
		name   string
		status *cri.StatusResponse
		want   bool
	}{
		{"2.x with it", listed("", "runc", "vgpu"), true},
		{"2.x without it", listed("", "runc"), false},
		{"1.x with it", configured(`{"containerd":{"snapshotter":"overlayfs","runtimes":{"runc":{},"vgpu":{"runtimeType":"io.containerd.runc.v2"}}}}`), true},
		{"1.x without it", configured(`{"containerd":{"runtimes":{"runc":{}}}}`), false},
	} {
		if got, err := knows(test.status); err != nil || got != test.want {
			t.Errorf("containerd %s: %t, %v", test.name, got, err)
		}
	}
	if _, err := knows(configured("")); err == nil {
		t.Error("a containerd that says nothing of its handlers is believed")
	}
}

// What vgpu install and vgpu uninstall print says whether containerd has something new
// to read.
func TestWhetherContainerdMustBeRestarted(t *testing.T) {
	for text, want := range map[string]bool{
		`{"done":true,"changes":[{"action":"create","path":"/a"}],"then":["systemctl daemon-reload","systemctl restart containerd   # containers go on"]}`: true,
		`{"done":true,"changes":[],"then":["systemctl restart vgpud   # containers go on","vgpu doctor"]}`:                                                 false,
	} {
		var r result
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatal(err)
		}
		if r.restart() != want {
			t.Errorf("%s: %t", text, !want)
		}
	}
}

func TestUninstallIsRefused(t *testing.T) {
	dir := t.TempDir()
	claims := filepath.Join(dir, "claims")
	if err := unprepared(claims); err != nil {
		t.Errorf("without vgpu-kubelet: %v", err)
	}
	if err := os.Mkdir(claims, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unprepared(claims); err != nil {
		t.Errorf("without claims: %v", err)
	}
	if err := os.WriteFile(filepath.Join(claims, "uid.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unprepared(claims); err == nil || !strings.Contains(err.Error(), "1 claims are prepared on this node: delete the pods that use them") {
		t.Errorf("with a claim: %v", err)
	}

	lock := filepath.Join(dir, "lock")
	unlock, err := lockState(t.Context(), lock)
	if err != nil {
		t.Fatalf("without a vgpud ever: %v", err)
	}
	unlock()
	vgpud, err := os.OpenFile(lock, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(vgpud.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := lockState(soon, lock); err == nil || !strings.Contains(err.Error(), "a vgpud still runs on this node") {
		t.Errorf("with a vgpud that runs: %v", err)
	}
	// One whose pod is being removed is waited for.
	ended := time.AfterFunc(50*time.Millisecond, func() { vgpud.Close() })
	defer ended.Stop()
	if unlock, err = lockState(t.Context(), lock); err != nil {
		t.Fatalf("with a vgpud that ends: %v", err)
	}
	next, err := os.OpenFile(lock, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if err := unix.Flock(int(next.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("another vgpud can start meanwhile: %v", err)
	}
	unlock()
}

// Outside of a pod with hostPID nothing is done, and the error says what is missing.
func TestWrongUse(t *testing.T) {
	for _, args := range [][]string{
		{"install", "--restart=reload"}, {"install", "now"}, {"install", "--containerd-socket=run/x"}, {"uninstall", "--prefix=usr"}, {"install", "--nope"},
	} {
		cmd := command()
		cmd.SetArgs(args)
		err := cmd.ExecuteContext(t.Context())
		if _, wrong := errors.AsType[usage](err); !wrong {
			t.Errorf("%v: %v", args, err)
		}
	}
	cmd := command()
	cmd.SetArgs([]string{"install", "--from", filepath.Join(t.TempDir(), "none")})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "failed to find the product in this image") {
		t.Errorf("without a product: %v", err)
	}
	cmd = command()
	cmd.SetArgs([]string{"vgpud", "--config", filepath.Join(t.TempDir(), "none.toml")})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "none.toml") {
		t.Errorf("without the configuration: %v", err)
	}
}
