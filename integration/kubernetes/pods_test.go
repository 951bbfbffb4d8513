// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// patience bounds every wait for something that should happen soon. kubelet and the
// scheduler try again only after a while.
const patience = 3 * time.Minute

// cluster is the shared one for a test, which it fails when something goes wrong.
type cluster struct {
	*Cluster
	*harnesstest.Node // the node "one", for what other tests have, too
	one               *Node
}

// use is the shared cluster for one test. Afterwards its pods are gone, and so is
// all that was of them.
func use(t *testing.T) *cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Minute)
	c := &cluster{shared.Cluster, &harnesstest.Node{Node: &shared.one.Node, T: t, Ctx: ctx}, shared.one}
	t.Cleanup(func() {
		defer cancel()
		c.removeAll()
		for _, n := range c.Nodes {
			if err := n.CheckLeaks(ctx); err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			t.Log(c.Tails())
		}
	})
	return c
}

// sub is the cluster for a subtest.
func (c *cluster) sub(t *testing.T) *cluster {
	return &cluster{c.Cluster, c.Node.Sub(t), c.one}
}

// part runs a part of a test, and clears after it.
func (c *cluster) part(t *testing.T, name string, run func(*cluster)) {
	t.Run(name, func(t *testing.T) {
		s := c.sub(t)
		defer s.clear()
		run(s)
	})
}

// wait waits until f returns nil.
func (c *cluster) wait(f func() error) {
	c.T.Helper()
	if err := harness.Eventually(c.Ctx, patience, f); err != nil {
		c.T.Fatal(err)
	}
}

// container is one of a pod whose image is that of the tests.
func container(name string, command ...string) corev1.Container {
	return corev1.Container{Name: name, Image: Image, ImagePullPolicy: corev1.PullNever, Command: command}
}

// script is a container that says which tenant of the simulated GPU it is, and then
// becomes a program.
func script(name, command string) corev1.Container {
	return container(name, "sh", "-c", "readlink /proc/self/ns/mnt; exec "+command)
}

// pod is one under the RuntimeClass.
func pod(name string, annotations map[string]string, containers ...corev1.Container) *corev1.Pod {
	class, now, no := "vgpu", int64(0), false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec: corev1.PodSpec{
			RuntimeClassName: &class, Containers: containers, RestartPolicy: corev1.RestartPolicyNever,
			DNSPolicy: corev1.DNSDefault, TerminationGracePeriodSeconds: &now, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
		},
	}
}

// create creates a pod, as it then is for the API server.
func (c *cluster) create(p *corev1.Pod) *corev1.Pod {
	c.T.Helper()
	created, err := c.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(c.Ctx, p, metav1.CreateOptions{})
	if err != nil {
		c.T.Fatal(err)
	}
	return created
}

func (c *cluster) get(name string) (*corev1.Pod, error) {
	return c.Client.CoreV1().Pods(metav1.NamespaceDefault).Get(c.Ctx, name, metav1.GetOptions{})
}

// reaches waits until a pod is in a phase. One that ends otherwise fails the test.
func (c *cluster) reaches(name string, phase corev1.PodPhase) *corev1.Pod {
	c.T.Helper()
	var p *corev1.Pod
	c.wait(func() (err error) {
		if p, err = c.get(name); err != nil {
			return err
		}
		switch p.Status.Phase {
		case phase:
			return nil
		case corev1.PodSucceeded, corev1.PodFailed:
			c.T.Fatalf("pod %s is %s: %s", name, p.Status.Phase, c.about(p))
		}
		return fmt.Errorf("pod %s is %s, not yet %s: %s", name, p.Status.Phase, phase, c.about(p))
	})
	return p
}

// about is what can be said of a pod, for messages.
func (c *cluster) about(p *corev1.Pod) string {
	var b strings.Builder
	for _, e := range c.events(p.Name) {
		fmt.Fprintf(&b, "%s: %s\n", e.Reason, e.Message)
	}
	for _, k := range p.Spec.Containers {
		if log, err := c.logs(p.Name, k.Name); err == nil && log != "" {
			fmt.Fprintf(&b, "%s says:\n%s\n", k.Name, log)
		}
	}
	return b.String()
}

