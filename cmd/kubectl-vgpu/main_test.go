// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// fake is a cluster with what a test wants to see in it.
type fake struct {
	all     []corev1.Pod
	text    map[string]string // metrics, by node
	fail    map[string]error  // by node
	slices  []resourceapi.ResourceSlice
	claimed []resourceapi.ResourceClaim
	denied  error // what listing claims gives
}

func (f *fake) pods(context.Context) ([]corev1.Pod, error) { return slices.Clone(f.all), nil }

func (f *fake) metrics(_ context.Context, pod *corev1.Pod, port int32) ([]byte, error) {
	if port != 9442 {
		return nil, fmt.Errorf("nobody serves port %d", port)
	}
	return []byte(f.text[pod.Spec.NodeName]), f.fail[pod.Spec.NodeName]
}

func (f *fake) claims(context.Context) ([]resourceapi.ResourceSlice, []resourceapi.ResourceClaim, error) {
	return f.slices, f.claimed, f.denied
}

func vgpudPod(node string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "vgpu-system", Name: "vgpud-" + node}}
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	p.Spec.Containers = []corev1.Container{{Name: "vgpud", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9442}}}}
	return p
}

// metricsOf are those of a node with a GPU that one vGPU of a pod holds, while another
// one, of a container without a pod, waits.
const metricsOf = `vgpu_daemon_info{version="v1",commit="abc",driver="580.1"} 1
vgpu_gpu_info{gpu="GPU-aaaaaaaa-1111",model="Test",pci_bus_id="0000:01:00.0"} 1
vgpu_gpu_state{gpu="GPU-aaaaaaaa-1111",state="HELD"} 1
vgpu_gpu_state{gpu="GPU-aaaaaaaa-1111",state="FREE"} 0
vgpu_gpu_bound_vgpus{gpu="GPU-aaaaaaaa-1111"} 2
vgpu_gpu_pending_vgpus{gpu="GPU-aaaaaaaa-1111"} 1
vgpu_gpu_memory_bytes{gpu="GPU-aaaaaaaa-1111"} 1.7179869184e+10
vgpu_gpu_memory_reserved_bytes{gpu="GPU-aaaaaaaa-1111"} 4.294967296e+09
vgpu_gpu_memory_used_bytes{gpu="GPU-aaaaaaaa-1111"} 5.36870912e+08
vgpu_unmanaged_processes{gpu="GPU-aaaaaaaa-1111",id="",namespace="",container="",pod_namespace="",pod=""} 2
vgpu_info{id="00bb",namespace="default",container="solo",pod_namespace="",pod="",pod_container=""} 1
vgpu_info{id="00aa",namespace="k8s.io",container="c0ffee",pod_namespace="ml",pod="train-0",pod_container="main"} 1
vgpu_state{id="00aa",namespace="k8s.io",container="c0ffee",state="HOLDING"} 1
vgpu_state{id="00aa",namespace="k8s.io",container="c0ffee",state="IDLE"} 0
vgpu_state{id="00bb",namespace="default",container="solo",state="PENDING"} 1
vgpu_memory_limit_bytes{id="00aa",namespace="k8s.io",container="c0ffee",gpu="GPU-aaaaaaaa-1111"} 4.294967296e+09
vgpu_memory_used_bytes{id="00aa",namespace="k8s.io",container="c0ffee",gpu="GPU-aaaaaaaa-1111"} 5.36870912e+08
# TYPE vgpu_held_seconds_total counter
vgpu_held_seconds_total{id="00aa",namespace="k8s.io",container="c0ffee"} 12.34
vgpu_held_seconds_total{id="00bb",namespace="default",container="solo"} 0
vgpu_waited_seconds_total{id="00aa",namespace="k8s.io",container="c0ffee"} 3.21
vgpu_turns_total{id="00aa",namespace="k8s.io",container="c0ffee"} 7
vgpu_overruns_total{id="00aa",namespace="k8s.io",container="c0ffee"} 1
`

