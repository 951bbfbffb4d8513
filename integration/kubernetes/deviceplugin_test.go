// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/claim"
	"github.com/vgpu-shim/vgpu/vgpu/kube/plugin"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// pluggedIn is the cluster for a test of the device plugin on the node "one".
type pluggedIn struct {
	*cluster
	plugin *harness.Process
}

// plugIn starts the device plugin in place of the driver, on a kubelet that no plugin is
// known to: the kubelets of all nodes use one directory, which is of the one that was
// started last.
func plugIn(t *testing.T) *pluggedIn {
	t.Helper()
	c := &pluggedIn{cluster: use(t)}
	c.stopDriver()
	c.restartKubelet()
	c.start()
	t.Cleanup(func() {
		c.removeAll()
		c.allGone()
		if err := c.plugin.Stop(); err != nil {
			t.Error(err)
		}
		// One that has just been started has forgotten the plugin.
		c.restartKubelet()
		c.wait(func() error {
			n, err := c.Client.CoreV1().Nodes().Get(c.Ctx, c.one.Name, metav1.GetOptions{})
			if q := n.Status.Capacity[plugin.GPUs]; err == nil && !q.IsZero() {
				err = fmt.Errorf("node %s still has %s of %s", n.Name, q.String(), plugin.GPUs)
			}
			return err
		})
		if err := c.one.StartDriver(c.Ctx); err != nil {
			t.Error(err)
		}
		c.contested(c.one, "")
		if t.Failed() {
			t.Logf("end of %s:\n%s", c.plugin.Log, c.plugin.Tail())
		}
	})
	return c
}

// stopDriver ends the driver, and what it has published.
func (c *pluggedIn) stopDriver() {
	c.T.Helper()
	of := metav1.ListOptions{FieldSelector: publishedBy(c.one)}
	if err := errors.Join(c.one.KillDriver(), c.Client.ResourceV1().ResourceSlices().DeleteCollection(c.Ctx, metav1.DeleteOptions{}, of)); err != nil {
		c.T.Fatal(err)
	}
}

func (c *pluggedIn) restartKubelet() {
	c.T.Helper()
	if err := errors.Join(c.one.StopKubelet(), c.one.StartKubelet(c.Ctx)); err != nil {
		c.T.Fatal(err)
	}
}

func (c *pluggedIn) start() {
	c.T.Helper()
	cmd := exec.Command(filepath.Join(c.one.Paths.Root, "bin", "vgpu-kubelet"), "device-plugin",
		"--address="+c.one.Daemon.Socket, "--pods-dir="+filepath.Join(c.one.kubeletRoot(), "pods"))
	cmd.Env = c.environment()
	var err error
	if c.plugin, err = harness.StartProcess("device plugin of one", filepath.Join(c.one.Dir, "device-plugin.log"), cmd); err != nil {
		c.T.Fatal(err)
	}
}

