// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"os"
	"strings"
	"testing"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
)

func (f *fakeTasks) Exec(_ context.Context, r *taskv3.ExecProcessRequest) (*emptypb.Empty, error) {
	f.note("exec " + string(r.GetSpec().GetValue()))
	return &emptypb.Empty{}, nil
}

// exec executes a process, given as JSON, and returns what the runtime got.
func (f *fixture) exec(process string) (string, error) {
	f.t.Helper()
	before := len(f.inner.calls)
	_, err := f.service.Exec(f.ctx, &taskv3.ExecProcessRequest{ID: testID, ExecID: "e", Spec: &anypb.Any{TypeUrl: "process", Value: []byte(process)}})
	if err != nil {
		return "", errgrpc.ToNative(err)
	}
	if len(f.inner.calls) != before+1 {
		f.t.Fatalf("the runtime was called: %q", f.inner.calls)
	}
	return strings.TrimPrefix(f.inner.calls[before], "exec "), nil
}

// What is executed in a container finds the OpenCL layer as its first process does, and
// keeps its own behind it.
func TestExecGivesTheOpenCLLayer(t *testing.T) {
	f := created(t)
	if err := os.Remove(f.path("config.json")); err != nil { // of which nothing is asked again
		t.Fatal(err)
	}
	for process, want := range map[string]string{
		`{"args":["a"],"env":["A=b"]}`:               `{"args":["a"],"env":["A=b","OPENCL_LAYERS=/.vgpu/libvgpu-opencl.so"]}`,
		`{"env":["OPENCL_LAYERS=/opt/l.so"]}`:        `{"env":["OPENCL_LAYERS=/.vgpu/libvgpu-opencl.so:/opt/l.so"]}`,
		`{"env":["OPENCL_LAYERS=","OPENCL_LAYERS"]}`: `{"env":["OPENCL_LAYERS=/.vgpu/libvgpu-opencl.so"]}`,
	} {
		if got, err := f.exec(process); err != nil || got != want {
			t.Errorf("%s became %s, %v; want %s", process, got, err, want)
		}
	}
	if _, err := f.exec(`{"env":1}`); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a process that makes no sense: %v", err)
	}
}

// Where the first process has no layer of ours what is executed stays byte for byte.
func TestExecLeavesOtherProcessesAlone(t *testing.T) {
	const process = `{ "env": ["OPENCL_LAYERS=/opt/l.so"] }`
	without := newFixture(t, specWith(`{"vgpu-shim.dev/gpus": "0"}`))
	other := newFixture(t, `{"process": {"env": ["OPENCL_LAYERS=/.vgpu/l.so"]}}`)
	other.vgpud.env = []string{"NVIDIA_VISIBLE_DEVICES=void"}
	for description, f := range map[string]*fixture{"without a vGPU": without, "without the layer": other} {
		if err := f.create(); err != nil {
			t.Fatal(err)
		}
		if got, err := f.exec(process); err != nil || got != process {
			t.Errorf("%s: %s, %v", description, got, err)
		}
	}
}
