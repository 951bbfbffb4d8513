// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// promised is a claim of one GPU that was allocated one of the node's, of 16 GiB.
func promised(uid string, memory uint64, gpu int) *v1.Claim {
	return &v1.Claim{
		Uid: uid, Namespace: "ml", Name: uid, Pods: []*v1.Pod{podA},
		Requests: []*v1.ClaimGrant{{
			Name: "gpu", Annotations: map[string]string{"vgpu-shim.dev/gpus": "1", "vgpu-shim.dev/memory": fmt.Sprintf("%dGi", memory/gib)},
			Promises: []*v1.Promise{{Gpu: gpuUUID(gpu), MemoryBytes: memory, ClaimableBytes: 16 * gib}},
		}},
	}
}

// claimant makes the container of such a claim.
func (n *node) claimant(uid string, memory uint64) {
	n.t.Helper()
	r := n.request(uid, fmt.Sprintf("memory=%dGi", memory/gib))
	r.Claims = []*v1.ClaimPointer{{Claim: uid, Request: "gpu"}}
	resp, err := n.control.Create(n.t.Context(), r)
	if err != nil {
		n.t.Fatal(err)
	}
	n.created[uid] = resp.GetEdits().GetMounts()[0].GetSource()
}

// waiting starts a process of a container whose bind waits, and returns why.
func (n *node) waiting(name string) (*clientProcess, string) {
	n.t.Helper()
	c := n.process(name)
	c.ask("start "+n.created[name], "start: ")
	c.tell("bind")
	var why string
	n.until(name+" waits for a GPU", func() bool { why = n.vgpu(name).GetReason(); return why != "" })
	return c, why
}

func (n *node) on(name string, gpu int) {
	n.t.Helper()
	if got := n.vgpu(name).GetGpus(); len(got) != 1 || got[0] != gpuUUID(gpu) {
		n.t.Errorf("%s is bound to %v, want %s", name, got, gpuUUID(gpu))
	}
}

// The scheduler allocated a and b the first GPU, and c the second, of which 6 GiB are
// left. c computes last of all, after a restart of vgpud, and finds its memory.
func TestMemoryOfClaimsIsKept(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	a, b, c := promised("a", 8*gib, 0), promised("b", 8*gib, 0), promised("c", 10*gib, 1)
	for _, claim := range []*v1.Claim{a, b, c} {
		n.setClaim(claim)
		n.claimant(claim.GetUid(), claim.GetRequests()[0].GetPromises()[0].GetMemoryBytes())
	}
	n.client("a")
	n.client("b") // though nobody is on the second GPU yet
	n.on("a", 0)
	n.on("b", 0)

	// Nor does a container without a claim get it, or its memory.
	n.create("unclaimed", "memory=8Gi")
	unclaimed, why := n.waiting("unclaimed")
	if want := gpuUUID(1) + ": 10Gi of 16Gi of memory are promised to claims or reserved, 8Gi more are asked for"; !strings.Contains(why, want) {
		t.Errorf("it waits since %q, want %q", why, want)
	}
	n.create("modest", "memory=2Gi")
	n.client("modest")
	n.on("modest", 1)
	n.create("keyless")
	n.client("keyless")
	limits := map[string]uint64{gpuUUID(0): 0, gpuUUID(1): 4 * gib}
	if m := n.vgpu("keyless").GetMemory()[0]; m.GetLimitBytes() != limits[m.GetGpu()] {
		t.Errorf("without a key there are %d GiB of %s, want %d", m.GetLimitBytes()/gib, m.GetGpu(), limits[m.GetGpu()]/gib)
	}
	if _, err := n.update("modest", "memory=7Gi"); err == nil || !strings.Contains(err.Error(), "12Gi of 16Gi of memory are promised to claims or reserved, 5Gi more") {
		t.Errorf("it grew into what was promised: %v", err)
	}

	unclaimed.kill()
	n.stop()
	n.start()
	n.until("what runs is known again", func() bool { return n.gpu(0).GetBound()+n.gpu(1).GetBound() == 4 })
	for i, want := range []*v1.GPU{
		{MemoryPromisedBytes: 16 * gib, MemoryReservedBytes: 16 * gib},
		{MemoryPromisedBytes: 10 * gib, MemoryReservedBytes: 2 * gib, MemoryGuestBytes: 2 * gib},
	} {
		if g := n.gpu(i); g.GetMemoryPromisedBytes() != want.GetMemoryPromisedBytes() || g.GetMemoryReservedBytes() != want.GetMemoryReservedBytes() || g.GetMemoryGuestBytes() != want.GetMemoryGuestBytes() {
			t.Errorf("of GPU %d are promised %d, reserved %d, by guests %d", i, g.GetMemoryPromisedBytes(), g.GetMemoryReservedBytes(), g.GetMemoryGuestBytes())
		}
	}
	n.client("c")
	n.on("c", 1)

	// It is nobody's when the claim is gone.
	unclaimed, _ = n.waiting("unclaimed")
	n.delete("c")
	if _, err := n.control.DeleteClaim(t.Context(), &v1.DeleteClaimRequest{Uid: "c"}); err != nil {
		t.Fatal(err)
	}
	unclaimed.expect("bind: " + gpuUUID(1))
}

