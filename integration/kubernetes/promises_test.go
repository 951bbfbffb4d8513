// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// couple is the shared cluster with a node more that has two identical GPUs of 40Gi.
type couple struct {
	*cluster
	node    *Node
	devices []string // their names in the API, in the order in which the scheduler takes them
}

const modelCouple = "Simulated L40"

// TestClaimsFindTheirMemory: what the scheduler has counted for a claim is there when the
// claim's pod first computes, whatever late binding and other pods did meanwhile.
func TestClaimsFindTheirMemory(t *testing.T) {
	c := &couple{cluster: use(t)}
	n, err := c.AddNode(c.Ctx, NodeOptions{
		Name: "couple", Labels: map[string]string{Label: "true"},
		Daemon: harness.DaemonOptions{GPUs: "sim:2", Model: modelCouple, Memory: "40Gi", LogLevel: "trace"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.removeAll()
		if err := c.RemoveNode(context.Background(), n); err != nil {
			t.Error(err)
		}
	})
	c.node, c.devices = n, deviceNames(c.published(n))
	for _, test := range []struct {
		name string
		run  func(*couple)
	}{
		{"whoever computes first", (*couple).whoeverIsFirst},
		{"also where no claim comes", (*couple).withoutClaim},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &couple{c.sub(t), c.node, c.devices}
			test.run(s)
			s.removeAll()
			if err := n.CheckLeaks(c.Ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// asks is a claim of so much memory of one of the two GPUs.
func (c *couple) asks(memory string, more ...func(*resourceapi.ExactDeviceRequest)) resourceapi.ResourceClaimSpec {
	return claimOf(ask("gpu", memory, "30", append(more, where("model", modelCouple))...))
}

// starts makes a pod with a claim of so much memory, which the scheduler must put on the
// GPU of that number, and waits until its container runs.
func (c *couple) starts(name, memory string, gpu int, containers ...corev1.Container) {
	c.T.Helper()
	c.claiming(name, c.asks(memory), containers...)
	c.reaches(name, corev1.PodRunning)
	if got := c.getClaim(name).Status.Allocation.Devices.Results[0].Device; got != c.devices[gpu] {
		c.T.Fatalf("the scheduler has put %s on %s, want %s", name, got, c.devices[gpu])
	}
}

// computes runs a program to its end in the container of a pod that does nothing.
func (c *couple) computes(name string) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.Ctx, patience)
	defer cancel()
	if out, err := c.Kubectl(ctx, "exec", name, "--", "vecadd"); err != nil {
		c.T.Errorf("pod %s did not compute: %v: %s; its vGPU is %v", name, err, out, c.knownOn(c.node, name)["gpu"])
	}
}

// whoeverIsFirst: of two GPUs with 40Gi one was allocated to a claim of 25Gi, the other to
// two of 20Gi. These compute first and stay, and do not spread over both: then there
// would be no 25Gi anywhere.
func (c *couple) whoeverIsFirst() {
	c.starts("big", "25Gi", 0, idles())
	for _, name := range []string{"left", "right"} {
		c.starts(name, "20Gi", 1, stays())
		if gpus := c.settles(name); !slices.Equal(gpus, c.uuids(c.node)[1:]) {
			c.T.Errorf("pod %s computes on %v, want the second of %v", name, gpus, c.uuids(c.node))
		}
	}
	c.computes("big")
}

// withoutClaim: a pod of which the scheduler knows nothing takes what is left, and waits
// for more.
func (c *couple) withoutClaim() {
	for gpu, name := range []string{"one", "two"} {
		c.starts(name, "25Gi", gpu, idles())
	}
	stranger := pod("stranger", map[string]string{"vgpu-shim.dev/memory": "20Gi"}, script("gpu", "vecadd"))
	stranger.Spec.NodeSelector = map[string]string{corev1.LabelHostname: c.node.Name}
	c.create(stranger)
	c.says("stranger", "gpu", "25Gi of 40Gi of memory are promised to claims or reserved, 20Gi more")
	for _, name := range []string{"one", "two"} {
		c.computes(name)
	}
	c.remove("two")
	c.reaches("stranger", corev1.PodSucceeded)
}

// stays is a container whose process computes a moment, and then nothing for an hour.
func stays() corev1.Container {
	return script("gpu", "burst --bursts 2 --launches 1 --gpu-us 1000 --cpu-us 0 --rest-us 3600000000")
}

// settles waits until the container of a pod has computed, and returns its GPUs.
func (c *couple) settles(name string) (gpus []string) {
	c.T.Helper()
	c.wait(func() error {
		v := c.knownOn(c.node, name)["gpu"]
		if gpus = v.GetGpus(); v.GetUsage().GetSubmissions() == 0 {
			return fmt.Errorf("pod %s has not computed yet: its vGPU is %s %s", name, v.GetState(), v.GetReason())
		}
		return nil
	})
	return gpus
}
