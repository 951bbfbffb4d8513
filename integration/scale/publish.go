// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vgpu-shim/vgpu/integration/box"
	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/kubernetes"
)

// place is the cluster whose nodes are objects alone.
type place struct {
	sizes
	cluster *kubernetes.Cluster

	slices []resourceapi.ResourceSlice // of each node
}

// kinds are the GPUs of nodes, in turns; the first are those of the driver that runs.
var kinds = []struct {
	model  string
	memory int64 // Gi
}{{"NVIDIA H200", 141}, {"NVIDIA A100-SXM4-80GB", 80}}

// What each node has besides.
const (
	nodeCPUs   = 96
	nodeMemory = 1024 // Gi
)

// workers make objects at once.
const workers = 32

// driver is the node's programs of the first node, which publish its slice.
type driver struct {
	vgpud, kubelet *harness.Process
	node           string
}

func (d *driver) stop() error { return errors.Join(d.kubelet.Stop(), d.vgpud.Stop()) }

func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

// publish makes the nodes, has the real driver publish the GPUs of the first one, and
// copies what it published for the others.
func (p *place) publish(ctx context.Context, paths harness.Paths) (_ *driver, err error) {
	if err := p.makeNodes(ctx); err != nil {
		return nil, err
	}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: className}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", kubernetes.DriverName)}}},
	}}
	if _, err := p.cluster.Client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	dir := filepath.Join(box.Temp, "d")
	vgpud, err := harness.StartDaemon(ctx, paths, harness.DaemonOptions{
		Dir: dir, GPUs: fmt.Sprintf("sim:%d", p.gpus), Model: kinds[0].model, Memory: fmt.Sprintf("%dGi", kinds[0].memory),
	})
	if err != nil {
		return nil, err
	}
	d := &driver{vgpud: vgpud.Process(), node: nodeName(0)}
	registry := filepath.Join(dir, "registry")
	if err := os.Mkdir(registry, 0o700); err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(paths.Root, "bin", "vgpu-kubelet"), "--node-name="+d.node, "--kubeconfig="+p.cluster.Kubeconfig,
		"--address="+vgpud.Socket, "--plugin-dir="+filepath.Join(dir, "plugin"), "--registry-dir="+registry, "--cdi-dir="+filepath.Join(dir, "cdi"))
	if d.kubelet, err = harness.StartProcess("vgpu-kubelet", filepath.Join(dir, "driver.log"), cmd); err != nil {
		return nil, errors.Join(err, d.vgpud.Stop())
	}
	var first resourceapi.ResourceSlice
	err = harness.Eventually(ctx, time.Minute, func() error {
		list, err := p.cluster.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 || len(list.Items[0].Spec.Devices) != p.gpus {
			return fmt.Errorf("the driver has published %v: %s", list.Items, d.kubelet.Tail())
		}
		first = list.Items[0]
		return nil
	})
	if err == nil {
		err = p.copySlices(ctx, first)
	}
	if err != nil {
		return nil, errors.Join(err, d.stop())
	}
	return d, nil
}

// makeNodes makes nodes that are ready, and that nobody looks after.
func (p *place) makeNodes(ctx context.Context) error {
	has := corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewQuantity(nodeCPUs, resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(nodeMemory<<30, resource.BinarySI),
		corev1.ResourcePods: *resource.NewQuantity(250, resource.DecimalSI),
	}
	nodes := p.cluster.Client.CoreV1().Nodes()
	return each(ctx, p.nodes, func(ctx context.Context, i int) error {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{corev1.LabelHostname: nodeName(i)}}, Status: corev1.NodeStatus{
			Capacity: has, Allocatable: has, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		}}
		n, err := nodes.Create(ctx, n, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		n.Spec.Taints = nil // the API server takes a new node for one that is not ready
		_, err = nodes.Update(ctx, n, metav1.UpdateOptions{})
		return err
	})
}

// each calls f for 0 to n-1, several at once, and returns the first error.
func each(ctx context.Context, n int, f func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// copySlices gives each node what the driver has published for the first, of its own
// kind and with other UUIDs.
func (p *place) copySlices(ctx context.Context, first resourceapi.ResourceSlice) error {
	p.slices = make([]resourceapi.ResourceSlice, p.nodes)
	p.slices[0] = first
	return each(ctx, p.nodes-1, func(ctx context.Context, i int) error {
		i++
		name := nodeName(i)
		s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"}, Spec: *first.Spec.DeepCopy()}
		s.Spec.NodeName, s.Spec.Pool.Name = &name, name
		for j := range s.Spec.Devices {
			p.alter(&s.Spec.Devices[j], i, j)
		}
		made, err := p.cluster.Client.ResourceV1().ResourceSlices().Create(ctx, s, metav1.CreateOptions{})
		if err == nil {
			p.slices[i] = *made
		}
		return err
	})
}

// alter makes a device another node's.
func (p *place) alter(d *resourceapi.Device, node, gpu int) {
	kind := kinds[node%len(kinds)]
	uuid := fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", node, gpu)
	d.Name = strings.ToLower(uuid)
	model := kind.model
	d.Attributes["uuid"], d.Attributes["model"] = resourceapi.DeviceAttribute{StringValue: &uuid}, resourceapi.DeviceAttribute{StringValue: &model}
	memory := d.Capacity["memory"]
	whole := resource.NewQuantity(kind.memory<<30, resource.BinarySI)
	memory.Value, memory.RequestPolicy.ValidRange.Max = *whole, whole
	memory.RequestPolicy.Default = resource.NewQuantity(kind.memory<<10/10<<20, resource.BinarySI)
	d.Capacity["memory"] = memory
}
