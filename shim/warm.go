// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"runtime/debug"
	"sync"

	"google.golang.org/protobuf/proto"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/request"

	"github.com/vgpu-shim/vgpu/shim/bundle"
)

// warm does for a first time what the first Create with a vGPU will do, beside what
// containerd's code does until it serves: much is worked out at first use, such as how
// a message is read. dir is the bundle. Where that asks for no vGPU nothing is done.
//
// Nothing depends on it. What fails here fails there, too, and is told there.
func warm(dir string) (done bool) {
	h, err := loadHandler(nil) // the options come with the Create
	if err != nil {
		return false
	}
	config, err := bundle.LoadConfig(dir)
	if err != nil {
		return false
	}
	sum, err := config.Summary()
	if err != nil || !expects(h, sum) {
		return false
	}
	config.Prepare()
	asked := &v1.CreateRequest{Container: &v1.Container{}, Pod: &v1.Pod{}}
	answer := &v1.CreateResponse{Edits: &v1.Edits{Mounts: []*v1.Mount{{}}, Devices: []*v1.Device{{}}}}
	_, _ = proto.Marshal(asked)
	if data, err := proto.Marshal(answer); err == nil {
		_ = proto.Unmarshal(data, answer)
	}
	return true
}

// expects tells whether a container asks for a vGPU by what can be known without its
// runtime options. A pod's server starts with the bundle of the pause container, which
// has the pod's annotations, but no container's name and no claims: a pod that asks by
// these is not expected to.
func expects(h handler, sum bundle.Summary) bool {
	ours, err := h.Annotations(sum.Annotations)
	if err != nil {
		return false
	}
	req, err := h.Limits.Parse(ours, sum.Annotations[request.ContainerName], h.DefaultCount)
	return err == nil && req.Count > 0
}

// firstPercent is Go's own target for collections of garbage. pkg/shim has a lower one,
// for what a shim keeps while its containers run.
const firstPercent = 100

// collectLater lets the heap grow until the function is called that it returns: a
// collection in the midst of the first Create takes a millisecond of it. In a pod the
// first Start is the pause container's, so that its containers' Creates gain nothing.
func collectLater() (end func()) {
	before := debug.SetGCPercent(firstPercent)
	return sync.OnceFunc(func() { debug.SetGCPercent(before) })
}
