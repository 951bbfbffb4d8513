// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/kube/v1alpha1"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// deviceClass is that of the claims of all tests, from deviceclasses.yaml.
const deviceClass = "vgpu"

// ask is a request of a claim on the GPUs of the class.
func ask(name, memory, share string, more ...func(*resourceapi.ExactDeviceRequest)) resourceapi.DeviceRequest {
	r := &resourceapi.ExactDeviceRequest{DeviceClassName: deviceClass}
	takes := map[resourceapi.QualifiedName]resource.Quantity{}
	for capacity, value := range map[resourceapi.QualifiedName]string{"memory": memory, "share": share} {
		if value != "" {
			takes[capacity] = resource.MustParse(value)
		}
	}
	if len(takes) > 0 {
		r.Capacity = &resourceapi.CapacityRequirements{Requests: takes}
	}
	for _, m := range more {
		m(r)
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: r}
}

// of asks for so many GPUs.
func of(count int64) func(*resourceapi.ExactDeviceRequest) {
	return func(r *resourceapi.ExactDeviceRequest) { r.Count = count }
}

// where asks for GPUs by an attribute of theirs.
func where(attribute, value string) func(*resourceapi.ExactDeviceRequest) {
	return func(r *resourceapi.ExactDeviceRequest) {
		r.Selectors = append(r.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf("device.attributes[%q].%s == %q", DriverName, attribute, value),
		}})
	}
}

// claimOf is a claim of requests.
func claimOf(requests ...resourceapi.DeviceRequest) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}
}

// configured adds parameters to a claim, such as {"priority": "high"}.
func configured(spec resourceapi.ResourceClaimSpec, fields map[string]any) resourceapi.ResourceClaimSpec {
	spec.Devices.Config = append(spec.Devices.Config, resourceapi.DeviceClaimConfiguration{DeviceConfiguration: parameters(fields)})
	return spec
}

func parameters(fields map[string]any) resourceapi.DeviceConfiguration {
	all := map[string]any{"apiVersion": "vgpu-shim.dev/v1alpha1", "kind": "VgpuConfig"}
	maps.Copy(all, fields)
	text, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: DriverName, Parameters: runtime.RawExtension{Raw: text}}}
}

// makeClass makes a device class of the driver's GPUs.
func makeClass(ctx context.Context, c *Cluster, name string, configs ...resourceapi.DeviceClassConfiguration) error {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", DriverName)}}},
		Config:    configs,
	}}
	_, err := c.Client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{})
	return err
}

// claim makes a claim.
func (c *cluster) claim(name string, spec resourceapi.ResourceClaimSpec) {
	c.T.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	if _, err := c.Client.ResourceV1().ResourceClaims(metav1.NamespaceDefault).Create(c.Ctx, claim, metav1.CreateOptions{}); err != nil {
		c.T.Fatal(err)
	}
}

func (c *cluster) getClaim(name string) *resourceapi.ResourceClaim {
	c.T.Helper()
	claim, err := c.Client.ResourceV1().ResourceClaims(metav1.NamespaceDefault).Get(c.Ctx, name, metav1.GetOptions{})
	if err != nil {
		c.T.Fatal(err)
	}
	return claim
}

