// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/claim"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// claims are the Kubernetes claims that were prepared on this node. What one gives is
// fixed when a vGPU is made; the engine knows of them what memory they were promised.
type claims struct {
	patience time.Duration // how long one that is not there is waited for

	mu      sync.Mutex
	all     map[string]*v1.Claim // by uid; what is in it is never changed in place
	changed chan struct{}        // closed when all changes, and made anew
}

// claimPatience bridges the time between two that tell of one thing on their own:
// kubelet starts a container of a second pod without telling the driver, which hears
// of the pod from the API server.
const claimPatience = time.Second

func newClaims() *claims {
	return &claims{patience: claimPatience, all: map[string]*v1.Claim{}, changed: make(chan struct{})}
}

// claimKey is under which a claim stands in the store.
func claimKey(uid string) string { return claimPrefix + uid }

const claimPrefix = "claim/"

// SetClaim makes a claim known, or changes it.
func (d *Daemon) SetClaim(_ context.Context, r *v1.SetClaimRequest) (*v1.SetClaimResponse, error) {
	if err := d.setClaim(r.GetClaim()); err != nil {
		d.log.WithField("claim", claimName(r.GetClaim())).WithError(err).Warn("claim refused")
		return nil, errgrpc.ToGRPC(err)
	}
	return &v1.SetClaimResponse{}, nil
}

func (d *Daemon) setClaim(c *v1.Claim) error {
	if err := checkClaim(c); err != nil {
		return err
	}
	gives := false
	for _, r := range c.GetRequests() {
		if r.GetRefusal() != "" {
			continue
		}
		gives = true
		req, err := request.Parse(r.GetAnnotations(), "", 1)
		if err == nil {
			err = possible(d.inventory.GPUs(), req)
		}
		if err == nil {
			err = canPromise(d.inventory.GPUs(), r.GetPromises())
		}
		if err != nil {
			return fmt.Errorf("request %q: %w", r.GetName(), err)
		}
	}
	defer d.alone(claimKey(c.GetUid()))()
	if proto.Equal(d.claims.get(c.GetUid()), c) {
		return nil
	}
	if gives {
		if err := d.countedOnce(c); err != nil {
			return err
		}
	}
	data, err := protojson.Marshal(c)
	if err != nil {
		return fmt.Errorf("failed to encode the claim: %w", err)
	}
	if err := saveNode(d.nodeStore, claimKey(c.GetUid()), data); err != nil {
		return fmt.Errorf("failed to keep the claim: %w", err)
	}
	was := d.claims.set(c.GetUid(), c)
	d.log.WithField("claim", claimName(c)).WithField("pods", len(c.GetPods())).Debug("claim set")
	// Before a container of it can be made.
	return d.call(func(l *loop) { l.promise(was, c) })
}

// canPromise refuses what no GPU can keep. One that is not there keeps nothing.
func canPromise(all []gpu.GPU, promises []*v1.Promise) error {
	for _, p := range promises {
		for _, g := range all {
			if g.UUID == p.GetGpu() && p.GetMemoryBytes() > g.MemoryBytes {
				return fmt.Errorf("%s of memory of %s were promised, which has %s: %w",
					request.FormatBytes(p.GetMemoryBytes()), g.UUID, request.FormatBytes(g.MemoryBytes), errdefs.ErrFailedPrecondition)
			}
		}
	}
	return nil
}

// DeleteClaim forgets a claim.
func (d *Daemon) DeleteClaim(_ context.Context, r *v1.DeleteClaimRequest) (*v1.DeleteClaimResponse, error) {
	var f faults
	f.claimUID("uid", r.GetUid())
	if err := f.err(); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	defer d.alone(claimKey(r.GetUid()))()
	// One that could not be read may still stand in the store.
	if err := saveNode(d.nodeStore, claimKey(r.GetUid()), nil); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("failed to forget the claim: %w", err))
	}
	was := d.claims.set(r.GetUid(), nil)
	if err := d.call(func(l *loop) { l.promise(was, nil) }); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &v1.DeleteClaimResponse{}, nil
}

