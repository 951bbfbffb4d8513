// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/kube/v1alpha1"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// allocation is what an allocated claim has on this node.
type allocation struct {
	grants  []*v1.ClaimGrant                            // by request
	results []resourceapi.DeviceRequestAllocationResult // ours, in the order of the claim
	memory  map[string]uint64                           // bytes of each device that it takes
}

// allocated reads what a claim was allocated. Errors are shown on the pod: they say what
// to change.
func allocated(claim *resourceapi.ResourceClaim, node string, gpus []*v1.GPU) (*allocation, error) {
	a := &allocation{memory: map[string]uint64{}}
	byRequest := map[string][]resourceapi.DeviceRequestAllocationResult{}
	var names []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver != DriverName {
			continue
		}
		if r.Pool != node {
			return nil, fmt.Errorf("request %q was allocated %s of the pool %q, and this is node %q: delete the pod, so that it is scheduled anew", r.Request, r.Device, r.Pool, node)
		}
		if byRequest[r.Request] == nil {
			names = append(names, r.Request)
		}
		byRequest[r.Request] = append(byRequest[r.Request], r)
		a.results = append(a.results, r)
	}
	pinned := tellsApart(claim)
	var errs []error
	for _, name := range names {
		grant, err := a.grant(claim, name, byRequest[name], gpus, pinned)
		if err != nil {
			errs = append(errs, fmt.Errorf("request %q: %w", name, err))
			continue
		}
		a.grants = append(a.grants, grant)
	}
	return a, errors.Join(errs...)
}

// grant is what one request gives to a container.
func (a *allocation) grant(claim *resourceapi.ResourceClaim, name string, results []resourceapi.DeviceRequestAllocationResult, gpus []*v1.GPU, pinned bool) (*v1.ClaimGrant, error) {
	config, err := configOf(claim, name)
	if err != nil {
		return nil, err
	}
	out := map[string]string{request.Prefix + "gpus": strconv.Itoa(len(results))}
	var uuids []string
	for i, r := range results {
		n := slices.IndexFunc(gpus, func(g *v1.GPU) bool { return deviceName(g) == r.Device })
		if n < 0 {
			return nil, fmt.Errorf("its GPU %s is not on this node any more, which has %s: delete the pod, so that it is scheduled anew", r.Device, describe(gpus))
		}
		each := []string{gpus[n].GetUuid()}
		if !pinned && !config.Pinned() {
			each = identical(gpus[n], gpus)
		}
		for _, u := range each {
			if !slices.Contains(uuids, u) {
				uuids = append(uuids, u)
			}
		}
		if r.AdminAccess != nil && *r.AdminAccess {
			continue // it takes nothing from others
		}
		memory, share, err := consumed(r)
		if err != nil {
			return nil, err
		}
		if most := gpus[n].GetMemoryBytes(); memory > most {
			return nil, fmt.Errorf("it asks for %s of memory, and %s, a %s, has %s: ask for at most that in its capacity.requests",
				request.FormatBytes(memory), gpus[n].GetUuid(), gpus[n].GetModel(), request.FormatBytes(most))
		}
		a.memory[r.Device] += memory
		was := out[request.Prefix+"memory"]
		if is := request.FormatBytes(memory); i > 0 && is != was {
			return nil, fmt.Errorf("its GPUs differ in memory (%s and %s): a GPU's default depends on its size, so say in the claim how much", was, is)
		}
		out[request.Prefix+"memory"] = request.FormatBytes(memory)
		// A share is a part of what there is to share: among shares that come to a
		// whole at most, weights of the same numbers give each at least its part.
		out[request.Prefix+"weight"] = strconv.FormatInt(share, 10)
	}
	out[request.Prefix+"uuid"] = strings.Join(uuids[:min(len(uuids), request.MaxCount)], ",")
	for key, value := range config.Annotations() {
		out[key] = value
	}
	if _, err := request.Parse(out, "", 0); err != nil {
		return nil, err
	}
	return &v1.ClaimGrant{Name: name, Annotations: out}, nil
}

