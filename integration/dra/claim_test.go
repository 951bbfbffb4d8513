// SPDX-License-Identifier: Apache-2.0

// Package dra takes a claim from kubelet's call to a CUDA program in a real container:
// the DRA driver, vgpud, CDI as containerd applies it, the shim and runc are the real
// ones. What kubelet and the API server do is played; the control plane's own tests
// have them, too.
package dra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/kube"
)

var rootfs string

func TestMain(m *testing.M) { os.Exit(harnesstest.Main(m, &rootfs)) }

const nodeName = "worker-1"

// claim is one that the scheduler allocated a part of the first GPU.
func claim(uuid string) *resourceapi.ResourceClaim {
	share := types.UID("share-1")
	return &resourceapi.ResourceClaim{
		// Not another run's: CDI specs stand where the whole machine looks.
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "train", UID: types.UID(fmt.Sprintf("test-%d", os.Getpid()))},
		Status: resourceapi.ResourceClaimStatus{
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "train-0", UID: "pod-uid"}},
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{
					Request: "gpu", Driver: kube.DriverName, Pool: nodeName, Device: strings.ToLower(uuid), ShareID: &share,
					ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("512Mi"), "share": resource.MustParse("30")},
				}},
				Config: []resourceapi.DeviceAllocationConfiguration{{
					Source: resourceapi.AllocationConfigSourceClaim,
					DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
						Driver:     kube.DriverName,
						Parameters: runtime.RawExtension{Raw: json.RawMessage(`{"apiVersion":"vgpu-shim.dev/v1alpha1","kind":"VgpuConfig","priority":"high","maxShare":"50%"}`)},
					}},
				}},
			}},
		},
	}
}

// serve runs the driver, and returns it as kubelet sees it.
func serve(n *harnesstest.Node, c *resourceapi.ResourceClaim) drapb.DRAPluginClient {
	t := n.T
	cfg := kube.DefaultConfig()
	cfg.NodeName, cfg.Address = nodeName, n.Daemon.Socket
	cfg.PluginDir, cfg.RegistryDir = filepath.Join(n.Dir, "plugin"), filepath.Join(n.Dir, "registry")
	cfg.Client = fake.NewClientset(c, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "node-uid"}})
	log := logrus.New()
	log.SetOutput(t.Output())
	cfg.Log = logrus.NewEntry(log)
	if err := os.Mkdir(cfg.RegistryDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(cfg.CDIDir); errors.Is(err, fs.ErrNotExist) {
		t.Cleanup(func() { _ = os.Remove(cfg.CDIDir) }) // if it is empty
	}
	ctx, cancel := context.WithCancel(n.Ctx)
	ended := make(chan error, 1)
	go func() { ended <- kube.Run(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("unix://"+filepath.Join(cfg.PluginDir, "dra.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return drapb.NewDRAPluginClient(conn)
}

func TestAContainerGetsWhatItsClaimGives(t *testing.T) {
	n := harnesstest.Start(t, rootfs, harness.Options{Version: harness.Containerd24, Daemon: harness.DaemonOptions{GPUs: "sim:2"}})
	gpus, err := n.Daemon.PhysicalGPUs(n.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := claim(gpus[0].GetUuid())
	kubelet := serve(n, c)
	ref := []*drapb.Claim{{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}}
	unprepare := func() {
		resp, err := kubelet.NodeUnprepareResources(n.Ctx, &drapb.NodeUnprepareResourcesRequest{Claims: ref}, grpc.WaitForReady(true))
		if said := resp.GetClaims()[string(c.UID)].GetError(); err != nil || said != "" {
			t.Errorf("failed to release the claim: %v, %s", err, said)
		}
	}
	t.Cleanup(unprepare)
	resp, err := kubelet.NodePrepareResources(n.Ctx, &drapb.NodePrepareResourcesRequest{Claims: ref}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	prepared := resp.GetClaims()[string(c.UID)]
	if prepared.GetError() != "" || len(prepared.GetDevices()) != 1 {
		t.Fatalf("kubelet got %v", prepared)
	}
	// container is one of a pod, with the CDI devices that kubelet got.
	container := func(id, podUID string, args ...string) harness.Spec {
		s := harness.Spec{ID: id, Rootfs: rootfs, Args: args, Annotations: map[string]string{
			"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "main",
			"io.kubernetes.cri.sandbox-namespace": "ml", "io.kubernetes.cri.sandbox-name": "train-0", "io.kubernetes.cri.sandbox-uid": podUID,
		}}
		for _, dev := range prepared.GetDevices()[0].GetCdiDeviceIds() {
			s.Extra = append(s.Extra, "--device", dev)
		}
		return s
	}
	if out := n.Run(container("computes", "pod-uid", "vecadd")); !strings.Contains(out, `"ok":true`) {
		t.Errorf("vecadd says %q", out)
	}
	n.Launch(container("stays", "pod-uid", "sleep", "1000"))
	v, err := n.VGPU("stays")
	if err != nil {
		t.Fatal(err)
	}
	if v.GetMemoryBytes() != 512<<20 || v.GetWeight() != 30 || v.GetPriority() != "high" || v.GetMaxShare() != 0.5 || v.GetCount() != 1 ||
		len(v.GetUuids()) != 2 || len(v.GetClaims()) != 1 || v.GetClaims()[0].GetClaim() != string(c.UID) {
		t.Errorf("the container's vGPU is %v", v)
	}
	if mounts := n.Run(container("looks", "pod-uid", "cat", "/proc/self/mountinfo")); strings.Contains(mounts, "claims") || !strings.Contains(mounts, " /.vgpu ") {
		t.Errorf("it has the mounts\n%s", mounts)
	}

	contradicts := container("contradicts", "pod-uid", "true")
	contradicts.Annotations["vgpu-shim.dev/memory"] = "1Gi"
	runc := container("runc", "pod-uid", "true")
	runc.Runtime = harness.RuncRuntime
	refused := func(s harness.Spec, says string) {
		t.Helper()
		if _, err := n.Containerd.Launch(n.Ctx, s); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("container %s: the error does not say %q: %v", s.ID, says, err)
		}
	}
	refused(contradicts, `claim ml/train (request gpu): annotation vgpu-shim.dev/memory="1Gi": contradicts the claim, which gives "512Mi"`)
	refused(container("other", "another-pod", "true"), "claim ml/train is reserved for ml/train-0 (uid pod-uid), not for the pod ml/train-0 (uid another-pod)")
	// Without the runtime class nothing starts, rather than without a GPU.
	refused(runc, "this-pod-needs-runtimeClassName-vgpu")

	cdi := prepared.GetDevices()[0].GetCdiDeviceIds()[0]
	unprepare()
	refused(container("late", "pod-uid", "true"), cdi)
	if err := n.Daemon.Control(func(control v1.ControlClient) error {
		list, err := control.ListClaims(n.Ctx, &v1.ListClaimsRequest{})
		if len(list.GetClaims()) != 0 {
			t.Errorf("vgpud still knows %v", list.GetClaims())
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