// promise lets the engine keep the memory that a claim was promised, and none any more
// that it was promised before. Either may be nil.
func (l *loop) promise(was, is *v1.Claim) {
	type of struct{ name, gpu string }
	over := map[of]bool{}
	each := func(c *v1.Claim, do func(of, *v1.Promise)) {
		for _, r := range c.GetRequests() {
			for _, p := range r.GetPromises() {
				do(of{promiseName(c.GetUid(), r.GetName()), p.GetGpu()}, p)
			}
		}
	}
	each(was, func(o of, _ *v1.Promise) { over[o] = true })
	each(is, func(o of, p *v1.Promise) {
		delete(over, o)
		l.event(arbiter.Event{Kind: arbiter.Promised, Promise: o.name, GPU: arbiter.UUID(o.gpu), MemoryBytes: p.GetMemoryBytes(), Claimable: p.GetClaimableBytes()})
	})
	each(was, func(o of, _ *v1.Promise) {
		if over[o] {
			l.event(arbiter.Event{Kind: arbiter.Promised, Promise: o.name, GPU: arbiter.UUID(o.gpu)})
		}
	})
}

// promiseName is what the engine calls that of a request.
func promiseName(claim, request string) string { return claim + "/" + request }

// ListClaims tells of all claims.
func (d *Daemon) ListClaims(context.Context, *v1.ListClaimsRequest) (*v1.ListClaimsResponse, error) {
	d.claims.mu.Lock()
	all := slices.Collect(maps.Values(d.claims.all))
	d.claims.mu.Unlock()
	slices.SortFunc(all, func(a, b *v1.Claim) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()), strings.Compare(a.GetUid(), b.GetUid()))
	})
	return &v1.ListClaimsResponse{Claims: all}, nil
}

// ResolveClaims answers what the claims give to which a container points.
func (d *Daemon) ResolveClaims(ctx context.Context, r *v1.ResolveClaimsRequest) (*v1.ResolveClaimsResponse, error) {
	var f faults
	f.pod("pod", r.GetPod())
	f.pointers("pointers", r.GetPointers())
	err := f.err()
	var resp *v1.ResolveClaimsResponse
	if err == nil {
		resp, err = d.claims.resolve(ctx, r.GetPod(), r.GetPointers())
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return resp, nil
}

// restoreClaims takes in the claims that an earlier vgpud knew.
func (d *Daemon) restoreClaims() {
	for _, name := range d.nodeStore.nodeNames(claimPrefix) {
		c := new(v1.Claim)
		data, err := d.nodeStore.loadNode(name)
		if err == nil {
			// A newer vgpud may have written more.
			err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, c)
		}
		if err == nil && claimKey(c.GetUid()) != name {
			err = fmt.Errorf("it is that of %q", c.GetUid())
		}
		if err != nil {
			d.log.WithField("claim", strings.TrimPrefix(name, claimPrefix)).WithError(err).
				Error("what is known of a claim can not be used; its containers can not start until vgpu-kubelet tells it again")
			continue
		}
		d.claims.set(c.GetUid(), c)
		d.loop.promise(nil, c)
	}
}

func (c *claims) get(uid string) *v1.Claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[uid]
}

// set makes a claim known, or forgets it if it is nil. It returns the one that it was.
func (c *claims) set(uid string, to *v1.Claim) (was *v1.Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was = c.all[uid]
	if to == nil {
		delete(c.all, uid)
	} else {
		c.all[uid] = proto.Clone(to).(*v1.Claim)
	}
	close(c.changed)
	c.changed = make(chan struct{})
	return was
}

func (c *claims) resolve(ctx context.Context, pod *v1.Pod, pointers []*v1.ClaimPointer) (*v1.ResolveClaimsResponse, error) {
	if len(pointers) > 0 && pod.GetUid() == "" {
		return nil, fmt.Errorf("claim %s is only for a container of a Kubernetes pod, and this one is in none: %w", pointers[0].GetClaim(), errdefs.ErrFailedPrecondition)
	}
	late := time.NewTimer(c.patience)
	defer late.Stop()
	for {
		resp, changed, err := c.lookUp(pod, pointers)
		if changed == nil {
			return resp, err
		}
		select {
		case <-changed:
		case <-late.C:
			return nil, err
		case <-ctx.Done():
			return nil, err
		}
	}
}

