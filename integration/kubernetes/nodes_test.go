// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// three is the shared cluster with two nodes more, and other GPUs on each.
type three struct {
	*cluster
	two   *Node // two GPUs of 40Gi, modelTwo
	three *Node // four of 8Gi, modelThree
}

const (
	modelTwo   = "Simulated A100"
	modelThree = "Simulated T4"
)

// TestThreeNodes is the long form of the tests: all that takes more than one node, or
// more than one GPU.
func TestThreeNodes(t *testing.T) {
	c := &three{cluster: use(t)}
	for _, o := range []struct {
		NodeOptions
		node **Node
	}{
		{NodeOptions{Name: "two", Daemon: harness.DaemonOptions{GPUs: "sim:2", Model: modelTwo, Memory: "40Gi"}}, &c.two},
		{NodeOptions{Name: "three", Daemon: harness.DaemonOptions{GPUs: "sim:4", Model: modelThree, Memory: "8Gi"}}, &c.three},
	} {
		o.Labels, o.Daemon.LogLevel, o.Daemon.Drain = map[string]string{Label: "true"}, "trace", 5*time.Minute
		n, err := c.AddNode(c.Ctx, o.NodeOptions)
		if err != nil {
			t.Fatal(err)
		}
		*o.node = n
		// For the tests after this one there is one node.
		t.Cleanup(func() {
			c.removeAll()
			if err := c.RemoveNode(context.Background(), n); err != nil {
				t.Error(err)
			}
		})
	}
	for _, test := range []struct {
		name string
		run  func(*three)
	}{
		{"pods compute on the GPUs of their node", (*three).computesInPlace},
		{"rows of the modelling table", (*three).modellingTable},
		{"rows on other models", (*three).otherModels},
		{"a pod goes where all is free, and waits otherwise", (*three).allIsFree},
		{"the orders in which GPUs are published", (*three).orders},
		{"oversubscription", (*three).oversubscription},
		{"quota", (*three).quota},
		{"late binding saves waiting", (*three).lateBinding},
		{"a hundred pods", (*three).hundredPods},
		{"forty that are bound late", (*three).fortyPods},
		{"restart of kubelet", (*three).kubeletRestart},
		{"restart of the driver in the middle of Prepare", (*three).driverRestart},
		{"restart of a node", (*three).nodeRestart},
		{"a lost GPU", (*three).lostGPU},
		// From here on work of several overlaps on the GPUs of node two.
		{"a job whose ranks are a gang", (*three).gangJob},
	} {
		c.part(t, test.name, func(s *cluster) { test.run(&three{s, c.two, c.three}) })
	}
}

// on is a node as those tests see it that look at a single one.
func (c *three) on(n *Node) *harnesstest.Node {
	return &harnesstest.Node{Node: &n.Node, T: c.T, Ctx: c.Ctx}
}

// computesInPlace: pods see the GPUs of their own node, and compute in turns there. Each
// node's simulated GPUs are the witness that nobody else did.
func (c *three) computesInPlace() {
	t, nodes := c.T, c.Nodes
	before := map[string]map[harness.Tenant]int64{}
	const n = 3 // pods of each node
	name := func(node *Node, i int) string { return fmt.Sprintf("%s-%d", node.Name, i) }
	for _, node := range nodes {
		before[node.Name] = c.submissions(node)
		for i := range n {
			p := pod(name(node, i), nil, script("gpu", bursts(20)))
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node.Name}
			c.create(p)
		}
	}
	for _, node := range nodes {
		var want []harness.Tenant
		for i := range n {
			c.reaches(name(node, i), corev1.PodSucceeded)
			want = append(want, c.tenant(name(node, i), "gpu"))
		}
		slices.Sort(want)
		seen := c.submissions(node)
		maps.DeleteFunc(seen, func(tenant harness.Tenant, work int64) bool { return work == before[node.Name][tenant] })
		if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
			t.Errorf("the GPUs of node %s have seen work of %v, want %v", node.Name, got, want)
		}
		o, err := node.Daemon.Overlap(c.Ctx)
		if err != nil || o.OverlapNS != 0 || o.Lost != 0 {
			t.Errorf("node %s: %v, %+v", node.Name, err, o)
		}
	}
	// What a node has not fails there, whatever others have: without claims the
	// scheduler knows nothing of GPUs.
	p := pod("misplaced", map[string]string{"vgpu-shim.dev/model": "A100"}, container("gpu", "vecadd"))
	p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "three"}
	c.create(p)
	c.describes("misplaced", "0 of 1 GPUs asked for exist on this node (it has: GPU-")
	p = pod("placed", map[string]string{"vgpu-shim.dev/model": "A100"}, container("gpu", "vecadd"))
	p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "two"}
	c.create(p)
	c.reaches("placed", corev1.PodSucceeded)
}
