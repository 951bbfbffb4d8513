// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/ttrpc"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/vgpu-shim/vgpu/shim/config"
	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

const (
	testNamespace  = "k8s.io"
	testID         = "c1"
	testContainerd = "/run/containerd/containerd.sock"
)

// fakeTasks is a task service that notes what it is asked.
type fakeTasks struct {
	taskv3.TTRPCTaskService // nil: any other method panics

	create func(*taskv3.CreateTaskRequest) error // nil: succeeds
	delete func(*taskv3.DeleteRequest) error     // nil: succeeds

	status task.Status // of the container

	mu    sync.Mutex
	calls []string
	// of the last Create
	options *anypb.Any
	spec    string
}

func (f *fakeTasks) note(call string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
}

func (f *fakeTasks) Create(_ context.Context, r *taskv3.CreateTaskRequest) (*taskv3.CreateTaskResponse, error) {
	f.note("create")
	data, err := os.ReadFile(filepath.Join(r.GetBundle(), "config.json"))
	if err != nil {
		return nil, err
	}
	f.options, f.spec = r.GetOptions(), string(data)
	if f.create != nil {
		if err := f.create(r); err != nil {
			return nil, err
		}
	}
	return &taskv3.CreateTaskResponse{Pid: 42}, nil
}

func (f *fakeTasks) Start(context.Context, *taskv3.StartRequest) (*taskv3.StartResponse, error) {
	return &taskv3.StartResponse{Pid: 42}, nil
}

func (f *fakeTasks) Delete(_ context.Context, r *taskv3.DeleteRequest) (*taskv3.DeleteResponse, error) {
	f.note("delete")
	if f.delete != nil {
		if err := f.delete(r); err != nil {
			return nil, err
		}
	}
	return &taskv3.DeleteResponse{Pid: 42, ExitStatus: 7}, nil
}

func (f *fakeTasks) Kill(_ context.Context, r *taskv3.KillRequest) (*emptypb.Empty, error) {
	f.note(fmt.Sprintf("kill %d", r.GetSignal()))
	return &emptypb.Empty{}, nil
}

func (f *fakeTasks) Wait(context.Context, *taskv3.WaitRequest) (*taskv3.WaitResponse, error) {
	f.note("wait")
	return &taskv3.WaitResponse{ExitStatus: 137}, nil
}

func (f *fakeTasks) State(context.Context, *taskv3.StateRequest) (*taskv3.StateResponse, error) {
	return &taskv3.StateResponse{Status: f.status}, nil
}

func (f *fakeTasks) Checkpoint(context.Context, *taskv3.CheckpointTaskRequest) (*emptypb.Empty, error) {
	f.note("checkpoint")
	return &emptypb.Empty{}, nil
}

func (f *fakeTasks) Connect(_ context.Context, r *taskv3.ConnectRequest) (*taskv3.ConnectResponse, error) {
	return &taskv3.ConnectResponse{Version: r.GetID()}, nil
}

var testEnv = []string{"OPENCL_LAYERS=/.vgpu/libvgpu-opencl.so", "NVIDIA_VISIBLE_DEVICES=void"}

// fakeVgpud is vgpud's control API. It keeps the instances of the vGPUs that
// exist.
type fakeVgpud struct {
	v1.ControlService // nil: any other method panics

	create func(context.Context, *v1.CreateRequest) error // nil: succeeds
	delete func(context.Context, *v1.DeleteRequest) error // nil: succeeds

	env []string // of the edits; nil: those of testEnv

	resolve func(*v1.ResolveClaimsRequest) (*v1.ResolveClaimsResponse, error) // nil: there are no claims

	mu      sync.Mutex
	vgpus   map[string]string // id of the container -> instance
	created []*v1.CreateRequest
	deleted []*v1.DeleteRequest
}

func (f *fakeVgpud) Create(ctx context.Context, r *v1.CreateRequest) (*v1.CreateResponse, error) {
	f.mu.Lock()
	f.created = append(f.created, proto.Clone(r).(*v1.CreateRequest))
	f.vgpus[r.GetContainer().GetId()] = r.GetInstance()
	f.mu.Unlock()
	if f.create != nil {
		if err := f.create(ctx, r); err != nil {
			return nil, err
		}
	}
	env := f.env
	if env == nil {
		env = testEnv
	}
	return &v1.CreateResponse{Id: "0123456789abcdef", Edits: &v1.Edits{
		Mounts: []*v1.Mount{
			{Source: "/run/vgpu/c/x", Destination: "/.vgpu", Type: "bind", Options: []string{"bind", "ro"}},
			{Source: "/real/libcuda.so.1", Destination: "/.vgpu/libcuda.so", Type: "bind", Options: []string{"bind", "ro"}},
			{Source: "/real/libnvidia-ml.so.1", Destination: "/.vgpu/libnvidia-ml.so", Type: "bind", Options: []string{"bind", "ro"}},
			{Source: "/real/musl/libcuda.so.1", Destination: "/.vgpu-musl/libcuda.so", Type: "bind", Options: []string{"bind", "ro"}},
			{Source: "/usr/lib/vgpu/libvgpu-cuda.so", Destination: "/usr/lib64/libcuda.so.1", Type: "bind", Options: []string{"bind", "ro"}},
			{Source: "/usr/lib/vgpu/libvgpu-nvml.so", Destination: "/usr/lib64/libnvidia-ml.so.1", Type: "bind", Options: []string{"bind", "ro"}},
			{Source: "/usr/lib/vgpu/musl/libvgpu-cuda.so", Destination: "/.vgpu-musl/lib/libcuda.so.1", Type: "bind", Options: []string{"bind", "ro"}},
			{Source: "/usr/lib/vgpu/musl/libvgpu-nvml.so", Destination: "/.vgpu-musl/lib/libnvidia-ml.so.1", Type: "bind", Options: []string{"bind", "ro"}},
		},
		Devices: []*v1.Device{{Path: "/dev/nvidia0", Type: "c", Major: 195, FileMode: 0o666, Permissions: "rw"}},
		Env:     env,
	}}, nil
}