// lookUp is resolve as it stands now. If the error may come right by itself, changed
// is closed when it is worth another look; else it is nil.
func (c *claims) lookUp(pod *v1.Pod, pointers []*v1.ClaimPointer) (_ *v1.ResolveClaimsResponse, changed <-chan struct{}, _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	resp := &v1.ResolveClaimsResponse{}
	for _, claim := range c.all {
		resp.Claimed = resp.GetClaimed() || reservedForPod(claim, pod)
	}
	for _, p := range pointers {
		claim := c.all[p.GetClaim()]
		if claim == nil {
			return nil, c.changed, fmt.Errorf("vgpud does not know the claim %s: it was not prepared on this node, or was released; see the log of vgpu-kubelet: %w", p.GetClaim(), errdefs.ErrNotFound)
		}
		if !reservedFor(claim, pod) {
			return nil, c.changed, fmt.Errorf("claim %s is reserved for %s, not for the pod %s/%s (uid %s): %w", claimName(claim), podNames(claim),
				pod.GetNamespace(), pod.GetName(), pod.GetUid(), errdefs.ErrPermissionDenied)
		}
		i := slices.IndexFunc(claim.GetRequests(), func(g *v1.ClaimGrant) bool { return g.GetName() == p.GetRequest() })
		if i < 0 {
			return nil, nil, fmt.Errorf("claim %s has no request %s for this node: %w", claimName(claim), clip(p.GetRequest()), errdefs.ErrNotFound)
		}
		if why := claim.GetRequests()[i].GetRefusal(); why != "" {
			return nil, nil, fmt.Errorf("%s: %s: %w", claimName(claim), why, errdefs.ErrFailedPrecondition)
		}
		name := fmt.Sprintf("%s (request %s)", claimName(claim), p.GetRequest())
		gives := claim.GetRequests()[i].GetAnnotations()
		if resp.GetAnnotations() != nil {
			both, err := request.Both(resp.GetAnnotations(), gives)
			if err != nil {
				return nil, nil, fmt.Errorf("claims %s and %s: %s: %w", strings.Join(resp.GetClaims(), " and "), name, err.Error(), errdefs.ErrInvalidArgument)
			}
			gives = both
		}
		resp.Annotations, resp.Claims = gives, append(resp.GetClaims(), name)
	}
	return resp, nil, nil
}

