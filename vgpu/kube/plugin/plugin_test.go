// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/claim"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
	"github.com/vgpu-shim/vgpu/vgpu/kube"
	"github.com/vgpu-shim/vgpu/vgpu/kube/kubetest"
	"github.com/vgpu-shim/vgpu/vgpu/kube/vgpud"
	"github.com/vgpu-shim/vgpu/vgpu/node/nodetest"
)

// place is a node under test. Nothing is shared between places, so tests run at once.
type place struct {
	t         *testing.T
	dir       string
	gpus      *gputest.Inventory
	kubelet   *kubelet
	stopVgpud func()
	metrics   *prometheus.Registry
}

func newPlace(t *testing.T, gpus int) *place {
	t.Helper()
	t.Parallel()
	// Short, as the paths of sockets are limited.
	dir, err := os.MkdirTemp("", "plugin")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &place{t: t, dir: dir, gpus: gputest.New(gpus)}
	p.kubelet = startKubelet(t, dir)
	p.vgpud()
	return p
}

func (p *place) vgpud() {
	p.t.Helper()
	p.stopVgpud = nodetest.Start(p.t, p.gpus, p.state(), nodetest.Library(p.t, p.dir))
}

func (p *place) state() string { return filepath.Join(p.dir, "vgpu") }

// running is a plugin, or one that has ended.
type running struct {
	stop  func()
	ended chan error
}

// run starts a plugin.
func (p *place) run(edit func(*Config)) *running {
	p.t.Helper()
	cfg := DefaultConfig()
	cfg.Address = vgpud.Address(filepath.Join(p.state(), "vgpud.sock"))
	cfg.Dir, cfg.PodsDir, cfg.Sysfs = p.kubelet.dir, p.kubelet.pods, filepath.Join(p.dir, "sys")
	p.metrics = prometheus.NewRegistry()
	cfg.Metrics = p.metrics
	log := logrus.New()
	log.SetOutput(p.t.Output())
	cfg.Log = logrus.NewEntry(log)
	if edit != nil {
		edit(&cfg)
	}
	if err := cfg.Check(); err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{ended: make(chan error, 1)}
	over := make(chan struct{})
	go func() {
		defer close(over)
		r.ended <- Run(ctx, cfg)
	}()
	r.stop = func() { cancel(); <-over }
	p.t.Cleanup(r.stop)
	return r
}

// fails waits until the plugin gives up.
func (r *running) fails(t *testing.T, says string) {
	t.Helper()
	select {
	case err := <-r.ended:
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("it ended with %v, want one that says %q", err, says)
		}
	case <-time.After(kubetest.Patience):
		t.Fatalf("it does not end, and should say %q", says)
	}
}

// control asks vgpud.
func (p *place) control(question func(v1.ControlClient) error) error {
	conn, err := net.Dial("unix", filepath.Join(p.state(), "vgpud.sock"))
	if err != nil {
		return err
	}
	c := ttrpc.NewClient(conn)
	defer c.Close()
	return errgrpc.ToNative(question(v1.NewControlClient(c)))
}

// resolve asks as the shim does for a container.
func (p *place) resolve(uid, name string) (out *v1.ResolveClaimsResponse, err error) {
	of := claim.OfLimits(uid, name)
	err = p.control(func(c v1.ControlClient) (err error) {
		out, err = c.ResolveClaims(p.t.Context(), &v1.ResolveClaimsRequest{
			Pod:      &v1.Pod{Namespace: "ml", Name: "train", Uid: uid, Container: name},
			Pointers: []*v1.ClaimPointer{{Claim: of.UID, Request: of.Request}},
		})
		return err
	})
	return out, err
}

// gives is what the shim gets for a container, without the prefix.
func (p *place) gives(uid, name string) map[string]string {
	p.t.Helper()
	var resp *v1.ResolveClaimsResponse
	// vgpud waits for what the plugin tells it, but not for ever.
	kubetest.Until(p.t, "vgpud knows what "+name+" gets", func() (ok bool) {
		var err error
		if resp, err = p.resolve(uid, name); err != nil {
			p.t.Log(err)
		}
		return err == nil
	})
	out := map[string]string{}
	for k, v := range resp.GetAnnotations() {
		out[strings.TrimPrefix(k, "vgpu-shim.dev/")] = v
	}
	return out
}

