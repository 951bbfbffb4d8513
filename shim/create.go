// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/claim"
	"github.com/vgpu-shim/vgpu/vgpu/request"

	"github.com/vgpu-shim/vgpu/shim/bundle"
	"github.com/vgpu-shim/vgpu/shim/mounts"
)

// The annotation with which a CRI marks the pause container of a pod.
const (
	containerTypeAnnotation = "io.kubernetes.cri.container-type"
	sandboxType             = "sandbox"
)

// The annotations in which it names the pod of each container (containerd,
// internal/cri/annotations).
const (
	podNamespaceAnnotation = "io.kubernetes.cri.sandbox-namespace"
	podNameAnnotation      = "io.kubernetes.cri.sandbox-name"
	podUIDAnnotation       = "io.kubernetes.cri.sandbox-uid"
)

// Create creates a container, with a vGPU if its annotations or the handler's
// default ask for one. It fails, and leaves nothing, if the vGPU can not be
// had: there is no falling back to a whole GPU.
func (s *service) Create(ctx context.Context, r *taskv3.CreateTaskRequest) (*taskv3.CreateTaskResponse, error) {
	defer s.create(r.GetID())()
	h, err := s.load(r.GetOptions())
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	config, err := bundle.LoadConfig(r.GetBundle())
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	summary, err := config.Summary()
	if err != nil {
		return nil, errgrpc.ToGRPC(invalid(err))
	}
	// The request was made for this call; the inner service accepts no other
	// type of options, and panics on them.
	if r.Options, err = marshalOptions(h.runcOptions(summary.Linux.CgroupsPath)); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	req, pointers, err := s.wanted(ctx, r.GetID(), h, summary)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if req.Count == 0 {
		return s.TTRPCTaskService.Create(ctx, r)
	}
	if err := checkQuota(req, summary); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if r.GetCheckpoint() != "" {
		return nil, errgrpc.ToGRPC(fmt.Errorf("container %s asks for a vGPU and can not be restored from a checkpoint: %w",
			r.GetID(), errdefs.ErrFailedPrecondition))
	}
	return s.createWithVGPU(ctx, r, h, config, want{req, summary, pointers})
}

// want is what a container is to get.
type want struct {
	request.Request
	summary  bundle.Summary // of its config.json
	pointers []claim.Pointer
}

// wanted is the request that the container makes, by its annotations and by the claims
// to which it points. The pause container of a pod carries the pod's annotations and
// makes none.
func (s *service) wanted(ctx context.Context, id string, h handler, sum bundle.Summary) (request.Request, []claim.Pointer, error) {
	var none request.Request
	if sum.Annotations[containerTypeAnnotation] == sandboxType {
		return none, nil, nil
	}
	ours, err := h.Annotations(sum.Annotations)
	if err != nil {
		return none, nil, invalid(err)
	}
	name := sum.Annotations[request.ContainerName]
	pointers := claimed(sum)
	if len(pointers) == 0 {
		req, err := h.Limits.Parse(ours, name, h.DefaultCount)
		if err != nil {
			return none, nil, invalid(err)
		}
		if req.Count > 0 && pod(sum) != nil && byDefault(ours, name) {
			// Beside a container that has a claim, one without gets none: the
			// scheduler counted no GPU for it.
			resp, err := s.resolve(ctx, id, h, sum, nil)
			if err != nil {
				return none, nil, err
			}
			if resp.GetClaimed() {
				return none, nil, nil
			}
		}
		return req, nil, nil
	}
	resp, err := s.resolve(ctx, id, h, sum, pointers)
	if err != nil {
		return none, nil, err
	}
	all, err := request.Claimed(ours, resp.GetAnnotations(), name)
	if err == nil {
		var req request.Request
		if req, err = h.Limits.Parse(all, name, h.DefaultCount); err == nil {
			return req, pointers, nil
		}
	}
	return none, nil, invalid(fmt.Errorf("container %s of claim %s: %w", name, strings.Join(resp.GetClaims(), " and "), err))
}

// pod is the pod that a CRI says a container is in, nil if it says none.
func pod(s bundle.Summary) *v1.Pod {
	if s.Annotations[podNameAnnotation] == "" {
		return nil
	}
	return &v1.Pod{
		Namespace: s.Annotations[podNamespaceAnnotation], Name: s.Annotations[podNameAnnotation],
		Uid: s.Annotations[podUIDAnnotation], Container: s.Annotations[request.ContainerName],
	}
}

