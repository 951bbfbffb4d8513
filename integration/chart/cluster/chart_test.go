// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	client "k8s.io/client-go/kubernetes"

	"github.com/vgpu-shim/vgpu/integration/box"
	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/kubernetes"
	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/kube/plugin"
)

const (
	namespace = "vgpu-system"
	release   = "vgpu"
	patience  = 2 * time.Minute
)

// cluster is the shared one for a test, which it fails when something goes wrong.
type cluster struct {
	*kubernetes.Cluster
	t   *testing.T
	ctx context.Context
	n   *kubernetes.Node
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatalf("%v\n%s", err, c.about())
	}
}

// wait waits until f returns nil.
func (c *cluster) wait(f func() error) {
	c.t.Helper()
	c.must(harness.Eventually(c.ctx, patience, f))
}

// about is what can be said of the chart's pods, for messages.
func (c *cluster) about() string {
	text, _ := c.Kubectl(context.WithoutCancel(c.ctx), "describe", "pods", "--namespace", namespace)
	for _, set := range []string{"vgpud", "vgpu-kubelet", "vgpu-uninstall"} {
		logs, _ := c.Kubectl(context.WithoutCancel(c.ctx), "logs", "--namespace", namespace, "daemonset/"+set, "--all-containers", "--tail=30")
		text += "\nlogs of " + set + ":\n" + logs
	}
	return text
}

// helm runs Helm on the release.
func (c *cluster) helm(args ...string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(shared.built.Tools, "bin", "helm"), append(args, "--namespace", namespace)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + c.t.TempDir(), "KUBECONFIG=" + c.Kubeconfig}
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("helm %s: %v: %s\n%s", strings.Join(args, " "), err, out, c.about())
	}
}

// values are what this node needs: nothing of it is where it usually is.
func (c *cluster) values() []string {
	bin, err := shared.built.ContainerdBin(harness.ContainerdCRI)
	c.must(err)
	set := []string{
		"image.repository=" + repositoryOfImages, "image.pullPolicy=Never",
		"containerd.program=" + filepath.Join(bin, "containerd"), "containerd.config=" + filepath.Join(c.n.Dir, "c", "config.toml"),
		"containerd.socket=" + c.n.Containerd.Socket, "containerd.restart=signal",
		"vgpud.gpus=sim:1", "kubelet.dir=" + c.n.KubeletRoot(),
		"apiServer.host=" + kubernetes.ServiceAddress, "apiServer.port=" + c.Port(),
	}
	return []string{"--set", strings.Join(set, ",")}
}

// daemon asks the node's vgpud.
func daemon() *harness.Daemon { return &harness.Daemon{Socket: "/run/vgpu/vgpud.sock"} }

// vgpu is that of a pod's container, by what vgpud says of its pod.
func (c *cluster) vgpu(pod string) (*v1.VGPU, error) {
	all, err := daemon().VGPUs(c.ctx)
	for _, v := range all {
		if v.GetPod().GetName() == pod {
			return v, nil
		}
	}
	return nil, errors.Join(err, fmt.Errorf("pod %s has no vGPU among %d", pod, len(all)))
}

// pod is one that computes until it is deleted.
func pod(name string) *corev1.Pod {
	class, now, no := "vgpu", int64(0), false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			RuntimeClassName: &class, RestartPolicy: corev1.RestartPolicyNever, DNSPolicy: corev1.DNSDefault,
			TerminationGracePeriodSeconds: &now, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			Containers: []corev1.Container{{
				Name: "gpu", Image: kubernetes.Image, ImagePullPolicy: corev1.PullNever,
				Command: []string{"burst", "--bursts", "1000000", "--launches", "10", "--gpu-us", "20000"},
			}},
		},
	}
}

