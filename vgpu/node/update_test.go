// SPDX-License-Identifier: Apache-2.0

package node

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// update changes the vGPU of a container.
func (n *node) update(name string, annotations ...string) (*v1.VGPU, error) {
	n.t.Helper()
	resp, err := n.control.Update(n.t.Context(), &v1.UpdateRequest{
		Id: n.vgpu(name).GetId(), Annotations: n.request(name, annotations...).GetAnnotations(),
	})
	return resp.GetVgpu(), errgrpc.ToNative(err)
}

// record is what the store has of a container.
func (n *node) record(name string) string {
	n.t.Helper()
	dir := filepath.Base(n.created[name])
	data, err := unseal(key{recordBucket, dir}, n.stored(recordBucket)[dir])
	if err != nil {
		n.t.Fatal(err)
	}
	return string(data)
}

func TestAnUpdateIsShownAndSurvivesARestart(t *testing.T) {
	n := newProcessNode(t, settings{})
	n.create("a", "memory=1Gi", "weight=7", "max-share=0.5")
	a := n.client("a")
	got, err := n.update("a", "weight=300", "priority=high", "quantum=5ms", "min-share=25%", "max-share=")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(n.vgpu("a"), got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	check := func() {
		t.Helper()
		v := n.vgpu("a")
		if v.GetWeight() != 300 || v.GetPriority() != "high" || v.GetQuantum().AsDuration() != 5*time.Millisecond ||
			v.GetMemoryBytes() != 1<<30 || v.GetCount() != 1 {
			t.Errorf("%v", v)
		}
		record := n.record("a")
		if !strings.Contains(record, `min-share":"0.25"`) || strings.Contains(record, "max-share") {
			t.Error(record)
		}
	}
	check()
	n.kill() // it stands in the store before it is answered
	n.startProcess()
	a.expect("reconnected")
	check()
	if v, err := n.update("a", "weight="); err != nil || v.GetWeight() != 100 || v.GetPriority() != "high" {
		t.Errorf("%v %v", v, err)
	}
	a.ask("work", "work: passed")
}

func TestAnUpdateHoldsForTheTurnThatRuns(t *testing.T) {
	n := newNode(t, settings{quantum: 10 * time.Second})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	if _, err := n.update("a", "quantum=1ms"); err != nil {
		t.Fatal(err)
	}
	n.untilState("a", "DRAINING")
	a.ask("done", "done: ")
	b.expect("work: passed")
}

func TestARefusedUpdateChangesNothing(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "min-share=0.7", "memory=8Gi")
	n.create("b", "min-share=0.2", "max-share=0.8", "weight=7")
	n.client("a")
	n.client("b")
	id := n.vgpu("b").GetId()
	const prefix = "vgpu-shim.dev/"
	for _, tc := range []struct {
		description string
		id          string
		changes     map[string]string
		says        []string
		is          func(error) bool
	}{
		{"an unknown vGPU", "0123456789abcdef", map[string]string{prefix + "weight": "1"}, []string{"0123456789abcdef"}, errdefs.IsNotFound},
		{"no vGPU", "", map[string]string{prefix + "weight": "1"}, []string{"id"}, errdefs.IsInvalidArgument},
		{"nothing to change", id, nil, []string{"annotations"}, errdefs.IsInvalidArgument},
		{
			"a good value and a bad one", id,
			map[string]string{prefix + "weight": "8", prefix + "priority": "urgent"},
			[]string{prefix + "priority", "urgent", "low, normal or high"},
			errdefs.IsInvalidArgument,
		},
		{
			"all faults at once", id,
			map[string]string{prefix + "weight": "x", prefix + "quantum": "1h", prefix + "model": "A100", prefix + "b.weight": "1", "weight": "1"},
			[]string{
				`vgpu-shim.dev/weight="x"`, `quantum="1h"`, `model="A100": can not be changed`, `b.weight="1": can not`, `annotation weight="1": can not`,
				"what can is vgpu-shim.dev/max-share, vgpu-shim.dev/memory, vgpu-shim.dev/min-share, vgpu-shim.dev/overrun, vgpu-shim.dev/policy, vgpu-shim.dev/priority, vgpu-shim.dev/quantum, vgpu-shim.dev/weight, vgpu-shim.dev/when-full",
			},
			errdefs.IsInvalidArgument,
		},
		{"a key that can not change, back to its default", id, map[string]string{prefix + "gpus": ""}, []string{"gpus"}, errdefs.IsInvalidArgument},
		{"a cap below the guarantee that it has", id, map[string]string{prefix + "max-share": "0.1"}, []string{"min-share", "max-share (0.1)"}, errdefs.IsInvalidArgument},
		{
			"a guarantee over the whole", id,
			map[string]string{prefix + "weight": "8", prefix + "min-share": "0.4"},
			[]string{gpuUUID(0), "70%", "40%"},
			errdefs.IsFailedPrecondition,
		},
		{
			"memory beyond what is left", id,
			map[string]string{prefix + "weight": "8", prefix + "memory": "12Gi"},
			[]string{gpuUUID(0), "8Gi of 16Gi of memory are reserved for others"},
			errdefs.IsFailedPrecondition,
		},
		{
			"memory beyond any GPU", id,
			map[string]string{prefix + "memory": "17Gi"},
			[]string{"0 of 1 GPUs", "16Gi"},
			errdefs.IsFailedPrecondition,
		},
		{"an unknown policy", id, map[string]string{prefix + "policy": "best"}, []string{"policy", "online-offline"}, errdefs.IsInvalidArgument},
	} {
		t.Run(tc.description, func(t *testing.T) {
			shown, record := n.vgpu("b"), n.record("b")
			_, err := n.control.Update(t.Context(), &v1.UpdateRequest{Id: tc.id, Annotations: tc.changes})
			if err = errgrpc.ToNative(err); !tc.is(err) {
				t.Fatalf("%v", err)
			}
			for _, s := range tc.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
			if diff := cmp.Diff(shown, n.vgpu("b"), protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
			if now := n.record("b"); now != record {
				t.Errorf("the record is %s, was %s", now, record)
			}
		})
	}
	// What is left can be had.
	if _, err := n.update("b", "min-share=0.3"); err != nil {
		t.Error(err)
	}
}

func TestAnUpdateThatCanNotBeRecordedChangesNothing(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "weight=7")
	goOn := n.failingStore()
	_, err := n.update("a", "weight=8")
	if err == nil || n.vgpu("a").GetWeight() != 7 {
		t.Errorf("%v %v", err, n.vgpu("a"))
	}
	goOn()
	if v, err := n.update("a", "quantum=5ms"); err != nil || v.GetWeight() != 7 || strings.Contains(n.record("a"), `"8"`) {
		t.Errorf("%v %v %s", v, err, n.record("a"))
	}
}

