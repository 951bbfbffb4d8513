// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/vgpu-shim/vgpu/shim/bundle"
	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// secret is what nobody but the container may get.
const secret = "hunter2"

func TestCreateGivesAVGPU(t *testing.T) {
	f := newFixture(t, `{"process": {"args": ["`+secret+`"], "env": ["PASSWORD=`+secret+`", "NVIDIA_REQUIRE_CUDA=cuda>=12.0",
		"LD_LIBRARY_PATH=/`+secret+`", "OPENCL_LAYERS=/`+secret+`"]}, "linux": {},
		"annotations": {"vgpu-shim.dev/memory": "8Gi", "vgpu-shim.dev/weight": "200", "other": "x", "secret": "`+secret+`"}}`)
	f.vgpud.create = func(context.Context, *v1.CreateRequest) error {
		// Written ahead: from here on the bundle says that there may be a vGPU.
		_, err := bundle.ReadState(f.bundle)
		return err
	}
	if err := f.create(); err != nil {
		t.Fatal(err)
	}
	f.called("create")
	f.files("config.json", "vgpu.json")
	f.vgpus(1)

	state, err := bundle.ReadState(f.bundle)
	if err != nil {
		t.Fatal(err)
	}
	want := &v1.CreateRequest{
		Container:    &v1.Container{Containerd: testContainerd, Namespace: testNamespace, Id: testID},
		Instance:     state.Instance,
		Bundle:       f.bundle,
		Annotations:  map[string]string{"vgpu-shim.dev/gpus": "1", "vgpu-shim.dev/memory": "8Gi", "vgpu-shim.dev/weight": "200"},
		DefaultCount: 1,
		Requirements: map[string]string{"NVIDIA_REQUIRE_CUDA": "cuda>=12.0"},
	}
	if diff := cmp.Diff(want, f.vgpud.created[0], protocmp.Transform()); diff != "" {
		t.Errorf("vgpud was asked for (-want +got):\n%s", diff)
	}
	written, err := os.ReadFile(f.path("vgpu.json"))
	if err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"what vgpud was asked": f.vgpud.created[0].String(), "vgpu.json": string(written)} {
		if strings.Contains(text, secret) {
			t.Errorf("the secret is in %s: %s", where, text)
		}
	}
	if len(state.Instance) < 20 || state.Address != f.address || state.ID != testID || state.Namespace != testNamespace ||
		state.Containerd != testContainerd {
		t.Errorf("the state is %+v", state)
	}
	for _, s := range []string{`"/.vgpu"`, `"/usr/lib64/libcuda.so.1"`, `"/dev/nvidia0"`, `"NVIDIA_VISIBLE_DEVICES=void"`, `"other":"x"`} {
		if !strings.Contains(f.inner.spec, s) {
			t.Errorf("the inner service got a spec without %s: %s", s, f.inner.spec)
		}
	}
}

// What a CRI says of the pod goes along: vgpud names it to people.
func TestCreateNamesThePod(t *testing.T) {
	f := newFixture(t, specWith(`{"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "main",
		"io.kubernetes.cri.sandbox-namespace": "ml", "io.kubernetes.cri.sandbox-name": "train-0", "io.kubernetes.cri.sandbox-uid": "1-2-3"}`))
	if err := f.create(); err != nil {
		t.Fatal(err)
	}
	want := &v1.Pod{Namespace: "ml", Name: "train-0", Uid: "1-2-3", Container: "main"}
	if diff := cmp.Diff(want, f.vgpud.created[0].GetPod(), protocmp.Transform()); diff != "" {
		t.Errorf("vgpud was told of the pod (-want +got):\n%s", diff)
	}
}

func TestCreateKeepsTheRealLibrariesReal(t *testing.T) {
	f := newFixture(t, `{"process": {}, "mounts": [
		{"destination": "/opt/libcuda.so.550", "type": "bind", "source": "/theirs"},
		{"destination": "/opt/libnvidia-ml.so.550", "type": "bind", "source": "/theirs"}]}`)
	if err := f.create(); err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string]bool{
		`{"destination":"/.vgpu/libcuda.so","type":"bind","source":"/real/libcuda.so.1"`:                                 true,
		`{"destination":"/.vgpu/libnvidia-ml.so","type":"bind","source":"/real/libnvidia-ml.so.1"`:                       true,
		`{"destination":"/.vgpu-musl/libcuda.so","type":"bind","source":"/real/musl/libcuda.so.1"`:                       true,
		`{"destination":"/.vgpu-musl/lib/libcuda.so.1","type":"bind","source":"/usr/lib/vgpu/musl/libvgpu-cuda.so"`:      true,
		`{"destination":"/.vgpu-musl/lib/libnvidia-ml.so.1","type":"bind","source":"/usr/lib/vgpu/musl/libvgpu-nvml.so"`: true,
		`{"destination":"/opt/libcuda.so.550","type":"bind","source":"/usr/lib/vgpu/libvgpu-cuda.so"`:                    true,
		`{"destination":"/opt/libnvidia-ml.so.550","type":"bind","source":"/usr/lib/vgpu/libvgpu-nvml.so"`:               true,
		`/theirs`: false,
	} {
		if strings.Contains(f.inner.spec, s) != want {
			t.Errorf("%s in the spec is %v: %s", s, !want, f.inner.spec)
		}
	}
}