// create creates a pod and waits until it runs.
func (c *cluster) create(p *corev1.Pod) {
	c.t.Helper()
	pods := c.Client.CoreV1().Pods(metav1.NamespaceDefault)
	_, err := pods.Create(c.ctx, p, metav1.CreateOptions{})
	c.must(err)
	c.wait(func() error {
		got, err := pods.Get(c.ctx, p.Name, metav1.GetOptions{})
		if err == nil && got.Status.Phase != corev1.PodRunning {
			text, _ := c.Kubectl(c.ctx, "describe", "pod", p.Name)
			err = fmt.Errorf("pod %s is %s:\n%s", p.Name, got.Status.Phase, text)
		}
		return err
	})
}

func (c *cluster) remove(name string) {
	c.t.Helper()
	pods := c.Client.CoreV1().Pods(metav1.NamespaceDefault)
	if err := pods.Delete(c.ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		c.must(err)
	}
	c.wait(func() error {
		_, err := pods.Get(c.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("pod %s is still there", name))
	})
}

// owned are the pods of one of the chart's DaemonSets.
func (c *cluster) owned(component string) []corev1.Pod {
	c.t.Helper()
	list, err := c.Client.CoreV1().Pods(namespace).List(c.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
	c.must(err)
	return list.Items
}

// ready waits until each node's pod of a DaemonSet is ready, in its newest form.
func (c *cluster) ready(name string) {
	c.t.Helper()
	c.wait(func() error {
		set, err := c.Client.AppsV1().DaemonSets(namespace).Get(c.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := set.Status; s.ObservedGeneration != set.Generation || s.DesiredNumberScheduled != 1 || s.UpdatedNumberScheduled != 1 || s.NumberReady != 1 {
			return fmt.Errorf("DaemonSet %s: %+v\n%s", name, s, c.about())
		}
		return nil
	})
}

func (c *cluster) labelled() string {
	c.t.Helper()
	node, err := c.Client.CoreV1().Nodes().Get(c.ctx, c.n.Name, metav1.GetOptions{})
	c.must(err)
	return node.Labels[kubernetes.Label]
}

// The life of the chart on a node: installed, used, upgraded below pods that compute,
// refused to go while they do, and gone without a trace.
func TestLifeOfTheChart(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 12*time.Minute)
	defer cancel()
	c := &cluster{shared.Cluster, t, ctx, shared.one}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Tails())
		}
	})
	super := supervise(ctx, c.n.Containerd)
	defer super.end()
	chart := filepath.Join(shared.built.Root, "configs", "helm", "vgpu")
	// As on a node where others use CDI, too. Whose directory it is nobody knows.
	c.must(os.MkdirAll("/run/cdi", 0o755))
	c.must(os.WriteFile("/usr/local/sbin/systemctl", []byte(systemctl), 0o755))
	// As systemd has it; kubelet wants it so.
	c.must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""))
	before := snapshot(t, c.n)

	c.helm(append([]string{"install", release, chart, "--create-namespace", "--wait", "--timeout", "3m", "--set", "image.tag=v1"}, c.values()...)...)
	c.ready("vgpud")
	c.ready("vgpu-kubelet")
	if starts, err := super.count(); starts != 1 || err != nil {
		t.Errorf("containerd was restarted %d times: %v", starts, err)
	}
	if c.labelled() != "true" {
		t.Errorf("the label of the node is %q", c.labelled())
	}

	t.Run("vgpud is the node's", func(t *testing.T) { c.sub(t).looksAtVgpud() })
	t.Run("the plugin may do what is its node's", func(t *testing.T) { c.sub(t).tries() })
	t.Run("a claim", func(t *testing.T) { c.sub(t).claims() })

	pods := []string{"left", "right"}
	for _, name := range pods {
		c.create(pod(name))
	}
	t.Run("kubectl vgpu", func(t *testing.T) { c.sub(t).shows(pods) })
	t.Run("an upgrade", func(t *testing.T) {
		c := c.sub(t)
		c.keeps(pods, func() {
			old, err := os.Readlink("/usr/lib/vgpu/current")
			c.must(err)
			c.helm(append([]string{"upgrade", release, chart, "--wait", "--timeout", "3m", "--set", "image.tag=v2"}, c.values()...)...)
			c.ready("vgpud")
			c.ready("vgpu-kubelet")
			now, err := os.Readlink("/usr/lib/vgpu/current")
			c.must(err)
			exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", c.vgpudPID()))
			c.must(err)
			if now == old || !strings.HasPrefix(exe, filepath.Join("/usr/lib/vgpu", now)+"/") {
				t.Errorf("the version was %s and is %s, vgpud is %s", old, now, exe)
			}
			if _, err := os.Stat(filepath.Join("/usr/lib/vgpu", old)); err != nil {
				t.Errorf("the version that containers have mounted is gone: %v", err)
			}
		})
		if starts, err := super.count(); starts != 1 || err != nil {
			t.Errorf("containerd was restarted %d times: %v", starts, err)
		}
	})

	// While kubelet still has the driver's ResourceSlices the device plugin is refused.
	t.Run("limits instead of claims", func(t *testing.T) {
		c := c.sub(t)
		c.keeps(pods, func() {
			c.helm(append([]string{"upgrade", release, chart, "--wait", "--timeout", "3m", "--set", "image.tag=v2,mode=device-plugin"}, c.values()...)...)
			c.ready("vgpu-kubelet")
		})
		c.limits()
	})

	t.Run("uninstall", func(t *testing.T) {
		c := c.sub(t)
		c.helm(append([]string{"upgrade", release, chart, "--set", "image.tag=v2,mode=device-plugin,uninstall=true"}, append(c.values(), "--set", "containerd.restart=systemd")...)...)
		// While there are pods with vGPUs it is refused, and says why.
		c.wait(func() error {
			for _, p := range c.owned("vgpu-uninstall") {
				for _, s := range p.Status.InitContainerStatuses {
					for _, state := range []corev1.ContainerState{s.State, s.LastTerminationState} {
						if state.Terminated != nil && strings.Contains(state.Terminated.Message, "containers still run with vGPUs") {
							return nil
						}
					}
				}
			}
			return fmt.Errorf("nobody says that containers still run\n%s", c.about())
		})
		if c.labelled() != "" {
			t.Errorf("pods may still come: the label is %q", c.labelled())
		}
		for _, name := range pods {
			c.remove(name)
		}
		c.ready("vgpu-uninstall")
		if starts, err := super.count(); starts != 2 || err != nil {
			t.Errorf("containerd was restarted %d times: %v", starts, err)
		}
		if asked, err := os.ReadFile(filepath.Join(box.Temp, "systemctl.log")); string(asked) != "restart containerd\n" {
			t.Errorf("systemctl was asked for %q: %v", asked, err)
		}
		c.helm("uninstall", release, "--wait", "--timeout", "3m")
		c.wait(func() error {
			list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
			if err == nil && len(list.Items) > 0 {
				err = fmt.Errorf("%d pods are still there", len(list.Items))
			}
			return err
		})
		c.must(c.n.CheckLeaks(ctx))
		c.wait(func() error {
			if diff := cmp.Diff(before, snapshot(t, c.n)); diff != "" {
				return fmt.Errorf("the node is not as it was (- before, + after):\n%s", diff)
			}
			return nil
		})
		c.leavesNothing()
	})
}

