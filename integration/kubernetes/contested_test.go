// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vgpu-shim/vgpu/vgpu/kube"
)

// contested waits until a node publishes its GPUs as somebody's, or as nobody else's.
func (c *cluster) contested(n *Node, who string) {
	c.T.Helper()
	c.publishes(n, func(all []resourceapi.Device) bool {
		return !slices.ContainsFunc(all, func(d resourceapi.Device) bool {
			i := slices.IndexFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == DriverName+"/contested" })
			if i < 0 {
				return who != ""
			}
			return d.Taints[i].Value != who || d.Taints[i].Effect != resourceapi.DeviceTaintEffectNoSchedule
		})
	})
}

// warned waits until kubectl describe says that a GPU of a node is somebody's as well,
// and what to do.
func (c *cluster) warned(n *Node, who string) {
	c.T.Helper()
	c.wait(func() error {
		text, err := c.Kubectl(c.Ctx, "describe", "node", n.Name)
		if err != nil {
			return err
		}
		for _, says := range []string{
			"ContestedGPU", c.uuids(n)[0] + " is offered to Kubernetes by " + who + " as well, which counts what it gives by itself",
			"Keep " + who + " away from this node, or start vgpu-kubelet with --allow-contested",
		} {
			if _, events, _ := strings.Cut(text, "\nEvents:"); !strings.Contains(events, says) {
				return fmt.Errorf("the events do not say %q:\n%s", says, events)
			}
		}
		return nil
	})
}

// A GPU that another driver offers takes no new claims, until that one is gone or
// vgpu-kubelet is told to give it away all the same; the node says why. Pods that have it
// go on.
func TestAnotherDriverOffersTheGPU(t *testing.T) {
	c := use(t)
	const rival = "gpu.example.com"
	claim := func() resourceapi.ResourceClaimSpec { return claimOf(ask("gpu", "1Gi", "10")) }
	c.claiming("before", claim(), idles())
	c.reaches("before", corev1.PodRunning)

	name, uuid := c.one.Name, c.uuids(c.one)[0]
	others := c.Client.ResourceV1().ResourceSlices()
	_, err := others.Create(c.Ctx, &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "rival"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: rival, NodeName: &name, Pool: resourceapi.ResourcePool{Name: name, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"uuid": {StringValue: &uuid}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	restart := func(flags ...string) {
		t.Helper()
		if err := c.one.KillDriver(); err != nil {
			t.Fatal(err)
		}
		if err := c.one.StartDriver(c.Ctx, flags...); err != nil {
			t.Fatal(err)
		}
	}
	restart() // it looks at once, and then each minute
	defer func() {
		if err := others.Delete(c.Ctx, "rival", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		restart()
		c.contested(c.one, "")
	}()
	c.contested(c.one, rival)
	c.warned(c.one, rival)
	c.claiming("refused", claim(), idles())
	c.waits("refused", "cannot allocate all claims")
	c.reaches("before", corev1.PodRunning)

	restart("--allow-contested")
	c.contested(c.one, "")
	c.reaches("refused", corev1.PodRunning)
}

// The device plugin of vgpu-kubelet is such a one, too.
func TestTheDevicePluginOffersTheGPU(t *testing.T) {
	c := plugIn(t)
	c.ready()
	if err := c.one.StartDriver(c.Ctx); err != nil {
		t.Fatal(err)
	}
	defer c.stopDriver()
	c.contested(c.one, strings.ReplaceAll(kube.LimitsGPU, "/", "_"))
	c.warned(c.one, kube.LimitsGPU)
	c.claiming("refused", claimOf(ask("gpu", "1Gi", "10")), idles())
	c.waits("refused", "cannot allocate all claims")
}