// The image's own layers of OpenCL stay, behind ours.
func TestCreateKeepsTheImagesOpenCLLayers(t *testing.T) {
	for _, c := range []struct{ env, want string }{
		{``, `"OPENCL_LAYERS=/.vgpu/libvgpu-opencl.so"`},
		{`"OPENCL_LAYERS=/opt/trace.so"`, `"OPENCL_LAYERS=/.vgpu/libvgpu-opencl.so:/opt/trace.so"`},
	} {
		f := newFixture(t, `{"process": {"env": [`+c.env+`]}}`)
		if err := f.create(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(f.inner.spec, c.want) {
			t.Errorf("%s is not in the spec: %s", c.want, f.inner.spec)
		}
	}
}

// Other tools preload libraries: what they have set stays as it is, and a container
// without any gets none.
func TestCreateLeavesPreloadsAlone(t *testing.T) {
	const env = `"LD_PRELOAD=/opt/libjemalloc.so.2 /opt/hook.so"`
	const mount = `{"destination":"/etc/ld.so.preload","type":"bind","source":"/host/preload","options":["bind","ro"]}`
	for _, c := range []struct {
		description, spec string
		times             int
	}{
		{"none", plainSpec, 0},
		{"both", `{"process": {"env": [` + env + `]}, "mounts": [` + mount + `]}`, 1},
	} {
		t.Run(c.description, func(t *testing.T) {
			f := newFixture(t, c.spec)
			if err := f.create(); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(f.inner.spec, `"/.vgpu"`) {
				t.Fatalf("the container has no vGPU: %s", f.inner.spec)
			}
			for word, whole := range map[string]string{"LD_PRELOAD": env, "preload": mount} {
				if n := strings.Count(f.inner.spec, whole); n != c.times {
					t.Errorf("%s is in the spec %d times, want %d: %s", whole, n, c.times, f.inner.spec)
				}
				if n := strings.Count(strings.ReplaceAll(f.inner.spec, whole, ""), word); n != 0 {
					t.Errorf("%s is in the spec %d times more: %s", word, n, f.inner.spec)
				}
			}
		})
	}
}

func TestCreatePassesThrough(t *testing.T) {
	for _, c := range []struct {
		description, spec string
		count             int
	}{
		{"a count of 0", specWith(`{"vgpu-shim.dev/gpus": "0"}`), 1},
		{"a default of 0", plainSpec, 0},
		{"a pause container", specWith(`{"io.kubernetes.cri.container-type": "sandbox", "vgpu-shim.dev/gpus": "1"}`), 1},
		{"a pause container of a pod with wrong annotations", specWith(`{"io.kubernetes.cri.container-type": "sandbox", "vgpu-shim.dev/x": "y"}`), 1},
		{"a spec that the editor would not take", `{"Mounts": 5, "annotations": {"vgpu-shim.dev/gpus": "0"}}`, 1},
	} {
		t.Run(c.description, func(t *testing.T) {
			f := newFixture(t, c.spec)
			f.config.DefaultCount = c.count
			f.stop() // nobody needs vgpud for this
			before, err := os.Stat(f.path("config.json"))
			if err != nil {
				t.Fatal(err)
			}
			if err := f.create(); err != nil {
				t.Fatal(err)
			}
			f.called("create")
			f.untouched()
			after, err := os.Stat(f.path("config.json"))
			if err != nil {
				t.Fatal(err)
			}
			if !os.SameFile(before, after) || before.ModTime() != after.ModTime() {
				t.Error("config.json was rewritten")
			}
			if err := f.delete(); err != nil {
				t.Fatal(err)
			}
			f.called("create", "delete")
			f.untouched()
		})
	}
}

func TestCreateRefusesARequest(t *testing.T) {
	for _, c := range []struct {
		description, spec string
		allow             []string
		says              []string
	}{
		{"a value that is wrong", specWith(`{"vgpu-shim.dev/weight": "-5"}`), []string{"*"}, []string{"vgpu-shim.dev/weight", "-5", "1 to"}},
		{"an unknown key", specWith(`{"vgpu-shim.dev/wieght": "5"}`), []string{"*"}, []string{"vgpu-shim.dev/wieght", "weight"}},
		{"a key that is not allowed", specWith(`{"vgpu-shim.dev/weight": "5"}`), []string{"memory"}, []string{"vgpu-shim.dev/weight", "memory"}},
		{"more than is allowed", specWith(`{"vgpu-shim.dev/weight": "5000"}`), []string{"*"}, []string{"vgpu-shim.dev/weight", "5000", "at most 1000"}},
		{"a spec that is no JSON", `{`, []string{"*"}, []string{"config.json"}},
	} {
		t.Run(c.description, func(t *testing.T) {
			f := newFixture(t, c.spec)
			f.config.AllowAnnotations = c.allow
			f.config.Limits = request.Limits{"weight": "1000"}
			err := f.create()
			if !errdefs.IsInvalidArgument(errgrpc.ToNative(err)) {
				t.Errorf("error is %v, want an invalid argument", err)
			}
			for _, s := range c.says {
				if err == nil || !strings.Contains(err.Error(), s) {
					t.Errorf("error %v does not say %q", err, s)
				}
			}
			f.called()
			f.untouched()
			if len(f.vgpud.created) != 0 {
				t.Error("vgpud was asked")
			}
		})
	}
}

func TestCreateRefusesARestore(t *testing.T) {
	f := newFixture(t, plainSpec)
	_, err := f.service.Create(f.ctx, &taskv3.CreateTaskRequest{ID: testID, Bundle: f.bundle, Checkpoint: "/checkpoint"})
	if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("error is %v", err)
	}
	f.called()
	f.untouched()
}

