// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
	"github.com/vgpu-shim/vgpu/vgpu/kube/kubetest"
)

func ours(kv ...string) map[string]string {
	out := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		out["vgpu-shim.dev/"+kv[i]] = kv[i+1]
	}
	return out
}

func TestAClaimIsPreparedAndReleased(t *testing.T) {
	c := claimWith("train", result("gpu", 0, "4Gi", "25"), result("gpu", 1, "4Gi", "25"), result("best/big", 1, "8Gi", "50"))
	c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
		Request: "nic", Driver: "nic.example.com", Pool: "p", Device: "d",
	})
	config(c, resourceapi.AllocationConfigSourceClaim, `,"weight":70,"gang":"train"`, "best")
	config(c, resourceapi.AllocationConfigSourceClass, `,"weight":60,"priority":"high"`)
	r := run(t, 2, nil, c)

	both := gputest.UUID(0) + "," + gputest.UUID(1)
	share := func(s string) *string { return &s }
	wantDevices := []*drapb.Device{
		{RequestNames: []string{"gpu"}, PoolName: testNode, DeviceName: device(0), ShareId: share("share-gpu-0"), CdiDeviceIds: []string{"vgpu-shim.dev/claim=uid-train-gpu"}},
		{RequestNames: []string{"gpu"}, PoolName: testNode, DeviceName: device(1), ShareId: share("share-gpu-1")},
		{RequestNames: []string{"best"}, PoolName: testNode, DeviceName: device(1), ShareId: share("share-best/big-1"), CdiDeviceIds: []string{"vgpu-shim.dev/claim=uid-train-best.big"}},
	}
	promise := func(gpu int, gib uint64) *v1.Promise {
		return &v1.Promise{Gpu: gputest.UUID(gpu), MemoryBytes: gib << 30, ClaimableBytes: 16 << 30}
	}
	wantClaims := []*v1.Claim{{
		Uid: "uid-train", Namespace: "ml", Name: "train", Pods: []*v1.Pod{{Namespace: "ml", Name: "pod-a", Uid: "pod-a-uid"}},
		Requests: []*v1.ClaimGrant{
			{Name: "gpu", Annotations: ours("gpus", "2", "memory", "4Gi", "weight", "60", "priority", "high", "uuid", both), Promises: []*v1.Promise{promise(0, 4), promise(1, 4)}},
			{Name: "best/big", Annotations: ours("gpus", "1", "memory", "8Gi", "weight", "70", "priority", "high", "gang", "train", "uuid", both), Promises: []*v1.Promise{promise(1, 8)}},
		},
	}}
	wantFiles := []string{"plugin/claims/uid-train.json", "cdi/vgpu-shim.dev-claim-uid-train.json"}
	for range 2 { // again changes nothing
		got, err := r.kubelet.prepare(c)
		if diff := cmp.Diff(wantDevices, got, protocmp.Transform()); err != nil || diff != "" {
			t.Fatalf("%v (-want +got)\n%s", err, diff)
		}
		if diff := cmp.Diff(wantClaims, r.claims(), protocmp.Transform()); diff != "" {
			t.Errorf("vgpud knows (-want +got)\n%s", diff)
		}
		if diff := cmp.Diff(wantFiles, r.files()); diff != "" {
			t.Errorf("files (-want +got)\n%s", diff)
		}
	}
	if got, err := r.resolve(podA, "uid-train", "gpu"); err != nil || got.GetAnnotations()["vgpu-shim.dev/gpus"] != "2" {
		t.Errorf("the shim gets %v, %v", got, err)
	}
	// Nothing but the pointers may stand there: what is in a CDI spec is in the
	// container's config.json, where others can read it.
	data, err := os.ReadFile(filepath.Join(r.dir, "cdi/vgpu-shim.dev-claim-uid-train.json"))
	wantCDI := `{"cdiVersion":"0.5.0","kind":"vgpu-shim.dev/claim","devices":[` +
		cdiDevice("uid-train-gpu", "uid-train/gpu") + `,` + cdiDevice("uid-train-best.big", "uid-train/best/big") + `],"containerEdits":{}}`
	if err != nil || string(data) != wantCDI {
		t.Errorf("%v, the CDI spec is\n%s, want\n%s", err, data, wantCDI)
	}
	for range 2 {
		if err := r.kubelet.unprepare(c); err != nil {
			t.Fatal(err)
		}
		if left := append(r.files(), fmt.Sprint(r.claims())); len(left) != 1 || left[0] != "[]" {
			t.Errorf("left are %v", left)
		}
	}
}

