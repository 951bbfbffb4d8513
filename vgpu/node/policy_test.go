// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// shownPolicy is the policy on the node and on each GPU, as in
// "fair fair fair/own".
func (n *node) shownPolicy() string {
	n.t.Helper()
	show := func(p *v1.Policy, own bool) string {
		s := p.GetName()
		if p.GetSlots() != arbiter.DefaultSlots {
			s += ":" + strings.Repeat("|", int(p.GetSlots()))
		}
		if own {
			s += "/own"
		}
		return s
	}
	all := []string{show(n.info().GetPolicy(), false)}
	for i := range n.settings.gpus {
		all = append(all, show(n.gpu(i).GetPolicy(), n.gpu(i).GetOwnPolicy()))
	}
	return strings.Join(all, " ")
}

func TestAPolicyIsOfTheNodeOrOfAGPUAndSurvivesARestart(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	if got := n.shownPolicy(); got != "default default default" {
		t.Fatal(got)
	}
	for _, step := range []struct {
		request *v1.SetPolicyRequest
		want    string
	}{
		{&v1.SetPolicyRequest{Policy: "fair"}, "fair fair fair"},
		{&v1.SetPolicyRequest{Gpu: gpuUUID(1), Policy: "average", Slots: 3}, "fair fair average:|||/own"},
		{&v1.SetPolicyRequest{Policy: "weighted"}, "weighted weighted average:|||/own"},
		{&v1.SetPolicyRequest{Gpu: gpuUUID(1), Policy: "average"}, "weighted weighted average/own"},
		{&v1.SetPolicyRequest{Gpu: gpuUUID(1), Policy: "default"}, "weighted weighted weighted"},
		{&v1.SetPolicyRequest{Gpu: gpuUUID(0), Policy: "fixed", Slots: 1}, "weighted fixed:|/own weighted"},
		{&v1.SetPolicyRequest{Policy: "default", Slots: 2}, "default:|| fixed:|/own default:||"},
		{&v1.SetPolicyRequest{Policy: "default"}, "default fixed:|/own default"},
	} {
		before := n.info().GetSequence()
		resp, err := n.control.SetPolicy(t.Context(), step.request)
		if err != nil {
			t.Fatalf("%v: %v", step.request, err)
		}
		got := n.shownPolicy()
		if got != step.want {
			t.Errorf("%v: %s, want %s", step.request, got, step.want)
		}
		ev := n.watch(&v1.WatchRequest{After: before}).next()
		if ev.GetType() != eventPolicy || strings.Join(ev.GetGpus(), "") != step.request.GetGpu() || ev.GetPolicy().GetName() != resp.GetPolicy().GetName() {
			t.Errorf("%v: %v, answer %v", step.request, ev, resp)
		}
		n.stop()
		n.start()
		if again := n.shownPolicy(); again != got {
			t.Errorf("%v: after a restart %s, was %s", step.request, again, got)
		}
	}
}

func TestAPolicyThatCanNotBeKeptChangesNothing(t *testing.T) {
	n := newNode(t, settings{gpus: 1})
	n.broken(func() {
		if _, err := n.control.SetPolicy(t.Context(), &v1.SetPolicyRequest{Policy: "fair"}); err == nil || !strings.Contains(err.Error(), errFull.Error()) {
			t.Errorf("%v", err)
		}
	})
	if got := n.shownPolicy(); got != "default default" {
		t.Error(got)
	}
}

// After a restart nobody knows yet what is guaranteed.
func TestNoPolicyChangesDuringTheRecovery(t *testing.T) {
	n := newProcessNode(t, settings{})
	n.create("a")
	a := n.client("a")
	a.pause()
	n.kill()
	n.startProcess()
	_, err := n.control.SetPolicy(t.Context(), &v1.SetPolicyRequest{Policy: "fair"})
	if err = errgrpc.ToNative(err); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "try again") {
		t.Errorf("%v", err)
	}
	a.signal(syscall.SIGCONT)
	a.expect("reconnected")
	n.until("it is granted", func() bool {
		_, err := n.control.SetPolicy(t.Context(), &v1.SetPolicyRequest{Policy: "fair"})
		return err == nil
	})
}

