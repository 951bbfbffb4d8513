// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"testing"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"

	"github.com/vgpu-shim/vgpu/shim/bundle"
	"github.com/vgpu-shim/vgpu/shim/config"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

func TestExpects(t *testing.T) {
	limits := request.Limits{"weight": "100"}
	for _, c := range []struct {
		description string
		config      config.Config
		annotations map[string]string
		want        bool
	}{
		{"by default", config.Config{DefaultCount: 1}, nil, true},
		{"without a default", config.Config{}, nil, false},
		{"by annotation", config.Config{AllowAnnotations: []string{"*"}}, map[string]string{"vgpu-shim.dev/gpus": "1"}, true},
		{"not by annotation", config.Config{DefaultCount: 1, AllowAnnotations: []string{"*"}}, map[string]string{"vgpu-shim.dev/gpus": "0"}, false},
		{
			"a container of its name",
			config.Config{AllowAnnotations: []string{"*"}},
			map[string]string{"vgpu-shim.dev/main.gpus": "1", "io.kubernetes.cri.container-name": "main"},
			true,
		},
		{
			"the pause container of a pod that asks",
			config.Config{AllowAnnotations: []string{"*"}},
			map[string]string{"vgpu-shim.dev/gpus": "1", "io.kubernetes.cri.container-type": "sandbox"},
			true,
		},
		{
			"that of a pod that asks for one container",
			config.Config{AllowAnnotations: []string{"*"}},
			map[string]string{"vgpu-shim.dev/main.gpus": "1", "io.kubernetes.cri.container-type": "sandbox"},
			false,
		},
		{"by one that is not allowed", config.Config{DefaultCount: 1}, map[string]string{"vgpu-shim.dev/gpus": "1"}, false},
		{"more than is allowed", config.Config{DefaultCount: 1, AllowAnnotations: []string{"*"}, Limits: limits}, map[string]string{"vgpu-shim.dev/weight": "200"}, false},
	} {
		t.Run(c.description, func(t *testing.T) {
			if got := expects(handler{Config: c.config}, bundle.Summary{Annotations: c.annotations}); got != c.want {
				t.Errorf("it expects a vGPU: %v", got)
			}
		})
	}
}

// It runs beside a server that begins to serve, on whatever is in the bundle, and leaves
// that as it is.
func TestWarm(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shim.toml")
	if err := os.WriteFile(path, []byte("allow_annotations = [\"*\"]\ndefault_count = 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(config.Env, path)
	for description, c := range map[string]struct {
		spec string
		want bool
	}{
		"asks":         {specWith(`{"vgpu-shim.dev/gpus": "1"}`), true},
		"does not ask": {specWith(`{"vgpu-shim.dev/gpus": "0"}`), false},
		"damaged":      {`{"process": `, false},
		"wrong":        {`{"annotations": 1}`, false},
	} {
		t.Run(description, func(t *testing.T) {
			f := newFixture(t, c.spec)
			if got := warm(f.bundle); got != c.want {
				t.Errorf("it made ready: %v", got)
			}
			f.untouched()
		})
	}
	if warm(t.TempDir()) {
		t.Error("it made ready without a bundle")
	}
}

// Garbage is collected as containerd's code has it once a first container has started.
func TestCollectionsWaitForAFirstStart(t *testing.T) {
	const before = 40
	was := debug.SetGCPercent(before)
	defer debug.SetGCPercent(was)
	f := newFixture(t, plainSpec)
	f.service.started = collectLater()
	if err := f.create(); err != nil {
		t.Fatal(err)
	}
	if got := gogc(t); got != firstPercent {
		t.Errorf("before a Start it is %d %%", got)
	}
	for range 2 {
		if _, err := f.service.Start(f.ctx, &taskv3.StartRequest{ID: testID}); err != nil {
			t.Fatal(err)
		}
		if got := gogc(t); got != before {
			t.Errorf("after it, it is %d %%, and was %d", got, before)
		}
	}
}

func gogc(t *testing.T) uint64 {
	t.Helper()
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
