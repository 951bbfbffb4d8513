// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
	"github.com/vgpu-shim/vgpu/vgpu/kube/kubetest"
)

func TestWhatIsPublished(t *testing.T) {
	r := run(t, 2, func(cfg *Config) {
		cfg.Oversubscription, cfg.DefaultShare = 1.5, 20
		// GPU 0 is at an address of the machine.
		at := filepath.Join(cfg.Sysfs, "devices/pci0000:00/0000:00:01.0/0000:01:00.0")
		for _, dir := range []string{at, filepath.Join(cfg.Sysfs, "bus/pci/devices")} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(at, "numa_node"), []byte("1\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0", filepath.Join(cfg.Sysfs, "bus/pci/devices/0000:01:00.0")); err != nil {
			t.Fatal(err)
		}
	})
	kubetest.Until(t, "both GPUs are published", func() bool { return len(r.devices()) == 2 })
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	version := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{VersionValue: &s} }
	quantity := func(s string) *resource.Quantity { q := resource.MustParse(s); return &q }
	node, multiple := int64(1), true
	want := resourceapi.Device{
		Name: device(0), AllowMultipleAllocations: &multiple,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"model": text("Test GPU"), "architecture": text("Hopper"), "uuid": text(gputest.UUID(0)),
			"computeCapability": version("9.0.0"), "driverVersion": version("1.0.0"),
			"resource.kubernetes.io/pciBusID": text("0000:01:00.0"), "resource.kubernetes.io/pcieRoot": text("pci0000:00"),
			"resource.kubernetes.io/numaNode": {IntValue: &node},
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: resource.MustParse("24Gi"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default: quantity("3276Mi"), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity("1Mi"), Max: quantity("16Gi"), Step: quantity("1Mi")},
			}},
			"share": {Value: resource.MustParse("100"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default: quantity("20"), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity("1"), Max: quantity("100"), Step: quantity("1")},
			}},
		},
	}
	list, err := r.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%v, %d slices", err, len(list.Items))
	}
	slice := list.Items[0].Spec
	if diff := cmp.Diff(want, slice.Devices[0]); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if slice.Driver != "vgpu-shim.dev" || slice.Pool.Name != testNode || slice.NodeName == nil || *slice.NodeName != testNode || list.Items[0].OwnerReferences[0].UID != "node-uid" {
		t.Errorf("the slice is %+v of %v", slice, list.Items[0].OwnerReferences)
	}
	// The other one is at none: what is not known is left out.
	if _, ok := slice.Devices[1].Attributes["resource.kubernetes.io/pcieRoot"]; ok || slice.Devices[1].Name != device(1) {
		t.Errorf("GPU 1 is %+v", slice.Devices[1])
	}
}

// What the API server demands of a device (k8s.io/api/resource/v1), for GPUs of odd
// sizes: multiples of the step, within the range, and no value that overflows.
func TestCapacitiesKeepTheRules(t *testing.T) {
	for _, memory := range []uint64{1, mebibyte - 1, mebibyte, 16<<30 + 4097, 141<<30 - 1} {
		for _, factor := range []float64{1, 1.1, 1.337, 2, 100} {
			for _, usual := range []uint64{0, 1 << 20, 1 << 40} {
				d := &Driver{cfg: Config{Oversubscription: factor, DefaultMemory: usual, DefaultShare: 1, Sysfs: t.TempDir()}}
				device := func(guests uint64) resourceapi.DeviceCapacity {
					return d.device(&v1.GPU{Uuid: gputest.UUID(0), MemoryBytes: memory}, snapshot{}, "", guests).Capacity["memory"]
				}
				c := device(0)
				whole := c.Value.Value() / mebibyte
				for _, guests := range []int64{1, whole / 2, whole - 2, whole - 1, whole, whole + 1, 1 << 40} {
					c := device(uint64(max(guests, 0)))
					p := c.RequestPolicy
					if whole < 2 || guests < 0 {
						continue
					}
					if left := c.Value.Value() / mebibyte; left != max(whole-guests, 2) || p.ValidRange.Max.Value() != min(c.Value.Value(), int64(memory/mebibyte*mebibyte)) ||
						p.Default.Cmp(*p.ValidRange.Max) > 0 || p.Default.Cmp(*p.ValidRange.Min) < 0 {
						t.Errorf("%d bytes, %g, guests of %dMi: value %s, default %s, at most %s", memory, factor, guests, &c.Value, p.Default, p.ValidRange.Max)
					}
				}
				p := c.RequestPolicy
				for name, q := range map[string]*resource.Quantity{"value": &c.Value, "default": p.Default, "max": p.ValidRange.Max, "min": p.ValidRange.Min} {
					if n, ok := q.AsInt64(); !ok || n%mebibyte != 0 || n < 0 {
						t.Errorf("%d bytes, %g: %s is %s", memory, factor, name, q)
					}
				}
				if memory < mebibyte {
					continue // no GPU is so small
				}
				if p.Default.Cmp(*p.ValidRange.Max) > 0 || p.Default.Cmp(*p.ValidRange.Min) < 0 || p.ValidRange.Max.Cmp(c.Value) > 0 {
					t.Errorf("%d bytes, %g: value %s, default %s, at most %s", memory, factor, &c.Value, p.Default, p.ValidRange.Max)
				}
				if got, want := c.Value.AsApproximateFloat64(), float64(memory)*factor; got > want || got < want-float64(mebibyte)*(factor+1) {
					t.Errorf("%d bytes, %g: value %s", memory, factor, &c.Value)
				}
			}
		}
	}
}

