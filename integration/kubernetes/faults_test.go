// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// small is a claim on node two that leaves room for others.
func small() resourceapi.ResourceClaimSpec {
	return claimOf(ask("gpu", "1Gi", "10", where("model", modelTwo)))
}

// kubeletRestart: a pod keeps its container and its vGPU, and new claims are prepared.
func (c *three) kubeletRestart() {
	c.claiming("stays", small(), script("gpu", bursts(1_000_000)))
	c.reaches("stays", corev1.PodRunning)
	tenant, vgpu := c.tenant("stays", "gpu"), c.vgpu(c.two, "stays", "gpu")
	if err := errors.Join(c.two.StopKubelet(), c.two.StartKubelet(c.Ctx)); err != nil {
		c.T.Fatal(err)
	}
	c.claiming("new", small(), container("gpu", "vecadd"))
	c.reaches("new", corev1.PodSucceeded)
	before := c.submissions(c.two)[tenant]
	c.wait(func() error {
		if c.submissions(c.two)[tenant] <= before {
			return errors.New("the pod that stays has submitted nothing since")
		}
		return nil
	})
	if p, err := c.get("stays"); err != nil || p.Status.ContainerStatuses[0].RestartCount != 0 {
		c.T.Errorf("the pod that stays was started again: %v, %v", err, p.Status)
	}
	if now := c.vgpu(c.two, "stays", "gpu"); now != vgpu {
		c.T.Errorf("it has vGPU %s, before %s", now, vgpu)
	}
}

// driverRestart: the driver is killed between what it has to do for a claim: when it has
// written that there is one and vgpud does not know it yet, and when it has taken away
// half of it. The next one ends what was begun; clear sees that nothing is left.
func (c *three) driverRestart() {
	n := c.two
	vgpud := n.Daemon.Process()
	interrupted := func(step string, begin func(), done func() bool) {
		c.T.Helper()
		if err := vgpud.Signal(syscall.SIGSTOP); err != nil {
			c.T.Fatal(err)
		}
		defer func() {
			if err := errors.Join(n.KillDriver(), vgpud.Signal(syscall.SIGCONT), n.StartDriver(c.Ctx)); err != nil {
				c.T.Error(err)
			}
		}()
		begin()
		c.wait(func() error {
			if !done() {
				return fmt.Errorf("the driver is not at %s yet", step)
			}
			return nil
		})
	}
	uid := ""
	interrupted("Prepare", func() {
		c.claiming("train", small(), computes("gpu", 1))
		uid = string(c.getClaim("train").UID)
	}, func() bool {
		claims, err := n.Claims()
		return err == nil && slices.ContainsFunc(claims, func(name string) bool { return strings.HasPrefix(name, uid) })
	})
	c.says("train", "gpu", "computed")
	specs := func() []string {
		files, err := filepath.Glob(filepath.Join(n.cdiDir(), "*"+uid+"*"))
		if err != nil {
			c.T.Fatal(err)
		}
		return files
	}
	if len(specs()) != 1 {
		c.T.Fatalf("CDI specs of the claim: %v", specs())
	}
	interrupted("Unprepare", func() {
		if err := c.Client.CoreV1().Pods(metav1.NamespaceDefault).Delete(c.Ctx, "train", metav1.DeleteOptions{}); err != nil {
			c.T.Fatal(err)
		}
	}, func() bool { return len(specs()) == 0 })
	c.remove("train")
}

// nodeRestart: a machine is switched off and on. Its pod starts anew with what its claim
// says, though nothing of the claim is left in containerd's and vgpud's directories.
func (c *three) nodeRestart() {
	c.claim("train", small())
	p := with("train", pod("train", nil, computes("gpu", 1)))
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	c.create(p)
	c.says("train", "gpu", "computed")
	before := c.vgpu(c.two, "train", "gpu")
	if err := c.two.Crash(c.Ctx); err != nil {
		c.T.Fatal(err)
	}
	if err := c.two.Boot(c.Ctx); err != nil {
		c.T.Fatal(err)
	}
	c.wait(func() error {
		p, err := c.get("train")
		if err == nil && (p.Status.Phase != corev1.PodRunning || p.Status.ContainerStatuses[0].RestartCount == 0) {
			err = fmt.Errorf("the pod was not started again: %s", c.about(p))
		}
		return err
	})
	c.says("train", "gpu", "computed")
	v := c.knownOn(c.two, "train")["gpu"]
	if v.GetId() == before || v.GetMemoryBytes() != 1<<30 || v.GetWeight() != 10 || len(v.GetClaims()) != 1 {
		c.T.Errorf("the pod has the vGPU %v, before %s", v, before)
	}
	c.claiming("new", small(), container("gpu", "vecadd"))
	c.reaches("new", corev1.PodSucceeded)
}