// Another vGPU takes what is left of the GPU while the record is being written.
func TestAGuaranteeIsCheckedAgainOnceItIsRecorded(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "min-share=0.2")
	n.create("b", "min-share=0.6")
	n.client("a")
	b := n.process("b")
	b.ask("start "+n.created["b"], "start: ")
	goOn := make(chan struct{})
	n.daemon.loop.store.remove("blocker", func(error) { <-goOn })
	refused := make(chan error, 1)
	id := n.vgpu("a").GetId()
	go func() {
		_, err := n.control.Update(t.Context(), &v1.UpdateRequest{Id: id, Annotations: map[string]string{"vgpu-shim.dev/min-share": "0.5"}})
		refused <- errgrpc.ToNative(err)
	}()
	n.until("the update waits for the store", func() (waits bool) {
		_ = n.daemon.call(func(l *loop) { waits = l.current[id].rec.Annotations["vgpu-shim.dev/min-share"] == "0.5" })
		return waits
	})
	b.tell("bind")
	n.until("b is bound", func() bool { return n.gpu(0).GetBound() == 2 })
	close(goOn)
	if err := <-refused; !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "60%") {
		t.Errorf("%v", err)
	}
	b.expect("bind: GPU-")
	n.until("the record is as before", func() bool { return strings.Contains(n.record("a"), `min-share":"0.2"`) })
}

// After a restart nobody knows yet what is guaranteed.
func TestNoGuaranteeGrowsDuringTheRecovery(t *testing.T) {
	n := newProcessNode(t, settings{})
	n.create("a")
	n.create("b")
	a := n.client("a")
	a.pause()
	n.kill()
	n.startProcess()
	if _, err := n.update("b", "min-share=0.1"); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "try again") {
		t.Errorf("%v", err)
	}
	if v, err := n.update("a", "weight=8"); err != nil || v.GetWeight() != 8 {
		t.Errorf("%v %v", v, err)
	}
	a.signal(syscall.SIGCONT)
	a.expect("reconnected")
	n.until("it is granted", func() bool { _, err := n.update("b", "min-share=0.1"); return err == nil })
}
