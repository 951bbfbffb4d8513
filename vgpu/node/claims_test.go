// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

func claimOf(pods ...*v1.Pod) *v1.Claim {
	return &v1.Claim{
		Uid: "c-1", Namespace: "ml", Name: "train", Pods: pods,
		Requests: []*v1.ClaimGrant{
			{Name: "gpu", Annotations: map[string]string{"vgpu-shim.dev/gpus": "1", "vgpu-shim.dev/memory": "4Gi"}},
			{Name: "more", Annotations: map[string]string{"vgpu-shim.dev/gpus": "1", "vgpu-shim.dev/memory": "4Gi"}},
			{Name: "small", Annotations: map[string]string{"vgpu-shim.dev/gpus": "1", "vgpu-shim.dev/memory": "1Gi"}},
		},
	}
}

var podA, podB = &v1.Pod{Namespace: "ml", Name: "a", Uid: "u-a"}, &v1.Pod{Namespace: "ml", Name: "b", Uid: "u-b"}

func (n *node) setClaim(c *v1.Claim) {
	n.t.Helper()
	if _, err := n.control.SetClaim(n.t.Context(), &v1.SetClaimRequest{Claim: c}); err != nil {
		n.t.Fatal(err)
	}
}

// resolve asks as the shim does, for requests of the claim c-1.
func (n *node) resolve(pod *v1.Pod, requests ...string) (*v1.ResolveClaimsResponse, error) {
	r := &v1.ResolveClaimsRequest{Pod: pod}
	for _, name := range requests {
		r.Pointers = append(r.Pointers, &v1.ClaimPointer{Claim: "c-1", Request: name})
	}
	resp, err := n.control.ResolveClaims(n.t.Context(), r)
	return resp, errgrpc.ToNative(err)
}

func TestAClaimAnswersToItsPods(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	n.daemon.claims.patience = 0
	n.setClaim(claimOf(podA, podB))
	inA := proto.Clone(podA).(*v1.Pod)
	inA.Container = "main"
	for _, pod := range []*v1.Pod{inA, podB} {
		got, err := n.resolve(pod, "gpu", "more")
		want := &v1.ResolveClaimsResponse{
			Annotations: map[string]string{"vgpu-shim.dev/gpus": "2", "vgpu-shim.dev/memory": "4Gi"},
			Claims:      []string{"ml/train (request gpu)", "ml/train (request more)"}, Claimed: true,
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); err != nil || diff != "" {
			t.Errorf("%v (-want +got)\n%s", err, diff)
		}
	}
	for _, tc := range []struct {
		description string
		pod         *v1.Pod
		requests    []string
		is          error
		says        string
	}{
		{"another pod", &v1.Pod{Namespace: "ml", Name: "c", Uid: "u-c"}, []string{"gpu"}, errdefs.ErrPermissionDenied, "claim ml/train is reserved for ml/a (uid u-a), ml/b (uid u-b), not for the pod ml/c (uid u-c)"},
		{"a later pod of the same name", &v1.Pod{Namespace: "ml", Name: "a", Uid: "u-a2"}, []string{"gpu"}, errdefs.ErrPermissionDenied, "not for the pod ml/a (uid u-a2)"},
		{"a pod of another namespace", &v1.Pod{Namespace: "x", Name: "a", Uid: "u-a"}, []string{"gpu"}, errdefs.ErrPermissionDenied, "not for the pod x/a"},
		{"no pod", nil, []string{"gpu"}, errdefs.ErrFailedPrecondition, "in none"},
		{"a request that it has not", podA, []string{"cpu"}, errdefs.ErrNotFound, `claim ml/train has no request "cpu"`},
		{"requests that differ", podA, []string{"gpu", "small"}, errdefs.ErrInvalidArgument, "they differ in memory (4Gi and 1Gi)"},
	} {
		t.Run(tc.description, func(t *testing.T) {
			resp, err := n.resolve(tc.pod, tc.requests...)
			if !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, %v; want %v that says %q", resp, err, tc.is, tc.says)
			}
		})
	}
	for pod, claimed := range map[*v1.Pod]bool{podA: true, {Namespace: "ml", Name: "c", Uid: "u-c"}: false, nil: false} {
		if got, err := n.resolve(pod); err != nil || got.GetClaimed() != claimed || len(got.GetAnnotations()) != 0 {
			t.Errorf("without a pointer %v got %v, %v", pod, got, err)
		}
	}

	if _, err := n.control.DeleteClaim(t.Context(), &v1.DeleteClaimRequest{Uid: "c-1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.resolve(podA, "gpu"); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "was not prepared on this node") {
		t.Errorf("of a claim that is gone: %v", err)
	}
	if _, err := n.control.DeleteClaim(t.Context(), &v1.DeleteClaimRequest{Uid: "c-1"}); err != nil {
		t.Errorf("deleted again: %v", err)
	}
}