// claims are the UIDs of what vgpud knows.
func (p *place) claims() (out []string) {
	p.t.Helper()
	if err := p.control(func(c v1.ControlClient) error {
		resp, err := c.ListClaims(p.t.Context(), &v1.ListClaimsRequest{})
		for _, k := range resp.GetClaims() {
			out = append(out, k.GetUid())
		}
		return err
	}); err != nil {
		p.t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

func (p *place) knows(uids ...string) {
	p.t.Helper()
	kubetest.Until(p.t, "vgpud knows "+strings.Join(uids, ", "), func() bool { return cmp.Equal(uids, p.claims()) })
}

func TestLimitsBecomeOneVGPU(t *testing.T) {
	p := newPlace(t, 2)
	p.run(func(c *Config) { c.Oversubscription = 1.5 })
	p.kubelet.registered()
	for resource, each := range map[string]int{GPUs: 10, Memory: 96, Share: 100} {
		want := map[string]int{gputest.UUID(0): each, gputest.UUID(1): each}
		if diff := cmp.Diff(want, p.kubelet.units(resource, pluginapi.Healthy)); diff != "" {
			t.Errorf("units of %s (-want +got):\n%s", resource, diff)
		}
	}
	for _, tc := range []struct {
		name string
		ask
		want map[string]string
	}{
		{"all", ask{1, 32, 50}, map[string]string{"gpus": "1", "memory": "8Gi", "weight": "50"}},
		{"two", ask{2, 8, 30}, map[string]string{"gpus": "2", "memory": "1Gi", "weight": "15"}},
		{"usual", ask{gpus: 1}, map[string]string{"gpus": "1", "memory": "1638Mi", "weight": "10"}},
	} {
		mounts := p.kubelet.admit("pod-1", tc.name, tc.ask)
		if diff := cmp.Diff(map[string]string{claim.LimitsDestination: "/dev/null"}, mounts); diff != "" {
			t.Errorf("mounts of %s (-want +got):\n%s", tc.name, diff)
		}
		if diff := cmp.Diff(tc.want, p.gives("pod-1", tc.name)); diff != "" {
			t.Errorf("%s gets (-want +got):\n%s", tc.name, diff)
		}
	}
	// Nobody but the container itself gets it.
	if _, err := p.resolve("pod-2", "all"); !errdefs.IsNotFound(err) {
		t.Errorf("another pod: %v", err)
	}
	// Units of others alone are none of ours.
	p.kubelet.has("pod-3", "other", "example.org/disk", map[string][]string{"-1": {"disk-1"}})
	p.kubelet.admit("pod-4", "main", ask{gpus: 1})
	p.knows("pod.pod-1.all", "pod.pod-1.two", "pod.pod-1.usual", "pod.pod-4.main")
}

func TestDefaultsAreTheNodes(t *testing.T) {
	p := newPlace(t, 1)
	p.run(func(c *Config) { c.DefaultShare, c.DefaultMemory = 25, 3<<30 })
	p.kubelet.registered()
	if n := p.kubelet.units(GPUs, pluginapi.Healthy)[gputest.UUID(0)]; n != 4 {
		t.Errorf("a GPU has %d units of %s, want 4", n, GPUs)
	}
	p.kubelet.admit("pod-1", "main", ask{gpus: 1})
	if diff := cmp.Diff(map[string]string{"gpus": "1", "memory": "3Gi", "weight": "25"}, p.gives("pod-1", "main")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhatCanNotBeGivenIsSaid(t *testing.T) {
	p := newPlace(t, 2)
	p.run(func(c *Config) { c.Oversubscription = 2 })
	p.kubelet.registered()
	for _, tc := range []struct {
		name string
		ask
		says string
	}{
		{"no-gpu", ask{memory: 1}, "they ask for memory or a share, and for no GPU: add vgpu-shim.dev/gpu: 1"},
		{"uneven", ask{gpus: 2, memory: 3}, "they ask for 3 of vgpu-shim.dev/memory on 2 GPUs together, which get the same each: ask for a multiple of 2"},
		{"more-gpus", ask{gpus: 3}, "they ask for 3 GPUs, and this node has " + gputest.UUID(0) + " (Test GPU, 16Gi), " + gputest.UUID(1) + " (Test GPU, 16Gi): a container gets each once, so ask for at most 2"},
		{"more-memory", ask{gpus: 1, memory: 65}, "they ask for 16640Mi of memory on each of 1 GPUs, and this node has "},
		{"more-share", ask{gpus: 1, share: 101}, "they ask for 101 percent of the time of each GPU: ask for at most 100 in vgpu-shim.dev/share"},
	} {
		p.kubelet.admit("pod-"+tc.name, "main", tc.ask)
		var err error
		kubetest.Until(t, "vgpud knows of "+tc.name, func() bool {
			_, err = p.resolve("pod-"+tc.name, "main")
			return !errdefs.IsNotFound(err)
		})
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "limits of container main: "+tc.says) {
			t.Errorf("%s: %v, want one that says %q", tc.name, err, tc.says)
		}
		p.kubelet.forget("pod-" + tc.name)
	}
}

// What vgpud refuses reaches the pod, too, and is given as soon as it can be.
func TestWhatVgpudRefusesIsSaid(t *testing.T) {
	p := newPlace(t, 1)
	if err := p.claimed("by-claim"); err != nil {
		t.Fatal(err)
	}
	// The plugin was there first: it does not know of the claim's vGPU yet.
	p.run(nil).fails(t, "pods of this node have GPUs by claims, as ml/by-claim has")
	if err := p.unclaimed(); err != nil {
		t.Fatal(err)
	}
	p.run(nil)
	p.kubelet.registered()
	if err := p.claimed("by-claim"); err != nil {
		t.Fatal(err)
	}
	p.kubelet.admit("pod-1", "main", ask{gpus: 1})
	kubetest.Until(t, "the refusal is known", func() bool {
		_, err := p.resolve("pod-1", "main")
		return errdefs.IsFailedPrecondition(err) && strings.Contains(err.Error(), "ml/by-claim (uid u-claim) has a GPU of this node by a claim (DRA)")
	})
	if err := p.unclaimed(); err != nil {
		t.Fatal(err)
	}
	p.kubelet.admit("pod-2", "main", ask{gpus: 1})
	kubetest.Until(t, "it is given after all", func() bool { _, err := p.resolve("pod-1", "main"); return err == nil })
}

// claimed makes a vGPU of a pod with a claim of the DRA driver.
func (p *place) claimed(pod string) error {
	of := &v1.Pod{Namespace: "ml", Name: pod, Uid: "u-claim", Container: "main"}
	return p.control(func(c v1.ControlClient) error {
		_, err := c.SetClaim(p.t.Context(), &v1.SetClaimRequest{Claim: &v1.Claim{
			Uid: "c-1", Namespace: "ml", Name: "train", Pods: []*v1.Pod{of},
			Requests: []*v1.ClaimGrant{{Name: "gpu", Annotations: map[string]string{"vgpu-shim.dev/gpus": "1"}}},
		}})
		if err != nil {
			return err
		}
		_, err = c.Create(p.t.Context(), &v1.CreateRequest{
			Container: p.container(), Instance: "1", Bundle: p.dir, Pod: of,
			Annotations: map[string]string{"vgpu-shim.dev/gpus": "1"}, Claims: []*v1.ClaimPointer{{Claim: "c-1", Request: "gpu"}},
		})
		return err
	})
}

func (p *place) unclaimed() error {
	return p.control(func(c v1.ControlClient) error {
		_, err := c.Delete(p.t.Context(), &v1.DeleteRequest{Container: p.container()})
		if err == nil {
			_, err = c.DeleteClaim(p.t.Context(), &v1.DeleteClaimRequest{Uid: "c-1"})
		}
		return err
	})
}

func (p *place) container() *v1.Container {
	return &v1.Container{Containerd: "/run/containerd.sock", Namespace: "k8s.io", Id: "by-claim"}
}

// Records come and go with the pod's directory, or when kubelet forgets the pod.
func TestPodsThatEndAreForgotten(t *testing.T) {
	p := newPlace(t, 1)
	p.run(nil)
	k := p.kubelet
	k.registered()
	k.has("refused", "main", GPUs, map[string][]string{"-1": {gputest.UUID(0) + "/9"}})
	for _, pod := range []string{"pod-1", "pod-2"} {
		k.admit(pod, "main", ask{gpus: 1})
	}
	p.knows("pod.pod-1.main", "pod.pod-2.main")
	k.end("pod-1")
	p.knows("pod.pod-2.main")
	k.admit("pod-3", "main", ask{gpus: 1}) // the checkpoint still has the others
	p.knows("pod.pod-2.main", "pod.pod-3.main")
	k.forget("pod-2")
	p.knows("pod.pod-3.main")
	p.stopVgpud()
	k.end("pod-3")
	p.vgpud()
	p.knows()
}

// A kubelet that was restarted knows no plugins, and has removed their sockets.
func TestKubeletIsRestarted(t *testing.T) {
	p := newPlace(t, 1)
	p.run(nil)
	p.kubelet.registered()
	p.kubelet.admit("pod-1", "main", ask{1, 4, 20})
	want := p.gives("pod-1", "main")
	for range 2 {
		p.kubelet.server.Stop()
		p.kubelet = startKubelet(t, p.dir)
		p.kubelet.registered()
	}
	if diff := cmp.Diff(want, p.gives("pod-1", "main")); diff != "" {
		t.Errorf("after it (-want +got):\n%s", diff)
	}
	if free := len(p.kubelet.free(Memory)); free != 60 {
		t.Errorf("%d units of memory are free, want 60", free)
	}
	p.kubelet.admit("pod-2", "main", ask{gpus: 1})
	p.gives("pod-2", "main")
	if got := p.metric("vgpu_kubelet_registrations_total"); got != 3 {
		t.Errorf("it has registered %v times, want 3", got)
	}
}

func (p *place) metric(name string) float64 {
	p.t.Helper()
	all, err := p.metrics.Gather()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	p.t.Fatalf("there is no metric %s", name)
	return 0
}

// A plugin that was killed leaves its sockets; the next one removes them. Pods that were
// given something before are known, and containers that are started meanwhile, too.
func TestThePluginIsRestarted(t *testing.T) {
	p := newPlace(t, 1)
	first := p.run(nil)
	k := p.kubelet
	k.registered()
	k.admit("pod-1", "main", ask{gpus: 1})
	k.admit("pod-2", "main", ask{gpus: 1})
	p.knows("pod.pod-1.main", "pod.pod-2.main")
	stale := filepath.Join(k.dir, socketPrefix+"gpu-killed.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	first.stop()
	kubetest.Until(t, "kubelet misses it", func() bool { return len(k.units(GPUs, pluginapi.Healthy)) == 0 })
	p.gives("pod-1", "main") // a container may be restarted meanwhile
	k.has("pod-3", "main", GPUs, map[string][]string{"-1": {gputest.UUID(0) + "/9"}})
	k.begin("pod-3")
	k.forget("pod-2")
	p.run(nil)
	k.registered()
	p.knows("pod.pod-1.main", "pod.pod-3.main")
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of a plugin that was killed is left: %v", err)
	}
	if got := p.metric("vgpu_kubelet_containers"); got != 2 {
		t.Errorf("it counts %v containers, want 2", got)
	}
}

// vgpud may lose what it knew, and is told again. While it is away no new pods are wanted.
func TestVgpudIsAway(t *testing.T) {
	p := newPlace(t, 2)
	p.run(func(c *Config) { c.Absence = time.Millisecond })
	k := p.kubelet
	k.registered()
	k.admit("pod-1", "main", ask{gpus: 1})
	p.knows("pod.pod-1.main")
	p.stopVgpud()
	for _, r := range Resources() {
		kubetest.Until(t, "no unit of "+r+" is healthy", func() bool {
			return len(k.units(r, pluginapi.Healthy)) == 0 && len(k.units(r, pluginapi.Unhealthy)) == 2
		})
	}
	if err := os.RemoveAll(p.state()); err != nil {
		t.Fatal(err)
	}
	p.vgpud()
	k.registered()
	p.knows("pod.pod-1.main")
	p.stopVgpud()
	k.has("pod-2", "main", GPUs, map[string][]string{"-1": {gputest.UUID(0) + "/9"}})
	k.write(nil)
	k.begin("pod-2") // it was admitted just before
	p.vgpud()
	p.knows("pod.pod-1.main", "pod.pod-2.main")
}

func TestUnitsAreAsHealthyAsTheirGPU(t *testing.T) {
	p := newPlace(t, 2)
	p.run(nil)
	k := p.kubelet
	k.registered()
	healthy := func(what string, gpus ...int) {
		t.Helper()
		for resource, each := range map[string]int{GPUs: 10, Memory: 64, Share: 100} {
			want := map[string]int{}
			for _, n := range gpus {
				want[gputest.UUID(n)] = each
			}
			kubetest.Until(t, what+" in "+resource, func() bool { return cmp.Equal(want, k.units(resource, pluginapi.Healthy)) })
		}
	}
	p.gpus.SetHealth(gpu.Health{UUID: gputest.UUID(0), Down: "it fell off the bus"})
	healthy("a lost GPU is unhealthy", 1)
	if err := p.control(func(c v1.ControlClient) error {
		_, err := c.CordonGPU(t.Context(), &v1.CordonGPURequest{Uuid: gputest.UUID(1)})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	healthy("a cordoned one is unhealthy")
	p.gpus.SetHealth(gpu.Health{UUID: gputest.UUID(0)})
	healthy("a GPU is healthy again", 0)
}

// The same GPU is not given away by two plugins, unless it is said so.
func TestAnotherPluginHasTheGPUs(t *testing.T) {
	nvidia := map[string][]string{"nvidia.com/gpu": {strings.ToLower(gputest.UUID(1)) + "::0"}, "example.org/disk": {"disk-1"}}
	says := nvidia["nvidia.com/gpu"][0] + " is offered to Kubernetes by nvidia.com/gpu as well"
	t.Run("before", func(t *testing.T) {
		p := newPlace(t, 2)
		p.kubelet.write(nvidia)
		p.run(nil).fails(t, says)
		if p.kubelet.endpoint(GPUs) != nil {
			t.Error("it has registered all the same")
		}
		p.run(func(c *Config) { c.AllowContested = true })
		p.kubelet.registered()
	})
	t.Run("later", func(t *testing.T) {
		p := newPlace(t, 2)
		r := p.run(nil)
		p.kubelet.registered()
		p.kubelet.write(map[string][]string{"nvidia.com/gpu": {"GPU-ffffffff-0000-0000-0000-000000000001"}}) // not one of ours
		p.kubelet.admit("pod-1", "main", ask{gpus: 1})
		p.gives("pod-1", "main")
		p.kubelet.write(nvidia)
		r.fails(t, says)
		kubetest.Until(t, "kubelet misses it", func() bool { return len(p.kubelet.units(GPUs, pluginapi.Healthy)) == 0 })
	})
}

// Nor is it beside a DRA driver, ours among them, where the API server can be asked.
func TestADriverHasTheGPUs(t *testing.T) {
	const node = "worker-1"
	offered := func(driver, on string) *resourceapi.ResourceSlice {
		uuid := gputest.UUID(1)
		return &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "slice"},
			Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &on, Devices: []resourceapi.Device{{
				Name: "gpu-1", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"uuid": {StringValue: &uuid}},
			}}},
		}
	}
	client := func(objects ...runtime.Object) *fake.Clientset {
		return fake.NewClientset(append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})...)
	}
	asks := func(c *fake.Clientset) func(*Config) {
		return func(cfg *Config) { cfg.Client, cfg.NodeName = c, node }
	}
	for _, driver := range []string{kube.DriverName, "gpu.nvidia.com"} {
		t.Run(driver, func(t *testing.T) {
			p := newPlace(t, 2)
			offers := asks(client(offered(driver, node)))
			p.run(offers).fails(t, gputest.UUID(1)+" is offered to Kubernetes by "+driver+" as well")
			if p.kubelet.endpoint(GPUs) != nil {
				t.Error("it has registered all the same")
			}
			p.run(func(c *Config) { offers(c); c.AllowContested = true })
			p.kubelet.registered()
		})
	}
	t.Run("on another node", func(t *testing.T) {
		p := newPlace(t, 2)
		p.run(asks(client(offered(kube.DriverName, "worker-2"))))
		p.kubelet.registered()
	})
	for _, why := range []error{apierrors.NewNotFound(schema.GroupResource{}, ""), apierrors.NewForbidden(schema.GroupResource{}, "", nil)} {
		t.Run("nobody says: "+string(apierrors.ReasonForError(why)), func(t *testing.T) {
			p := newPlace(t, 2)
			c := client()
			c.PrependReactor("list", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, why })
			p.run(asks(c))
			p.kubelet.registered()
		})
	}
}

