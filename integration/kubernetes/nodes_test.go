// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// Three nodes with other GPUs each: pods see those of their own node, and compute in
// turns there. Each node's simulated GPUs are the witness that nobody else did.
func TestThreeNodes(t *testing.T) {
	c := use(t)
	nodes := []*Node{c.one}
	for _, o := range []NodeOptions{
		{Name: "two", Daemon: harness.DaemonOptions{GPUs: "sim:2", Model: "Simulated A100", Memory: "40Gi"}},
		{Name: "three", Daemon: harness.DaemonOptions{GPUs: "sim:1", Model: "Simulated T4", Memory: "8Gi"}},
	} {
		o.Labels = map[string]string{Label: "true"}
		n, err := c.AddNode(c.Ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		// For the tests after this one there is one node.
		t.Cleanup(func() {
			c.removeAll()
			if err := c.RemoveNode(context.Background(), n); err != nil {
				t.Error(err)
			}
		})
		nodes = append(nodes, n)
	}
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
