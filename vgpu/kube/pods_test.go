// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
	"github.com/vgpu-shim/vgpu/vgpu/kube/kubetest"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// vgpu makes the vGPU of a container with these annotations, and lets a process ask for
// its GPU, which is then bound or waits for one.
func (r *running) vgpu(name string, pod *v1.Pod, claims []*v1.ClaimPointer, annotations ...string) {
	r.t.Helper()
	var dir string
	if err := r.control(func(c v1.ControlClient) error {
		resp, err := c.Create(r.t.Context(), &v1.CreateRequest{
			Container: inContainerd(name),
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

func inContainerd(name string) *v1.Container {
	return &v1.Container{Containerd: "/run/containerd/containerd.sock", Namespace: "k8s.io", Id: name}
}

// A claim that was allocated what a guest has, since the scheduler did not know, says so
// in an event of its pod, once, and in its status.
func TestWaitForAGuestIsTold(t *testing.T) {
	c := claimWith("train", result("gpu", 0, "8Gi", "25"))
	r := run(t, 1, func(cfg *Config) { cfg.StatusInterval = time.Second }, c)
	r.vgpu("guest", &v1.Pod{Namespace: "ml", Name: "early", Uid: "early-uid", Container: "main"}, nil, "gpus", "1", "memory", "10Gi")
	kubetest.Until(t, "the guest has its memory", func() bool {
		now, _ := r.driver.snapshot()
		return len(now.gpus) == 1 && now.gpus[0].GetMemoryGuestBytes() == 10<<30
	})
	if _, err := r.kubelet.prepare(c); err != nil {
		t.Fatal(err)
	}
	r.vgpu("late", podA, []*v1.ClaimPointer{{Claim: string(c.UID), Request: "gpu"}}, "gpus", "1", "memory", "8Gi")

	e, waits := r.event("WaitsForGuest"), "memory of "+gputest.UUID(0)+", which ml/early (container main) has"
	if o := e.InvolvedObject; o.Kind != "Pod" || o.Namespace != "ml" || o.Name != "pod-a" || o.UID != "pod-a-uid" || o.FieldPath != "spec.containers{main}" ||
		e.Type != corev1.EventTypeWarning ||
		!strings.HasPrefix(e.Message, "container main waits for "+waits+": ") || !strings.Contains(e.Message, "placement: allocated") {
		t.Errorf("the event is %+v", e)
	}
	r.untilStatus("train", vgpuStatus(0, "share-gpu-0", "True", "Prepared", "",
		`"request":"gpu","heldSeconds":0,"waitedSeconds":0,"vgpus":[{"pod":"pod-a","container":"main","heldSeconds":0,"waitedSeconds":0,"waits":"`+waits+`"}]`))

	r.event("WithoutClaim") // of the guest
	if got := r.tells(map[string]string{}); got != 2 {
		t.Errorf("who had told of nothing told %d times", got)
	}
}

// A pod that computes without a claim is counted by nobody; it says so in one event,
// with what to change, once for all its containers.
func TestPodWithoutAClaimIsTold(t *testing.T) {
	c := claimWith("train", result("gpu", 0, "1Gi", "25"))
	r := run(t, 1, nil, c)
	if _, err := r.kubelet.prepare(c); err != nil {
		t.Fatal(err)
	}
	job := func(container string) *v1.Pod {
		return &v1.Pod{Namespace: "ml", Name: "job", Uid: "job-uid", Container: container}
	}
	r.vgpu("claims", podA, []*v1.ClaimPointer{{Claim: string(c.UID), Request: "gpu"}}, "gpus", "1", "memory", "1Gi")
	r.vgpu("nobody's", nil, nil, "gpus", "1", "memory", "1Gi")
	r.vgpu("main", job("main"), nil, "gpus", "1", "memory", "1Gi")
	e := r.event("WithoutClaim")
	if o := e.InvolvedObject; o.Kind != "Pod" || o.Namespace != "ml" || o.Name != "job" || o.UID != "job-uid" || o.FieldPath != "spec.containers{main}" ||
		e.Type != corev1.EventTypeWarning ||
		!strings.HasPrefix(e.Message, "container main has a vGPU without a claim, so kube-scheduler counts no GPU for it") ||
		!strings.Contains(e.Message, "name a ResourceClaim or a ResourceClaimTemplate in spec.resourceClaims") {
		t.Errorf("the event is %+v", e)
	}
	r.vgpu("side", job("side"), nil, "gpus", "1", "memory", "1Gi")
	said := map[string]string{}
	if got := r.tells(said); got != 1 {
		t.Errorf("who had told of nothing told %d times", got)
	}
	for _, name := range []string{"main", "side"} {
		if err := r.control(func(c v1.ControlClient) error {
			_, err := c.Delete(t.Context(), &v1.DeleteRequest{Container: inContainerd(name), Instance: name})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.tells(said); got != 0 || len(said) != 0 {
		t.Errorf("of a pod that is gone %d were told, and %v is remembered", got, said)
	}
}

// An event that an API server which is away did not take is made when it is back; one that
// it refuses is not tried again.
func TestAnEventThatWasNotWrittenIsTriedAgain(t *testing.T) {
	var tried sync.Map // by object
	var refused atomic.Int32
	fails := func(a clienttesting.Action) (bool, kruntime.Object, error) {
		of := a.(clienttesting.CreateAction).GetObject().(*corev1.Event).InvolvedObject.Name
		if of == "refused" {
			refused.Add(1)
			return true, nil, apierrors.NewForbidden(corev1.Resource("events"), "", nil)
		}
		if _, again := tried.LoadOrStore(of, true); !again {
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	}
	r := &running{place: newPlace(t), gpus: gputest.New(1)}
	r.stopVgpud = r.vgpud(r.gpus)
	r.client = newClient(sliceOf("gpu.nvidia.com", testNode, "uuid", gputest.UUID(0)))
	r.client.PrependReactor("create", "events", fails)
	for _, pod := range []string{"refused", "job"} {
		r.vgpu(pod, &v1.Pod{Namespace: "ml", Name: pod, Uid: pod + "-uid", Container: "main"}, nil, "gpus", "1", "memory", "1Gi")
	}
	r.start(nil)
	r.event("WithoutClaim")
	kubetest.Until(t, "the node has an event", func() bool {
		list, err := r.client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 1
	})
	if n := r.tells(map[string]string{"refused-uid": withoutClaim, "job-uid": withoutClaim}); n != 0 {
		t.Errorf("what was told is told %d times more", n)
	}
	if n := refused.Load(); n != 1 {
		t.Errorf("what was refused was tried %d times", n)
	}
}

// An event that is never taken has the events of younger pods wait only if theirs would not
// be taken either.
func TestAnEventThatIsNeverTakenHoldsUpNoOthers(t *testing.T) {
	t.Parallel()
	events := corev1.Resource("events")
	for _, tc := range []struct {
		description string
		err         error
		others      bool
	}{
		{"no answer", errors.New("connection refused"), false},
		{"too many requests", apierrors.NewTooManyRequests("", 1), false},
		{"unavailable", apierrors.NewServiceUnavailable(""), false},
		{"a timeout", apierrors.NewTimeoutError("", 1), false},
		{"a timeout of the server", apierrors.NewServerTimeout(events, "create", 1), false},
		{"a webhook that is down", apierrors.NewInternalError(errors.New("failed calling webhook")), true},
		{"an answer that nobody thought of", apierrors.NewConflict(events, "", nil), true},
	} {
		t.Run(tc.description, func(t *testing.T) {
			r := &running{place: newPlace(t), gpus: gputest.New(1)}
			r.stopVgpud = r.vgpud(r.gpus)
			r.client = newClient()
			var tried sync.Map // by object
			r.client.PrependReactor("create", "events", func(a clienttesting.Action) (bool, kruntime.Object, error) {
				of := a.(clienttesting.CreateAction).GetObject().(*corev1.Event).InvolvedObject.Name
				tried.Store(of, true)
				return of == "older", nil, tc.err
			})
			for _, pod := range []string{"older", "younger"} {
				r.vgpu(pod, &v1.Pod{Namespace: "ml", Name: pod, Uid: pod + "-uid", Container: "main"}, nil, "gpus", "1", "memory", "1Gi")
			}
			r.start(nil)
			if err := r.driver.lookAtPods(map[string]string{}, map[string]string{}); !errors.Is(err, tc.err) {
				t.Errorf("the look ends with %v", err)
			}
			if _, older := tried.Load("older"); !older {
				t.Error("the event of the older pod was not tried")
			}
			if _, others := tried.Load("younger"); others != tc.others {
				t.Errorf("that the event of the younger pod was tried is %v", others)
			}
		})
	}
}

// Who reads the log of a node whose API server is away sees why its pods wait: at once, of
// each, and once.
func TestWhatAPodIsToldIsLoggedThoughItHasNoEvent(t *testing.T) {
	r := &running{place: newPlace(t), gpus: gputest.New(1)}
	r.vgpud(r.gpus)
	r.client = newClient()
	away := true
	r.client.PrependReactor("create", "events", func(clienttesting.Action) (bool, kruntime.Object, error) {
		return away, nil, errors.New("connection refused")
	})
	for _, pod := range []string{"older", "younger"} {
		r.vgpu(pod, &v1.Pod{Namespace: "ml", Name: pod, Uid: pod + "-uid", Container: "main"}, nil, "gpus", "1", "memory", "1Gi")
	}
	var log syncBuffer
	cfg := r.config()
	cfg.Client = r.client
	cfg.Log.Logger.SetOutput(&log)
	d := &Driver{cfg: cfg, ctx: t.Context()} // no other looks
	said, logged := map[string]string{}, map[string]string{}
	look := func() error {
		t.Helper()
		err := d.lookAtPods(said, logged)
		for _, pod := range []string{"older", "younger"} {
			if got := strings.Count(log.String(), "pod=ml/"+pod+"\n"); got != 1 {
				t.Errorf("%d lines of the pod %s: %s", got, pod, log.String())
			}
		}
		return err
	}
	for range 2 {
		if err := look(); err == nil {
			t.Error("the events were made")
		}
	}
	away = false
	if err := look(); err != nil || r.count("create", "events") < 3 {
		t.Errorf("%v, %d events were tried", err, r.count("create", "events"))
	}
	if len(said) != 2 {
		t.Errorf("what was told is %v", said)
	}
	for _, pod := range []string{"older", "younger"} {
		if err := r.control(func(c v1.ControlClient) error {
			_, err := c.Delete(t.Context(), &v1.DeleteRequest{Container: inContainerd(pod), Instance: pod})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.lookAtPods(said, logged); err != nil || len(said)+len(logged) != 0 {
		t.Errorf("%v; of pods that are gone %v is remembered, and %v", err, said, logged)
	}
}

// event waits until there is an event of that reason in the namespace ml.
func (r *running) event(reason string) (e corev1.Event) {
	r.t.Helper()
	kubetest.Until(r.t, "there is an event "+reason, func() bool {
		list, err := r.client.CoreV1().Events("ml").List(r.t.Context(), metav1.ListOptions{})
		if err != nil {
			r.t.Fatal(err)
		}
		i := slices.IndexFunc(list.Items, func(e corev1.Event) bool { return e.Reason == reason })
		if i >= 0 {
			e = list.Items[i]
		}
		return i >= 0
	})
	return e
}

// tells looks twice at the pods, and returns how many events that made.
func (r *running) tells(said map[string]string) int {
	r.t.Helper()
	before := r.count("create", "events")
	for range 2 {
		if err := r.driver.lookAtPods(said, map[string]string{}); err != nil {
			r.t.Fatal(err)
		}
	}
	return r.count("create", "events") - before
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
