// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// vgpu makes the vGPU of a container with these annotations, and lets a process ask for
// its GPU, which is then bound or waits for one.
func (r *running) vgpu(name string, pod *v1.Pod, claims []*v1.ClaimPointer, annotations ...string) {
	r.t.Helper()
	var dir string
	if err := r.control(func(c v1.ControlClient) error {
		resp, err := c.Create(r.t.Context(), &v1.CreateRequest{
			Container: &v1.Container{Containerd: "/run/containerd/containerd.sock", Namespace: "k8s.io", Id: name},
			Instance:  name, Bundle: r.t.TempDir(), Pod: pod, Claims: claims, Annotations: ours(annotations...),
		})
		if err == nil {
			dir = resp.GetEdits().GetMounts()[0].GetSource()
		}
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	conn, err := net.Dial("unixpacket", filepath.Join(dir, wire.Socket))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write((&wire.Msg{Type: wire.Identity, A: [4]uint64{1}}).Marshal(make([]byte, wire.MsgSize))); err != nil {
		r.t.Fatal(err)
	}
}

// A claim that was allocated what a guest has, since the scheduler did not know, says so
// in an event of its pod, once, and in its status.
func TestWaitForAGuestIsTold(t *testing.T) {
	c := claimWith("train", result("gpu", 0, "8Gi", "25"))
	r := run(t, 1, func(cfg *Config) { cfg.StatusInterval = time.Second }, c)
	r.vgpu("guest", &v1.Pod{Namespace: "ml", Name: "early", Uid: "early-uid", Container: "main"}, nil, "gpus", "1", "memory", "10Gi")
	until(t, "the guest has its memory", func() bool {
		now, _ := r.driver.snapshot()
		return len(now.gpus) == 1 && now.gpus[0].GetMemoryGuestBytes() == 10<<30
	})
	if _, err := r.kubelet.prepare(c); err != nil {
		t.Fatal(err)
	}
	r.vgpu("late", podA, []*v1.ClaimPointer{{Claim: string(c.UID), Request: "gpu"}}, "gpus", "1", "memory", "8Gi")

	events := func() []corev1.Event {
		list, err := r.client.CoreV1().Events("ml").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return list.Items
	}
	until(t, "there is an event", func() bool { return len(events()) > 0 })
	e, waits := events()[0], "memory of "+gputest.UUID(0)+", which ml/early (container main) has"
	if o := e.InvolvedObject; o.Kind != "Pod" || o.Namespace != "ml" || o.Name != "pod-a" || o.UID != "pod-a-uid" || o.FieldPath != "spec.containers{main}" ||
		e.Type != corev1.EventTypeWarning || e.Reason != "WaitsForGuest" ||
		!strings.HasPrefix(e.Message, "container main waits for "+waits+": ") || !strings.Contains(e.Message, "placement: allocated") {
		t.Errorf("the event is %+v", e)
	}
	r.untilStatus("train", vgpuStatus(0, "share-gpu-0", "True", "Prepared", "",
		`"request":"gpu","heldSeconds":0,"waitedSeconds":0,"vgpus":[{"pod":"pod-a","container":"main","heldSeconds":0,"waitedSeconds":0,"waits":"`+waits+`"}]`))

	said, before := map[string]string{}, r.count("create", "events")
	for range 2 {
		if err := r.driver.lookForWaits(said); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.count("create", "events") - before; got != 1 {
		t.Errorf("who had told of nothing told %d times", got)
	}
}

// An event and a status have little room, and a guest need not be in a pod.
func TestWhoWaitsNamesAFewGuests(t *testing.T) {
	vgpus := []*v1.VGPU{
		{Id: "1", Pod: &v1.Pod{Namespace: "ml", Name: "a", Container: "main"}},
		{Id: "2", Container: &v1.Container{Id: "by-hand"}},
		{Id: "4"},
		{Id: "5"},
		{Id: "waits"},
	}
	v := vgpus[4]
	if got := waitsFor(v, vgpus); got != "" {
		t.Errorf("without guests it waits for %s", got)
	}
	for _, id := range []string{"1", "2", "3", "4", "5"} {
		v.Guests = append(v.Guests, &v1.Guest{Gpu: "GPU-x", Vgpu: id})
	}
	want := "memory of GPU-x, which ml/a (container main) has; memory of GPU-x, which the container by-hand has; memory of GPU-x, which the vGPU 3 has; that of 2 more"
	if got := waitsFor(v, vgpus); got != want {
		t.Errorf("it waits for %s, want %s", got, want)
	}
}