func (c *cluster) sub(t *testing.T) *cluster { return &cluster{c.Cluster, t, c.ctx, c.n} }

// vgpudPID is the process that listens at vgpud's socket.
func (c *cluster) vgpudPID() int {
	c.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/exe")
	c.must(err)
	for _, f := range files {
		exe, err := os.Readlink(f)
		if err != nil || filepath.Base(exe) != "vgpud" {
			continue
		}
		var pid int
		_, err = fmt.Sscanf(f, "/proc/%d/", &pid)
		c.must(err)
		return pid
	}
	c.t.Fatal("no vgpud runs")
	return 0
}

// looksAtVgpud looks at where vgpud runs: in the node's namespaces, with its unit's
// rights, in the pod's cgroup and network.
func (c *cluster) looksAtVgpud() {
	pid := c.vgpudPID()
	for _, ns := range []string{"mnt", "pid", "cgroup"} {
		of := func(pid int) string {
			link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
			c.must(err)
			return link
		}
		if of(pid) != of(1) {
			c.t.Errorf("vgpud has another %s namespace than process 1", ns)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	c.must(err)
	// See configs/systemd/vgpud.service; bits as in capabilities(7).
	const unit = 1<<2 | 1<<5 | 1<<19 | 1<<27
	for _, want := range []string{fmt.Sprintf("CapBnd:\t%016x\n", unit), fmt.Sprintf("CapEff:\t%016x\n", unit), "NoNewPrivs:\t1\n"} {
		if !strings.Contains(string(status), want) {
			c.t.Errorf("vgpud's status does not say %q:\n%s", want, status)
		}
	}
	cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	c.must(err)
	if !strings.Contains(string(cgroup), "/one/kubepods/") {
		c.t.Errorf("vgpud is in the cgroups\n%s", cgroup)
	}
	info, err := os.Stat("/run/vgpu")
	c.must(err)
	if info.Mode().Perm() != 0o700 {
		c.t.Errorf("vgpud's state directory is open to others: %v", info.Mode())
	}
	// Its metrics are at the pod's address, where the API server gets them.
	name := c.owned("vgpud")[0].Name
	text, err := c.Client.CoreV1().RESTClient().Get().Namespace(namespace).Resource("pods").Name(name + ":9442").SubResource("proxy").Suffix("metrics").DoRaw(c.ctx)
	c.must(err)
	if !strings.Contains(string(text), "vgpu_gpu_info{") {
		c.t.Errorf("the metrics are\n%s", text)
	}
}

// tries is what the token of vgpu-kubelet's pod allows, and what not.
func (c *cluster) tries() {
	p := c.owned("vgpu-kubelet")[0]
	token, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(c.ctx, "vgpu-kubelet", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID}},
	}, metav1.CreateOptions{})
	c.must(err)
	as, err := client.NewForConfig(c.As(token.Status.Token))
	c.must(err)
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	_, err = c.Client.CoreV1().Nodes().Create(c.ctx, other, metav1.CreateOptions{})
	c.must(err)
	defer func() { c.must(c.Client.CoreV1().Nodes().Delete(c.ctx, other.Name, metav1.DeleteOptions{})) }()
	patch := func(node, patch string) error {
		_, err := as.CoreV1().Nodes().Patch(c.ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	slice := func(node string) error {
		_, err := as.ResourceV1().ResourceSlices().Create(c.ctx, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
			Spec:       resourceapi.ResourceSliceSpec{Driver: "test.example", NodeName: &node, Pool: resourceapi.ResourcePool{Name: "test", ResourceSliceCount: 1}},
		}, metav1.CreateOptions{})
		return err
	}
	event := func(kind, name, reason, host string) error {
		e := &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Namespace: metav1.NamespaceDefault}, Reason: reason,
			InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name}, Source: corev1.EventSource{Host: host},
		}
		if kind != "Node" {
			e.Namespace, e.InvolvedObject.Namespace = namespace, namespace
		}
		_, err := as.CoreV1().Events(e.Namespace).Create(c.ctx, e, metav1.CreateOptions{})
		return err
	}
	const label = `{"metadata":{"labels":{"vgpu-shim.dev/installed":"true"}}}`
	const mayNot = "vgpu-kubelet of node one may not change what is of node other"
	for _, test := range []struct {
		what string
		err  error
		says string // empty: it is allowed
	}{
		{"its node's label", patch("one", label), ""},
		{"another node's label", patch("other", label), mayNot},
		{"another label", patch("one", `{"metadata":{"labels":{"a":"b"}}}`), "may change the label vgpu-shim.dev/installed alone"},
		{"a label that is there", patch("one", `{"metadata":{"labels":{"vgpu-shim.dev/node":"x"}}}`), "may change the label vgpu-shim.dev/installed alone"},
		{"a label less", patch("one", `{"metadata":{"labels":{"vgpu-shim.dev/node":null}}}`), "may change the label vgpu-shim.dev/installed alone"},
		{"an annotation", patch("one", `{"metadata":{"annotations":{"a":"b"}}}`), "may change the label vgpu-shim.dev/installed alone"},
		{"a taint", patch("one", `{"spec":{"unschedulable":true}}`), "may change the label vgpu-shim.dev/installed alone"},
		{"its node's slice", slice("one"), ""},
		{"another node's slice", slice("other"), mayNot},
		{"an event of its node", event("Node", "one", "ContestedGPU", "one"), ""},
		{"an event of another node", event("Node", "other", "ContestedGPU", "one"), mayNot},
		{"an event of a pod that waits", event("Pod", "p", "WaitsForGuest", "one"), ""},
		{"an event of a pod without a claim", event("Pod", "p", "WithoutClaim", "one"), ""},
		{"an event of a pod, from another host by its own word", event("Pod", "p", "WaitsForGuest", "other"), mayNot},
		{"an event of a pod, of another kind", event("Pod", "p", "Evicted", "one"), "may only tell that a pod waits for a guest"},
		{"an event of something else", event("Secret", "s", "WaitsForGuest", "one"), "may only tell that a pod waits for a guest"},
		{"a pod", as.CoreV1().Pods(namespace).Delete(c.ctx, p.Name, metav1.DeleteOptions{}), "forbidden"},
	} {
		if test.says == "" {
			if test.err != nil {
				c.t.Errorf("%s: %v", test.what, test.err)
			}
		} else if test.err == nil || !strings.Contains(test.err.Error(), test.says) {
			c.t.Errorf("%s: the error does not say %q: %v", test.what, test.says, test.err)
		}
	}
	slices, err := c.Client.ResourceV1().ResourceSlices().List(c.ctx, metav1.ListOptions{FieldSelector: "spec.driver=test.example"})
	c.must(err)
	for _, s := range slices.Items {
		c.must(as.ResourceV1().ResourceSlices().Delete(c.ctx, s.Name, metav1.DeleteOptions{}))
	}
}

