// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"

	"github.com/containerd/errdefs"

	"github.com/vgpu-shim/vgpu/hooks/oci"
	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/claim"
	"github.com/vgpu-shim/vgpu/vgpu/request"

	"github.com/vgpu-shim/vgpu/shim/bundle"
)

// claimed are the pointers to Kubernetes claims that a container has, each once.
func claimed(s bundle.Summary) (out []claim.Pointer) {
	seen := map[claim.Pointer]bool{}
	for _, at := range s.Places() {
		p, ok := claim.Parse(at.Source)
		if at.Destination == claim.LimitsDestination {
			in := pod(s)
			p, ok = claim.OfLimits(in.GetUid(), in.GetContainer()), true
		}
		if ok && !seen[p] {
			seen[p] = true
			out = append(out, p)
		}
	}
	return out
}

// byDefault says whether a container with these annotations has a vGPU only because
// that is the handler's default.
func byDefault(annotations map[string]string, container string) bool {
	req, err := request.Parse(annotations, container, 0)
	return err == nil && req.Count == 0
}

// resolve asks vgpud what the claims give to which a container points, and whether its
// pod has any. That the container is one of the pod's is the CRI's word, which vgpud
// holds against the pods for which a claim is reserved.
func (s *service) resolve(ctx context.Context, id string, h handler, sum bundle.Summary, pointers []claim.Pointer) (*v1.ResolveClaimsResponse, error) {
	limited, cancel := context.WithTimeout(ctx, s.createTimeout)
	defer cancel()
	var resp *v1.ResolveClaimsResponse
	_, err := s.ask(ctx, limited, "get what the claims of container "+id+" give", h.Address, func(c v1.ControlClient) (err error) {
		resp, err = c.ResolveClaims(limited, &v1.ResolveClaimsRequest{Pod: pod(sum), Pointers: messages(pointers)})
		return err
	})
	if err == nil {
		return resp, nil
	}
	if len(pointers) == 0 && errdefs.IsNotImplemented(err) {
		return &v1.ResolveClaimsResponse{}, nil // a vgpud from before there were claims
	}
	return nil, err
}

func messages(pointers []claim.Pointer) (out []*v1.ClaimPointer) {
	for _, p := range pointers {
		out = append(out, &v1.ClaimPointer{Claim: p.UID, Request: p.Request})
	}
	return out
}

// unpoint takes the pointers away, which lead nowhere.
func unpoint(pointers []claim.Pointer) (out []oci.Edit) {
	for _, p := range pointers {
		if claim.IsOfLimits(p.UID) {
			out = append(out, oci.NoMount{Destination: claim.LimitsDestination})
		} else {
			out = append(out, oci.NoMount{Source: p.Source()})
		}
	}
	return out
}
