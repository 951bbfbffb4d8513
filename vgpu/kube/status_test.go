// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clienttesting "k8s.io/client-go/testing"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
	"github.com/vgpu-shim/vgpu/vgpu/kube/kubetest"
	"github.com/vgpu-shim/vgpu/vgpu/kube/v1alpha1"
)

// create makes the vGPU of a container as the shim does for a request of a claim.
func (r *running) create(name string, pod *v1.Pod, uid, request string) {
	r.t.Helper()
	if err := r.control(func(c v1.ControlClient) error {
		_, err := c.Create(r.t.Context(), &v1.CreateRequest{
			Container: &v1.Container{Containerd: "/run/containerd/containerd.sock", Namespace: "k8s.io", Id: name},
			Instance:  name, Bundle: r.t.TempDir(), Pod: pod, Claims: []*v1.ClaimPointer{{Claim: uid, Request: request}},
			Annotations: ours("gpus", "1", "memory", "1Gi", "bind", "early", "uuid", gputest.UUID(0)),
		})
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
}

// status is that of a claim in the API server, without times.
func (r *running) status(name string) []resourceapi.AllocatedDeviceStatus {
	r.t.Helper()
	c, err := r.client.ResourceV1().ResourceClaims("ml").Get(r.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	for i := range c.Status.Devices {
		for j := range c.Status.Devices[i].Conditions {
			if c.Status.Devices[i].Conditions[j].LastTransitionTime.IsZero() {
				r.t.Errorf("%s has a condition without a time", name)
			}
			c.Status.Devices[i].Conditions[j].LastTransitionTime = metav1.Time{}
		}
	}
	return c.Status.Devices
}

// count is how often the API server was asked for something.
func (r *running) count(verb, resource string) (n int) {
	for _, a := range r.client.Actions() {
		if a.Matches(verb, resource) {
			n++
		}
	}
	return n
}

// vgpuStatus is a device of a status, as the driver is to write it.
func vgpuStatus(gpu int, shareID string, status metav1.ConditionStatus, reason, message, data string) resourceapi.AllocatedDeviceStatus {
	return resourceapi.AllocatedDeviceStatus{
		Driver: DriverName, Pool: testNode, Device: device(gpu), ShareID: &shareID,
		Conditions: []metav1.Condition{{Type: "Ready", Status: status, Reason: reason, Message: message}},
		Data:       &kruntime.RawExtension{Raw: []byte(`{"apiVersion":"vgpu-shim.dev/v1alpha1","kind":"VgpuStatus",` + data + `}`)},
	}
}

// until a claim has this status.
func (r *running) untilStatus(name string, want ...resourceapi.AllocatedDeviceStatus) {
	r.t.Helper()
	var diff string
	if err := wait.PollUntilContextTimeout(r.t.Context(), 5*time.Millisecond, kubetest.Patience, true, func(context.Context) (bool, error) {
		diff = cmp.Diff(want, r.status(name), cmp.Comparer(func(a, b *kruntime.RawExtension) bool { return sameData(a, b) }))
		return diff == "", nil
	}); err != nil {
		r.t.Fatalf("the status of %s (-want +got)\n%s", name, diff)
	}
}

func TestTheStatusOfAClaimSaysWhoUsesWhichGPU(t *testing.T) {
	often := func(cfg *Config) { cfg.StatusInterval = time.Second }
	c := claimWith("train", result("gpu", 0, "1Gi", "25"), result("more", 1, "1Gi", "25"))
	// What another driver says of its devices is its own.
	c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
		Request: "nic", Driver: "nic.example.com", Pool: "p", Device: "d",
	})
	nic := resourceapi.AllocatedDeviceStatus{Driver: "nic.example.com", Pool: "p", Device: "d"}
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{nic}
	r := run(t, 2, often, c)
	if _, err := r.kubelet.prepare(c); err != nil {
		t.Fatal(err)
	}
	more := vgpuStatus(1, "share-more-1", "True", "Prepared", "", `"request":"more","heldSeconds":0,"waitedSeconds":0`)
	r.untilStatus("train", nic, vgpuStatus(0, "share-gpu-0", "True", "Prepared", "", `"request":"gpu","heldSeconds":0,"waitedSeconds":0`), more)

	r.create("one", podA, "uid-train", "gpu")
	data := `"request":"gpu","heldSeconds":0,"waitedSeconds":0,"vgpus":[{"pod":"pod-a","container":"main","gpus":["` + gputest.UUID(0) + `"],"heldSeconds":0,"waitedSeconds":0}]`
	r.untilStatus("train", nic, vgpuStatus(0, "share-gpu-0", "True", "Prepared", "", data), more)

	// A driver that was restarted writes nothing that stands there.
	before := r.count("patch", "resourceclaims/status")
	r.driver.stop()
	looks := r.count("get", "resourceclaims")
	r.start(often)
	kubetest.Until(t, "it has looked at what stands there", func() bool { return r.count("get", "resourceclaims") > looks })
	r.gpus.SetHealth(gpu.Health{UUID: gputest.UUID(0), Down: "fell off the bus"})
	r.untilStatus("train", nic, vgpuStatus(0, "share-gpu-0", "False", "Unhealthy", "fell off the bus", data), more)
	if got := r.count("patch", "resourceclaims/status") - before; got != 1 {
		t.Errorf("%d writes for one change", got)
	}
}

// A driver that was started asked vgpud who uses what before it had heard which GPUs there are:
// for a moment the claims of all said that theirs were gone.
func TestNothingIsSaidOfClaimsBeforeItIsKnownWhichGPUsThereAre(t *testing.T) {
	c := claimWith("train", result("gpu", 0, "1Gi", "25"))
	r := run(t, 1, func(cfg *Config) { cfg.StatusInterval = 0 }, c)
	if _, err := r.kubelet.prepare(c); err != nil {
		t.Fatal(err)
	}
	said := map[types.UID]told{}
	if of, _, err := r.driver.stale(t.Context(), said, time.Now()); of == nil || err != nil {
		t.Fatalf("%v, %v: want the claim, of which nothing was said", of, err)
	}
	r.driver.update(func(s *snapshot) { s.gpus = nil })
	if of, devices, err := r.driver.stale(t.Context(), said, time.Now()); of != nil || err != nil {
		t.Errorf("it is to say %+v, %v", devices, err)
	}
}

// What bounds the writes: a claim has its turn once in an interval, and only if there
// is something new; who was told of the longest ago is first.
func TestAStatusIsWrittenOnceInAnIntervalAndOnlyIfItChanged(t *testing.T) {
	a, b := claimWith("a", result("gpu", 0, "1Gi", "25")), claimWith("b", result("gpu", 0, "1Gi", "25"))
	r := run(t, 1, func(cfg *Config) { cfg.StatusInterval = 0 }, a, b)
	r.driver.cfg.StatusInterval = time.Minute
	for _, c := range []*resourceapi.ResourceClaim{a, b} {
		if _, err := r.kubelet.prepare(c); err != nil {
			t.Fatal(err)
		}
	}
	said := map[types.UID]told{"gone": {}}
	began := time.Now()
	// next is whose turn it is at a time, and has been told then.
	next := func(after time.Duration) string {
		t.Helper()
		now := began.Add(after)
		rec, devices, err := r.driver.stale(t.Context(), said, now)
		if err != nil {
			t.Fatal(err)
		}
		if rec == nil {
			return ""
		}
		if err := r.driver.tellClaim(t.Context(), said, rec, devices, now); err != nil {
			t.Fatal(err)
		}
		return rec.claim.GetName()
	}
	for i, step := range []struct {
		after time.Duration
		does  func()
		want  string
	}{
		{0, nil, "a"},
		{time.Second, nil, "b"},
		{2 * time.Second, nil, ""},
		{90 * time.Second, nil, ""}, // nothing new
		{91 * time.Second, func() { r.create("one", podA, "uid-b", "gpu") }, "b"},
		{92 * time.Second, func() { r.create("two", podA, "uid-b", "gpu") }, ""}, // too soon
		{149 * time.Second, func() { r.create("three", podA, "uid-a", "gpu") }, "a"},
		{150 * time.Second, nil, ""},
		{151 * time.Second, nil, "b"},
		{500 * time.Second, func() { r.create("four", podA, "uid-a", "gpu"); r.create("five", podA, "uid-b", "gpu") }, "a"}, // told before b
	} {
		if step.does != nil {
			step.does()
		}
		if got := next(step.after); got != step.want {
			t.Errorf("step %d: it is the turn of %q, want %q", i, got, step.want)
		}
	}
	if _, ok := said["gone"]; ok {
		t.Error("a claim that is gone is not forgotten")
	}
}

// A write that failed is made in the claim's next interval, though nothing has changed since,
// and no sooner. It is not made for ever: not for a claim that is gone or another one's by
// then, and not if what it says is refused.
func TestAStatusThatWasNotWrittenIsTriedAgain(t *testing.T) {
	t.Parallel()
	resource := resourceapi.Resource("resourceclaims")
	replace := func(r *running, c *resourceapi.ResourceClaim) {
		at, other := resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), c.DeepCopy()
		other.UID = "another"
		if err := errors.Join(r.client.Tracker().Delete(at, c.Namespace, c.Name), r.client.Tracker().Create(at, other, c.Namespace)); err != nil {
			r.t.Error(err)
		}
	}
	for _, tc := range []struct {
		description, fails string
		err                error
		meanwhile          func(*running, *resourceapi.ResourceClaim)
		first, second      string // what the API server is asked in the first intervals
	}{
		{"unavailable", "patch", apierrors.NewServiceUnavailable("upgrading"), nil, "get patch", "get patch"},
		{"no answer", "patch", errors.New("connection refused"), nil, "get patch", "get patch"},
		{"not even read", "get", errors.New("connection refused"), nil, "get", "get patch"},
		{"not allowed yet", "patch", apierrors.NewForbidden(resource, "train", nil), nil, "get patch", "get patch"},
		{"a conflict", "patch", apierrors.NewConflict(resource, "train", nil), nil, "get patch", "get patch"},
		{"another one's", "patch", apierrors.NewConflict(resource, "train", nil), replace, "get patch", "get"},
		{"gone", "patch", apierrors.NewNotFound(resource, "train"), nil, "get patch", ""},
		{"refused", "patch", apierrors.NewInvalid(resourceapi.SchemeGroupVersion.WithKind("ResourceClaim").GroupKind(), "train", nil), nil, "get patch", ""},
	} {
		t.Run(tc.description, func(t *testing.T) {
			c := claimWith("train", result("gpu", 0, "1Gi", "25"))
			r := &running{place: newPlace(t), gpus: gputest.New(1), client: newClient(c)}
			r.vgpud(r.gpus)
			var fails atomic.Bool
			r.client.PrependReactor(tc.fails, "resourceclaims", func(clienttesting.Action) (bool, kruntime.Object, error) {
				return fails.CompareAndSwap(true, false), nil, tc.err
			})
			r.start(func(cfg *Config) { cfg.StatusInterval = 0 })
			r.driver.cfg.StatusInterval = time.Minute
			if _, err := r.kubelet.prepare(c); err != nil {
				t.Fatal(err)
			}
			fails.Store(true)
			said, began := map[types.UID]told{}, time.Now()
			for _, step := range []struct {
				after time.Duration
				asks  string
			}{
				{0, tc.first},
				{59 * time.Second, ""}, // too soon
				{60 * time.Second, tc.second},
				{120 * time.Second, ""}, // nothing new
			} {
				r.client.ClearActions()
				now := began.Add(step.after)
				rec, devices, err := r.driver.stale(t.Context(), said, now)
				if err != nil {
					t.Fatal(err)
				}
				if rec != nil {
					// The error is told beside.
					_ = r.driver.tellClaim(t.Context(), said, rec, devices, now)
				}
				if step.after == 0 && tc.meanwhile != nil {
					tc.meanwhile(r, c)
				}
				var asked []string
				for _, a := range r.client.Actions() {
					if a.GetResource().Resource == "resourceclaims" && (a.GetVerb() == "get" || a.GetVerb() == "patch") {
						asked = append(asked, a.GetVerb())
					}
				}
				if got := strings.Join(asked, " "); got != step.asks {
					t.Errorf("after %v the API server is asked %q, want %q", step.after, got, step.asks)
				}
			}
			if got := r.status("train"); (len(got) == 1) != (tc.second == "get patch") {
				t.Errorf("the status is %+v", got)
			}
			// What was refused for what it says is written when it says something else.
			r.create("one", podA, "uid-train", "gpu")
			if rec, _, err := r.driver.stale(t.Context(), said, began.Add(180*time.Second)); rec == nil || err != nil {
				t.Errorf("%v, %v: want the claim, which has something new to say", rec, err)
			}
		})
	}
}

