// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
	"github.com/vgpu-shim/vgpu/vgpu/kube/kubetest"
)

// sliceOf is another driver's, with a device that has one attribute.
func sliceOf(driver, node, attribute, value string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: driver + "-" + node},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node},
			Devices: []resourceapi.Device{{Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				resourceapi.QualifiedName(attribute): {StringValue: &value},
			}}},
		},
	}
}

func TestRivals(t *testing.T) {
	gpus := []*v1.GPU{{Uuid: gputest.UUID(0), PciBusId: "00000000:3B:00.0"}, {Uuid: gputest.UUID(1)}}
	for _, tc := range []struct {
		description string
		slice       *resourceapi.ResourceSlice
		capacity    string
		amount      string
		want        map[string]string
	}{
		{"nobody", nil, "", "", map[string]string{}},
		{"a driver, by UUID", sliceOf("gpu.nvidia.com", testNode, "uuid", gputest.UUID(1)), "", "", map[string]string{gputest.UUID(1): "gpu.nvidia.com"}},
		{"a driver, by a UUID in a domain and other letters", sliceOf("x.dev", testNode, "x.dev/uuid", strings.ToLower(gputest.UUID(1))), "", "", map[string]string{gputest.UUID(1): "x.dev"}},
		{"a driver, by PCI address", sliceOf("x.dev", testNode, "resource.kubernetes.io/pciBusID", "0000:3b:00.0"), "", "", map[string]string{gputest.UUID(0): "x.dev"}},
		{"a driver with other GPUs", sliceOf("gpu.nvidia.com", testNode, "uuid", gputest.UUID(7)), "", "", map[string]string{}},
		{"a driver on another node", sliceOf("gpu.nvidia.com", "worker-2", "uuid", gputest.UUID(1)), "", "", map[string]string{}},
		{"its own", sliceOf(DriverName, testNode, "uuid", gputest.UUID(1)), "", "", map[string]string{}},
		{"a device plugin", nil, "nvidia.com/gpu", "2", map[string]string{gputest.UUID(0): "nvidia.com/gpu", gputest.UUID(1): "nvidia.com/gpu"}},
		{"vgpu-kubelet's device plugin", nil, "vgpu-shim.dev/gpu", "10", map[string]string{gputest.UUID(0): "vgpu-shim.dev/gpu", gputest.UUID(1): "vgpu-shim.dev/gpu"}},
		{"the units of memory that it has besides", nil, "vgpu-shim.dev/memory", "10", map[string]string{}},
		{"a device plugin that is gone", nil, "nvidia.com/gpu", "0", map[string]string{}},
		{"another resource", nil, "example.com/fpga", "2", map[string]string{}},
	} {
		t.Run(tc.description, func(t *testing.T) {
			client := newClient()
			if tc.slice != nil {
				if _, err := client.ResourceV1().ResourceSlices().Create(t.Context(), tc.slice, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			if tc.capacity != "" {
				n, err := client.CoreV1().Nodes().Get(t.Context(), testNode, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				n.Status.Capacity = corev1.ResourceList{corev1.ResourceName(tc.capacity): resource.MustParse(tc.amount)}
				if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			got, err := Rivals(t.Context(), client, testNode, gpus, DriverName)
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got)\n%s", err, diff)
			}
		})
	}
}

// The device plugin is no rival of its own.
func TestTheDevicePluginIsNoRivalOfItself(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: testNode},
		Status:     corev1.NodeStatus{Capacity: corev1.ResourceList{LimitsGPU: resource.MustParse("10")}},
	})
	if got, err := Rivals(t.Context(), client, testNode, []*v1.GPU{{Uuid: gputest.UUID(0)}}, LimitsGPU); err != nil || len(got) != 0 {
		t.Errorf("rivals %v, %v", got, err)
	}
}