// createWithVGPU makes the vGPU, puts it into config.json and creates the
// container. Whatever fails, what was done before is undone, last first.
func (s *service) createWithVGPU(ctx context.Context, r *taskv3.CreateTaskRequest, h handler, config *bundle.Config,
	w want,
) (_ *taskv3.CreateTaskResponse, retErr error) {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	id, dir := r.GetID(), r.GetBundle()
	if err := s.reserve(id, tenant{bundle: dir, ownPIDs: w.summary.OwnPIDNamespace()}); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	defer func() {
		if retErr != nil {
			s.forget(id)
		}
	}()

	state := bundle.State{
		Address:    h.Address,
		Namespace:  ns,
		ID:         id,
		Containerd: s.containerd,
		Instance:   rand.Text(),
	}
	config.Prepare()
	answer, err := s.createVGPU(ctx, state, &v1.CreateRequest{
		Container:    container(state),
		Instance:     state.Instance,
		Bundle:       dir,
		Annotations:  w.Annotations(),
		DefaultCount: uint32(h.DefaultCount), //nolint:gosec // G115: Load has checked that it is 0 to 16
		Pod:          pod(w.summary),
		Requirements: requirements(h, w.summary.Process.Env),
		Claims:       messages(w.pointers),
	})
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	defer func() {
		if retErr != nil {
			limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.releaseTimeout)
			defer cancel()
			undo(limited, dir, state)
		}
	}()

	s.giveLayer(id, openCLLayer(answer.GetEdits()))
	now, after := edits(answer.GetEdits(), s.later(w.summary))
	var driver mounting
	if len(after) > 0 {
		driver = s.mount(after) // meanwhile the runtime makes the container
		defer func() {
			if driver != nil {
				driver.Drop()
			}
		}()
	}
	if err := config.Apply(append(unpoint(w.pointers), now...)...); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("failed to put the vGPU into container %s: %w", id, err))
	}
	defer func() {
		if retErr != nil {
			if err := config.Restore(); err != nil {
				log.G(ctx).WithError(err).WithField("id", id).Error("failed to restore the OCI spec")
			}
		}
	}()

	if err := ctx.Err(); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	resp, err := s.TTRPCTaskService.Create(ctx, r)
	if err != nil || driver == nil {
		return resp, err
	}
	err = driver.Put(int(resp.GetPid()), w.summary.Rootfs(dir))
	driver = nil
	if errors.Is(err, mounts.ErrEnded) {
		return resp, nil // somebody has killed it; nothing of it will run
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(errors.Join(fmt.Errorf("failed to put the vGPU into container %s: %w", id, err), s.discard(ctx, id)))
	}
	return resp, nil
}

// createVGPU asks vgpud for the vGPU that state names. The state file is
// written first: from then on whoever cleans up the bundle knows that there
// may be a vGPU, even if this process dies before the answer. On an error
// nothing is left, unless vgpud stopped answering in the middle: then the
// state file stays, for Stop.
func (s *service) createVGPU(ctx context.Context, state bundle.State, request *v1.CreateRequest) (*v1.CreateResponse, error) {
	dir := request.GetBundle()
	if err := state.Write(dir); err != nil {
		return nil, err
	}
	// All the time that vgpud gets: to be reached, to answer, and to take back.
	// A caller who gives up does not end it. A request that was sent is answered
	// before anything else is asked: a release that overtakes it inside vgpud
	// would find nothing, and leave what is made afterwards to nobody.
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.createTimeout)
	defer cancel()
	var answer *v1.CreateResponse
	// A successor is asked for the same instance, and gives what may have been made
	// already.
	asked, err := s.ask(ctx, limited, "create the vGPU of container "+state.ID, state.Address, func(c v1.ControlClient) (err error) {
		answer, err = c.Create(limited, request)
		return err
	})
	switch {
	case err == nil:
		return answer, nil
	case !asked:
		// There is nothing to release.
		return nil, errors.Join(err, bundle.RemoveState(dir))
	}
	undo(limited, dir, state)
	return nil, err
}

// undo releases the vGPU of a container that could not be created. It does not
// look for the state in the bundle, which may be gone: containerd removes it as
// soon as it has heard that the caller gave up.
func undo(ctx context.Context, dir string, state bundle.State) {
	if err := giveBack(ctx, dir, state); err != nil {
		log.G(ctx).WithError(err).WithField("id", state.ID).Warn("left to the cleanup of the bundle")
	}
}