// Each step of Create that can fail, and what has to be undone then.
func TestCreateRollsBack(t *testing.T) {
	failure := errors.New("the failure")
	for _, c := range []struct {
		description string
		prepare     func(*fixture)
		code        func(error) bool
		says        []string
		called      []string
	}{
		{
			description: "vgpud is not running",
			prepare:     func(f *fixture) { f.stop() },
			code:        errdefs.IsUnavailable,
			says:        []string{"vgpud.sock", "`vgpud`", "systemctl start vgpud"},
		},
		{
			description: "vgpud refuses",
			prepare: func(f *fixture) {
				f.vgpud.create = func(context.Context, *v1.CreateRequest) error {
					return errgrpc.ToGRPCf(errdefs.ErrResourceExhausted, "no GPU has 8 GiB free")
				}
			},
			code: errdefs.IsResourceExhausted,
			says: []string{"no GPU has 8 GiB free", testID},
		},
		{
			description: "the state can not be written",
			prepare: func(f *fixture) {
				// A directory can not be replaced by a file.
				if err := os.MkdirAll(f.path("vgpu.json"), 0o700); err != nil {
					f.t.Fatal(err)
				}
				f.t.Cleanup(func() { os.Remove(f.path("vgpu.json")) })
			},
			says: []string{"vgpu.json"},
		},
		{
			description: "the edits are refused",
			prepare: func(f *fixture) {
				f.spec = `{"annotations": {"vgpu-shim.dev/gpus": "1"}}` // no process to set the environment of
				if err := os.WriteFile(f.path("config.json"), []byte(f.spec), 0o640); err != nil {
					f.t.Fatal(err)
				}
			},
			says: []string{"no process"},
		},
		{
			description: "runc fails",
			prepare:     func(f *fixture) { f.inner.create = func(*taskv3.CreateTaskRequest) error { return failure } },
			says:        []string{"the failure"},
			called:      []string{"create"},
		},
		{
			description: "the caller gives up while vgpud works",
			prepare: func(f *fixture) {
				ctx, cancel := context.WithCancel(f.ctx)
				f.ctx = ctx
				f.vgpud.create = func(context.Context, *v1.CreateRequest) error { cancel(); return nil }
			},
			code: errdefs.IsCanceled,
		},
		{
			description: "the caller has given up before",
			prepare: func(f *fixture) {
				ctx, cancel := context.WithCancel(f.ctx)
				cancel()
				f.ctx = ctx
			},
		},
	} {
		t.Run(c.description, func(t *testing.T) {
			f := newFixture(t, plainSpec)
			c.prepare(f)
			err := f.create()
			if err == nil {
				t.Fatal("succeeded")
			}
			if c.code != nil && !c.code(errgrpc.ToNative(err)) {
				t.Errorf("error has another code: %v", err)
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("error %q does not say %q", err, s)
				}
			}
			f.called(c.called...)
			if info, err := os.Stat(f.path("vgpu.json")); err == nil && info.IsDir() {
				if err := os.Remove(f.path("vgpu.json")); err != nil {
					t.Fatal(err)
				}
			}
			f.untouched()
		})
	}
}