func (f *fakeVgpud) Delete(ctx context.Context, r *v1.DeleteRequest) (*v1.DeleteResponse, error) {
	if f.delete != nil {
		if err := f.delete(ctx, r); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deleted = append(f.deleted, proto.Clone(r).(*v1.DeleteRequest))
	if id := r.GetContainer().GetId(); f.vgpus[id] == r.GetInstance() {
		delete(f.vgpus, id)
	}
	return &v1.DeleteResponse{}, nil
}

func (f *fakeVgpud) ResolveClaims(_ context.Context, r *v1.ResolveClaimsRequest) (*v1.ResolveClaimsResponse, error) {
	if f.resolve == nil {
		return &v1.ResolveClaimsResponse{}, nil
	}
	return f.resolve(r)
}

// serve serves the fake on address until the test ends or stop is called.
func (f *fakeVgpud) serve(t *testing.T, address string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	v1.RegisterControlService(server, f)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Ends with an error when the server is closed.
		_ = server.Serve(context.Background(), l)
	}()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			_ = server.Close()
			<-done
		})
	}
	t.Cleanup(stop)
	return stop
}

// fixture is a service over fakes, with one bundle.
type fixture struct {
	t       *testing.T
	ctx     context.Context
	inner   *fakeTasks
	vgpud   *fakeVgpud
	stop    func() // stops vgpud
	service *service
	config  config.Config
	bundle  string
	spec    string
	address string
}

const plainSpec = `{ "ociVersion": "1.2.0", "process": {"env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"]}, "unknown": 1.0, "linux": {"cgroupsPath": "/default/c1"} }`

// specWith is a spec with annotations, given as JSON.
func specWith(annotations string) string {
	return `{ "process": {}, "annotations": ` + annotations + `, "linux": {} }`
}

func newFixture(t *testing.T, spec string) *fixture {
	t.Helper()
	// Not t.TempDir: the path of a socket is limited.
	dir, err := os.MkdirTemp("", "shim")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	f := &fixture{
		t:       t,
		ctx:     namespaces.WithNamespace(t.Context(), testNamespace),
		inner:   &fakeTasks{},
		vgpud:   &fakeVgpud{vgpus: map[string]string{}},
		bundle:  filepath.Join(dir, testID),
		spec:    spec,
		address: filepath.Join(dir, "vgpud.sock"),
	}
	if err := os.Mkdir(f.bundle, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.path("config.json"), []byte(spec), 0o640); err != nil {
		t.Fatal(err)
	}
	f.stop = f.vgpud.serve(t, f.address)
	f.config = config.Config{Address: f.address, DefaultCount: 1, AllowAnnotations: []string{"*"}}
	f.service = newService(f.inner, testContainerd)
	f.service.mount = nil // everything stands in config.json; a test that wants it otherwise sets its own
	f.service.load = func(*anypb.Any) (handler, error) { return handler{Config: f.config}, nil }
	// Long enough never to matter on a busy machine; a test that waits for one
	// sets its own.
	f.service.createTimeout, f.service.releaseTimeout, f.service.dialPatience = time.Minute, time.Minute, 0
	return f
}

func (f *fixture) path(name string) string { return filepath.Join(f.bundle, name) }

func (f *fixture) create() error {
	f.t.Helper()
	_, err := f.service.Create(f.ctx, &taskv3.CreateTaskRequest{ID: testID, Bundle: f.bundle})
	return err
}

func (f *fixture) delete() error {
	_, err := f.service.Delete(f.ctx, &taskv3.DeleteRequest{ID: testID})
	return err
}

// vgpus checks how many vGPUs exist.
func (f *fixture) vgpus(want int) {
	f.t.Helper()
	f.vgpud.mu.Lock()
	defer f.vgpud.mu.Unlock()
	if len(f.vgpud.vgpus) != want {
		f.t.Errorf("vGPUs: %v, want %d", f.vgpud.vgpus, want)
	}
}

// untouched checks that the bundle is as it was, byte for byte and file for
// file, and that no vGPU is left.
func (f *fixture) untouched() {
	f.t.Helper()
	f.files("config.json")
	data, err := os.ReadFile(f.path("config.json"))
	if err != nil {
		f.t.Fatal(err)
	}
	if string(data) != f.spec {
		f.t.Errorf("config.json is %s, want %s", data, f.spec)
	}
	info, err := os.Stat(f.path("config.json"))
	if err != nil {
		f.t.Fatal(err)
	}
	if info.Mode() != 0o640 {
		f.t.Errorf("config.json has mode %v", info.Mode())
	}
	f.vgpus(0)
	if _, ok := f.service.tenant(testID); ok {
		f.t.Error("the service still thinks that the container has a vGPU")
	}
}

// files checks which files are in the bundle.
func (f *fixture) files(want ...string) {
	f.t.Helper()
	entries, err := os.ReadDir(f.bundle)
	if err != nil {
		f.t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		f.t.Errorf("files in the bundle (-want +got):\n%s", diff)
	}
}

// called checks which calls reached the inner service.
func (f *fixture) called(want ...string) {
	f.t.Helper()
	f.inner.mu.Lock()
	defer f.inner.mu.Unlock()
	if diff := cmp.Diff(want, f.inner.calls); diff != "" {
		f.t.Errorf("calls of the inner service (-want +got):\n%s", diff)
	}
}