func two() *fake {
	node, yes := "one", true
	claim := func(memory, share string, admin *bool) resourceapi.ResourceClaim {
		return resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
				{Driver: driver, Pool: "one", Device: "gpu-aaaaaaaa-1111", AdminAccess: admin, ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory), "share": resource.MustParse(share)}},
				{Driver: "other.example", Pool: "one", Device: "gpu-aaaaaaaa-1111", ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("9Gi")}},
			}},
		}}}
	}
	capacity := func(q string) resourceapi.DeviceCapacity {
		return resourceapi.DeviceCapacity{Value: resource.MustParse(q)}
	}
	return &fake{
		all:  []corev1.Pod{vgpudPod("two"), vgpudPod("one")},
		text: map[string]string{"one": metricsOf, "two": `vgpu_daemon_info{version="v1",driver="580.1"} 1` + "\n"},
		slices: []resourceapi.ResourceSlice{{Spec: resourceapi.ResourceSliceSpec{NodeName: &node, Pool: resourceapi.ResourcePool{Name: "one"}, Devices: []resourceapi.Device{
			{Name: "gpu-aaaaaaaa-1111", Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": capacity("16Gi"), "share": capacity("100")}},
			{Name: "gpu-gone"},
		}}}},
		claimed: []resourceapi.ResourceClaim{{}, claim("4Gi", "30", nil), claim("1Gi", "10", nil), claim("16Gi", "100", &yes)},
	}
}

// run runs the plugin on a cluster.
func run(t *testing.T, s source, args ...string) (out, errs string, err error) {
	t.Helper()
	a := &app{}
	cmd := commandFor(a)
	a.connect = func() (source, error) { return s, nil }
	var stdout, stderr bytes.Buffer
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

func TestTables(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"top", "--interval=0"}, `
NODE   GPU            MODEL   STATE   HELD   VGPUS   WAITING   MEMORY   USED    UNRESERVED   CLAIMABLE   SHARE LEFT
one    GPU-aaaaaaaa   Test    HELD    -      2       1         16Gi     512Mi   12Gi         11Gi        60%
`},
		{[]string{"ps"}, `
NAMESPACE   POD       CONTAINER   NODE   GPU            STATE     USED    LIMIT   HELD    WAITED   OVERRUNS
-           -         solo        one    -              PENDING   0       -       0s      0s       0
ml          train-0   main        one    GPU-aaaaaaaa   HOLDING   512Mi   4Gi     12.3s   3.2s     1
`},
		{[]string{"ps", "--namespace=ml", "one"}, `
NAMESPACE   POD       CONTAINER   NODE   GPU            STATE     USED    LIMIT   HELD    WAITED   OVERRUNS
ml          train-0   main        one    GPU-aaaaaaaa   HOLDING   512Mi   4Gi     12.3s   3.2s     1
`},
		{[]string{"describe", "node", "one", "--interval=0"}, `
Name:     one
vgpud:    v1
Driver:   580.1

GPU:               GPU-aaaaaaaa-1111
  Model:           Test
  State:           HELD
  Held:            -
  vGPUs:           2, of which 1 wait
  Memory:          16Gi, reserved by vGPUs 4Gi, used by them 512Mi
  Claims:          2; left to claim: memory 11Gi of 16Gi, share 60% of 100%
  Past the gate:   2 processes that are clients of no vGPU (vgpu doctor on the node names them)
  ml/train-0:      main, HOLDING, used 512Mi, held 12.3s, waited 3.2s
`},
	} {
		out, errs, err := run(t, two(), test.args...)
		if err != nil || errs != "" || out != strings.TrimPrefix(test.want, "\n") {
			t.Errorf("%v: %v %s\n%s", test.args, err, errs, out)
		}
	}
}