func cdiDevice(name, path string) string {
	return `{"name":"` + name + `","containerEdits":{"mounts":[{"hostPath":"/run/vgpu/claims/this-pod-needs-runtimeClassName-vgpu/` + path +
		`","containerPath":"/.vgpu-claims/` + path + `","options":["bind","ro","nosuid","nodev","noexec"],"type":"bind"}]}}`
}

// For a pod that asks for vgpu-shim.dev/gpu in its limits the scheduler makes a claim
// with a request for each container (k8s.io/kubernetes, extendeddynamicresources.go),
// and kubelet gives each its own.
func TestAClaimMadeFromLimitsIsPrepared(t *testing.T) {
	c := claimWith("pod-a-extended-resources-x7k2p", result("container-0-request-0", 0, "2Gi", "10"), result("container-2-request-0", 1, "2Gi", "10"))
	c.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "pod-a", UID: "pod-a-uid"}}
	config(c, resourceapi.AllocationConfigSourceClass, `,"priority":"low"`)
	r := run(t, 2, nil, c)
	devices, err := r.kubelet.prepare(c)
	if err != nil || len(devices) != 2 {
		t.Fatalf("%v, %v", err, devices)
	}
	for i, request := range []string{"container-0-request-0", "container-2-request-0"} {
		if d := devices[i]; !slices.Equal(d.GetRequestNames(), []string{request}) || !slices.Equal(d.GetCdiDeviceIds(), []string{cdiKind + "=" + string(c.UID) + "-" + request}) {
			t.Errorf("kubelet is told %v of %s", d, request)
		}
		got, err := r.resolve(podA, string(c.UID), request)
		if a := got.GetAnnotations(); err != nil || a["vgpu-shim.dev/gpus"] != "1" || a["vgpu-shim.dev/memory"] != "2Gi" || a["vgpu-shim.dev/weight"] != "10" || a["vgpu-shim.dev/priority"] != "low" {
			t.Errorf("the container of %s gets %v, %v", request, a, err)
		}
	}
	r.driver.mu.Lock()
	defer r.driver.mu.Unlock()
	if len(r.driver.sharers) != 0 {
		t.Error("a claim of one pod alone is watched for others")
	}
}

func TestPlacement(t *testing.T) {
	selector := func(expression string) func(*resourceapi.ResourceClaim) {
		return func(c *resourceapi.ResourceClaim) {
			c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
			}}}
		}
	}
	match := resourceapi.FullyQualifiedName("resource.kubernetes.io/pcieRoot")
	for _, tc := range []struct {
		description string
		edit        func(*resourceapi.ResourceClaim)
		gpus        int
	}{
		{"nothing said", func(*resourceapi.ResourceClaim) {}, 2},
		{"a model", selector(`device.attributes["vgpu-shim.dev"].model == "H200"`), 2},
		{"a UUID", selector(`device.attributes["vgpu-shim.dev"].uuid == "GPU-x"`), 1},
		{"GPUs near each other", func(c *resourceapi.ResourceClaim) {
			c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &match}}
		}, 1},
		{"the allocated one", func(c *resourceapi.ResourceClaim) {
			config(c, resourceapi.AllocationConfigSourceClass, `,"placement":"allocated"`)
		}, 1},
	} {
		t.Run(tc.description, func(t *testing.T) {
			c := claimWith("c", result("gpu", 1, "1Gi", "10"))
			tc.edit(c)
			a, err := allocated(c, testNode, []*v1.GPU{
				{Uuid: gputest.UUID(0), Model: "H200", MemoryBytes: 2 << 30},
				{Uuid: gputest.UUID(1), Model: "H200", MemoryBytes: 2 << 30},
				{Uuid: gputest.UUID(2), Model: "H100", MemoryBytes: 2 << 30},
				{Uuid: gputest.UUID(3), Model: "H200", MemoryBytes: 4 << 30},
			})
			want := gputest.UUID(0) + "," + gputest.UUID(1)
			if tc.gpus == 1 {
				want = gputest.UUID(1)
			}
			if err != nil || a.grants[0].GetAnnotations()["vgpu-shim.dev/uuid"] != want {
				t.Errorf("%v, %v, want %s", a, err, want)
			}
		})
	}
}

