// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vgpu-shim/vgpu/integration/kubernetes"
)

// judge looks at what the API server has in the end, and says all that is wrong.
func (p *place) judge(ctx context.Context, l *loaded) (wrong []error, _ error) {
	claims, err := p.cluster.Client.ResourceV1().ResourceClaims(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	pods, err2 := p.cluster.Client.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	if len(claims.Items) != p.pods || len(pods.Items) != p.pods {
		wrong = append(wrong, fmt.Errorf("there are %d claims and %d pods", len(claims.Items), len(pods.Items)))
	}
	return append(wrong, violations(p.slices, claims.Items, pods.Items, l.wishes)...), nil
}

// violations says where pods and their claims, which have one name, are not as was
// wished, or where more of a device or a node is given than it has.
func violations(published []resourceapi.ResourceSlice, claims []resourceapi.ResourceClaim, pods []corev1.Pod, wishes map[string]wish) (wrong []error) {
	devices := map[string]resourceapi.Device{}
	capacity := map[string]map[resourceapi.QualifiedName]resource.Quantity{}
	nodes := map[string]string{} // of each device
	for _, s := range published {
		for _, d := range s.Spec.Devices {
			devices[d.Name], nodes[d.Name] = d, *s.Spec.NodeName
			capacity[d.Name] = map[resourceapi.QualifiedName]resource.Quantity{"memory": d.Capacity["memory"].Value, "share": d.Capacity["share"].Value}
		}
	}
	wrong = kubernetes.Overcommitted(claims, capacity)
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	given := map[string]*resourceapi.ResourceClaim{}
	for i := range claims {
		given[claims[i].Name] = &claims[i]
	}
	taken := map[string]corev1.ResourceList{}
	for _, pod := range pods {
		w, c := wishes[pod.Name], given[pod.Name]
		if w.impossible {
			if pod.Spec.NodeName != "" || c.Status.Allocation != nil {
				say("pod %s asks for what no GPU has, and is on node %s: %+v", pod.Name, pod.Spec.NodeName, w)
			}
			continue
		}
		if pod.Spec.NodeName == "" || c.Status.Allocation == nil || len(c.Status.ReservedFor) != 1 || c.Status.ReservedFor[0].UID != pod.UID {
			say("pod %s is on node %q, its claim is %+v", pod.Name, pod.Spec.NodeName, c.Status)
			continue
		}
		if taken[pod.Spec.NodeName] == nil {
			taken[pod.Spec.NodeName] = corev1.ResourceList{}
		}
		for name, q := range pod.Spec.Containers[0].Resources.Requests {
			sum := taken[pod.Spec.NodeName][name]
			sum.Add(q)
			taken[pod.Spec.NodeName][name] = sum
		}
		different := map[string]bool{}
		for _, r := range c.Status.Allocation.Devices.Results {
			d := devices[r.Device]
			different[r.Device] = true
			memory, share := r.ConsumedCapacity["memory"], r.ConsumedCapacity["share"]
			if nodes[r.Device] != pod.Spec.NodeName || memory.Value() != w.memory<<20 || share.Value() != w.share ||
				w.model != "" && *d.Attributes["model"].StringValue != w.model {
				say("pod %s of %+v is on node %s and has %+v", pod.Name, w, pod.Spec.NodeName, r)
			}
		}
		if int64(len(different)) != w.gpus {
			say("pod %s of %+v has the GPUs %v", pod.Name, w, slices.Collect(maps.Keys(different)))
		}
	}
	for node, all := range taken {
		if cpu, memory := all[corev1.ResourceCPU], all[corev1.ResourceMemory]; cpu.MilliValue() > nodeCPUs*1000 || memory.Value() > nodeMemory<<30 {
			say("of node %s is taken %v", node, all)
		}
	}
	return wrong
}

// report says how fast it was, and how large our objects are.
func (p *place) report(ctx context.Context, l *loaded, d *driver) error {
	waits := slices.Sorted(maps.Values(l.waited))
	at := func(part float64) time.Duration {
		return waits[min(int(part*float64(len(waits))), len(waits)-1)].Round(time.Millisecond)
	}
	fmt.Printf("scale: %d pods placed in %v: %.1f a second\n", len(waits), l.took.Round(100*time.Millisecond), float64(len(waits))/l.took.Seconds())
	fmt.Printf("scale: from a pod's creation to its node: median %v, p90 %v, p99 %v, longest %v\n", at(0.5), at(0.9), at(0.99), at(1))
	list, err := p.cluster.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + d.node})
	if err != nil {
		return err
	}
	if len(list.Items) != 1 {
		return fmt.Errorf("node %s has the slices %v", d.node, list.Items)
	}
	slice := list.Items[0]
	// Each write of the driver's would have made it another version.
	writes := "none"
	if slice.ResourceVersion != p.slices[0].ResourceVersion {
		writes = fmt.Sprintf("some (resource version %s, was %s)", slice.ResourceVersion, p.slices[0].ResourceVersion)
	}
	size := func(what string, object any, stored int) error {
		text, err := json.Marshal(object)
		if err == nil {
			fmt.Printf("scale: %s: %d bytes stored, %d as JSON\n", what, stored, len(text))
		}
		return err
	}
	if err := size(fmt.Sprintf("a ResourceSlice of %d GPUs", p.gpus), &slice, slice.Size()); err != nil {
		return err
	}
	for name, w := range l.wishes {
		if w.gpus != 1 || w.model != "" || w.impossible {
			continue
		}
		c, err := p.cluster.Client.ResourceV1().ResourceClaims(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := size("a claim of one GPU, allocated", c, c.Size()); err != nil {
			return err
		}
		break
	}
	fmt.Printf("scale: writes of the driver to its slice while pods were placed: %s\n", writes)
	return nil
}
