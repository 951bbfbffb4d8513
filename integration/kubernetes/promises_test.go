// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

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
		{"the scheduler knows of guests", (*couple).guests},
		{"or the pod says what it waits for", (*couple).unknownGuest},
	} {
		c.part(t, test.name, func(s *cluster) { test.run(&couple{s, c.node, c.devices}) })
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

// offered waits until so much of a GPU is offered to the scheduler.
func (c *couple) offered(gpu int, memory string) {
	c.T.Helper()
	want := resource.MustParse(memory)
	c.publishes(c.node, func(all []resourceapi.Device) bool {
		m := all[gpu].Capacity["memory"]
		return m.Value.Cmp(want) == 0 && m.RequestPolicy.ValidRange.Max.Cmp(want) == 0
	})
}

// busy makes a pod that has the first GPU for an hour.
func (c *couple) busy() {
	c.T.Helper()
	c.starts("busy", "20Gi", 0, script("gpu", "burst --bursts 1 --launches 1 --gpu-us 3600000000"))
	c.settles("busy")
}

// guests: late binding saves a pod from waiting for that one, and what it takes of the
// second GPU is not offered until it is gone.
func (c *couple) guests() {
	c.busy()
	c.starts("guest", "20Gi", 0, stays())
	if gpus := c.settles("guest"); !slices.Equal(gpus, c.uuids(c.node)[1:]) {
		c.T.Fatalf("the guest computes on %v, want the second of %v", gpus, c.uuids(c.node))
	}
	c.offered(1, "20Gi")
	c.claiming("big", c.asks("25Gi"), container("gpu", "vecadd"))
	c.waits("big", "cannot allocate all claims")
	c.claiming("small", c.asks("20Gi"), container("gpu", "vecadd"))
	c.reaches("small", corev1.PodSucceeded)
	c.remove("guest")
	c.offered(1, "40Gi")
	c.reaches("big", corev1.PodSucceeded)
}

// unknownGuest: while the driver is down the scheduler hears of no guests, and allocates
// what one has. The pod then waits for it, and its events say so.
func (c *couple) unknownGuest() {
	c.busy()
	c.starts("guest", "20Gi", 0, idles())
	if err := c.node.KillDriver(); err != nil {
		c.T.Fatal(err)
	}
	if out, err := c.Kubectl(c.Ctx, "exec", "guest", "--", "sh", "-c", stayProgram+" > /dev/null 2>&1 < /dev/null &"); err != nil {
		c.T.Fatal(err, out)
	}
	c.settles("guest")
	c.claiming("big", c.asks("25Gi"), container("gpu", "vecadd"))
	c.placed("big")
	if err := c.node.StartDriver(c.Ctx); err != nil {
		c.T.Fatal(err)
	}
	c.describes("big", fmt.Sprintf("container gpu waits for memory of %s, which default/guest (container gpu) has", c.uuids(c.node)[1]))
	c.remove("guest")
	c.reaches("big", corev1.PodSucceeded)
}

// stayProgram computes a moment, and then nothing for an hour.
const stayProgram = "burst --bursts 2 --launches 1 --gpu-us 1000 --cpu-us 0 --rest-us 3600000000"

// stays is a container with that program.
func stays() corev1.Container { return script("gpu", stayProgram) }

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

// TestClaimsOfMoreThanAGPUHas: where vgpud and the driver both give a GPU's memory out one
// and a half times, whoever was allocated some has it, together more than there is; and
// who asks for more than that is not placed.
func TestClaimsOfMoreThanAGPUHas(t *testing.T) {
	c := &couple{cluster: use(t)}
	n, err := c.AddNode(c.Ctx, NodeOptions{
		Name: "more", Labels: map[string]string{Label: "true"},
		Daemon: harness.DaemonOptions{GPUs: "sim:1", Model: modelCouple, Memory: "4Gi", SwapRate: "400Gi", Engine: "oversubscription = 1.5\nswap_rate = \"400Gi\"\n"},
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
	if err := errors.Join(n.KillDriver(), n.StartDriver(c.Ctx, "--oversubscription=1.5")); err != nil {
		t.Fatal(err)
	}
	c.node, c.devices = n, deviceNames(c.published(n))
	c.publishes(n, func(all []resourceapi.Device) bool {
		m := all[0].Capacity["memory"]
		return m.Value.Cmp(resource.MustParse("6Gi")) == 0 && m.RequestPolicy.ValidRange.Max.Cmp(resource.MustParse("4Gi")) == 0
	})
	const managed = 5 << 29 // bytes
	for _, name := range []string{"left", "right"} {
		c.starts(name, "3Gi", 0, script("gpu", fmt.Sprintf("%s --managed %d", stayProgram, managed)))
		c.settles(name)
	}
	for _, name := range []string{"left", "right"} {
		if v := c.knownOn(n, name)["gpu"]; v.GetMemory()[0].GetUsedBytes() < managed {
			t.Errorf("vgpud knows of %v", v)
		}
	}
	gpus, err := n.Daemon.PhysicalGPUs(c.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	if g := gpus[0]; g.GetMemoryReservedBytes() != 6<<30 || g.GetMemoryPromisedBytes() != 6<<30 || g.GetMemoryGuestBytes() != 0 {
		t.Errorf("of the GPU vgpud says %v", g)
	}
	c.claiming("beyond", c.asks("1Gi"), container("gpu", "vecadd"))
	c.waits("beyond", "cannot allocate all claims")
	c.remove("left")
	c.reaches("beyond", corev1.PodSucceeded)
}