// reservation is what the containers with these pointers have in common if their
// claims say how much memory they have: the scheduler counted that once, however many
// share it. It has the names of their promises. Empty: none.
func (c *claims) reservation(pointers []*v1.ClaimPointer) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, p := range pointers {
		claim := c.all[p.GetClaim()]
		if !slices.ContainsFunc(claim.GetRequests(), func(g *v1.ClaimGrant) bool {
			return g.GetName() == p.GetRequest() && g.GetAnnotations()[request.Prefix+"memory"] != ""
		}) {
			return ""
		}
		names = append(names, promiseName(p.GetClaim(), p.GetRequest()))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// reservedFor says whether a claim is for a container.
func reservedFor(c *v1.Claim, pod *v1.Pod) bool {
	return slices.ContainsFunc(c.GetPods(), func(p *v1.Pod) bool {
		return isPod(p, pod) && (p.GetContainer() == "" || p.GetContainer() == pod.GetContainer())
	})
}

// reservedForPod says whether it is for some container of the pod.
func reservedForPod(c *v1.Claim, pod *v1.Pod) bool {
	return slices.ContainsFunc(c.GetPods(), func(p *v1.Pod) bool { return isPod(p, pod) })
}

func isPod(p, pod *v1.Pod) bool {
	if p.GetUid() == "" || p.GetUid() != pod.GetUid() {
		return false
	}
	return p.GetName() == "" && p.GetNamespace() == "" || p.GetNamespace() == pod.GetNamespace() && p.GetName() == pod.GetName()
}

// countedOnce refuses what a ResourceClaim gives while a container has what the device
// plugin gave, and the other way round: each counts only its own.
func (d *Daemon) countedOnce(c *v1.Claim) error {
	limits := claim.IsOfLimits(c.GetUid())
	var other *v1.Pod
	err := d.call(func(l *loop) {
		for _, v := range l.vgpus {
			if slices.ContainsFunc(v.rec.Claims, func(r claimRecord) bool { return claim.IsOfLimits(r.UID) != limits }) {
				other = v.rec.Pod.message()
			}
		}
	})
	if err != nil || other == nil {
		return err
	}
	if limits {
		return fmt.Errorf("%s has a GPU of this node by a claim (DRA), and the device plugin would give it away once more: "+
			"run one of both here, and delete the pods of the other: %w", podName(other), errdefs.ErrFailedPrecondition)
	}
	return fmt.Errorf("%s has a GPU of this node by its limits (device plugin), and a claim would give it away once more: "+
		"run one of both here, and delete the pods of the other: %w", podName(other), errdefs.ErrFailedPrecondition)
}

func podNames(c *v1.Claim) string {
	const most = 3
	var names []string
	for i, p := range c.GetPods() {
		if i == most {
			names = append(names, fmt.Sprintf("%d more", len(c.GetPods())-most))
			break
		}
		names = append(names, podName(p))
	}
	if len(names) == 0 {
		return "no pod"
	}
	return strings.Join(names, ", ")
}

func podName(p *v1.Pod) string {
	name := fmt.Sprintf("%s/%s (uid %s)", p.GetNamespace(), p.GetName(), p.GetUid())
	if p.GetName() == "" {
		name = "the pod of the uid " + p.GetUid()
	}
	if p.GetContainer() != "" {
		name = "container " + p.GetContainer() + " of " + name
	}
	return name
}

func claimName(c *v1.Claim) string { return strings.TrimPrefix(c.GetNamespace()+"/"+c.GetName(), "/") }

// The most that Kubernetes allows of a claim (k8s.io/api/resource/v1).
const (
	maxClaimRequests = 32 * 8 // requests, with the subrequests of each
	maxClaimPods     = 256
)

// maxClaimable is more bytes than can be claimed of any GPU, and so few that no sum of
// promises wraps.
const maxClaimable = 1 << 50

func checkClaim(c *v1.Claim) error {
	var f faults
	f.claimUID("claim.uid", c.GetUid())
	f.text("claim.namespace", c.GetNamespace(), maxName)
	f.name("claim.name", c.GetName())
	if n := len(c.GetRequests()); n == 0 || n > maxClaimRequests {
		f.add("claim.requests", fmt.Sprintf("must be 1 to %d", maxClaimRequests))
	}
	if len(c.GetPods()) > maxClaimPods {
		f.add("claim.pods", fmt.Sprintf("must be at most %d", maxClaimPods))
	}
	if err := f.err(); err != nil {
		return err
	}
	for _, r := range c.GetRequests() {
		f.name("claim.requests.name", r.GetName())
		f.annotations(r.GetAnnotations())
		f.text("claim.requests.refusal", r.GetRefusal(), maxName)
		if len(r.GetPromises()) > request.MaxCount {
			f.add("claim.requests.promises", fmt.Sprintf("must be at most %d", request.MaxCount))
		}
		for _, p := range r.GetPromises() {
			f.gpuUUID("claim.requests.promises.gpu", p.GetGpu())
			if p.GetMemoryBytes() == 0 {
				f.add("claim.requests.promises.memory_bytes", "must be 1 or more")
			}
			if n := p.GetClaimableBytes(); n < p.GetMemoryBytes() || n > maxClaimable {
				f.add("claim.requests.promises.claimable_bytes", fmt.Sprintf("%d must be at least memory_bytes and at most %d", n, uint64(maxClaimable)))
			}
		}
	}
	for _, p := range c.GetPods() {
		f.pod("claim.pods", p)
	}
	return f.err()
}

var claimUIDForm = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.-]{0,127}$`)

func (f *faults) claimUID(field, value string) {
	if !claimUIDForm.MatchString(value) {
		f.add(field, clip(value)+" is not the UID of a claim: must be 1 to 128 letters, digits, dots and hyphens")
	}
}

func (f *faults) pointers(field string, all []*v1.ClaimPointer) {
	if len(all) > maxClaimRequests {
		f.add(field, fmt.Sprintf("must be at most %d", maxClaimRequests))
		return
	}
	for _, p := range all {
		f.claimUID(field+".claim", p.GetClaim())
		f.name(field+".request", p.GetRequest())
	}
}

// claimRecord is a pointer in a vGPU's record.
type claimRecord struct {
	UID     string `json:"uid"`
	Request string `json:"request"`
}

func claimRecords(all []*v1.ClaimPointer) (out []claimRecord) {
	for _, p := range all {
		out = append(out, claimRecord{p.GetClaim(), p.GetRequest()})
	}
	return out
}

func claimPointers(all []claimRecord) (out []*v1.ClaimPointer) {
	for _, r := range all {
		out = append(out, &v1.ClaimPointer{Claim: r.UID, Request: r.Request})
	}
	return out
}
