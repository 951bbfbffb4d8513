// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// bursts is a container's share of contention: work with pauses between.
func bursts(n int) string {
	return fmt.Sprintf("burst --bursts %d --launches 5 --gpu-us 10000 --cpu-us 0 --rest-us 5000", n)
}

// Invariants 1 and 2 for pods: three that want the one GPU at the same time take
// turns; the simulated GPU sees no overlap, and each piece of work was submitted in
// a turn of its own vGPU. To see it fail, run it with the gate switched off:
//
//	make build nogate && VGPU_TEST_LIBRARY=$PWD/build/nogate/libvgpu-cuda.so go test ./integration/kubernetes -run TestPodsTakeTurns
func TestPodsTakeTurns(t *testing.T) {
	c := use(t)
	before, err := c.one.Daemon.Log(c.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	const n = 60
	names := []string{"first", "second", "third"}
	for _, name := range names {
		c.create(pod(name, nil, script("gpu", bursts(n))))
	}
	ids := map[harness.Tenant]string{}
	for _, name := range names {
		c.reaches(name, corev1.PodSucceeded)
		ids[c.tenant(name, "gpu")] = c.vgpu(c.one, name, "gpu")
	}
	if vgpus := slices.Compact(slices.Sorted(maps.Values(ids))); len(vgpus) != len(names) {
		t.Fatalf("%d pods had the vGPUs %v", len(names), ids)
	}
	seen := c.submissions(c.one)
	for tenant, id := range ids {
		if seen[tenant] < 5*n {
			t.Errorf("the simulated GPU has seen %d pieces of work of vGPU %s, want %d", seen[tenant], id, 5*n)
		}
	}
	c.NoOverlap()
	c.InTurnsAfter(len(before), ids)
}

// known is what vgpud knows of a pod, by the name of the container.
func (c *cluster) known(pod string) map[string]*v1.VGPU {
	c.T.Helper()
	return c.knownOn(c.one, pod)
}

// knownOn is what the vgpud of a node does.
func (c *cluster) knownOn(n *Node, pod string) map[string]*v1.VGPU {
	c.T.Helper()
	list, err := n.Daemon.VGPUs(c.Ctx)
	if err != nil {
		c.T.Fatal(err)
	}
	all := map[string]*v1.VGPU{}
	for _, v := range list {
		if v.GetPod().GetName() == pod {
			all[v.GetPod().GetContainer()] = v
		}
	}
	return all
}

// A pod that asks for nothing gets one GPU under the class, and nothing of ours
// without it. That nobody counts that GPU its events say.
func TestPodWithoutRequest(t *testing.T) {
	c := use(t)
	c.create(pod("plain", nil, container("gpu", "sh", "-c", "vecadd && echo computed && exec sleep 100000")))
	without := pod("without", nil, container("gpu", "sh", "-c", "vecadd || ls -d /.vgpu || echo nothing"))
	without.Spec.RuntimeClassName = nil
	c.create(without)

	c.says("plain", "gpu", "computed")
	c.describes("plain", "container gpu has a vGPU without a claim, so kube-scheduler counts no GPU for it")
	v := c.known("plain")["gpu"]
	if v.GetCount() != 1 || v.GetMemoryBytes() != 0 || v.GetWeight() != 100 {
		t.Errorf("vgpud knows of %v", v)
	}
	p, err := c.get("plain")
	if err != nil {
		t.Fatal(err)
	}
	if got := v.GetPod(); got.GetNamespace() != p.Namespace || got.GetUid() != string(p.UID) {
		t.Errorf("vgpud knows the pod %s/%s by %v", p.Namespace, p.UID, got)
	}
	c.reaches("without", corev1.PodSucceeded)
	c.says("without", "gpu", "nothing\n")
}

// Annotations of a pod reach all its containers, and those that name a container
// reach that one. The simulated GPU is the witness of the limit.
func TestAnnotationsOfOneContainer(t *testing.T) {
	c := use(t)
	c.create(pod("two", map[string]string{
		"vgpu-shim.dev/weight":         "300",
		"vgpu-shim.dev/trainer.memory": "2Gi",
		"vgpu-shim.dev/logger.gpus":    "0",
	},
		container("trainer", "sh", "-c", "vecadd && echo computed && exec sleep 100000"),
		container("server", "sh", "-c", "vecadd && echo computed && exec sleep 100000"),
		container("logger", "sh", "-c", "vecadd || ls -d /.vgpu || echo nothing; exec sleep 100000"),
	))
	c.says("two", "trainer", "computed")
	c.says("two", "logger", "nothing\n")
	known := c.known("two")
	if v := known["trainer"]; v.GetCount() != 1 || v.GetMemoryBytes() != 2<<30 || v.GetWeight() != 300 {
		t.Errorf("vgpud knows of the trainer %v", v)
	}
	if _, ok := known["logger"]; ok {
		t.Errorf("the logger has the vGPU %v", known["logger"])
	}
	// Once a container is given a vGPU by name, others get none unless a plain key
	// "gpus" says so.
	if _, ok := known["server"]; ok {
		t.Errorf("the server has the vGPU %v", known["server"])
	}
}

// Invariant 7 for pods: a wrong request starts no container, and who looks at the
// pod is told the key, the value and what is allowed.
func TestWrongAnnotationIsSeenInDescribe(t *testing.T) {
	c := use(t)
	for i, test := range []struct {
		description, key, value, says string
	}{
		{"memory that does not parse", "memory", "lots", `annotation vgpu-shim.dev/memory="lots": must be a quantity of bytes above 0, such as 8Gi`},
		{"an unknown key", "wieght", "100", `annotation vgpu-shim.dev/wieght="100"`},
		{"more GPUs than there are", "gpus", "2", `1 of 2 GPUs asked for exist on this node`},
		{"more memory than a GPU has", "memory", "9000Gi", `0 of 1 GPUs asked for exist on this node (it has: GPU-`},
		{"one that names a container", "gpu.weight", "-1", `annotation vgpu-shim.dev/gpu.weight="-1"`},
	} {
		t.Run(test.description, func(t *testing.T) {
			c := c.sub(t)
			name := fmt.Sprintf("wrong-%d", i)
			c.create(pod(name, map[string]string{"vgpu-shim.dev/" + test.key: test.value}, container("gpu", "vecadd")))
			c.describes(name, test.says)
			p, err := c.get(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range p.Status.ContainerStatuses {
				if s.State.Running != nil || s.State.Terminated != nil && s.State.Terminated.Reason != "StartError" {
					t.Errorf("container %s has run: %v", s.Name, s.State)
				}
			}
		})
	}
}

// The class keeps pods from nodes without the product, and charges them its
// overhead.
func TestPodWaitsForANodeWithTheLabel(t *testing.T) {
	c := use(t)
	c.label(c.one, "null")
	defer c.label(c.one, `"true"`)
	p := c.create(pod("waits", nil, container("gpu", "vecadd")))
	if got := p.Spec.Overhead.Memory(); got.IsZero() {
		t.Errorf("the pod's overhead is %v", p.Spec.Overhead)
	}
	c.wait(func() error {
		for _, e := range c.events("waits") {
			if e.Reason == "FailedScheduling" && strings.Contains(e.Message, "node affinity/selector") {
				return nil
			}
		}
		return fmt.Errorf("no event says why it waits: %s", c.about(p))
	})
	c.label(c.one, `"true"`)
	c.reaches("waits", corev1.PodSucceeded)
}

// label gives the node's label a value, in JSON.
func (c *cluster) label(n *Node, value string) {
	c.T.Helper()
	patch := fmt.Sprintf(`{"metadata": {"labels": {%q: %s}}}`, Label, value)
	if _, err := c.Client.CoreV1().Nodes().Patch(c.Ctx, n.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		c.T.Fatal(err)
	}
}
