// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// health waits until the status of a pod says so of the GPU of its claim.
func (c *cluster) health(name string, want corev1.ResourceHealthStatus, says string) {
	c.T.Helper()
	c.wait(func() error {
		p, err := c.get(name)
		if err != nil {
			return err
		}
		all := p.Status.ContainerStatuses[0].AllocatedResourcesStatus
		if len(all) != 1 || all[0].Name != corev1.ResourceName("claim:"+name) || len(all[0].Resources) != 1 {
			return fmt.Errorf("pod %s says of its claim %+v", name, all)
		}
		is := all[0].Resources[0]
		message := ""
		if is.Message != nil {
			message = *is.Message
		}
		if is.Health != want || !strings.Contains(message, says) || want == corev1.ResourceHealthStatusHealthy && message != "" {
			return fmt.Errorf("pod %s says %s %q of its GPU, want %s %q", name, is.Health, message, want, says)
		}
		return nil
	})
}

// What befalls the GPU of a claim stands as a taint in its slice, and in the status of
// the pods that have it. How soon is in the test's log.
func TestFaultsOfAClaimsGPUAreSeen(t *testing.T) {
	c := use(t)
	stays := func(r *resourceapi.ExactDeviceRequest) {
		r.Tolerations = []resourceapi.DeviceToleration{{Key: DriverName + "/unhealthy", Operator: resourceapi.DeviceTolerationOpExists, Effect: resourceapi.DeviceTaintEffectNoExecute}}
	}
	c.claiming("watched", claimOf(ask("gpu", "1Gi", "10", stays)), idles())
	c.reaches("watched", corev1.PodRunning)
	c.health("watched", corev1.ResourceHealthStatusHealthy, "")
	inject := func(what ...string) {
		t.Helper()
		if err := c.one.Daemon.Inject(c.Ctx, 0, what...); err != nil {
			t.Fatal(err)
		}
	}
	defer func() { // the next test needs the GPU
		inject("--lost", "off")
		c.tainted(c.one, false)
	}()
	for _, step := range []struct {
		what, says string
		inject     []string
		tainted    bool
	}{
		{"a critical Xid", "Xid 79", []string{"--xid", "79"}, true},
		{"a GPU that was away since, and is back", "", []string{"--lost", "off"}, false},
		{"a GPU that is lost", "lost", []string{"--lost", "on"}, true},
	} {
		if !step.tainted {
			inject("--lost", "on")
			c.health("watched", corev1.ResourceHealthStatusUnhealthy, "lost")
		}
		of := metav1.ListOptions{FieldSelector: publishedBy(c.one)}
		list, err := c.Client.ResourceV1().ResourceSlices().List(c.Ctx, of)
		if err != nil || len(list.Items) != 1 {
			t.Fatal(err, list)
		}
		of.ResourceVersion = list.Items[0].ResourceVersion // from then on
		watch, err := c.Client.ResourceV1().ResourceSlices().Watch(c.Ctx, of)
		if err != nil {
			t.Fatal(err)
		}
		began, slice := time.Now(), time.Duration(0)
		inject(step.inject...)
		for e := range watch.ResultChan() { // it ends with the test's time
			s, ok := e.Object.(*resourceapi.ResourceSlice)
			if !ok {
				t.Fatalf("the slices can not be watched: %v", e)
			}
			if len(s.Spec.Devices) == 1 && unhealthy(s.Spec.Devices[0]) == step.tainted {
				slice = time.Since(began)
				break
			}
		}
		watch.Stop()
		if slice == 0 {
			t.Fatalf("%s: it never was in the slice", step.what)
		}
		want := corev1.ResourceHealthStatusHealthy
		if step.tainted {
			want = corev1.ResourceHealthStatusUnhealthy
		}
		c.health("watched", want, step.says)
		t.Logf("%s: %v until it is in the slice, %v until it is in the pod's status", step.what, slice.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	}
	c.reaches("watched", corev1.PodRunning) // who tolerates it stays
}

// unhealthy says whether a device has the taint of one that takes no work.
func unhealthy(d resourceapi.Device) bool {
	return slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
		return t.Key == DriverName+"/unhealthy" && t.Effect == resourceapi.DeviceTaintEffectNoExecute
	})
}

// tainted waits until the GPUs of a node are so, or none is.
func (c *cluster) tainted(n *Node, want bool) {
	c.T.Helper()
	c.publishes(n, func(all []resourceapi.Device) bool {
		return !slices.ContainsFunc(all, func(d resourceapi.Device) bool { return unhealthy(d) != want })
	})
}