// consumed is what an allocation takes of its device.
func consumed(r resourceapi.DeviceRequestAllocationResult) (memory uint64, share int64, _ error) {
	m, hasMemory := r.ConsumedCapacity[memoryCapacity]
	s, hasShare := r.ConsumedCapacity[shareCapacity]
	if r.ShareID == nil || !hasMemory || !hasShare {
		return 0, 0, errors.New("it was allocated a whole GPU, not a part of one: the feature gate DRAConsumableCapacity must be on in kube-apiserver, " +
			"kube-scheduler, kube-controller-manager and kubelet (from Kubernetes 1.36 on it is by default)")
	}
	bytes, ok := whole(m)
	percent, ok2 := whole(s)
	if !ok || !ok2 {
		return 0, 0, fmt.Errorf("it was allocated %s of memory and a share of %s, which are not whole and above 0", m.String(), s.String())
	}
	return uint64(bytes), percent, nil
}

func whole(q resource.Quantity) (int64, bool) {
	n, ok := q.AsInt64()
	return n, ok && n > 0
}

// configOf puts together the parameters of a request: those of its class, and over them
// those of the claim, each in their order.
func configOf(claim *resourceapi.ResourceClaim, name string) (*v1alpha1.VgpuConfig, error) {
	out := new(v1alpha1.VgpuConfig)
	for _, source := range []resourceapi.AllocationConfigSource{resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim} {
		for _, c := range claim.Status.Allocation.Devices.Config {
			if c.Source != source || c.Opaque == nil || c.Opaque.Driver != DriverName || !speaksOf(c.Requests, name) {
				continue
			}
			config, err := v1alpha1.Decode(c.Opaque.Parameters.Raw)
			if err != nil {
				where := "the claim"
				if source == resourceapi.AllocationConfigSourceClass {
					where = "its DeviceClass"
				}
				return nil, fmt.Errorf("VgpuConfig in %s: %w", where, err)
			}
			out.Merge(config)
		}
	}
	return out, nil
}

func speaksOf(requests []string, name string) bool {
	return len(requests) == 0 || slices.Contains(requests, name) || slices.Contains(requests, resourceclaim.BaseRequestRef(name))
}

// apart are the attributes in which GPUs differ that are identical otherwise.
var apart = []string{uuidAttribute, "pcieRoot", "pciBusID", "numaNode"}

// tellsApart says whether a claim's selectors or constraints may tell identical GPUs
// apart: then it was given the right ones, and another one is not as good.
func tellsApart(claim *resourceapi.ResourceClaim) bool {
	var said []string
	selectors := func(all []resourceapi.DeviceSelector) {
		for _, s := range all {
			if s.CEL != nil {
				said = append(said, s.CEL.Expression)
			}
		}
	}
	for _, r := range claim.Spec.Devices.Requests {
		if r.Exactly != nil {
			selectors(r.Exactly.Selectors)
		}
		for _, sub := range r.FirstAvailable {
			selectors(sub.Selectors)
		}
	}
	for _, c := range claim.Spec.Devices.Constraints {
		for _, a := range []*resourceapi.FullyQualifiedName{c.MatchAttribute, c.DistinctAttribute} {
			if a != nil {
				said = append(said, string(*a))
			}
		}
	}
	return slices.ContainsFunc(said, func(s string) bool {
		return slices.ContainsFunc(apart, func(name string) bool { return strings.Contains(s, name) })
	})
}

// podsOf are those for which a claim is reserved.
func podsOf(claim *resourceapi.ResourceClaim) (pods []*v1.Pod) {
	for _, r := range claim.Status.ReservedFor {
		if r.APIGroup == "" && r.Resource == "pods" {
			pods = append(pods, &v1.Pod{Namespace: claim.Namespace, Name: r.Name, Uid: string(r.UID)})
		}
	}
	return pods
}

// ofOnePod says whether a claim was made from a template, for the one pod that owns it.
func ofOnePod(claim *resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(claim.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Pod" && o.APIVersion == "v1" })
}