// What kubelet shows in the event of the pod.
func TestPrepareRefuses(t *testing.T) {
	whole := result("gpu", 0, "1Gi", "10")
	whole.ShareID, whole.ConsumedCapacity = nil, nil
	elsewhere := result("gpu", 0, "1Gi", "10")
	elsewhere.Pool = "worker-2"
	gone := result("gpu", 7, "1Gi", "10")
	for i, tc := range []struct {
		description string
		claim       *resourceapi.ResourceClaim
		says        []string
	}{
		{
			"an unknown field in VgpuConfig", config(claimWith("x", result("gpu", 0, "1Gi", "10")), resourceapi.AllocationConfigSourceClaim, `,"wieght":5`),
			[]string{`request "gpu": VgpuConfig in the claim: unknown field "wieght"; the fields are gang, maxShare, overrun, placement`},
		},
		{
			"a wrong value in that of the class", config(claimWith("x", result("gpu", 0, "1Gi", "10")), resourceapi.AllocationConfigSourceClass, `,"quantum":"1h"`),
			[]string{`VgpuConfig in its DeviceClass: quantum: "1h" must be a duration from 1ms to 10s`},
		},
		{
			"more than any GPU has", claimWith("x", result("gpu", 0, "17Gi", "10")),
			[]string{`request "gpu": it asks for 17Gi of memory`, gputest.UUID(0), "a Test GPU, has 16Gi: ask for at most that in its capacity.requests"},
		},
		{"a whole GPU, from a cluster that can not share one", claimWith("x", whole), []string{"the feature gate DRAConsumableCapacity must be on in kube-apiserver"}},
		{"a GPU that is gone", claimWith("x", gone), []string{device(7) + " is not on this node any more, which has " + gputest.UUID(0) + " (Test GPU)", "delete the pod"}},
		{"another node's", claimWith("x", elsewhere), []string{`the pool "worker-2", and this is node "worker-1"`}},
		{"GPUs with different defaults", claimWith("x", result("gpu", 0, "1Gi", "10"), result("gpu", 1, "2Gi", "10")), []string{"differ in memory (1Gi and 2Gi)", "say in the claim how much"}},
		{"two mistakes", config(config(claimWith("x", result("a", 0, "1Gi", "10"), result("b", 1, "1Gi", "10")), resourceapi.AllocationConfigSourceClaim, `,"weight":0`, "a"), resourceapi.AllocationConfigSourceClaim, `,"gang":"/"`, "b"), []string{`request "a": VgpuConfig in the claim: weight`, `request "b": VgpuConfig in the claim: gang`}},
	} {
		t.Run(tc.description, func(t *testing.T) {
			tc.claim.Name, tc.claim.UID = fmt.Sprint("c", i), "uid"
			r := run(t, 2, nil, tc.claim)
			devices, err := r.kubelet.prepare(tc.claim)
			if err == nil {
				t.Fatalf("it was given %v", devices)
			}
			for _, s := range tc.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
			if left := append(r.files(), fmt.Sprint(r.claims())); len(left) != 1 || left[0] != "[]" {
				t.Errorf("left are %v", left)
			}
		})
	}
}

