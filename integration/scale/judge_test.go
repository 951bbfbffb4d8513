// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// The judge finds nothing in a cluster where all is right, and each thing that is wrong.
func TestViolations(t *testing.T) {
	device := func(name, model string) resourceapi.Device {
		return resourceapi.Device{
			Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"model": {StringValue: &model}},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}, "share": {Value: resource.MustParse("100")}},
		}
	}
	left, right := "left", "right"
	published := []resourceapi.ResourceSlice{
		{Spec: resourceapi.ResourceSliceSpec{NodeName: &left, Devices: []resourceapi.Device{device("l0", "A100"), device("l1", "A100")}}},
		{Spec: resourceapi.ResourceSliceSpec{NodeName: &right, Devices: []resourceapi.Device{device("r0", "H200")}}},
	}
	share := types.UID("share")
	result := func(device, memory string) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{Device: device, ShareID: &share, ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse(memory), "share": resource.MustParse("40"),
		}}
	}
	for _, test := range []struct {
		description string
		change      func(pods []corev1.Pod, claims []resourceapi.ResourceClaim)
		wrong       int
	}{
		{"all is right", func([]corev1.Pod, []resourceapi.ResourceClaim) {}, 0},
		{"a pod has no node", func(p []corev1.Pod, _ []resourceapi.ResourceClaim) { p[0].Spec.NodeName = "" }, 1},
		{"its device is another node's", func(p []corev1.Pod, _ []resourceapi.ResourceClaim) { p[0].Spec.NodeName = right }, 1},
		{"a claim is another pod's", func(_ []corev1.Pod, c []resourceapi.ResourceClaim) { c[0].Status.ReservedFor[0].UID = "p1" }, 1},
		{"a claim has less than it asked for", func(_ []corev1.Pod, c []resourceapi.ResourceClaim) {
			c[0].Status.Allocation.Devices.Results[0] = result("l0", "20Gi")
		}, 1},
		{"a device of another model", func(p []corev1.Pod, c []resourceapi.ResourceClaim) {
			p[2].Spec.NodeName = left
			c[2].Status.Allocation.Devices.Results[0] = result("l1", "40Gi")
		}, 1},
		{"one GPU in place of two", func(_ []corev1.Pod, c []resourceapi.ResourceClaim) {
			c[1].Status.Allocation.Devices.Results[0] = result("l1", "40Gi")
		}, 1},
		{"a device is given away twice", func(_ []corev1.Pod, c []resourceapi.ResourceClaim) {
			c[0].Status.Allocation.Devices.Results[0] = result("l1", "40Gi")
			c[1].Status.Allocation.Devices.Results[1] = result("l1", "41Gi")
		}, 2}, // and it is more than was asked for
		{"a node's CPUs are given away twice", func(p []corev1.Pod, _ []resourceapi.ResourceClaim) {
			p[0].Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("95")
		}, 1},
		{"what no GPU has was given", func(p []corev1.Pod, _ []resourceapi.ResourceClaim) { p[3].Spec.NodeName = left }, 1},
	} {
		t.Run(test.description, func(t *testing.T) {
			wishes := map[string]wish{
				"p0": {memory: 40 << 10, share: 40, gpus: 1}, "p1": {memory: 40 << 10, share: 40, gpus: 2},
				"p2": {memory: 40 << 10, share: 40, gpus: 1, model: "H200"}, "p3": {impossible: true},
			}
			given := [][]string{{"l0"}, {"l0", "l1"}, {"r0"}, nil}
			var pods []corev1.Pod
			var claims []resourceapi.ResourceClaim
			for i, devices := range given {
				var p corev1.Pod
				var c resourceapi.ResourceClaim
				p.Name, p.UID = fmt.Sprintf("p%d", i), types.UID(fmt.Sprintf("p%d", i))
				p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")}}}}
				c.Name = p.Name
				if devices != nil {
					p.Spec.NodeName = map[byte]string{'l': left, 'r': right}[devices[0][0]]
					c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{UID: p.UID}}
					c.Status.Allocation = &resourceapi.AllocationResult{}
				}
				for _, d := range devices {
					c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, result(d, "40Gi"))
				}
				pods, claims = append(pods, p), append(claims, c)
			}
			test.change(pods, claims)
			if wrong := violations(published, claims, pods, wishes); len(wrong) != test.wrong {
				t.Errorf("%d are wrong, want %d: %v", len(wrong), test.wrong, wrong)
			}
		})
	}
}