func TestJSON(t *testing.T) {
	out, _, err := run(t, two(), "top", "--interval=0", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	one := got["nodes"].([]any)[0].(map[string]any)
	g, v := one["gpus"].([]any)[0].(map[string]any), one["vgpus"].([]any)[1].(map[string]any)
	for name, is := range map[string]bool{
		"order of nodes": one["name"] == "one", "held_ratio": g["held_ratio"] == nil, "memory_free_bytes": g["memory_free_bytes"] == nil,
		"claims": g["claims"].(map[string]any)["memory_free_bytes"] == float64(11<<30), "held_seconds": v["held_seconds"] == 12.34,
		"gpus of a vGPU": fmt.Sprint(v["gpus"]) == "[GPU-aaaaaaaa-1111]", "a node without GPUs": fmt.Sprint(got["nodes"].([]any)[1].(map[string]any)["gpus"]) == "[]",
	} {
		if !is {
			t.Errorf("%s is not as it should be in %s", name, out)
		}
	}
}

// Held is told of the time between two looks, each vGPU on all its GPUs.
func TestHeldBetweenTwoLooks(t *testing.T) {
	look := func(a, b float64) *node {
		return &node{
			GPUs:  []*gpu{{UUID: "1"}, {UUID: "2"}, {UUID: "3"}},
			VGPUs: []*vgpu{{ID: "a", GPUs: []string{"1", "2"}, Held: a}, {ID: "b", GPUs: []string{"1"}, Held: b}},
		}
	}
	n := look(11, 22)
	n.since(look(10, 20), 4*time.Second)
	for i, want := range []float64{0.75, 0.25, 0} {
		if got := n.GPUs[i].Held; got == nil || *got != want {
			t.Errorf("GPU %d was held for %s of the time, not %v", i+1, ratio(got), want)
		}
	}
	n = look(100, 22)
	n.since(&node{}, 4*time.Second)
	if *n.GPUs[0].Held != 1 {
		t.Errorf("more than always: %v", *n.GPUs[0].Held)
	}
	n = look(1, 1)
	n.since(&node{Problem: "away"}, time.Second)
	if n.GPUs[0].Held != nil {
		t.Error("something is told of a node that was not seen before")
	}
}

// What can not be seen is said, with what to do, and the rest is shown.
func TestWhatCanNotBeSeen(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods/proxy"}
	for _, test := range []struct {
		name  string
		spoil func(*fake)
		args  []string
		says  string
		rest  bool // the other node is shown
	}{
		{"no chart", func(f *fake) { f.all = nil }, []string{"ps"}, "install the Helm chart", false},
		{"no such node", func(*fake) {}, []string{"top", "three"}, "no pod of vgpud is on node three: see whether there is such a node", false},
		{"a pod that waits", func(f *fake) { f.all[0].Status.Phase = corev1.PodPending }, []string{"ps"}, "node two: its vgpud does not run, pod vgpu-system/vgpud-two is Pending: see kubectl -n vgpu-system logs vgpud-two", true},
		{"no metrics", func(f *fake) { f.all[0].Spec.Containers[0].Ports = nil }, []string{"ps"}, "node two: its vgpud serves no metrics: set metrics.enabled=true", true},
		{"no rights", func(f *fake) { f.fail = map[string]error{"two": apierrors.NewForbidden(pods, "vgpud-two", nil)} }, []string{"ps"}, "you need get on pods/proxy in namespace vgpu-system", true},
		{"no answer", func(f *fake) { f.fail = map[string]error{"two": errors.New("connection refused")} }, []string{"ps"}, "node two: its vgpud does not answer: connection refused", true},
		{"others' metrics", func(f *fake) { f.text["two"] = "up 1\n" }, []string{"ps"}, "they are not vgpud's", true},
		{"no metrics at all", func(f *fake) { f.text["two"] = "<html>" }, []string{"ps"}, "failed to read the metrics of pod vgpu-system/vgpud-two", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := two()
			test.spoil(f)
			out, _, err := run(t, f, test.args...)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("the error does not say %q: %v", test.says, err)
			}
			if strings.Contains(out, "train-0") != test.rest {
				t.Errorf("it shows\n%s", out)
			}
		})
	}
}

// Who may not list claims sees all else.
func TestWithoutRightsToClaims(t *testing.T) {
	f := two()
	f.slices, f.denied = nil, errors.New("forbidden")
	out, errs, err := run(t, f, "top", "--interval=0")
	if err != nil || !strings.Contains(errs, "note: what is claimed is not shown: forbidden") || !strings.Contains(out, "12Gi         -           -\n") {
		t.Errorf("%v %s\n%s", err, errs, out)
	}
}

func TestWrongUse(t *testing.T) {
	for _, args := range [][]string{{"ps", "-o", "yaml"}, {"top", "--interval=2h"}, {"describe", "node"}, {"ps", "--nope"}} {
		_, _, err := run(t, two(), args...)
		if _, wrong := errors.AsType[usage](err); !wrong {
			t.Errorf("%v: %v", args, err)
		}
	}
}
