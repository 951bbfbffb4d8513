// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
	"github.com/vgpu-shim/vgpu/vgpu/kube/kubetest"
	"github.com/vgpu-shim/vgpu/vgpu/node/nodetest"
)

const testNode = "worker-1"

// place is the directories of a node under test, and what talks to what is there.
type place struct {
	t   *testing.T
	dir string
}

// newPlace makes one with a short path: those of sockets are limited. Nothing is shared
// between places, so their tests run at once.
func newPlace(t *testing.T) *place {
	t.Helper()
	t.Parallel()
	dir, err := os.MkdirTemp("", "kube")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &place{t: t, dir: dir}
}

func (p *place) config() Config {
	cfg := DefaultConfig()
	cfg.NodeName, cfg.Address = testNode, filepath.Join(p.dir, "vgpu", "vgpud.sock")
	cfg.PluginDir, cfg.RegistryDir, cfg.CDIDir = filepath.Join(p.dir, "plugin"), filepath.Join(p.dir, "registry"), filepath.Join(p.dir, "cdi")
	cfg.Sysfs = filepath.Join(p.dir, "sys")
	// A vgpud that is stopped refuses at once. One that runs answers, however busy the
	// machine is.
	cfg.answer, cfg.firstWord = 2*kubetest.Patience, 2*kubetest.Patience
	log := logrus.New()
	log.SetOutput(os.Stderr)
	if p.t != nil {
		log.SetOutput(p.t.Output())
	}
	cfg.Log = logrus.NewEntry(log)
	if err := os.MkdirAll(cfg.RegistryDir, 0o755); err != nil {
		panic(err)
	}
	return cfg
}

// vgpud starts a vgpud in the directory; stop ends it.
func (p *place) vgpud(gpus *gputest.Inventory) (stop func()) {
	p.t.Helper()
	return nodetest.Start(p.t, gpus, filepath.Join(p.dir, "vgpu"), nodetest.Library(p.t, p.dir))
}

// control asks vgpud.
func (p *place) control(question func(v1.ControlClient) error) error {
	conn, err := net.Dial("unix", filepath.Join(p.dir, "vgpu", "vgpud.sock"))
	if err != nil {
		return err
	}
	c := ttrpc.NewClient(conn)
	defer c.Close()
	return errgrpc.ToNative(question(v1.NewControlClient(c)))
}

// claims are what vgpud knows.
func (p *place) claims() []*v1.Claim {
	p.t.Helper()
	var out []*v1.Claim
	if err := p.control(func(c v1.ControlClient) error {
		resp, err := c.ListClaims(p.t.Context(), &v1.ListClaimsRequest{})
		out = resp.GetClaims()
		return err
	}); err != nil {
		p.t.Fatal(err)
	}
	return out
}

// resolve asks as the shim does for a container of a pod.
func (p *place) resolve(pod *v1.Pod, uid, request string) (*v1.ResolveClaimsResponse, error) {
	var out *v1.ResolveClaimsResponse
	err := p.control(func(c v1.ControlClient) (err error) {
		out, err = c.ResolveClaims(p.t.Context(), &v1.ResolveClaimsRequest{Pod: pod, Pointers: []*v1.ClaimPointer{{Claim: uid, Request: request}}})
		return err
	})
	return out, err
}

// files are those that the driver has made for claims.
func (p *place) files() (out []string) {
	for _, dir := range []string{"plugin/claims", "cdi"} {
		entries, err := os.ReadDir(filepath.Join(p.dir, dir))
		if err != nil {
			p.t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, dir+"/"+e.Name())
		}
	}
	return out
}

// kubelet does as kubelet does.
type kubelet struct {
	t    *testing.T
	conn *grpc.ClientConn
	drapb.DRAPluginClient
}

func dialUnix(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// register finds the driver by its registration socket.
func (p *place) register() *kubelet {
	p.t.Helper()
	path := filepath.Join(p.dir, "registry", DriverName+"-reg.sock")
	kubetest.Until(p.t, "the driver registers", func() bool { _, err := os.Stat(path); return err == nil })
	conn := dialUnix(p.t, path)
	defer conn.Close()
	c := registerapi.NewRegistrationClient(conn)
	ctx, cancel := context.WithTimeout(p.t.Context(), kubetest.Patience)
	defer cancel()
	info, err := c.GetInfo(ctx, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		p.t.Fatal(err)
	}
	if info.GetType() != registerapi.DRAPlugin || info.GetName() != DriverName {
		p.t.Fatalf("it registers as %v", info)
	}
	if _, err := c.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		p.t.Fatal(err)
	}
	k := &kubelet{t: p.t, conn: dialUnix(p.t, info.GetEndpoint())}
	k.DRAPluginClient = drapb.NewDRAPluginClient(k.conn)
	p.t.Cleanup(func() { k.conn.Close() })
	return k
}

func ref(c *resourceapi.ResourceClaim) *drapb.Claim {
	return &drapb.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}
}