func TestPrepareWithoutVgpud(t *testing.T) {
	c := claimWith("train", result("gpu", 0, "4Gi", "25"))
	r := run(t, 1, nil, c)
	kubetest.Until(t, "the GPU is published", func() bool { return len(r.devices()) == 1 })
	r.stopVgpud()
	_, err := r.kubelet.prepare(c)
	if err == nil {
		t.Fatal("it was prepared")
	}
	for _, s := range []string{"vgpud does not answer on " + r.dir + "/vgpu/vgpud.sock of this node", "start it there with `systemctl start vgpud`"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
	r.vgpud(r.gpus)
	if _, err := r.kubelet.prepare(c); err != nil {
		t.Errorf("with vgpud again: %v", err)
	}
	if _, err := r.resolve(podA, "uid-train", "gpu"); err != nil {
		t.Error(err)
	}
}

// A pod must not hang in Terminating because vgpud is down.
func TestReleaseWithoutVgpud(t *testing.T) {
	c := claimWith("train", result("gpu", 0, "4Gi", "25"))
	r := run(t, 1, nil, c)
	if _, err := r.kubelet.prepare(c); err != nil {
		t.Fatal(err)
	}
	r.stopVgpud()
	for range 2 {
		if err := r.kubelet.unprepare(c); err != nil {
			t.Fatal(err)
		}
	}
	// Over a restart of the driver, too.
	r.driver.stop()
	r.start(nil)
	r.vgpud(r.gpus)
	kubetest.Until(t, "vgpud is told", func() bool { return len(r.claims()) == 0 && len(r.files()) == 0 })
}

// vgpud's state directory is lost with the machine's memory, the driver's is not.
func TestAVgpudThatLostItsStoreIsToldAgain(t *testing.T) {
	c := claimWith("train", result("gpu", 0, "4Gi", "25"))
	r := run(t, 1, nil, c)
	if _, err := r.kubelet.prepare(c); err != nil {
		t.Fatal(err)
	}
	had := r.claims()
	r.stopVgpud()
	if err := os.RemoveAll(filepath.Join(r.dir, "vgpu")); err != nil {
		t.Fatal(err)
	}
	r.vgpud(r.gpus)
	kubetest.Until(t, "vgpud knows the claim", func() bool { return cmp.Equal(had, r.claims(), protocmp.Transform()) })
}

// watchesClaims says whether the driver watches a claim.
func (r *running) watchesClaims() bool {
	for _, a := range r.client.Actions() {
		if a.Matches("watch", "resourceclaims") {
			return true
		}
	}
	return false
}

func TestASecondPodSharesAClaim(t *testing.T) {
	for _, tc := range []struct {
		description string
		meanwhile   func(*running)
	}{
		{"while the driver runs", func(*running) {}},
		{"after it was restarted", func(r *running) { r.driver.stop(); r.client.ClearActions(); r.start(nil) }},
	} {
		t.Run(tc.description, func(t *testing.T) {
			c := claimWith("train", result("gpu", 0, "4Gi", "25"))
			r := run(t, 1, nil, c)
			if _, err := r.kubelet.prepare(c); err != nil {
				t.Fatal(err)
			}
			tc.meanwhile(r)
			if _, err := r.resolve(podB, "uid-train", "gpu"); err == nil || !strings.Contains(err.Error(), "not for the pod ml/pod-b") {
				t.Errorf("a pod for which it is not reserved: %v", err)
			}
			r.share(c)
			kubetest.Until(t, "both pods get it", func() bool {
				_, errA := r.resolve(podA, "uid-train", "gpu")
				_, errB := r.resolve(podB, "uid-train", "gpu")
				return errA == nil && errB == nil
			})
			if err := r.kubelet.unprepare(c); err != nil {
				t.Fatal(err)
			}
			if len(r.claims()) != 0 {
				t.Errorf("left are %v", r.claims())
			}
		})
	}
}

func TestClaimsArePreparedAtOnce(t *testing.T) {
	var claims []*resourceapi.ResourceClaim
	for i := range 24 {
		claims = append(claims, claimWith(fmt.Sprint("c", i), result("gpu", i%2, "512Mi", "4")))
	}
	r := run(t, 2, nil, claims...)
	each := func(do func(*resourceapi.ResourceClaim) error) {
		var wg sync.WaitGroup
		for _, c := range claims {
			for range 2 { // kubelet asks again when it lost the answer
				wg.Go(func() {
					if err := do(c); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
	}
	each(func(c *resourceapi.ResourceClaim) error { _, err := r.kubelet.prepare(c); return err })
	if n, files := len(r.claims()), r.files(); n != len(claims) || len(files) != 2*len(claims) {
		t.Errorf("%d claims, files %v", n, files)
	}
	each(r.kubelet.unprepare)
	if n, files := len(r.claims()), r.files(); n != 0 || len(files) != 0 {
		t.Errorf("%d claims, files %v", n, files)
	}
}

// kubelet may ask for the release of a claim that is still being prepared.
func TestStepsOfOneClaimNeverOverlap(t *testing.T) {
	c := claimWith("train", result("gpu", 0, "4Gi", "25"))
	r := run(t, 1, nil, c)
	var steps []string
	r.driver.step = func(step string) {
		steps = append(steps, step)
		if one := r.driver.lock(c.UID); one.TryLock() {
			one.Unlock()
			t.Errorf("another call for the claim gets in at %q", step)
		}
	}
	if _, err := r.kubelet.prepare(c); err != nil {
		t.Fatal(err)
	}
	if err := r.kubelet.unprepare(c); err != nil {
		t.Fatal(err)
	}
	if want := []string{"begin", "checkpoint", "vgpud", "cdi", "no cdi", "no vgpud", "no checkpoint"}; !slices.Equal(steps, want) {
		t.Errorf("the steps are %q, want %q", steps, want)
	}
}

func TestAUIDIsNoPath(t *testing.T) {
	for _, uid := range []string{"", "..", "a/b", ".x"} {
		if checkUID(types.UID(uid)) == nil {
			t.Errorf("%q was taken", uid)
		}
	}
	if err := checkUID("8f14e45f-ceea-467f-a8c1-5d1f0b2e3c4d"); err != nil {
		t.Error(err)
	}
}

func TestADamagedRecordIsToldOfAndPreparedAnew(t *testing.T) {
	c := claimWith("train", result("gpu", 0, "4Gi", "25"))
	r := run(t, 1, nil, c)
	for _, damage := range []string{"", "{", `{"version":99,"claim":{}}`, `{"version":1,"claim":{"uid":"other"}}`} {
		if _, err := r.kubelet.prepare(c); err != nil {
			t.Fatal(err)
		}
		r.driver.stop()
		if err := os.WriteFile(filepath.Join(r.dir, "plugin/claims/uid-train.json"), []byte(damage), 0o600); err != nil {
			t.Fatal(err)
		}
		r.start(nil)
		if _, err := r.kubelet.prepare(c); err != nil {
			t.Errorf("%q: %v", damage, err)
		}
		if err := r.kubelet.unprepare(c); err != nil || len(r.files()) != 0 || len(r.claims()) != 0 {
			t.Errorf("%q: %v, left are %v", damage, err, slices.Concat(r.files(), []string{fmt.Sprint(r.claims())}))
		}
	}
}

// What vgpud was not told of, since it or the driver was an older one, it is told as soon
// as they find each other; so is what may be claimed of a GPU, which a flag says.
func TestPromisesAreToldAgain(t *testing.T) {
	c := claimWith("train", result("gpu", 1, "4Gi", "25"))
	r := run(t, 2, nil, c)
	if _, err := r.kubelet.prepare(c); err != nil {
		t.Fatal(err)
	}
	r.driver.stop()
	old := r.claims()[0]
	old.Requests[0].Promises = nil
	if err := r.control(func(c v1.ControlClient) error {
		_, err := c.SetClaim(t.Context(), &v1.SetClaimRequest{Claim: old})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	r.start(func(cfg *Config) { cfg.Oversubscription = 1.5 })
	want := []*v1.Promise{{Gpu: gputest.UUID(1), MemoryBytes: 4 << 30, ClaimableBytes: 24 << 30}}
	kubetest.Until(t, "vgpud is told what was promised", func() bool {
		return cmp.Equal(want, r.claims()[0].GetRequests()[0].GetPromises(), protocmp.Transform())
	})
}

// A claim that takes nothing from others is promised nothing.
func TestAdminAccessIsPromisedNothing(t *testing.T) {
	admin, c := true, claimWith("monitor", result("gpu", 0, "1Mi", "1"))
	c.Status.Allocation.Devices.Results[0].AdminAccess = &admin
	r := run(t, 1, nil, c)
	if _, err := r.kubelet.prepare(c); err != nil {
		t.Fatal(err)
	}
	if got := r.claims()[0].GetRequests()[0].GetPromises(); got != nil {
		t.Errorf("it was promised %v", got)
	}
}