// Where nobody may write it the driver goes on, says what is missing, and says it once.
func TestAStatusThatMayNotBeWrittenIsToldOfOnce(t *testing.T) {
	a, b := claimWith("a", result("gpu", 0, "1Gi", "25")), claimWith("b", result("gpu", 0, "1Gi", "25"))
	var log syncBuffer
	r := &running{place: newPlace(t), gpus: gputest.New(1), client: newClient(a, b)}
	r.stopVgpud = r.vgpud(r.gpus)
	r.client.PrependReactor("patch", "resourceclaims", func(clienttesting.Action) (bool, kruntime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "resourceclaims"}, "a", nil)
	})
	r.start(func(cfg *Config) { cfg.StatusInterval = time.Second; cfg.Log.Logger.SetOutput(&log) })
	for _, c := range []*resourceapi.ResourceClaim{a, b} {
		if _, err := r.kubelet.prepare(c); err != nil {
			t.Fatal(err)
		}
	}
	kubetest.Until(t, "both were tried, and one again", func() bool { return r.count("patch", "resourceclaims/status") > 2 })
	r.driver.stop()
	const says = "associated-node:patch on resourceclaims/driver of the name vgpu-shim.dev"
	if got := strings.Count(log.String(), says); got != 1 {
		t.Errorf("it is said %d times: %s", got, log.String())
	}
}

// A status has 10 KiB, however many share a claim and whatever they are called.
func TestAStatusFits(t *testing.T) {
	var gpus []string
	for i := range 16 {
		gpus = append(gpus, gputest.UUID(i))
	}
	const most = 1 << 40
	for _, is := range []v1alpha1.Vgpu{{GPUs: gpus}, {Waits: strings.Repeat("w", 5000)}} {
		s := v1alpha1.NewVgpuStatus(strings.Repeat("r", 63) + "/" + strings.Repeat("s", 63))
		is.Container, is.HeldSeconds, is.WaitedSeconds = strings.Repeat("c", 63), most, most
		for i := range 300 {
			is.Pod = fmt.Sprint(strings.Repeat("p", 250), i)
			s.Add(is)
		}
		data, err := json.Marshal(s)
		if err != nil || len(data) > resourceapi.AllocatedDeviceStatusDataMaxLength {
			t.Errorf("%v, %d bytes", err, len(data))
		}
		if s.HeldSeconds != 300*most || len(s.Vgpus)+s.More != 300 {
			t.Errorf("%d s, %d and %d more", s.HeldSeconds, len(s.Vgpus), s.More)
		}
	}
}
