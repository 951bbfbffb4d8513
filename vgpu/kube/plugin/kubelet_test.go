// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/vgpu-shim/vgpu/vgpu/kube/kubetest"
)

// kubelet does as kubelet's device manager does.
type kubelet struct {
	pluginapi.UnimplementedRegistrationServer
	t      *testing.T
	dir    string // device-plugins
	pods   string
	server *grpc.Server

	mu        sync.Mutex
	resources map[string]*endpoint
	given     []entry
}

// endpoint is a plugin that has registered.
type endpoint struct {
	pluginapi.DevicePluginClient
	name    string
	options *pluginapi.DevicePluginOptions
	devices []*pluginapi.Device
	lists   int // that were received
	gone    bool
}

// entry is one of the checkpoint.
type entry struct {
	PodUID, ContainerName, ResourceName string
	DeviceIDs                           map[string][]string
}

// startKubelet starts one, which removes all sockets as kubelet does. What an earlier one
// has written it reads.
func startKubelet(t *testing.T, dir string) *kubelet {
	t.Helper()
	k := &kubelet{t: t, dir: filepath.Join(dir, "device-plugins"), pods: filepath.Join(dir, "pods"), resources: map[string]*endpoint{}}
	for _, d := range []string{k.dir, k.pods} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	sockets, _ := filepath.Glob(filepath.Join(k.dir, "*.sock"))
	for _, s := range sockets {
		if err := os.Remove(s); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(k.dir, checkpointFile)); err == nil {
		var file struct {
			Data struct{ PodDeviceEntries []entry }
		}
		if err := json.Unmarshal(text, &file); err != nil {
			t.Fatal(err)
		}
		k.given = file.Data.PodDeviceEntries
	}
	l, err := net.Listen("unix", filepath.Join(k.dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	k.server = grpc.NewServer()
	pluginapi.RegisterRegistrationServer(k.server, k)
	go func() { _ = k.server.Serve(l) }()
	t.Cleanup(k.server.Stop)
	return k
}

// Register connects back before it answers.
func (k *kubelet) Register(ctx context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	conn, err := grpc.NewClient("unix://"+filepath.Join(k.dir, r.GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	e := &endpoint{DevicePluginClient: pluginapi.NewDevicePluginClient(conn), name: r.GetEndpoint()}
	if e.options, err = e.GetDevicePluginOptions(ctx, &pluginapi.Empty{}); err != nil {
		return nil, err
	}
	stream, err := e.ListAndWatch(context.Background(), &pluginapi.Empty{})
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	k.resources[r.GetResourceName()] = e
	k.mu.Unlock()
	go func() {
		defer conn.Close()
		for {
			list, err := stream.Recv()
			k.mu.Lock()
			if err == nil {
				e.devices = list.GetDevices()
				e.lists++
			} else {
				e.gone = true
			}
			k.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return &pluginapi.Empty{}, nil
}

// endpoint is the one of a resource; nil: none.
func (k *kubelet) endpoint(resource string) *endpoint {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.resources[resource]
}

// units counts those of a resource, by the GPU that names them.
func (k *kubelet) units(resource, health string) map[string]int {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[string]int{}
	if e := k.resources[resource]; e != nil && !e.gone {
		for _, d := range e.devices {
			if d.GetHealth() == health {
				out[gpuOf(d.GetID())]++
			}
		}
	}
	return out
}

// registered waits until all resources have units.
func (k *kubelet) registered() {
	k.t.Helper()
	for _, r := range Resources() {
		kubetest.Until(k.t, r+" is registered", func() bool { return len(k.units(r, pluginapi.Healthy)) > 0 })
	}
}

// ask is what the limits of a container ask for.
type ask struct{ gpus, memory, share int }

// admit gives a pod's container its units, one resource after another in any order,
// writes the checkpoint once, and begins with the pod, as kubelet does. It returns the
// mounts of the container.
func (k *kubelet) admit(pod, name string, a ask) map[string]string {
	k.t.Helper()
	mounts := map[string]string{}
	for resource, n := range map[string]int{GPUs: a.gpus, Memory: a.memory, Share: a.share} {
		if n == 0 {
			continue
		}
		free := k.free(resource)
		if len(free) < n {
			k.t.Fatalf("kubelet has %d units of %s left, %s asks for %d", len(free), resource, name, n)
		}
		e := k.endpoint(resource)
		preferred, err := e.GetPreferredAllocation(k.t.Context(), &pluginapi.PreferredAllocationRequest{
			ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: free, AllocationSize: int32(n)}},
		})
		if err != nil {
			k.t.Fatal(err)
		}
		units := preferred.GetContainerResponses()[0].GetDeviceIDs()
		if len(units) != n || slices.ContainsFunc(units, func(u string) bool { return !slices.Contains(free, u) }) {
			k.t.Fatalf("preferred are %v of %s for %d", units, resource, n)
		}
		resp, err := e.Allocate(k.t.Context(), &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: units}}})
		if err != nil {
			k.t.Fatal(err)
		}
		for _, m := range resp.GetContainerResponses()[0].GetMounts() {
			mounts[m.GetContainerPath()] = m.GetHostPath()
		}
		k.given = append(k.given, entry{pod, name, resource, map[string][]string{"-1": units}})
	}
	k.write(nil)
	k.begin(pod)
	return mounts
}

// free are the healthy units of a resource that nobody has.
func (k *kubelet) free(resource string) (out []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	used := map[string]bool{}
	for _, e := range k.given {
		if e.ResourceName == resource {
			maps.Copy(used, set(e.DeviceIDs))
		}
	}
	for _, d := range k.resources[resource].devices {
		if d.GetHealth() == pluginapi.Healthy && !used[d.GetID()] {
			out = append(out, d.GetID())
		}
	}
	slices.Sort(out)
	return out
}

// begin makes the directory of a pod, which kubelet does after it was admitted.
func (k *kubelet) begin(pod string) {
	k.t.Helper()
	if err := os.MkdirAll(filepath.Join(k.pods, pod), 0o750); err != nil {
		k.t.Fatal(err)
	}
}

// end removes the directory of a pod. The checkpoint still has it.
func (k *kubelet) end(pod string) {
	k.t.Helper()
	if err := os.Remove(filepath.Join(k.pods, pod)); err != nil {
		k.t.Fatal(err)
	}
}

// has adds units of a resource to those of a pod's container.
func (k *kubelet) has(pod, name, resource string, byNode map[string][]string) {
	k.given = append(k.given, entry{pod, name, resource, byNode})
}

// forget drops a pod from the checkpoint.
func (k *kubelet) forget(pod string) {
	k.given = slices.DeleteFunc(k.given, func(e entry) bool { return e.PodUID == pod })
	k.write(nil)
}

// write writes the checkpoint, with units of other plugins.
func (k *kubelet) write(others map[string][]string) {
	k.t.Helper()
	registered := map[string][]string{}
	k.mu.Lock()
	for resource, e := range k.resources {
		for _, d := range e.devices {
			registered[resource] = append(registered[resource], d.GetID())
		}
	}
	k.mu.Unlock()
	maps.Copy(registered, others)
	text, err := json.Marshal(map[string]any{"Data": map[string]any{"PodDeviceEntries": k.given, "RegisteredDevices": registered}, "Checksum": 1})
	if err != nil {
		k.t.Fatal(err)
	}
	k.writeText(text)
}

func (k *kubelet) writeText(text []byte) {
	k.t.Helper()
	tmp := filepath.Join(k.dir, fmt.Sprintf(".tmp%d", len(text)))
	if err := os.WriteFile(tmp, text, 0o600); err != nil {
		k.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(k.dir, checkpointFile)); err != nil {
		k.t.Fatal(err)
	}
}
