// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/vgpu-shim/vgpu/vgpu/kube"
)

// A limit of the class's extended resource needs no claim of the user's: the scheduler
// makes one, and the container has a vGPU of the default memory and share. The other
// container has none, and what the node has not is waited for.
func TestLimitsServedByTheDriver(t *testing.T) {
	c := use(t)
	p := pod("limits", nil, limits(script("gpu", "sh -c 'monitor && vecadd && echo computed && exec sleep 100000'"), 1, 0, 0),
		container("logger", "sh", "-c", "vecadd || ls -d /.vgpu || echo nothing; exec sleep 100000"))
	c.create(p)
	c.says("limits", "gpu", "computed")
	c.says("limits", "logger", "nothing\n")
	made, err := c.get("limits")
	if err != nil {
		t.Fatal(err)
	}
	s := made.Status.ExtendedResourceClaimStatus
	if s == nil || len(s.RequestMappings) != 1 || s.RequestMappings[0].ContainerName != "gpu" || s.RequestMappings[0].ResourceName != kube.LimitsGPU {
		t.Fatalf("the scheduler has served it by %+v", s)
	}
	claim := c.getClaim(s.ResourceClaimName)
	device := c.published(c.one)[0]
	memory, share := device.Capacity["memory"].RequestPolicy.Default, device.Capacity["share"].RequestPolicy.Default
	if results := claim.Status.Allocation.Devices.Results; len(results) != 1 || results[0].Device != device.Name || !takes(results[0], memory.String(), share.String()) {
		t.Errorf("the claim has %+v", results)
	}
	known := c.known("limits")
	v := known["gpu"]
	if len(known) != 1 || v.GetMemoryBytes() != uint64(memory.Value()) || int64(v.GetWeight()) != share.Value() || len(v.GetClaims()) != 1 || v.GetClaims()[0].GetClaim() != string(claim.UID) {
		t.Errorf("vgpud knows of %v, want %s and a weight of %s by claim %s", known, memory, share, claim.UID)
	}
	c.create(pod("two", nil, limits(idles(), 2, 0, 0)))
	c.waits("two", "cannot allocate all claims")
	c.remove("limits")
	// Its end gives the GPU back.
	c.claiming("whole", claimOf(ask("gpu", "", "100")), idles())
	c.reaches("whole", corev1.PodRunning)
}