// claims lets a pod have what it claims.
func (c *cluster) claims() {
	memory := resource.MustParse("1Gi")
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "some"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu",
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "vgpu", Capacity: &resourceapi.CapacityRequirements{
				Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": memory},
			}},
		}}}},
	}
	claims := c.Client.ResourceV1().ResourceClaims(metav1.NamespaceDefault)
	large := claim.DeepCopy()
	large.Spec.Devices.Requests[0].Exactly.DeviceClassName = "vgpu-large"
	const says = "a request of the class vgpu-large must ask, in capacity.requests, for memory up to 40Gi and for a share up to 50"
	if _, err := claims.Create(c.ctx, large, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), says) {
		c.t.Errorf("a request without a share: the error does not say %q: %v", says, err)
	}
	_, err := claims.Create(c.ctx, claim, metav1.CreateOptions{})
	c.must(err)
	p := pod("claims")
	name := claim.Name
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	c.create(p)
	v, err := c.vgpu("claims")
	c.must(err)
	if v.GetMemoryBytes() != 1<<30 || len(v.GetClaims()) != 1 {
		c.t.Errorf("the vGPU is %v", v)
	}
	c.wait(func() error { // the driver may say so
		is, err := claims.Get(c.ctx, claim.Name, metav1.GetOptions{})
		if err == nil && (len(is.Status.Devices) != 1 || !strings.Contains(string(is.Status.Devices[0].Data.Raw), `"container":"gpu"`)) {
			err = fmt.Errorf("the claim says %+v of its devices", is.Status.Devices)
		}
		return err
	})
	c.remove("claims")
	c.must(claims.Delete(c.ctx, claim.Name, metav1.DeleteOptions{}))
}