// A checkpoint that can not be read changes nothing.
func TestACheckpointThatCanNotBeRead(t *testing.T) {
	p := newPlace(t, 1)
	p.run(nil)
	k := p.kubelet
	k.registered()
	k.admit("pod-1", "main", ask{gpus: 1})
	p.knows("pod.pod-1.main")
	k.writeText([]byte(`{"PodDeviceEntries": []}`))
	k.has("pod-2", "main", GPUs, map[string][]string{"0": {gputest.UUID(0) + "/9"}, "1": {gputest.UUID(0) + "/9"}})
	k.write(nil)
	k.begin("pod-2")
	p.knows("pod.pod-1.main", "pod.pod-2.main")
	if got := p.gives("pod-2", "main")["gpus"]; got != "1" {
		t.Errorf("a unit of two NUMA nodes counts as %s GPUs", got)
	}
	for text, says := range map[string]string{
		`{"PodDeviceEntries": []}`: "it has no Data", `{"Data": {"PodDeviceEntries": [{"DeviceIDs": ["a"]}]}}`: "has not the form that it has since Kubernetes 1.20",
	} {
		k.writeText([]byte(text))
		if _, err := readCheckpoint(k.dir); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s is read: %v", text, err)
		}
	}
}

// With --numa kubelet knows where GPUs are, and the container stays there.
func TestContainersStayOnTheNUMANodeOfTheirUnits(t *testing.T) {
	p := newPlace(t, 4)
	for i, g := range p.gpus.GPUs() {
		dir := filepath.Join(p.dir, "sys", "bus/pci/devices", strings.ToLower(strings.TrimPrefix(g.PCIBusID, "0000")))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "numa_node"), []byte{byte('0' + i/2), '\n'}, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.run(func(c *Config) { c.NUMA = true })
	k := p.kubelet
	k.registered()
	k.mu.Lock()
	for _, d := range k.resources[Memory].devices {
		nodes := d.GetTopology().GetNodes()
		if want := gpuOf(d.GetID()) >= gputest.UUID(2); len(nodes) != 1 || (nodes[0].GetID() == 1) != want {
			t.Fatalf("unit %s is on NUMA nodes %v", d.GetID(), nodes)
		}
	}
	k.mu.Unlock()
	unit := func(gpu, n string) string { return gpu + "/" + n }
	k.has("pod-1", "near", GPUs, map[string][]string{"1": {unit(gputest.UUID(3), "0")}})
	k.has("pod-1", "both", GPUs, map[string][]string{"0": {unit(gputest.UUID(0), "0")}, "1": {unit(gputest.UUID(2), "0")}})
	k.has("pod-1", "three", GPUs, map[string][]string{"1": {unit(gputest.UUID(2), "1"), unit(gputest.UUID(3), "1"), unit(gputest.UUID(3), "2")}})
	k.write(nil)
	k.begin("pod-1")
	p.knows("pod.pod-1.both", "pod.pod-1.near", "pod.pod-1.three")
	for name, want := range map[string]string{
		"near": gputest.UUID(2) + "," + gputest.UUID(3), "both": "",
		"three": "", // there are not as many on that node
	} {
		if got := p.gives("pod-1", name)["uuid"]; got != want {
			t.Errorf("%s is to stay on %q, want %q", name, got, want)
		}
	}
}

func TestDirectoriesThatAreNotKubelets(t *testing.T) {
	for flag, edit := range map[string]func(*Config){
		"device-plugins-dir": func(c *Config) { c.Dir += "x" },
		"pods-dir":           func(c *Config) { c.PodsDir += "x" },
	} {
		t.Run(flag, func(t *testing.T) {
			newPlace(t, 1).run(edit).fails(t, "if it is elsewhere, name it with --"+flag)
		})
	}
}