// allocatable waits until the scheduler sees so many units of a resource.
func (c *pluggedIn) allocatable(name string, units int64) {
	c.T.Helper()
	c.wait(func() error {
		n, err := c.Client.CoreV1().Nodes().Get(c.Ctx, c.one.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if q := n.Status.Allocatable[corev1.ResourceName(name)]; q.Value() != units {
			return fmt.Errorf("node %s has %s of %s, want %d", n.Name, q.String(), name, units)
		}
		return nil
	})
}

// units are those of the node's one GPU.
func (c *pluggedIn) units(name string) int64 {
	c.T.Helper()
	gpus, err := c.one.Daemon.PhysicalGPUs(c.Ctx)
	if err != nil {
		c.T.Fatal(err)
	}
	return map[string]int64{plugin.GPUs: 10, plugin.Memory: int64(gpus[0].GetMemoryBytes() / plugin.UnitBytes), plugin.Share: 100}[name]
}

// ready waits until the scheduler sees all units.
func (c *pluggedIn) ready() {
	c.T.Helper()
	for _, r := range plugin.Resources() {
		c.allocatable(r, c.units(r))
	}
}

// limits gives a container limits: of GPUs, units of memory, and percent.
func limits(k corev1.Container, gpus, memory, share int64) corev1.Container {
	k.Resources.Limits = corev1.ResourceList{}
	for name, n := range map[string]int64{plugin.GPUs: gpus, plugin.Memory: memory, plugin.Share: share} {
		if n > 0 {
			k.Resources.Limits[corev1.ResourceName(name)] = *resource.NewQuantity(n, resource.DecimalSI)
		}
	}
	return k
}

// succeeds creates a pod and waits until it has succeeded. A kubelet that has just been
// started counts pods that have ended until it has all that run, and refuses pods that
// come in that moment: another one is created then, as controllers do.
func (c *pluggedIn) succeeds(p *corev1.Pod) {
	c.T.Helper()
	for refused := true; refused; {
		c.create(p)
		c.wait(func() error {
			is, err := c.get(p.Name)
			if err == nil && is.Status.Phase != corev1.PodSucceeded && is.Status.Phase != corev1.PodFailed {
				err = fmt.Errorf("pod %s is %s: %s", p.Name, is.Status.Phase, c.about(is))
			}
			refused = err == nil && is.Status.Reason == "UnexpectedAdmissionError"
			return err
		})
		if refused {
			c.remove(p.Name)
		}
	}
	c.reaches(p.Name, corev1.PodSucceeded)
}

// allGone waits until vgpud knows nothing of containers that were given something.
func (c *pluggedIn) allGone() {
	c.T.Helper()
	c.wait(func() error {
		return c.one.Daemon.Control(func(control v1.ControlClient) error {
			list, err := control.ListClaims(c.Ctx, &v1.ListClaimsRequest{})
			for _, k := range list.GetClaims() {
				if claim.IsOfLimits(k.GetUid()) {
					err = errors.Join(err, fmt.Errorf("vgpud still knows %s", k.GetUid()))
				}
			}
			return err
		})
	})
}

// idle is a program that has computed, and stays.
func idle(name string) corev1.Container {
	return container(name, "sh", "-c", "vecadd && echo computed && exec sleep 100000")
}

// The three resources of a container become one vGPU, in each of its containers that asks
// for one and in no other; the scheduler counts them, and a pod waits until they are free.
func TestLimitsOfPods(t *testing.T) {
	c := plugIn(t)
	c.ready()
	first := pod("first", nil, limits(idle("gpu"), 1, c.units(plugin.Memory)-4, 70), limits(idle("small"), 1, 2, 20), container("beside", "sleep", "100000"))
	// Its units are the container's afterwards.
	first.Spec.InitContainers = []corev1.Container{limits(container("init", "vecadd"), 1, 4, 10)}
	c.create(first)
	c.reaches("first", corev1.PodRunning)
	c.says("first", "gpu", "computed")
	c.says("first", "small", "computed")
	known := c.known("first")
	if len(known) != 2 {
		t.Errorf("it has the vGPUs %v, want those of gpu and small", known)
	}
	for name, want := range map[string]struct{ memory, share int64 }{"gpu": {c.units(plugin.Memory) - 4, 70}, "small": {2, 20}} {
		v := known[name]
		if v.GetMemoryBytes() != uint64(want.memory*plugin.UnitBytes) || int64(v.GetWeight()) != want.share || len(v.GetClaims()) != 1 {
			t.Errorf("container %s has %v, want %v", name, v, want)
		}
	}
	c.create(pod("second", nil, limits(container("gpu", "vecadd"), 1, 4, 10)))
	c.describes("second", "Insufficient "+plugin.Memory)
	c.remove("first")
	c.reaches("second", corev1.PodSucceeded)
}

func TestWrongLimitsAreSeenInDescribe(t *testing.T) {
	c := plugIn(t)
	c.ready()
	for _, tc := range []struct {
		name string
		edit func(*corev1.Pod)
		says []string
	}{
		{"no-gpu", func(p *corev1.Pod) { p.Spec.Containers[0] = limits(p.Spec.Containers[0], 0, 4, 0) }, []string{"limits of container gpu: they ask for memory or a share, and for no GPU: add vgpu-shim.dev/gpu: 1"}},
		{"two-gpus", func(p *corev1.Pod) { p.Spec.Containers[0] = limits(p.Spec.Containers[0], 2, 4, 0) }, []string{"limits of container gpu: they ask for 2 GPUs, and this node has GPU-"}},
		{"contradiction", func(p *corev1.Pod) { p.Annotations = map[string]string{"vgpu-shim.dev/memory": "8Gi"} }, []string{
			"container gpu of claim limits of container gpu (request limits)", `annotation vgpu-shim.dev/memory="8Gi": contradicts the claim, which gives "1Gi"`,
		}},
		{"no-class", func(p *corev1.Pod) { p.Spec.RuntimeClassName = nil }, []string{"/proc/this-pod-needs-runtimeClassName-vgpu"}},
	} {
		p := pod(tc.name, nil, limits(container("gpu", "vecadd"), 1, 4, 10))
		tc.edit(p)
		c.create(p)
		for _, s := range tc.says {
			c.describes(tc.name, s)
		}
	}
}

// Pods go on, keep what they were given, and new ones start, over restarts of kubelet and
// of the plugin; a container may be started again while the plugin is away.
func TestLimitsOutliveTheDaemons(t *testing.T) {
	c := plugIn(t)
	c.ready()
	stays := pod("stays", nil, limits(idle("gpu"), 1, 8, 20))
	again := pod("again", nil, limits(container("gpu", "sh", "-c", "vecadd && echo computed && while ! test -e /again; do sleep 0.1; done"), 1, 8, 20))
	again.Spec.RestartPolicy = corev1.RestartPolicyAlways
	c.create(stays)
	c.create(again)
	c.reaches("stays", corev1.PodRunning)
	c.says("again", "gpu", "computed")
	id, vgpu := c.running("stays")
	for _, test := range []struct {
		name    string
		restart func()
	}{
		{"kubelet", c.restartKubelet},
		{"plugin", func() {
			if err := c.plugin.Kill(); err != nil {
				t.Fatal(err)
			}
			c.allocatable(plugin.GPUs, 0)
			if _, err := c.Kubectl(c.Ctx, "exec", "again", "--", "touch", "/again"); err != nil {
				t.Fatal(err)
			}
			c.wait(func() error {
				p, err := c.get("again")
				if err == nil && (len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].RestartCount != 1 || p.Status.ContainerStatuses[0].State.Running == nil) {
					err = fmt.Errorf("its container was not started again: %v: %s", p.Status.ContainerStatuses, c.about(p))
				}
				return err
			})
			c.says("again", "gpu", "computed")
			c.start()
		}},
	} {
		test.restart()
		c.ready()
		c.succeeds(pod("after-"+test.name, nil, limits(container("gpu", "vecadd"), 1, c.units(plugin.Memory)-16, 10)))
		if id2, vgpu2 := c.running("stays"); id2 != id || vgpu2 != vgpu {
			t.Errorf("after the restart of %s it has container %s and vGPU %s, before %s and %s", test.name, id2, vgpu2, id, vgpu)
		}
		// What the pods have is counted.
		c.create(pod("too-much", nil, limits(container("gpu", "vecadd"), 1, c.units(plugin.Memory)-15, 10)))
		c.describes("too-much", "Insufficient "+plugin.Memory)
		c.remove("too-much")
		c.remove("after-" + test.name)
	}
}

// A GPU that takes no new vGPUs is not offered, and is again afterwards.
func TestUnitsOfACordonedGPU(t *testing.T) {
	c := plugIn(t)
	c.ready()
	gpus, err := c.one.Daemon.PhysicalGPUs(c.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, do := range []struct {
		command string
		part    int64
	}{{"cordon", 0}, {"uncordon", 1}} {
		if out, err := c.one.Daemon.CLI(c.Ctx, "gpus", do.command, gpus[0].GetUuid()); err != nil {
			t.Fatal(err, out)
		}
		began := time.Now()
		for _, r := range plugin.Resources() {
			c.allocatable(r, do.part*c.units(r))
		}
		t.Logf("after %s the scheduler knew in %v", do.command, time.Since(began).Round(time.Millisecond))
	}
}