// Where there is no DRA yet there may be device plugins.
func TestRivalsOnAnOldCluster(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: testNode},
		Status:     corev1.NodeStatus{Capacity: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
	})
	client.PrependReactor("list", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(resourceapi.Resource("resourceslices"), "")
	})
	got, err := Rivals(t.Context(), client, testNode, []*v1.GPU{{Uuid: gputest.UUID(0)}}, DriverName)
	if diff := cmp.Diff(map[string]string{gputest.UUID(0): "nvidia.com/gpu"}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

// A GPU that somebody else offers takes no new claims, the node has an event that says
// what to do, and once it is the driver's alone it does again.
func TestAContestedGPUTakesNoNewClaims(t *testing.T) {
	r := &running{place: newPlace(t), gpus: gputest.New(2)}
	r.stopVgpud = r.vgpud(r.gpus)
	r.client = newClient(sliceOf("gpu.nvidia.com", testNode, "uuid", gputest.UUID(1)))
	r.start(nil)
	ours := func() string {
		var out []string
		for _, d := range r.devices() {
			for _, taint := range d.Taints {
				out = append(out, d.Name+" "+taint.Key+"="+taint.Value+":"+string(taint.Effect))
			}
		}
		return strings.Join(out, ", ")
	}
	published := func() int {
		n := 0
		for _, d := range r.devices() {
			if strings.HasPrefix(d.Name, "gpu-0000") {
				n++
			}
		}
		return n
	}
	kubetest.Until(t, "the GPUs are published", func() bool { return published() == 2 })
	if got, want := ours(), device(1)+" vgpu-shim.dev/contested=gpu.nvidia.com:NoSchedule"; got != want {
		t.Errorf("the taints are %q, want %q", got, want)
	}
	now, _ := r.driver.snapshot()
	var events *corev1.EventList
	kubetest.Until(t, "the node has an event", func() (has bool) {
		list, err := r.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		events = list
		return err == nil && len(list.Items) == 1
	})
	if err := r.driver.tellOfRivals(map[string]string{gputest.UUID(1): "gpu.nvidia.com"}); err != nil || r.count("create", "events") != 1 { // nothing new
		t.Errorf("%v, %d events were made", err, r.count("create", "events"))
	}
	if e := events.Items[0]; e.InvolvedObject.Kind != "Node" || e.InvolvedObject.Name != testNode || e.Type != corev1.EventTypeWarning ||
		!strings.Contains(e.Message, gputest.UUID(1)+" is offered to Kubernetes by gpu.nvidia.com as well") || !strings.Contains(e.Message, "--allow-contested") {
		t.Errorf("the event is %+v", e)
	}
	if err := r.client.ResourceV1().ResourceSlices().Delete(t.Context(), "gpu.nvidia.com-"+testNode, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.driver.lookForRivals(now.gpus); err != nil {
		t.Fatal(err)
	}
	kubetest.Until(t, "the taint is gone", func() bool { return published() == 2 && ours() == "" })
}

// Who else offers a GPU is in the log, once, also while the API server takes no event of it;
// and that is tried again without another look.
func TestAContestedGPUIsLoggedWithoutItsEvent(t *testing.T) {
	r := &running{place: newPlace(t), gpus: gputest.New(1)}
	r.stopVgpud = r.vgpud(r.gpus)
	r.client = newClient(sliceOf("gpu.nvidia.com", testNode, "uuid", gputest.UUID(0)))
	var tried atomic.Int32
	r.client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		tried.Add(1)
		return true, nil, errors.New("connection refused")
	})
	var log *logrustest.Hook
	r.start(func(cfg *Config) { log = logrustest.NewLocal(cfg.Log.Logger) })
	kubetest.Until(t, "the event was tried again", func() bool { return tried.Load() >= 2 })
	var errs []string
	for _, e := range log.AllEntries() {
		if e.Level == logrus.ErrorLevel {
			errs = append(errs, e.Message)
		}
	}
	if len(errs) != 1 || !strings.HasPrefix(errs[0], gputest.UUID(0)+" is offered to Kubernetes by gpu.nvidia.com as well") {
		t.Errorf("the log has the errors %q", errs)
	}
	looks := 0
	for _, a := range r.client.Actions() { // the library lists its own driver's
		if l, ok := a.(clienttesting.ListAction); ok && l.GetListRestrictions().Fields.String() == "spec.nodeName="+testNode {
			looks++
		}
	}
	if looks != 1 {
		t.Errorf("it was looked %d times who else offers the GPU", looks)
	}
}

func TestAContestedGPUIsPublishedWhereThatIsAllowed(t *testing.T) {
	r := &running{place: newPlace(t), gpus: gputest.New(1)}
	r.stopVgpud = r.vgpud(r.gpus)
	r.client = newClient(sliceOf("gpu.nvidia.com", testNode, "uuid", gputest.UUID(0)))
	r.start(func(cfg *Config) { cfg.AllowContested = true })
	kubetest.Until(t, "the GPU is published", func() bool { return len(r.devices()) == 2 })
	if got := r.taintsOf(); got != "" {
		t.Errorf("the taints are %q", got)
	}
}