// events are those of a pod.
func (c *cluster) events(name string) []corev1.Event {
	c.T.Helper()
	list, err := c.Client.CoreV1().Events(metav1.NamespaceDefault).List(c.Ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,involvedObject.name=" + name})
	if err != nil {
		c.T.Fatal(err)
	}
	return list.Items
}

// logs is what a container has written, as kubelet tells it.
func (c *cluster) logs(pod, name string) (string, error) {
	b, err := c.Client.CoreV1().Pods(metav1.NamespaceDefault).GetLogs(pod, &corev1.PodLogOptions{Container: name}).DoRaw(c.Ctx)
	return string(b), err
}

// says waits until a container has written a text.
func (c *cluster) says(pod, name, text string) {
	c.T.Helper()
	c.wait(func() error {
		log, err := c.logs(pod, name)
		if err == nil && strings.Contains(log, text) {
			return nil
		}
		p, wrong := c.get(pod)
		if wrong != nil {
			return errors.Join(err, wrong)
		}
		return fmt.Errorf("container %s of pod %s has not said %q yet: %w, %s: %s", name, pod, text, err, p.Status.Phase, c.about(p))
	})
}

// describes waits until kubectl describe tells a text among a pod's events.
func (c *cluster) describes(pod, says string) {
	c.T.Helper()
	if err := c.described(pod, says); err != nil {
		c.T.Fatal(err)
	}
}

func (c *cluster) described(pod, says string) error {
	return harness.Eventually(c.Ctx, patience, func() error {
		text, err := c.Kubectl(c.Ctx, "describe", "pod", pod)
		if _, events, ok := strings.Cut(text, "\nEvents:"); err == nil && (!ok || !strings.Contains(events, says)) {
			err = fmt.Errorf("the events do not say %q:\n%s", says, text)
		}
		return err
	})
}

// remove removes a pod, and waits until it is gone.
func (c *cluster) remove(name string) {
	c.T.Helper()
	pods := c.Client.CoreV1().Pods(metav1.NamespaceDefault)
	if err := pods.Delete(c.Ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		c.T.Fatal(err)
	}
	c.wait(func() error {
		_, err := c.get(name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("pod %s is still there", name))
	})
}

// removeAll removes all pods and claims, and waits until they are gone.
func (c *cluster) removeAll() {
	c.T.Helper()
	pods := c.Client.CoreV1().Pods(metav1.NamespaceDefault)
	if err := pods.DeleteCollection(c.Ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		c.T.Fatal(err)
	}
	c.wait(func() error {
		list, err := pods.List(c.Ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d pods are still there, such as %s", len(list.Items), list.Items[0].Name)
		}
		return err
	})
	c.removeClaims()
}

// clear removes the pods and claims of a test, and sees that nothing is left of them.
func (c *cluster) clear() {
	c.T.Helper()
	c.removeAll()
	for _, n := range c.Nodes {
		if err := n.CheckLeaks(c.Ctx); err != nil {
			c.T.Error(err)
		}
	}
}

// tenant is who a container made by script is in the simulated GPU's log.
func (c *cluster) tenant(pod, name string) harness.Tenant {
	c.T.Helper()
	c.says(pod, name, "mnt:[")
	log, err := c.logs(pod, name)
	if err != nil {
		c.T.Fatal(err)
	}
	first, _, _ := strings.Cut(log, "\n")
	inode, err := strconv.ParseUint(strings.Trim(first, "mnt:[]"), 10, 64)
	if err != nil {
		c.T.Fatalf("container %s of pod %s says %q", name, pod, log)
	}
	return harness.Tenant(inode)
}

// vgpus are the vGPUs that containers on a node have or had, by the container's name
// there.
func (c *cluster) vgpus(n *Node) map[string]string {
	c.T.Helper()
	all := map[string]string{}
	for line := range strings.Lines(n.Daemon.Messages()) {
		var m struct{ Msg, VGPU, Container string }
		if json.Unmarshal([]byte(line), &m) == nil && m.Msg == "vGPU created" {
			all[m.Container] = m.VGPU
		}
	}
	return all
}

// vgpu is that of a pod's container.
func (c *cluster) vgpu(n *Node, pod, name string) string {
	c.T.Helper()
	p, err := c.get(pod)
	if err != nil {
		c.T.Fatal(err)
	}
	id, err := ContainerID(p, name)
	if err != nil {
		c.T.Fatal(err)
	}
	all := c.vgpus(n)
	if all[id] == "" {
		c.T.Fatalf("container %s of pod %s (%s) has no vGPU: those are of %q", name, pod, id, slices.Collect(maps.Keys(all)))
	}
	return all[id]
}

// submissions is how much work of each tenant the simulated GPUs of a node have seen.
func (c *cluster) submissions(n *Node) map[harness.Tenant]int64 {
	c.T.Helper()
	o, err := n.Daemon.Overlap(c.Ctx)
	if err != nil {
		c.T.Fatal(err)
	}
	all := map[harness.Tenant]int64{}
	for _, t := range o.Tenants {
		all[t.Tenant] = t.Submissions
	}
	return all
}