func TestCreateWaitsForARestartingVgpud(t *testing.T) {
	f := newFixture(t, plainSpec)
	f.stop()
	f.service.dialPatience = time.Minute
	done := make(chan error, 1)
	go func() { done <- f.create() }()
	// The state file is the sign that Create is about to connect.
	for {
		if _, err := os.Stat(f.path("vgpu.json")); err == nil {
			break
		}
		select {
		case err := <-done:
			t.Fatalf("Create has ended: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	f.vgpud.serve(t, f.address)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	f.vgpus(1)
}

// vgpud dies in the middle of a Create and stays away: whether there is a vGPU
// is not known, so that Stop gets the state.
func TestCreateLeavesTheStateIfVgpudDies(t *testing.T) {
	f := newFixture(t, plainSpec)
	f.vgpud.create = func(context.Context, *v1.CreateRequest) error {
		go f.stop()
		return nil
	}
	f.vgpud.delete = func(context.Context, *v1.DeleteRequest) error { return errors.New("dying") }
	f.inner.create = func(*taskv3.CreateTaskRequest) error { return errors.New("runc fails") }
	if err := f.create(); err == nil {
		t.Fatal("succeeded")
	}
	if _, err := bundle.ReadState(f.bundle); err != nil {
		t.Errorf("the state is gone: %v", err)
	}
	data, err := os.ReadFile(f.path("config.json"))
	if err != nil || string(data) != f.spec {
		t.Errorf("config.json is %s, %v", data, err)
	}
}

func TestCreateAgain(t *testing.T) {
	t.Run("of a container that exists changes nothing", func(t *testing.T) {
		f := newFixture(t, plainSpec)
		if err := f.create(); err != nil {
			t.Fatal(err)
		}
		edited := f.inner.spec
		if err := f.create(); !errdefs.IsAlreadyExists(errgrpc.ToNative(err)) {
			t.Errorf("error is %v", err)
		}
		f.called("create")
		f.vgpus(1)
		f.files("config.json", "vgpu.json")
		if data, _ := os.ReadFile(f.path("config.json")); string(data) != edited {
			t.Errorf("config.json is %s", data)
		}
	})
	t.Run("after a failure makes another instance", func(t *testing.T) {
		f := newFixture(t, plainSpec)
		f.inner.create = func(*taskv3.CreateTaskRequest) error { return errors.New("runc fails") }
		if err := f.create(); err == nil {
			t.Fatal("succeeded")
		}
		f.inner.create = nil
		if err := f.create(); err != nil {
			t.Fatal(err)
		}
		f.vgpus(1)
		if f.vgpud.created[0].GetInstance() == f.vgpud.created[1].GetInstance() {
			t.Error("the instance is the same")
		}
	})
}

func TestCreateConvertsOptions(t *testing.T) {
	f := newFixture(t, `{"annotations": {"vgpu-shim.dev/gpus": "0"}, "linux": {"cgroupsPath": "a.slice:cri:c1"}}`)
	if err := f.create(); err != nil {
		t.Fatal(err)
	}
	if got := f.inner.options.GetTypeUrl(); got != runcOptionsName {
		t.Errorf("the inner service got options of type %q", got)
	}
	f.service.load = loadHandler
	_, err := f.service.Create(f.ctx, &taskv3.CreateTaskRequest{ID: "c2", Bundle: f.bundle, Options: &anypb.Any{TypeUrl: "x/y.Options"}})
	if !errdefs.IsInvalidArgument(errgrpc.ToNative(err)) || !strings.Contains(err.Error(), "y.Options") {
		t.Errorf("error is %v", err)
	}
}

func TestCreateWithoutABundle(t *testing.T) {
	f := newFixture(t, plainSpec)
	_, err := f.service.Create(f.ctx, &taskv3.CreateTaskRequest{ID: testID, Bundle: filepath.Join(f.bundle, "none")})
	if err == nil || !strings.Contains(err.Error(), "config.json") {
		t.Errorf("error is %v", err)
	}
}