// lostGPU: the GPU of a pod is lost. Its device gets a taint, the pod is evicted, and
// the one in its place computes on another GPU.
func (c *three) lostGPU() {
	const label = "app"
	spec := configured(small(), map[string]any{"placement": "allocated"})
	c.template("served", spec)
	one := int32(1)
	p := templated("served", pod("", nil, computes("gpu", 1)))
	p.Labels, p.Spec.RestartPolicy = map[string]string{label: "served"}, corev1.RestartPolicyAlways
	sets := c.Client.AppsV1().ReplicaSets(metav1.NamespaceDefault)
	_, err := sets.Create(c.Ctx, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "served"}, Spec: appsv1.ReplicaSetSpec{
		Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: p.Labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: p.ObjectMeta, Spec: p.Spec},
	}}, metav1.CreateOptions{})
	if err != nil {
		c.T.Fatal(err)
	}
	defer func() {
		if err := sets.Delete(c.Ctx, "served", metav1.DeleteOptions{}); err != nil {
			c.T.Error(err)
		}
	}()
	// computing waits for a pod that computes, which is not the one of that name, and
	// returns its name and its device.
	computing := func(not string) (name, device string) {
		c.wait(func() error {
			list, err := c.Client.CoreV1().Pods(metav1.NamespaceDefault).List(c.Ctx, metav1.ListOptions{LabelSelector: label + "=served"})
			if err != nil {
				return err
			}
			for _, p := range list.Items {
				if p.Name != not && p.DeletionTimestamp == nil && len(p.Status.ResourceClaimStatuses) == 1 {
					if log, err := c.logs(p.Name, "gpu"); err == nil && strings.Contains(log, "computed") {
						name = p.Name
						device = c.getClaim(*p.Status.ResourceClaimStatuses[0].ResourceClaimName).Status.Allocation.Devices.Results[0].Device
						return nil
					}
				}
			}
			return fmt.Errorf("none of the pods computes: %d", len(list.Items))
		})
		return name, device
	}
	was, lost := computing("")
	number := slices.Index(c.devices(c.two), lost)
	watch, err := c.Client.CoreV1().Pods(metav1.NamespaceDefault).Watch(c.Ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + was})
	if err != nil {
		c.T.Fatal(err)
	}
	defer watch.Stop()
	if err := c.two.Daemon.Inject(c.Ctx, number, "--lost", "on"); err != nil {
		c.T.Fatal(err)
	}
	tainted := func(want bool) {
		c.publishes(c.two, func(all []resourceapi.Device) bool {
			return unhealthy(all[slices.IndexFunc(all, func(d resourceapi.Device) bool { return d.Name == lost })]) == want
		})
	}
	tainted(true)
	is, device := computing(was)
	if device == lost {
		c.T.Errorf("pod %s computes on the GPU that was lost, %s", is, lost)
	}
	c.wait(func() error {
		if _, err := c.get(was); !apierrors.IsNotFound(err) {
			return fmt.Errorf("pod %s is not gone: %w", was, err)
		}
		return nil
	})
	// What was said of it on its way.
	evicted := false
	for e := range watch.ResultChan() {
		p, ok := e.Object.(*corev1.Pod)
		if !ok {
			break
		}
		for _, k := range p.Status.Conditions {
			evicted = evicted || k.Type == corev1.DisruptionTarget && k.Reason == "DeletionByDeviceTaintManager"
		}
		if e.Type == "DELETED" {
			break
		}
	}
	if !evicted {
		c.T.Errorf("pod %s is gone, and not because of the taint", was)
	}
	if err := c.two.Daemon.Inject(c.Ctx, number, "--lost", "off"); err != nil {
		c.T.Fatal(err)
	}
	tainted(false)
}

// template makes a template of claims.
func (c *cluster) template(name string, spec resourceapi.ResourceClaimSpec) {
	c.T.Helper()
	t := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}}
	if _, err := c.Client.ResourceV1().ResourceClaimTemplates(metav1.NamespaceDefault).Create(c.Ctx, t, metav1.CreateOptions{}); err != nil {
		c.T.Fatal(err)
	}
}