// A policy of a newer vgpud costs that policy, nothing else.
func TestAnUnknownPolicyIsNotRestored(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	n.cordon(0, "")
	for _, r := range []*v1.SetPolicyRequest{{Policy: "fair"}, {Gpu: gpuUUID(0), Policy: "hybrid"}, {Gpu: gpuUUID(1), Policy: "fixed"}} {
		if _, err := n.control.SetPolicy(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	data, err := n.daemon.nodeStore.loadNode(operatorKey)
	if err == nil {
		err = saveNode(n.daemon.nodeStore, operatorKey, []byte(strings.ReplaceAll(string(data), "hybrid", "later")))
	}
	if err != nil {
		t.Fatal(err)
	}
	n.stop()
	n.start()
	if got := n.shownPolicy(); got != "fair fair fixed/own" || n.gpu(0).GetState() != "CORDONED" {
		t.Errorf("%s, %v", got, n.gpu(0))
	}
}

func TestEveryPresetCanBeSet(t *testing.T) {
	n := newNode(t, settings{})
	for _, name := range request.Presets() {
		resp, err := n.control.SetPolicy(t.Context(), &v1.SetPolicyRequest{Policy: name})
		if err != nil || resp.GetPolicy().GetName() != name {
			t.Errorf("%s: %v %v", name, resp, err)
		}
	}
}

func TestAPolicyThatGuaranteesTooMuchIsRefused(t *testing.T) {
	n := newNode(t, settings{gpus: 1})
	for _, name := range []string{"a", "b", "c"} {
		n.create(name)
		n.client(name)
	}
	writes := n.daemon.loop.store.writes.Load()
	for _, gpu := range []string{"", gpuUUID(0)} {
		_, err := n.control.SetPolicy(t.Context(), &v1.SetPolicyRequest{Gpu: gpu, Policy: "average", Slots: 2})
		if err = errgrpc.ToNative(err); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "150%") {
			t.Errorf("%v", err)
		}
	}
	if n.daemon.loop.store.writes.Load() != writes {
		t.Error("what was refused was written")
	}
	n.stop()
	n.start()
	if got := n.shownPolicy(); got != "default default" {
		t.Error(got)
	}
}

func TestAVGPUShowsThePolicyInForce(t *testing.T) {
	n := newNode(t, settings{gpus: 1})
	n.create("a")
	n.client("a")
	for _, r := range []*v1.SetPolicyRequest{{Policy: "fair"}, {Gpu: gpuUUID(0), Policy: "weighted"}} {
		if _, err := n.control.SetPolicy(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if got := n.vgpu("a").GetPolicy(); got != r.GetPolicy() {
			t.Errorf("%s, want %s", got, r.GetPolicy())
		}
	}
}

// Another vGPU is bound while what was allowed is being written.
func TestAPolicyIsCheckedAgainOnceItIsKept(t *testing.T) {
	n := newNode(t, settings{gpus: 1})
	n.create("a")
	n.create("b")
	n.client("a")
	before := n.shownPolicy()
	slow := &slowStore{nodeStore: n.daemon.nodeStore, asked: make(chan struct{}, 2), goOn: make(chan struct{})}
	n.daemon.mu.Lock()
	n.daemon.nodeStore = slow
	n.daemon.mu.Unlock()
	refused := make(chan error, 1)
	go func() {
		_, err := n.control.SetPolicy(t.Context(), &v1.SetPolicyRequest{Policy: "average", Slots: 1})
		refused <- errgrpc.ToNative(err)
	}()
	<-slow.asked
	n.client("b")
	close(slow.goOn)
	if err := <-refused; !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "200%") {
		t.Errorf("%v", err)
	}
	n.stop()
	n.start()
	if got := n.shownPolicy(); got != before {
		t.Errorf("%s, was %s", got, before)
	}
}

// slowStore writes when it may.
type slowStore struct {
	nodeStore
	asked, goOn chan struct{}
}

func (s *slowStore) saveNode(name string, value []byte, then func(error)) {
	s.asked <- struct{}{}
	go func() {
		<-s.goOn
		s.nodeStore.saveNode(name, value, then)
	}()
}