// A claim may be told anew with something else: kept is what it says last.
func TestPromiseChanges(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	watch := n.watchGPUs()
	watch.next()
	for _, tc := range []struct {
		claim *v1.Claim
		want  [2]uint64
	}{
		{promised("a", 8*gib, 0), [2]uint64{8 * gib, 0}},
		{promised("a", 6*gib, 0), [2]uint64{6 * gib, 0}},
		{promised("a", 6*gib, 1), [2]uint64{0, 6 * gib}},
	} {
		n.setClaim(tc.claim)
		watch.until(func(list *v1.WatchGPUsResponse) bool {
			return list.GetGpus()[0].GetMemoryPromisedBytes() == tc.want[0] && list.GetGpus()[1].GetMemoryPromisedBytes() == tc.want[1]
		})
	}
	// What no GPU has can not be kept; of one that is not there nothing is.
	_, err := n.control.SetClaim(t.Context(), &v1.SetClaimRequest{Claim: func() *v1.Claim {
		c := promised("b", 6*gib, 0)
		c.Requests[0].Promises[0].MemoryBytes, c.Requests[0].Promises[0].ClaimableBytes = 17*gib, 32*gib
		return c
	}()})
	if err = errgrpc.ToNative(err); !errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), "17Gi of memory of "+gpuUUID(0)+" were promised, which has 16Gi") {
		t.Errorf("it was promised more than there is: %v", err)
	}
	n.setClaim(promised("gone", 6*gib, 9))
	if got := n.gpu(0).GetMemoryPromisedBytes() + n.gpu(1).GetMemoryPromisedBytes(); got != 6*gib {
		t.Errorf("%d GiB are promised", got/gib)
	}
}

// A vgpud from before there were promises kept claims without them. They are told when
// vgpu-kubelet tells its claims again, as it does whenever it finds a vgpud.
func TestClaimsOfAnOlderVgpudGetTheirPromises(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	old := promised("c", 10*gib, 1)
	old.Requests[0].Promises = nil
	n.setClaim(old)
	n.claimant("c", 10*gib)
	n.stop()
	n.start()
	if g := n.gpu(1); g.GetMemoryPromisedBytes() != 0 {
		t.Errorf("of a claim without promises %d GiB are kept", g.GetMemoryPromisedBytes()/gib)
	}
	n.create("x", "memory=12Gi")
	n.setClaim(promised("c", 10*gib, 1))
	n.create("y", "memory=8Gi")
	n.client("x")
	n.on("x", 0)
	y, _ := n.waiting("y")
	n.client("c")
	n.on("c", 1)
	n.delete("x")
	y.expect("bind: " + gpuUUID(0))
}
