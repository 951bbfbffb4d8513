// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// Invariant 6 on a node: pods go on computing while kubelet, containerd or vgpud is
// away, keep their containers and vGPUs when it is back, and new pods start.
func TestPodsOutliveTheDaemons(t *testing.T) {
	c := use(t)
	pods := []string{"left", "right"}
	tenants := map[string]harness.Tenant{}
	for _, name := range pods {
		c.create(pod(name, nil, script("gpu", bursts(1_000_000))))
	}
	for _, name := range pods {
		c.reaches(name, corev1.PodRunning)
		tenants[name] = c.tenant(name, "gpu")
	}
	n := c.one
	for _, test := range []struct {
		daemon      string
		stop, start func() error
		alone       bool // whether waiting for another's GPU needs it
	}{
		{"kubelet", n.StopKubelet, func() error { return n.StartKubelet(c.Ctx) }, false},
		{"containerd", func() error { return n.Containerd.Process().Stop() }, func() error { return n.Containerd.Start(c.Ctx) }, false},
		{"vgpud", func() error { return n.Daemon.Process().Kill() }, func() error { return n.Daemon.Start(c.Ctx) }, true},
	} {
		t.Run(test.daemon, func(t *testing.T) {
			c := c.sub(t)
			ids, vgpus := map[string]string{}, map[string]string{}
			for _, name := range pods {
				ids[name], vgpus[name] = c.running(name)
			}
			// All of them submit work, from now on.
			goOn := func(all bool) {
				t.Helper()
				before := c.submissions(n)
				c.wait(func() error {
					now, still := c.submissions(n), []string{}
					for name, tenant := range tenants {
						if now[tenant] <= before[tenant] {
							still = append(still, name)
						}
					}
					if len(still) == len(tenants) || all && len(still) > 0 {
						return fmt.Errorf("pods %v have submitted nothing since", still)
					}
					return nil
				})
			}
			goOn(true)
			if err := test.stop(); err != nil {
				t.Fatal(err)
			}
			// While vgpud is away nobody gives turns: who has one goes on.
			goOn(!test.alone)
			if err := test.start(); err != nil {
				t.Fatal(err)
			}
			goOn(true)
			c.create(pod("after-"+test.daemon, nil, container("gpu", "vecadd")))
			c.reaches("after-"+test.daemon, corev1.PodSucceeded)
			for _, name := range pods {
				if id, vgpu := c.running(name); id != ids[name] || vgpu != vgpus[name] {
					t.Errorf("pod %s has container %s and vGPU %s, before %s and %s", name, id, vgpu, ids[name], vgpus[name])
				}
			}
			c.NoOverlap()
		})
	}
}

// running is the container of a pod that has one, and its vGPU; both run, and were
// never started again.
func (c *cluster) running(name string) (id, vgpu string) {
	c.T.Helper()
	c.wait(func() error {
		p, err := c.get(name)
		if err != nil {
			return err
		}
		if s := p.Status.ContainerStatuses; p.Status.Phase != corev1.PodRunning || len(s) != 1 || s[0].RestartCount != 0 {
			return fmt.Errorf("pod %s is %s: %v", name, p.Status.Phase, s)
		}
		id, err = ContainerID(p, p.Spec.Containers[0].Name)
		if err != nil {
			return err
		}
		list, err := c.one.Daemon.VGPUs(c.Ctx)
		for _, v := range list {
			if v.GetContainer().GetId() == id {
				vgpu = v.GetId()
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("container %s of pod %s has no vGPU", id, name))
	})
	return id, vgpu
}

// A pod that comes while vgpud is down is told so, and starts by itself once vgpud
// is back.
func TestPodThatComesWhileVGPUdIsDown(t *testing.T) {
	c := use(t)
	if err := c.one.Daemon.Process().Stop(); err != nil {
		t.Fatal(err)
	}
	p := pod("early", nil, container("gpu", "vecadd"))
	p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	c.create(p)
	// Whatever is seen, the next test needs vgpud.
	said := c.described("early", "start it with `vgpud` or `systemctl start vgpud`")
	if err := c.one.Daemon.Start(c.Ctx); err != nil {
		t.Fatal(err)
	}
	if said != nil {
		t.Fatal(said)
	}
	c.reaches("early", corev1.PodSucceeded)
}

// A pod that is deleted while its kernel runs goes at once, and the next one gets
// the GPU.
func TestDeletedPodGivesTheGPUBack(t *testing.T) {
	c := use(t)
	c.create(pod("endless", nil, container("gpu", "burst", "--launches", "1", "--gpu-us", "3600000000")))
	c.reaches("endless", corev1.PodRunning)
	c.wait(func() error {
		if v := c.known("endless")["gpu"]; v.GetState() != "HOLDING" {
			return fmt.Errorf("the vGPU is %s", v.GetState())
		}
		return nil
	})
	c.create(pod("next", nil, container("gpu", "vecadd")))
	c.remove("endless")
	c.reaches("next", corev1.PodSucceeded)
}
