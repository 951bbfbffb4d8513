// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
)

// In a child the test binary is a driver that kills itself at a step.
const (
	childDir   = "VGPU_KUBE_TEST_DIR"
	childClaim = "VGPU_KUBE_TEST_CLAIM"
	childStep  = "VGPU_KUBE_TEST_STEP"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		childMain(dir)
		return
	}
	os.Exit(m.Run())
}

func childMain(dir string) {
	c := new(resourceapi.ResourceClaim)
	if err := json.Unmarshal([]byte(os.Getenv(childClaim)), c); err != nil {
		panic(err)
	}
	cfg := (&place{dir: dir}).config()
	cfg.Client = newClient(c)
	_, err := start(context.Background(), cfg, func(step string) {
		if step == os.Getenv(childStep) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	})
	if err != nil {
		panic(err)
	}
	select {}
}

// Whenever the driver is killed, kubelet asks the next one again, or for the release;
// both must succeed and leave what they should.
func TestKilledAtEachStep(t *testing.T) {
	c := claimWith("train", result("gpu", 0, "4Gi", "25"))
	claim, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	prepare := []string{"begin", "checkpoint", "vgpud", "cdi"}
	unprepare := []string{"no cdi", "no vgpud", "no checkpoint", "released"}
	for _, step := range slices.Concat(prepare, unprepare) {
		for _, then := range []string{"prepare", "unprepare"} {
			t.Run(strings.Join([]string{step, then}, ", then "), func(t *testing.T) {
				p := newPlace(t)
				gpus := gputest.New(1)
				stop := p.vgpud(gpus)
				p.config() // makes the directories that kubelet has

				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), childDir+"="+p.dir, childClaim+"="+string(claim), childStep+"="+step)
				cmd.Stderr = t.Output()
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- cmd.Wait() }()
				t.Cleanup(func() { _ = cmd.Process.Kill() })
				k := p.register()
				var err error
				if slices.Contains(prepare, step) {
					_, err = k.prepare(c)
				} else {
					if _, err := k.prepare(c); err != nil {
						t.Fatal(err)
					}
					if step == "released" {
						stop()
					}
					err = k.unprepare(c)
				}
				if err == nil {
					t.Fatal("the driver was not killed")
				}
				if err := <-ended; err == nil || !strings.Contains(err.Error(), "killed") {
					t.Fatalf("the driver ended: %v", err)
				}

				r := &running{place: p, gpus: gpus, client: newClient(c)}
				if step == "released" {
					p.vgpud(gpus)
				}
				r.start(nil)
				if then == "prepare" {
					devices, err := r.kubelet.prepare(c)
					if err != nil || len(devices) != 1 || len(r.files()) != 2 {
						t.Fatalf("%v, %v, files %v", err, devices, r.files())
					}
					if got, err := r.resolve(podA, "uid-train", "gpu"); err != nil || got.GetAnnotations()["vgpu-shim.dev/memory"] != "4Gi" {
						t.Fatalf("the shim gets %v, %v", got, err)
					}
				}
				if err := r.kubelet.unprepare(c); err != nil {
					t.Fatal(err)
				}
				if left := append(r.files(), fmt.Sprint(r.claims())); len(left) != 1 || left[0] != "[]" {
					t.Errorf("left are %v", left)
				}
			})
		}
	}
}