// limits lets a pod have what its limits ask for.
func (c *cluster) limits() {
	p := pod("limits")
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
		plugin.GPUs: resource.MustParse("1"), plugin.Memory: resource.MustParse("4"), plugin.Share: resource.MustParse("20"),
	}
	c.create(p)
	v, err := c.vgpu(p.Name)
	c.must(err)
	if v.GetMemoryBytes() != 4*plugin.UnitBytes || v.GetWeight() != 20 || len(v.GetClaims()) != 1 {
		c.t.Errorf("the vGPU is %v", v)
	}
	c.remove(p.Name)
}

// shows asks the plugin of kubectl for what pods compute, as a user who may do no more
// than it needs.
func (c *cluster) shows(pods []string) {
	for _, name := range pods {
		c.wait(func() error {
			v, err := c.vgpu(name)
			if err == nil && v.GetUsage().GetTurns() < 2 {
				err = fmt.Errorf("pod %s had %d turns", name, v.GetUsage().GetTurns())
			}
			return err
		})
	}
	_, err := c.Client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Create(c.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "viewer"}}, metav1.CreateOptions{})
	c.must(err)
	created, err := c.Client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).CreateToken(c.ctx, "viewer", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	c.must(err)
	show := func(args ...string) (string, error) {
		cmd := exec.CommandContext(c.ctx, filepath.Join(shared.built.Bin, "kubectl-vgpu"), append(args,
			"--kubeconfig="+c.Kubeconfig, "--token="+created.Status.Token)...)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + c.t.TempDir()}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := show("top"); err == nil || !strings.Contains(out, "failed to list the pods of vgpud") || !strings.Contains(out, "forbidden") {
		c.t.Errorf("somebody without rights sees %s (%v)", out, err)
	}
	// docs/kubectl.md has these.
	_, err = c.Client.RbacV1().ClusterRoles().Create(c.ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "viewer"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
		{APIGroups: []string{""}, Resources: []string{"pods/proxy"}, Verbs: []string{"get"}},
		{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceslices", "resourceclaims"}, Verbs: []string{"list"}},
	}}, metav1.CreateOptions{})
	c.must(err)
	_, err = c.Client.RbacV1().ClusterRoleBindings().Create(c.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "viewer"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "viewer"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "viewer", Namespace: metav1.NamespaceDefault}},
	}, metav1.CreateOptions{})
	c.must(err)
	out := ""
	c.wait(func() (err error) { // the API server learns of rights by a watch
		if out, err = show("ps"); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
	for _, name := range pods {
		if !strings.Contains(out, "default     "+name) {
			c.t.Errorf("ps does not show pod %s:\n%s", name, out)
		}
	}
	out, err = show("top", "--output=json")
	c.must(err)
	var seen struct {
		Nodes []struct {
			Name string
			GPUs []struct {
				Held   float64 `json:"held_ratio"`
				Bound  int
				Claims struct{ Share, ShareFree int64 } `json:"claims"`
			}
		}
	}
	c.must(json.Unmarshal([]byte(out), &seen))
	if len(seen.Nodes) != 1 || seen.Nodes[0].Name != "one" || len(seen.Nodes[0].GPUs) != 1 {
		c.t.Fatalf("top shows %s", out)
	}
	if g := seen.Nodes[0].GPUs[0]; g.Held <= 0 || g.Held > 1 || g.Bound != len(pods) || g.Claims.Share != 100 {
		c.t.Errorf("top shows %s", out)
	}
	out, err = show("describe", "node", "one")
	c.must(err)
	if !strings.Contains(out, "default/left:") {
		c.t.Errorf("describe says %s", out)
	}
}

// keeps looks at pods that compute: whatever happens, they keep their containers and
// vGPUs, and submit work afterwards.
func (c *cluster) keeps(pods []string, happens func()) {
	c.t.Helper()
	type state struct {
		id, vgpu string
		restarts int32
	}
	look := func() map[string]state {
		found := map[string]state{}
		for _, name := range pods {
			p, err := c.Client.CoreV1().Pods(metav1.NamespaceDefault).Get(c.ctx, name, metav1.GetOptions{})
			c.must(err)
			if p.Status.Phase != corev1.PodRunning {
				c.t.Fatalf("pod %s is %s", name, p.Status.Phase)
			}
			v, err := c.vgpu(name)
			c.must(err)
			found[name] = state{p.Status.ContainerStatuses[0].ContainerID, v.GetId(), p.Status.ContainerStatuses[0].RestartCount}
		}
		return found
	}
	computes := func() {
		c.t.Helper()
		for _, name := range pods {
			first, err := c.vgpu(name)
			c.must(err)
			c.wait(func() error {
				v, err := c.vgpu(name)
				if err == nil && v.GetUsage().GetSubmissions() <= first.GetUsage().GetSubmissions() {
					err = fmt.Errorf("pod %s submits nothing: %v", name, v)
				}
				return err
			})
		}
	}
	before := look()
	computes()
	happens()
	computes()
	if diff := cmp.Diff(before, look(), cmp.AllowUnexported(state{})); diff != "" {
		c.t.Errorf("the pods are not what they were:\n%s", diff)
	}
}

// leavesNothing waits until no object of the chart is left. Kubelet removes the
// ResourceSlices of a driver that has been away for 30 s.
func (c *cluster) leavesNothing() {
	c.t.Helper()
	c.wait(func() error {
		slices, err := c.Client.ResourceV1().ResourceSlices().List(c.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		sets, err := c.Client.AppsV1().DaemonSets("").List(c.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(slices.Items)+len(sets.Items) > 0 {
			return fmt.Errorf("%d ResourceSlices and %d DaemonSets are left", len(slices.Items), len(sets.Items))
		}
		return nil
	})
}

// snapshot is what the chart could change on a node: files, mounts, cgroups.
func snapshot(t *testing.T, n *kubernetes.Node) map[string]string {
	t.Helper()
	found := map[string]string{}
	roots := []string{"/etc", "/opt", "/usr/lib/vgpu", "/usr/local", "/run", "/var/lib", filepath.Join(n.KubeletRoot(), "plugins"), filepath.Join(n.KubeletRoot(), "plugins_registry"), filepath.Join(n.Dir, "c", "config.toml")}
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			// The box's own, what kubelet and containerd keep of every pod, and what
			// is walked by another name.
			case path == "/run/tmp" && root == "/run", path == "/run/over", path == "/run/containerd", path == "/run/netns", path == "/var/lib/cni":
				return fs.SkipDir
			case path == "/usr/local/go" || strings.HasPrefix(path, "/var/lib/kubelet/device-plugins"):
				return fs.SkipDir
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			what := info.Mode().String()
			switch {
			case info.Mode()&fs.ModeSymlink != 0:
				target, err := os.Readlink(path)
				if err != nil {
					return err
				}
				what += " " + target
			case info.Mode().IsRegular():
				b, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				what += fmt.Sprintf(" %x", sha256.Sum256(b))
			}
			found[path] = what
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range harness.MountsUnder("/") {
		found["mount "+m] = ""
	}
	for _, class := range []string{"", "/burstable", "/besteffort"} {
		groups, err := filepath.Glob("/sys/fs/cgroup/*/" + n.Name + "/kubepods" + class + "/pod*")
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range groups {
			found["cgroup "+g] = ""
		}
	}
	if len(found) < 100 {
		t.Fatalf("only %d things are there: %v", len(found), slices.Collect(maps.Keys(found)))
	}
	return found
}
