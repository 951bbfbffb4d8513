// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/claim"
)

// limitsOf is what the device plugin tells of a container, of whose pod it knows the
// UID alone.
func limitsOf(uid, container string, g *v1.ClaimGrant) *v1.Claim {
	g.Name = claim.LimitsRequest
	return &v1.Claim{
		Uid: claim.OfLimits(uid, container).UID, Name: "limits of " + container,
		Requests: []*v1.ClaimGrant{g}, Pods: []*v1.Pod{{Uid: uid, Container: container}},
	}
}

// resolveLimits asks as the shim does for a container.
func (n *node) resolveLimits(pod *v1.Pod, of claim.Pointer) (*v1.ResolveClaimsResponse, error) {
	resp, err := n.control.ResolveClaims(n.t.Context(), &v1.ResolveClaimsRequest{Pod: pod, Pointers: []*v1.ClaimPointer{{Claim: of.UID, Request: of.Request}}})
	return resp, errgrpc.ToNative(err)
}

func TestLimitsAnswerToTheirContainer(t *testing.T) {
	n := newNode(t, settings{gpus: 1})
	n.daemon.claims.patience = 0
	n.setClaim(limitsOf("u-a", "main", &v1.ClaimGrant{Annotations: map[string]string{"vgpu-shim.dev/gpus": "1", "vgpu-shim.dev/memory": "4Gi"}}))
	n.setClaim(limitsOf("u-a", "greedy", &v1.ClaimGrant{Refusal: "it asks for too much"}))
	in := func(uid, container string) *v1.Pod {
		return &v1.Pod{Namespace: "ml", Name: "a", Uid: uid, Container: container}
	}
	got, err := n.resolveLimits(in("u-a", "main"), claim.OfLimits("u-a", "main"))
	if err != nil || got.GetAnnotations()["vgpu-shim.dev/memory"] != "4Gi" || got.GetClaims()[0] != "limits of main (request limits)" {
		t.Errorf("%v, %v", got, err)
	}
	for _, tc := range []struct {
		description string
		pod         *v1.Pod
		of          claim.Pointer
		is          error
		says        string
	}{
		{"another container of the pod", in("u-a", "side"), claim.OfLimits("u-a", "main"), errdefs.ErrPermissionDenied, "limits of main is reserved for container main of the pod of the uid u-a, not for"},
		{"another pod", in("u-b", "main"), claim.OfLimits("u-a", "main"), errdefs.ErrPermissionDenied, "not for the pod ml/a (uid u-b)"},
		{"a container that was refused", in("u-a", "greedy"), claim.OfLimits("u-a", "greedy"), errdefs.ErrFailedPrecondition, "limits of greedy: it asks for too much"},
		{"a container of which nothing was told", in("u-a", "side"), claim.OfLimits("u-a", "side"), errdefs.ErrNotFound, "vgpud does not know the claim pod.u-a.side"},
		{"no pod", nil, claim.OfLimits("", ""), errdefs.ErrFailedPrecondition, "in none"},
	} {
		t.Run(tc.description, func(t *testing.T) {
			resp, err := n.resolveLimits(tc.pod, tc.of)
			if !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, %v; want %v that says %q", resp, err, tc.is, tc.says)
			}
		})
	}
	// A container beside it that was given nothing has no GPU by default.
	if got, err := n.resolve(in("u-a", "side")); err != nil || !got.GetClaimed() {
		t.Errorf("beside it: %v, %v", got, err)
	}
}

// The DRA driver and the device plugin each count what they gave themselves.
func TestAGPUIsNotCountedTwice(t *testing.T) {
	gives := map[string]string{"vgpu-shim.dev/gpus": "1"}
	limits := limitsOf("u-b", "main", &v1.ClaimGrant{Annotations: gives})
	for _, tc := range []struct {
		description   string
		first, second *v1.Claim
		says          string
	}{
		{"limits beside a claim", claimOf(podA), limits, "ml/a (uid u-a) has a GPU of this node by a claim (DRA), and the device plugin would give it away once more: run one of both here"},
		{"a claim beside limits", limits, claimOf(podA), "ml/a (uid u-a) has a GPU of this node by its limits (device plugin), and a claim would give it away once more: run one of both here"},
	} {
		t.Run(tc.description, func(t *testing.T) {
			n := newNode(t, settings{gpus: 1})
			n.setClaim(tc.first)
			// What nobody uses is in nobody's way: its driver may be gone for good.
			n.setClaim(tc.second)
			if _, err := n.control.DeleteClaim(t.Context(), &v1.DeleteClaimRequest{Uid: tc.second.GetUid()}); err != nil {
				t.Fatal(err)
			}
			r := n.request("main")
			r.Pod, r.Claims = podA, []*v1.ClaimPointer{{Claim: tc.first.GetUid(), Request: tc.first.GetRequests()[0].GetName()}}
			if _, err := n.control.Create(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			_, err := n.control.SetClaim(t.Context(), &v1.SetClaimRequest{Claim: tc.second})
			if err = errgrpc.ToNative(err); !errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v; want one that says %q", err, tc.says)
			}
			n.setClaim(tc.first) // what is there stays, and may be told again
			n.setClaim(limitsOf("u-c", "main", &v1.ClaimGrant{Refusal: "it gives nothing"}))
		})
	}
}