func TestVersionsAndAddresses(t *testing.T) {
	for in, want := range map[string]string{"580.65.06": "580.65.6", "9.0": "9.0.0", "12": "12.0.0", "1.2.3.4": "1.2.3", "": "", "1.x": "", "0.00.0": "0.0.0"} {
		if got, ok := semantic(in); got != want || ok != (want != "") {
			t.Errorf("%q is %q, %v", in, got, ok)
		}
	}
	for in, want := range map[string]string{"00000000:3B:00.0": "0000:3b:00.0", "00010000:01:00.0": "00010000:01:00.0", "0000:01:00.0": "0000:01:00.0", "": ""} {
		if got := BusID(in); got != want {
			t.Errorf("%q is %q", in, got)
		}
	}
}

// Each claim changes the order in which the next pod tries the GPUs.
func TestTheOrderFollowsTheClaims(t *testing.T) {
	for order, want := range map[Order]string{FirstFit: "0 1 2", Pack: "2 1 0", Spread: "0 1 2"} {
		t.Run(string(order), func(t *testing.T) {
			big, small := claimWith("big", result("gpu", 2, "8Gi", "50")), claimWith("small", result("gpu", 1, "1Gi", "50"))
			r := run(t, 3, func(cfg *Config) { cfg.Order = order }, big, small)
			published := func() string {
				var out []string
				for _, d := range r.devices() {
					out = append(out, fmt.Sprint(slices.IndexFunc([]string{device(0), device(1), device(2)}, func(s string) bool { return s == d.Name })))
				}
				return strings.Join(out, " ")
			}
			kubetest.Until(t, "the GPUs are in vgpud's order", func() bool { return published() == "0 1 2" })
			for _, c := range []*resourceapi.ResourceClaim{big, small} {
				if _, err := r.kubelet.prepare(c); err != nil {
					t.Fatal(err)
				}
			}
			kubetest.Until(t, "they are in the order of the policy", func() bool { return published() == want })
			r.driver.stop() // what was prepared counts after a restart, too
			r.start(func(cfg *Config) { cfg.Order = order })
			kubetest.Until(t, "the new driver has published", func() bool {
				r.driver.publishing.Lock()
				defer r.driver.publishing.Unlock()
				return r.driver.published != nil
			})
			if first := r.driver.published.Slices[0].Devices[0].Name; first != device(int(want[0]-'0')) {
				t.Errorf("after a restart %s is first, want GPU %c", first, want[0])
			}
			for _, c := range []*resourceapi.ResourceClaim{big, small} {
				if err := r.kubelet.unprepare(c); err != nil {
					t.Fatal(err)
				}
			}
			kubetest.Until(t, "they are in vgpud's order again", func() bool { return published() == "0 1 2" })
		})
	}
}

func TestTheRandomOrderIsNewForEachClaimAlone(t *testing.T) {
	d := &Driver{cfg: Config{Order: Random}, seed: 1}
	var gpus []*v1.GPU
	for i := range 8 {
		gpus = append(gpus, &v1.GPU{Uuid: gputest.UUID(i)})
	}
	first := make(map[string]int)
	for range 400 {
		once, again := d.order(gpus, nil), d.order(gpus, nil)
		if !slices.Equal(once, again) {
			t.Fatal("it changed by itself")
		}
		first[once[0].GetUuid()]++
		d.shuffles.Add(1)
	}
	for uuid, n := range first {
		if math.Abs(float64(n)-50) > 35 {
			t.Errorf("%s was first %d times of 400", uuid, n)
		}
	}
	if len(first) != len(gpus) || gpus[0].GetUuid() != gputest.UUID(0) {
		t.Errorf("first were %v", first)
	}
}