// kubelet starts the container of a second pod without a word to the driver, which
// hears of the pod by itself, perhaps later.
func TestAClaimIsWaitedFor(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	n.daemon.claims.patience = patience
	answers := make(chan error, 2)
	for _, pod := range []*v1.Pod{podA, podB} {
		go func() {
			_, err := n.resolve(pod, "gpu")
			answers <- err
		}()
	}
	for _, c := range []*v1.Claim{claimOf(podA), claimOf(podA, podB)} {
		n.setClaim(c)
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}
}

func TestClaimsSurviveARestart(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	kept := claimOf(podA, podB)
	n.setClaim(kept)
	gone := claimOf(podA)
	gone.Uid = "c-2"
	n.setClaim(gone)
	if _, err := n.control.DeleteClaim(t.Context(), &v1.DeleteClaimRequest{Uid: "c-2"}); err != nil {
		t.Fatal(err)
	}
	r := n.request("main")
	r.Claims = []*v1.ClaimPointer{{Claim: "c-1", Request: "gpu"}}
	created, err := n.control.Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if err := saveNode(n.daemon.nodeStore, claimKey("damaged"), []byte("{")); err != nil {
		t.Fatal(err)
	}
	n.stop()
	n.start()

	list, err := n.control.ListClaims(t.Context(), &v1.ListClaimsRequest{})
	if diff := cmp.Diff([]*v1.Claim{kept}, list.GetClaims(), protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	got, err := n.control.Get(t.Context(), &v1.GetRequest{Id: created.GetId()})
	if diff := cmp.Diff(r.GetClaims(), got.GetVgpu().GetClaims(), protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

// createIn makes a vGPU of requests of the claim c-1, as the shim does.
func (n *node) createIn(name string, requests ...string) {
	n.t.Helper()
	r := n.request(name, "memory=4Gi", fmt.Sprint("gpus=", len(requests)))
	for _, request := range requests {
		r.Claims = append(r.Claims, &v1.ClaimPointer{Claim: "c-1", Request: request})
	}
	resp, err := n.control.Create(n.t.Context(), r)
	if err != nil {
		n.t.Fatal(err)
	}
	n.created[name] = resp.GetEdits().GetMounts()[0].GetSource()
}

// The scheduler counted a claim's memory once: its containers reserve it once, and
// may use no more than that together, also after a restart of vgpud.
func TestContainersOfOneClaimShareItsMemory(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	n.setClaim(claimOf(podA, podB))
	n.create("first", "memory=8Gi") // where there is the least to do is the other GPU
	n.client("first")
	for _, name := range []string{"a", "b"} {
		n.createIn(name, "gpu")
	}
	n.createIn("two", "gpu", "more") // not the same requests: it reserves for itself
	a, b := n.client("a"), n.client("b")
	on := n.vgpu("a").GetGpus()
	if diff := cmp.Diff(on, n.vgpu("b").GetGpus()); diff != "" {
		t.Errorf("b is elsewhere (-a +b)\n%s", diff)
	}
	reserved := func() (sum uint64) {
		for i := range 2 {
			sum += n.gpu(i).GetMemoryReservedBytes()
		}
		return sum
	}
	if got := reserved(); got != 12*gib {
		t.Errorf("%d GiB are reserved, want 8 and once 4", got/gib)
	}
	n.client("two")
	if got := reserved(); got != 20*gib {
		t.Errorf("%d GiB are reserved, want 8 more for one with two requests", got/gib)
	}
	a.takes(3 * gib)
	b.wants(2*gib, wire.ErrMemory, 4*gib, 0)
	b.takes(gib)

	// After a restart nothing is known of b until it is back.
	n.stop()
	b.pause()
	n.start()
	a.expect("reconnected")
	a.tell(fmt.Sprint("memory 0 ", gib, " 0"))
	n.until("a's ask waits for b", func() bool {
		waits := false
		_ = n.daemon.call(func(l *loop) { waits = len(l.asks) == 1 })
		return waits
	})
	b.signal(syscall.SIGCONT)
	if answer := a.expect("memory: "); !strings.HasPrefix(answer, fmt.Sprint("code=", uint64(wire.ErrMemory))) {
		t.Errorf("a was answered %s", answer)
	}
	a.ask(fmt.Sprint("free 0 ", 2*gib), "free: ok")
	b.takes(2 * gib)
	n.until("all is reserved as before the restart", func() bool { return reserved() == 20*gib })
	_, err := n.control.Update(t.Context(), &v1.UpdateRequest{Id: n.vgpu("a").GetId(), Annotations: map[string]string{"vgpu-shim.dev/memory": "5Gi"}})
	if err == nil || !strings.Contains(err.Error(), "its memory is that of its Kubernetes claim") {
		t.Errorf("a's memory was changed for all: %v", err)
	}

	// What b has stays reserved without a, and goes with it.
	a.kill()
	n.delete("a")
	b.wants(2*gib, wire.ErrMemory, 4*gib, 3*gib)
	b.takes(gib)
	if got := reserved(); got != 20*gib {
		t.Errorf("%d GiB are reserved without a", got/gib)
	}
	b.kill()
	n.delete("b")
	n.until("what the claim reserved is free", func() bool { return reserved() == 16*gib })
}

func TestSetClaimRefuses(t *testing.T) {
	n := newNode(t, settings{gpus: 1})
	for _, tc := range []struct {
		description string
		edit        func(*v1.Claim)
		is          error
		says        string
	}{
		{"no UID", func(c *v1.Claim) { c.Uid = "" }, errdefs.ErrInvalidArgument, "claim.uid"},
		{"a UID with a slash", func(c *v1.Claim) { c.Uid = "../x" }, errdefs.ErrInvalidArgument, "claim.uid"},
		{"no requests", func(c *v1.Claim) { c.Requests = nil }, errdefs.ErrInvalidArgument, "claim.requests"},
		{"an unknown key", func(c *v1.Claim) { c.Requests[0].Annotations["vgpu-shim.dev/x"] = "1" }, errdefs.ErrInvalidArgument, `request "gpu": annotation vgpu-shim.dev/x`},
		{"more than any GPU has", func(c *v1.Claim) { c.Requests[0].Annotations["vgpu-shim.dev/memory"] = "17Gi" }, errdefs.ErrFailedPrecondition, `request "gpu": 0 of 1 GPUs asked for exist on this node (it has: ` + gpuUUID(0)},
		{"more GPUs than there are", func(c *v1.Claim) { c.Requests[1].Annotations["vgpu-shim.dev/gpus"] = "2" }, errdefs.ErrFailedPrecondition, `request "more": 1 of 2 GPUs`},
	} {
		t.Run(tc.description, func(t *testing.T) {
			c := claimOf(podA)
			tc.edit(c)
			_, err := n.control.SetClaim(t.Context(), &v1.SetClaimRequest{Claim: c})
			if err = errgrpc.ToNative(err); !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v; want %v that says %q", err, tc.is, tc.says)
			}
		})
	}
	n.daemon.claims.patience = time.Nanosecond
	if _, err := n.resolve(podA, "gpu"); !errdefs.IsNotFound(err) {
		t.Errorf("what was refused is there: %v", err)
	}
}