// prepare returns the devices, or the error that kubelet shows on the pod.
func (k *kubelet) prepare(c *resourceapi.ResourceClaim) ([]*drapb.Device, error) {
	resp, err := k.NodePrepareResources(context.Background(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{ref(c)}})
	if err != nil {
		return nil, err
	}
	one := resp.GetClaims()[string(c.UID)]
	if one.GetError() != "" {
		return nil, fmt.Errorf("NodePrepareResources failed for ResourceClaim %s: %s", c.Name, one.GetError())
	}
	return one.GetDevices(), nil
}

func (k *kubelet) unprepare(c *resourceapi.ResourceClaim) error {
	resp, err := k.NodeUnprepareResources(context.Background(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{ref(c)}})
	if err != nil {
		return err
	}
	one, ok := resp.GetClaims()[string(c.UID)]
	if !ok {
		return fmt.Errorf("no answer for %s", c.UID)
	}
	if one.GetError() != "" {
		return fmt.Errorf("%s", one.GetError())
	}
	return nil
}

// newClient is an API server with these objects, and the node.
func newClient(objects ...kruntime.Object) *fake.Clientset {
	objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode, UID: "node-uid"}})
	client := fake.NewClientset(objects...)
	// It does not do this by itself.
	n := 0
	client.PrependReactor("create", "*", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		if o, err := meta.Accessor(a.(clienttesting.CreateAction).GetObject()); err == nil && o.GetName() == "" {
			n++
			o.SetName(fmt.Sprintf("%s%d", o.GetGenerateName(), n))
		}
		return false, nil, nil
	})
	client.PrependReactor("list", "resourceslices", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		driver, ok := a.(clienttesting.ListAction).GetListRestrictions().Fields.RequiresExactMatch(resourceapi.ResourceSliceSelectorDriver)
		if !ok {
			return false, nil, nil
		}
		all, err := client.Tracker().List(a.GetResource(), resourceapi.SchemeGroupVersion.WithKind("ResourceSlice"), "")
		if err != nil {
			return true, nil, err
		}
		list := all.(*resourceapi.ResourceSliceList)
		list.Items = slices.DeleteFunc(list.Items, func(s resourceapi.ResourceSlice) bool { return s.Spec.Driver != driver })
		return true, list, nil
	})
	return client
}

// running is a driver in this process.
type running struct {
	*place
	gpus      *gputest.Inventory
	client    *fake.Clientset
	driver    *Driver
	kubelet   *kubelet
	stopVgpud func()
}

func run(t *testing.T, gpus int, edit func(*Config), claims ...*resourceapi.ResourceClaim) *running {
	t.Helper()
	r := &running{place: newPlace(t), gpus: gputest.New(gpus)}
	r.stopVgpud = r.vgpud(r.gpus)
	var objects []kruntime.Object
	for _, c := range claims {
		objects = append(objects, c)
	}
	r.client = newClient(objects...)
	r.start(edit)
	return r
}

func (r *running) start(edit func(*Config)) {
	r.t.Helper()
	cfg := r.config()
	cfg.Client = r.client
	if edit != nil {
		edit(&cfg)
	}
	if err := cfg.Check(); err != nil {
		r.t.Fatal(err)
	}
	d, err := start(context.Background(), cfg, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.driver = d
	r.t.Cleanup(d.stop)
	r.kubelet = r.register()
}

// devices are those that are published, in their order.
func (r *running) devices() (out []resourceapi.Device) {
	r.t.Helper()
	list, err := r.client.ResourceV1().ResourceSlices().List(r.t.Context(), metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, s := range list.Items {
		out = append(out, s.Spec.Devices...)
	}
	return out
}

func device(n int) string { return strings.ToLower(gputest.UUID(n)) }

// result is what the scheduler writes for one device.
func result(request string, gpu int, memory, share string) resourceapi.DeviceRequestAllocationResult {
	id := types.UID(fmt.Sprintf("share-%s-%d", request, gpu))
	return resourceapi.DeviceRequestAllocationResult{
		Request: request, Driver: DriverName, Pool: testNode, Device: device(gpu), ShareID: &id,
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
			memoryCapacity: resource.MustParse(memory), shareCapacity: resource.MustParse(share),
		},
	}
}

func claimWith(name string, results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("uid-" + name)},
		Status: resourceapi.ResourceClaimStatus{
			Allocation:  &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-a", UID: "pod-a-uid"}},
		},
	}
}

var (
	podA = &v1.Pod{Namespace: "ml", Name: "pod-a", Uid: "pod-a-uid", Container: "main"}
	podB = &v1.Pod{Namespace: "ml", Name: "pod-b", Uid: "pod-b-uid", Container: "main"}
)

// config adds parameters for requests; none: for all.
func config(c *resourceapi.ResourceClaim, source resourceapi.AllocationConfigSource, fields string, requests ...string) *resourceapi.ResourceClaim {
	c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
		Source: source, Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver:     DriverName,
			Parameters: kruntime.RawExtension{Raw: json.RawMessage(`{"apiVersion":"vgpu-shim.dev/v1alpha1","kind":"VgpuConfig"` + fields + `}`)},
		}},
	})
	return c
}

// syncBuffer is a log that can be read while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