// taintsOf are the taints of each device as key:effect.
func (r *running) taintsOf() string {
	var out []string
	for _, d := range r.devices() {
		for _, taint := range d.Taints {
			out = append(out, fmt.Sprintf("%s %s:%s", d.Name[len(d.Name)-1:], strings.TrimPrefix(taint.Key, DriverName+"/"), taint.Effect))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func TestHealthIsTold(t *testing.T) {
	r := run(t, 2, func(cfg *Config) { cfg.Absence = time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := drahealth.NewDRAResourceHealthClient(r.kubelet.conn).NodeWatchResources(ctx, &drahealth.NodeWatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	// told waits until kubelet is told so of GPU 0.
	told := func(health drahealth.HealthStatus, message string) {
		t.Helper()
		for {
			m, err := stream.Recv()
			if err != nil {
				t.Fatalf("kubelet was not told that it is %v (%v)", health, err)
			}
			for _, d := range m.GetDevices() {
				if d.GetDevice().GetPoolName() == testNode && d.GetDevice().GetDeviceName() == device(0) && d.GetHealth() == health && strings.Contains(d.GetMessage(), message) {
					return
				}
			}
		}
	}
	timeout := time.AfterFunc(kubetest.Patience, cancel)
	defer timeout.Stop()
	tainted := func(want string) {
		t.Helper()
		kubetest.Until(t, "the taints are "+want, func() bool { return len(r.devices()) == 2 && r.taintsOf() == want })
	}
	told(drahealth.HealthStatus_HEALTHY, "")
	tainted("")
	r.gpus.SetHealth(gpu.Health{UUID: gputest.UUID(0), Down: "fell off the bus"})
	told(drahealth.HealthStatus_UNHEALTHY, "fell off the bus")
	tainted("1 unhealthy:NoExecute")
	r.gpus.SetHealth(gpu.Health{UUID: gputest.UUID(0), Cordon: "an MPS daemon runs"})
	told(drahealth.HealthStatus_HEALTHY, "an MPS daemon runs")
	tainted("1 cordoned:NoSchedule")
	r.gpus.SetHealth(gpu.Health{UUID: gputest.UUID(0)})
	tainted("")
	r.stopVgpud()
	told(drahealth.HealthStatus_UNKNOWN, "vgpud does not run")
	tainted("1 absent:NoSchedule, 2 absent:NoSchedule")
	r.vgpud(r.gpus)
	told(drahealth.HealthStatus_HEALTHY, "")
	tainted("")
}

// What a guest reserves of a GPU is not offered to the scheduler, and what was promised is,
// also while it is used.
func TestMemoryOfGuestsIsNotPublished(t *testing.T) {
	c := claimWith("train", result("gpu", 0, "1Gi", "25"))
	r := run(t, 1, nil, c)
	if _, err := r.kubelet.prepare(c); err != nil {
		t.Fatal(err)
	}
	r.create("claimed", podA, string(c.UID), "gpu")
	if err := r.control(func(c v1.ControlClient) error {
		_, err := c.Create(t.Context(), &v1.CreateRequest{
			Container: &v1.Container{Containerd: "/run/containerd/containerd.sock", Namespace: "k8s.io", Id: "guest"},
			Instance:  "guest", Bundle: t.TempDir(), Annotations: ours("gpus", "1", "memory", "6Gi", "bind", "early"),
		})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	want := resource.MustParse("10Gi")
	kubetest.Until(t, "10Gi are published", func() bool {
		all := r.devices()
		if len(all) != 1 {
			return false
		}
		value := all[0].Capacity[memoryCapacity].Value
		return value.Cmp(want) == 0
	})
	if p := r.devices()[0].Capacity[memoryCapacity].RequestPolicy; p.ValidRange.Max.Cmp(want) != 0 || p.Default.Cmp(resource.MustParse("1638Mi")) != 0 {
		t.Errorf("a request takes %s to %s, and %s if it says nothing", p.ValidRange.Min, p.ValidRange.Max, p.Default)
	}
}