// templated gives a pod, and its first container, a claim by a template.
func templated(template string, p *corev1.Pod) *corev1.Pod {
	const name = "gpu"
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: name, ResourceClaimTemplateName: &template}}
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: name}}
	return p
}

// gangJob: the four pods of a job compute a collective on two GPUs, beside two others
// that want these all the time. Each rank has to run for the others to end, so they get
// there only if all are granted together; and the others compute meanwhile, too.
func (c *three) gangJob() {
	var others []harness.Tenant
	for _, name := range []string{"left", "right"} {
		c.claiming(name, small(), script("gpu", "hog --ms 0"))
		others = append(others, c.tenant(name, "gpu"))
	}
	meet := filepath.Join(c.two.Dir, "meet")
	if err := os.WriteFile(meet, make([]byte, 4096), 0o600); err != nil {
		c.T.Fatal(err)
	}
	defer os.Remove(meet)
	before, err := c.two.Daemon.Log(c.Ctx)
	if err != nil {
		c.T.Fatal(err)
	}
	c.template("rank", configured(small(), map[string]any{"gang": "ring"}))
	const ranks = 4
	p := templated("rank", pod("", nil, script("gpu", fmt.Sprintf("rank --meet /meet --ranks %d --rounds 20", ranks))))
	file := corev1.HostPathFile
	p.Spec.Volumes = []corev1.Volume{{Name: "meet", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: meet, Type: &file}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "meet", MountPath: "/meet"}}
	n := int32(ranks)
	jobs := c.Client.BatchV1().Jobs(metav1.NamespaceDefault)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "ring"}, Spec: batchv1.JobSpec{
		Completions: &n, Parallelism: &n, BackoffLimit: new(int32), Template: corev1.PodTemplateSpec{ObjectMeta: p.ObjectMeta, Spec: p.Spec},
	}}
	if _, err := jobs.Create(c.Ctx, job, metav1.CreateOptions{}); err != nil {
		c.T.Fatal(err)
	}
	defer func() {
		away := metav1.DeletePropagationBackground
		if err := jobs.Delete(c.Ctx, "ring", metav1.DeleteOptions{PropagationPolicy: &away}); err != nil {
			c.T.Error(err)
		}
	}()
	var pods []corev1.Pod
	c.wait(func() error {
		list, err := c.Client.CoreV1().Pods(metav1.NamespaceDefault).List(c.Ctx, metav1.ListOptions{LabelSelector: "job-name=ring"})
		if err != nil {
			return err
		}
		pods = list.Items
		done := 0
		for _, p := range pods {
			if p.Status.Phase == corev1.PodFailed {
				c.T.Fatalf("pod %s has failed: %s", p.Name, c.about(&p))
			}
			if p.Status.Phase == corev1.PodSucceeded {
				done++
			}
		}
		if done < ranks {
			return fmt.Errorf("%d of %d ranks are done", done, ranks)
		}
		return nil
	})
	members := map[harness.Tenant]bool{}
	for _, p := range pods {
		members[c.tenant(p.Name, "gpu")] = true
		if log, err := c.logs(p.Name, "gpu"); err != nil || !strings.HasSuffix(log, "done\n") {
			c.T.Errorf("pod %s says %q, %v", p.Name, log, err)
		}
	}
	log, err := c.two.Daemon.Log(c.Ctx)
	if err != nil {
		c.T.Fatal(err)
	}
	log = log[len(before):]
	member := func(t harness.Tenant) bool { return members[t] }
	other := func(t harness.Tenant) bool { return slices.Contains(others, t) }
	if got := harness.Together(log, member, other); got != 0 {
		c.T.Errorf("%d pieces of the ranks' work were in flight with some of another pod's", got)
	}
	gpus, theirs := map[int]bool{}, 0
	for _, op := range log {
		switch {
		case op.Class != harness.ClassWork:
		case member(op.Tenant):
			gpus[op.GPU] = true
		case other(op.Tenant):
			theirs++
		}
	}
	if len(gpus) != 2 || len(members) != ranks || theirs == 0 {
		c.T.Errorf("%d ranks have computed on %d GPUs, beside %d pieces of work of the others", len(members), len(gpus), theirs)
	}
}
