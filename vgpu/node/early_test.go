// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/google/go-cmp/cmp"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// devices are the device nodes that a container would get.
func (n *node) devices(name string, annotations ...string) (paths []string) {
	n.t.Helper()
	resp, err := n.control.Create(n.t.Context(), n.request(name, annotations...))
	if err != nil {
		n.t.Fatal(err)
	}
	n.created[name] = resp.GetEdits().GetMounts()[0].GetSource()
	for _, d := range resp.GetEdits().GetDevices() {
		paths = append(paths, d.GetPath())
	}
	return paths
}

func TestALateContainerGetsTheNodesOfAllGPUsThatItMayBeBoundTo(t *testing.T) {
	n := newNode(t, settings{gpus: 3})
	if diff := cmp.Diff([]string{"/dev/fake0", "/dev/fake1", "/dev/fake2"}, n.devices("any")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"/dev/fake1"}, n.devices("named", "uuid="+gpuUUID(1))); diff != "" {
		t.Error(diff)
	}
	n.client("named")
	if diff := cmp.Diff([]string{gpuUUID(1)}, n.vgpu("named").GetGpus()); diff != "" {
		t.Error(diff)
	}
}

func TestAnEarlyContainerGetsTheNodeOfItsGPUAlone(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	if diff := cmp.Diff([]string{"/dev/fake0"}, n.devices("a", "bind=early", "memory=10Gi")); diff != "" {
		t.Error(diff)
	}
	// The same again, as after an answer that was lost.
	if diff := cmp.Diff([]string{"/dev/fake0"}, n.devices("a", "bind=early", "memory=10Gi")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"/dev/fake1"}, n.devices("b", "bind=early", "memory=10Gi")); diff != "" {
		t.Error(diff)
	}
	// It stays where its node is, with or without a process, and over a restart.
	n.client("b").kill()
	n.stop()
	n.start()
	c := n.process("b")
	c.ask("start "+n.created["b"], "start: ")
	if got := c.ask("bind", "bind: "); got != gpuUUID(1) {
		t.Errorf("bound to %s", got)
	}
}

func TestAnEarlyContainerWithoutAGPUIsNotCreated(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "bind=early", "memory=10Gi")
	_, err := n.control.Create(t.Context(), n.request("b", "bind=early", "memory=10Gi"))
	if err = errgrpc.ToNative(err); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "are reserved") {
		t.Errorf("%v", err)
	}
	resp, err := n.control.List(t.Context(), &v1.ListRequest{})
	if err != nil || len(resp.GetVgpus()) != 1 {
		t.Errorf("left: %v %v", resp, err)
	}
	if left, err := os.ReadDir(filepath.Join(n.state, "c")); err != nil || len(left) != 1 {
		t.Errorf("left: %v %v", left, err)
	}
}