// removeClaims removes all claims and templates, whose pods are gone.
func (c *cluster) removeClaims() {
	c.T.Helper()
	r := c.Client.ResourceV1()
	err := r.ResourceClaimTemplates(metav1.NamespaceDefault).DeleteCollection(c.Ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	err = errors.Join(err, r.ResourceClaims(metav1.NamespaceDefault).DeleteCollection(c.Ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	if err != nil {
		c.T.Fatal(err)
	}
	c.wait(func() error {
		list, err := r.ResourceClaims(metav1.NamespaceDefault).List(c.Ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("claim %s is still there: %v", list.Items[0].Name, list.Items[0].Status)
		}
		return err
	})
}

// with gives a pod, and each of its containers, a claim that is there.
func with(claim string, p *corev1.Pod) *corev1.Pod {
	p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claim, ResourceClaimName: &claim})
	for i := range p.Spec.Containers {
		r := &p.Spec.Containers[i].Resources
		r.Claims = append(r.Claims, corev1.ResourceClaim{Name: claim})
	}
	return p
}

// claiming makes a claim, and a pod with it, under one name.
func (c *cluster) claiming(name string, spec resourceapi.ResourceClaimSpec, containers ...corev1.Container) *corev1.Pod {
	c.T.Helper()
	c.claim(name, spec)
	return c.create(with(name, pod(name, nil, containers...)))
}

// waits waits until the scheduler says why a pod waits.
func (c *cluster) waits(name, why string) {
	c.T.Helper()
	c.wait(func() error {
		p, err := c.get(name)
		if err != nil {
			return err
		}
		for _, k := range p.Status.Conditions {
			if k.Type != corev1.PodScheduled {
				continue
			}
			if k.Status == corev1.ConditionFalse && k.Reason == corev1.PodReasonUnschedulable && strings.Contains(k.Message, why) {
				return nil
			}
			return fmt.Errorf("of pod %s is said %s %s: %s, not %q", name, k.Status, k.Reason, k.Message, why)
		}
		return fmt.Errorf("the scheduler has said nothing of pod %s", name)
	})
}

// idles is a container that says that it runs, and then does nothing.
func idles() corev1.Container { return container("gpu", "sleep", "100000") }

// computes is a container that says "computed" when its bursts are over, and stays.
func computes(name string, n int) corev1.Container {
	return script(name, fmt.Sprintf("sh -c '%s && echo computed && exec sleep 100000'", bursts(n)))
}

// A container gets the vGPU that its claim says, and no other container of the pod
// does: by what vgpud knows, by what is seen inside, by the driver's own word when
// there is no more memory, and by the simulated GPU's log.
func TestPodGetsWhatItsClaimSays(t *testing.T) {
	c := use(t)
	before, err := c.one.Daemon.Log(c.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	gpus, err := c.one.Daemon.PhysicalGPUs(c.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	spec := configured(claimOf(ask("gpu", "2Gi", "30", where("model", gpus[0].GetModel()))),
		map[string]any{"priority": "high", "maxShare": "90%", "quantum": "5ms"})
	c.claim("train", spec)
	const n, launches = 20, 5
	gpu := script("gpu", fmt.Sprintf("sh -c 'monitor && %s && ! burst --bursts 1 --memory %d && echo computed && exec sleep 100000'", bursts(n), 3<<30))
	p := with("train", pod("train", nil, gpu))
	p.Spec.Containers = append(p.Spec.Containers, container("logger", "sh", "-c", "vecadd || ls -d /.vgpu || echo nothing; exec sleep 100000"))
	c.create(p)

	c.says("train", "gpu", "computed")
	c.says("train", "logger", "nothing\n")
	log, err := c.logs("train", "gpu")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"count 1\n", fmt.Sprintf("memory %d ", 2<<30), "CUDA_ERROR_OUT_OF_MEMORY"} {
		if !strings.Contains(log, want) {
			t.Errorf("inside, there is no %q: %s", want, log)
		}
	}
	claim := c.getClaim("train")
	known := c.known("train")
	v := known["gpu"]
	if v.GetCount() != 1 || v.GetMemoryBytes() != 2<<30 || v.GetWeight() != 30 || v.GetPriority() != "high" || v.GetMaxShare() != 0.9 ||
		v.GetQuantum().AsDuration().Milliseconds() != 5 || len(v.GetClaims()) != 1 || v.GetClaims()[0].GetClaim() != string(claim.UID) {
		t.Errorf("vgpud knows of %v", v)
	}
	if len(known) != 1 {
		t.Errorf("vGPUs of the pod: %v", known)
	}
	tenant := c.tenant("train", "gpu")
	if got := c.submissions(c.one)[tenant]; got < n*launches {
		t.Errorf("the simulated GPU has seen %d pieces of work, want %d", got, n*launches)
	}
	c.NoOverlap()
	c.InTurnsAfter(len(before), map[harness.Tenant]string{tenant: v.GetId()})
	// What the claim takes of the GPU is what it asked for.
	results := claim.Status.Allocation.Devices.Results
	if len(results) != 1 || results[0].Device != strings.ToLower(gpus[0].GetUuid()) || !takes(results[0], "2Gi", "30") {
		t.Errorf("allocated was %v", results)
	}
}

// takes says whether an allocation takes that of its device.
func takes(r resourceapi.DeviceRequestAllocationResult, memory, share string) bool {
	m, s := r.ConsumedCapacity["memory"], r.ConsumedCapacity["share"]
	return m.Cmp(resource.MustParse(memory)) == 0 && s.Cmp(resource.MustParse(share)) == 0
}

// A claim may be shared: by containers of one pod, and by another pod, also by one that
// comes when the claim has long been prepared. Each container has a vGPU of its own,
// and they take turns.
func TestClaimIsShared(t *testing.T) {
	c := use(t)
	before, err := c.one.Daemon.Log(c.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	const n = 40
	c.claim("shared", claimOf(ask("gpu", "2Gi", "20")))
	c.create(with("shared", pod("pair", nil, computes("left", n), computes("right", n))))
	c.reaches("pair", corev1.PodRunning)
	c.create(with("shared", pod("later", nil, computes("gpu", n))))
	uid := string(c.getClaim("shared").UID)
	ids := map[harness.Tenant]string{}
	for _, who := range [][2]string{{"pair", "left"}, {"pair", "right"}, {"later", "gpu"}} {
		c.says(who[0], who[1], "computed")
		v := c.known(who[0])[who[1]]
		if v.GetMemoryBytes() != 2<<30 || v.GetWeight() != 20 || len(v.GetClaims()) != 1 || v.GetClaims()[0].GetClaim() != uid {
			t.Errorf("container %s of pod %s has the vGPU %v", who[1], who[0], v)
		}
		ids[c.tenant(who[0], who[1])] = v.GetId()
	}
	if vgpus := slices.Compact(slices.Sorted(maps.Values(ids))); len(vgpus) != 3 {
		t.Errorf("three containers have the vGPUs %v", vgpus)
	}
	c.NoOverlap()
	c.InTurnsAfter(len(before), ids)
	// When one pod goes, the other keeps what it has.
	c.remove("pair")
	if v := c.known("later")["gpu"]; v.GetId() == "" {
		t.Error("the vGPU of the pod that stays is gone")
	}
}

// A claim with adminAccess sees a GPU that others have, and takes nothing of it: who
// asks for the rest gets it all the same. The scheduler (1.37) wants what the claim asks
// for to be free nevertheless, so it asks for the least.
func TestAdminAccess(t *testing.T) {
	c := use(t)
	c.mark(`"true"`)
	defer c.mark("null")
	c.claiming("most", claimOf(ask("gpu", "16383Mi", "99")), computes("gpu", 1))
	c.says("most", "gpu", "computed")
	admin := true
	spec := claimOf(ask("all", "1Mi", "1", func(r *resourceapi.ExactDeviceRequest) {
		r.AdminAccess, r.AllocationMode = &admin, resourceapi.DeviceAllocationModeAll
	}))
	c.claiming("monitor", spec, container("gpu", "sh", "-c", "monitor && exec sleep 100000"))
	c.says("monitor", "gpu", fmt.Sprintf("count 1\nuuid %s\n", c.uuids(c.one)[0]))
	if v := c.known("monitor")["gpu"]; v.GetMemoryBytes() != 0 || v.GetCount() != 1 {
		t.Errorf("vgpud knows of %v", v)
	}
	c.claiming("rest", claimOf(ask("gpu", "1Mi", "1")), idles())
	c.reaches("rest", corev1.PodRunning)
	c.claiming("beyond", claimOf(ask("gpu", "1Mi", "1")), idles())
	c.waits("beyond", "cannot allocate all claims")
}

// mark gives the label of the namespace that admin access needs a value, in JSON.
func (c *cluster) mark(value string) {
	c.T.Helper()
	patch := fmt.Sprintf(`{"metadata": {"labels": {%q: %s}}}`, resourceapi.DRAAdminNamespaceLabelKey, value)
	if _, err := c.Client.CoreV1().Namespaces().Patch(c.Ctx, metav1.NamespaceDefault, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		c.T.Fatal(err)
	}
}

// uuids are those of a node's GPUs, in vgpud's order.
func (c *cluster) uuids(n *Node) (all []string) {
	c.T.Helper()
	gpus, err := n.Daemon.PhysicalGPUs(c.Ctx)
	if err != nil {
		c.T.Fatal(err)
	}
	for _, g := range gpus {
		all = append(all, g.GetUuid())
	}
	return all
}

// What a device class says of the vGPUs holds, and a claim's word goes before it, field
// by field.
func TestVgpuConfigOfClassAndClaim(t *testing.T) {
	c := use(t)
	const batch = "batch"
	err := makeClass(c.Ctx, c.Cluster, batch, resourceapi.DeviceClassConfiguration{DeviceConfiguration: parameters(map[string]any{"priority": "low", "weight": 7, "maxShare": 0.5})})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Client.ResourceV1().DeviceClasses().Delete(c.Ctx, batch, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	ofClass := func(r *resourceapi.ExactDeviceRequest) { r.DeviceClassName = batch }
	c.claiming("class", claimOf(ask("gpu", "1Gi", "10", ofClass)), idles())
	c.claiming("both", configured(claimOf(ask("gpu", "1Gi", "10", ofClass)), map[string]any{"weight": 9, "gang": "ring", "placement": "allocated"}), idles())
	for name, want := range map[string]*v1.VGPU{
		"class": {Priority: "low", Weight: 7, MaxShare: 0.5},
		"both":  {Priority: "low", Weight: 9, MaxShare: 0.5, Gang: "ring"},
	} {
		c.reaches(name, corev1.PodRunning)
		v := c.known(name)["gpu"]
		if v.GetPriority() != want.GetPriority() || v.GetWeight() != want.GetWeight() || v.GetMaxShare() != want.GetMaxShare() || v.GetGang() != want.GetGang() {
			t.Errorf("of pod %s vgpud knows %v, want %v", name, v, want)
		}
	}
}

// Invariant 7 for claims: each mistake is told where the user looks, with what to
// change, and no container starts.
func TestWrongClaimIsSeenInDescribe(t *testing.T) {
	c := use(t)
	good := func() resourceapi.ResourceClaimSpec { return claimOf(ask("gpu", "1Gi", "10")) }
	tests := []struct {
		description, name, says string
		claim                   resourceapi.ResourceClaimSpec
		annotations             map[string]string
		classless               bool
	}{
		{
			description: "an unknown field", name: "field",
			claim: configured(good(), map[string]any{"wieght": 5}),
			says:  `request "gpu": VgpuConfig in the claim: unknown field "wieght"; the fields are`,
		},
		{
			description: "a value that is not allowed", name: "value",
			claim: configured(good(), map[string]any{"quantum": "1h"}),
			says:  `VgpuConfig in the claim: quantum: "1h" must be a duration from 1ms to 10s, such as 20ms`,
		},
		{
			description: "no runtime class", name: "classless", classless: true, claim: good(),
			says: "this-pod-needs-runtimeClassName-vgpu",
		},
		{
			description: "annotations that contradict the claim", name: "contradicts", claim: good(),
			annotations: map[string]string{"vgpu-shim.dev/memory": "8Gi"},
			says:        `claim default/contradicts (request gpu): annotation vgpu-shim.dev/memory="8Gi": contradicts the claim, which gives "1Gi"`,
		},
		{
			description: "annotations that no GPU of the claim fits", name: "annotated", claim: good(),
			annotations: map[string]string{"vgpu-shim.dev/model": "A100"},
			says:        "0 of 1 GPUs asked for exist on this node (it has: GPU-",
		},
	}
	for _, test := range tests {
		c.claim(test.name, test.claim)
		p := with(test.name, pod(test.name, test.annotations, idles()))
		if test.classless {
			p.Spec.RuntimeClassName = nil
		}
		c.create(p)
	}
	c.claiming("large", claimOf(ask("gpu", "17Gi", "10")), idles())
	for _, test := range tests {
		t.Run(test.description, func(t *testing.T) {
			c := c.sub(t)
			c.describes(test.name, test.says)
			c.neverRan(test.name)
		})
	}
	t.Run("more memory than any GPU has", func(t *testing.T) {
		c := c.sub(t)
		c.waits("large", "cannot allocate all claims")
		c.describes("large", "cannot allocate all claims")
	})
}

// neverRan fails the test if a container of a pod has run.
func (c *cluster) neverRan(name string) {
	c.T.Helper()
	p, err := c.get(name)
	if err != nil {
		c.T.Fatal(err)
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Running != nil || s.State.Terminated != nil && s.State.Terminated.Reason != "StartError" {
			c.T.Errorf("container %s of pod %s has run: %v", s.Name, name, s.State)
		}
	}
}

// A claim that comes while vgpud is down is told so, and is prepared by itself once
// vgpud is back.
func TestClaimThatComesWhileVGPUdIsDown(t *testing.T) {
	c := use(t)
	if err := c.one.Daemon.Process().Kill(); err != nil {
		t.Fatal(err)
	}
	c.claiming("early", claimOf(ask("gpu", "1Gi", "10")), container("gpu", "vecadd"))
	// Whatever is seen, the next test needs vgpud.
	said := c.described("early", fmt.Sprintf("vgpud does not answer on %s of this node", c.one.Daemon.Socket))
	if err := c.one.Daemon.Start(c.Ctx); err != nil {
		t.Fatal(err)
	}
	if said != nil {
		t.Fatal(said)
	}
	c.reaches("early", corev1.PodSucceeded)
}

// What a claim says of itself: the GPU that its container uses, how long that held it
// and waited for it, and that the GPU is well.
func TestClaimSaysWhatItHad(t *testing.T) {
	c := use(t)
	again := func(flags ...string) {
		if err := errors.Join(c.one.KillDriver(), c.one.StartDriver(c.Ctx, flags...)); err != nil {
			t.Fatal(err)
		}
	}
	again("--status-interval=1s")
	t.Cleanup(func() { again() })
	names := []string{"left", "right"}
	for _, name := range names {
		c.claiming(name, claimOf(ask("gpu", "2Gi", "40")), script("gpu", bursts(1_000_000)))
	}
	for _, name := range names {
		c.wait(func() error { return c.saysWhatItHad(name) })
	}
}

// saysWhatItHad is nil once the claim of a pod tells of both times.
func (c *cluster) saysWhatItHad(name string) error {
	claim := c.getClaim(name)
	if claim.Status.Allocation == nil || len(claim.Status.Devices) != 1 {
		return fmt.Errorf("the status of claim %s is %+v", name, claim.Status)
	}
	given, d := claim.Status.Allocation.Devices.Results[0], claim.Status.Devices[0]
	if d.Driver != DriverName || d.Pool != given.Pool || d.Device != given.Device || d.ShareID == nil || *d.ShareID != string(*given.ShareID) {
		return fmt.Errorf("claim %s tells of %+v, and was given %+v", name, d, given)
	}
	if !meta.IsStatusConditionTrue(d.Conditions, "Ready") {
		return fmt.Errorf("the conditions of claim %s are %+v", name, d.Conditions)
	}
	var status v1alpha1.VgpuStatus
	if err := json.Unmarshal(d.Data.Raw, &status); err != nil {
		return err
	}
	if len(status.Vgpus) != 1 || status.HeldSeconds == 0 || status.WaitedSeconds == 0 {
		return fmt.Errorf("claim %s says %s", name, d.Data.Raw)
	}
	want := v1alpha1.Vgpu{Pod: name, Container: "gpu", GPUs: c.uuids(c.one), HeldSeconds: status.HeldSeconds, WaitedSeconds: status.WaitedSeconds}
	if !reflect.DeepEqual(status.Vgpus[0], want) {
		return fmt.Errorf("claim %s says %s, want %+v", name, d.Data.Raw, want)
	}
	return nil
}

// A size is a class and a template of one name: a pod that names the template gets a vGPU
// of that size, and a ResourceQuota counts it by the class.
func TestSizeByItsTemplate(t *testing.T) {
	c := use(t)
	if _, err := c.Kubectl(c.Ctx, "apply", "--filename", c.manifest("claimtemplates.yaml")); err != nil {
		t.Fatal(err)
	}
	const key = corev1.ResourceName(corev1.ResourceImplicitExtendedClaimsPerClass + "vgpu-small")
	defer c.limited(key, "1")()
	c.create(templated("vgpu-small", pod("little", nil, computes("gpu", 1))))
	c.says("little", "gpu", "computed")
	if v := c.known("little")["gpu"]; v.GetMemoryBytes() != 4<<30 || v.GetWeight() != 10 {
		t.Errorf("vgpud knows of %v", v)
	}
	c.usedOfQuota(key, "1")
}
