// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// wanted is what one of the hundred pods asks for.
type wanted struct {
	name   string
	mib    int
	share  int
	gpus   int
	model  string // empty: any
	config map[string]any
	cpu    int // thousandths
	host   int // MiB of memory
}

// mixed are n pods of all kinds, the same for one seed.
func mixed(n int, seed uint64, placement string) (all []wanted) {
	r := rand.New(rand.NewPCG(seed, 0))
	between := func(from, to int) int { return from + r.IntN(to-from+1) }
	for i := range n {
		w := wanted{
			name: fmt.Sprintf("p%d", i), mib: between(1024, 6*1024), share: between(5, 40), gpus: 1,
			cpu: between(10, 150), host: between(32, 256), config: map[string]any{"placement": placement},
		}
		switch r.IntN(5) {
		case 0:
			w.model, w.mib = modelTwo, between(2*1024, 20*1024)
		case 1:
			w.model, w.gpus = modelTwo, 2
		case 2:
			w.model, w.gpus = modelThree, between(1, 3)
		}
		if r.IntN(3) == 0 {
			w.config["priority"] = []string{"low", "normal", "high"}[r.IntN(3)]
		}
		if r.IntN(4) == 0 {
			w.config["quantum"] = "5ms"
		}
		all = append(all, w)
	}
	return all
}

const (
	hundredBursts   = 15
	hundredLaunches = 4
)

func (w *wanted) pod() *corev1.Pod {
	// What a context takes is of the claim, too. vgpud does not log the turn in which a
	// container is removed, so its process ends before.
	command := fmt.Sprintf("sh -c 'monitor && burst --bursts %d --launches %d --gpu-us 10000 --cpu-us 0 --rest-us 2000 --memory %d && sleep 2'",
		hundredBursts, hundredLaunches, (w.mib-512)<<20)
	p := templated(w.name, pod(w.name, nil, script("gpu", command)))
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewMilliQuantity(int64(w.cpu), resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(int64(w.host)<<20, resource.BinarySI),
	}
	return p
}

func (w *wanted) claim() resourceapi.ResourceClaimSpec {
	more := []func(*resourceapi.ExactDeviceRequest){of(int64(w.gpus))}
	if w.model != "" {
		more = append(more, where("model", w.model))
	}
	return configured(claimOf(ask("gpu", fmt.Sprintf("%dMi", w.mib), fmt.Sprint(w.share), more...)), w.config)
}

// hundredPods: a hundred pods of mixed claims, many more than there is room for at once,
// are all placed where there is room, compute, and end. While they do nothing is ever
// given away twice: of the devices, by the claims; of the GPUs, by vgpud; of the nodes,
// by the pods. And of each node's work the simulated GPUs say that invariants 1 and 2
// hold, and each pod that it saw what it was given. On the GPU that was allocated none
// ever waits for memory.
func (c *three) hundredPods() {
	c.mixture(mixed(100, 1, "allocated"), true)
}

// fortyPods: the same of pods that may compute on any identical GPU. One may then wait for
// memory that a guest took there just before (docs/kubernetes-dra.md).
func (c *three) fortyPods() {
	c.mixture(mixed(40, 2, "identical"), false)
}

func (c *three) mixture(pods []wanted, allocated bool) {
	before := map[string]int{}
	for _, n := range c.Nodes {
		log, err := n.Daemon.Log(c.Ctx)
		if err != nil {
			c.T.Fatal(err)
		}
		before[n.Name] = len(log)
	}
	look := newLook(c, allocated)
	for _, w := range pods {
		c.template(w.name, w.claim())
		c.create(w.pod())
		look.devices()
	}
	done := 0
	if err := wait.PollUntilContextCancel(c.Ctx, 300*time.Millisecond, true, func(context.Context) (bool, error) {
		look.devices()
		look.nodes()
		done = look.pods()
		return done == len(pods) || c.T.Failed(), nil
	}); err != nil {
		c.T.Fatalf("%d of %d pods are done: %v", done, len(pods), err)
	}
	if c.T.Failed() {
		return
	}
	if !look.promised {
		c.T.Error("nothing was promised in any look")
	}
	if look.waited == 0 || look.pending == 0 {
		c.T.Errorf("%d pods had to wait for a node, and %d looks saw one that waits for its turn: nothing was contended for", look.waited, look.pending)
	}
	c.T.Logf("%d pods, at most %d at once, %d that waited for a node; on each node: %v", len(pods), look.most, look.waited, look.where)
	ids := map[string]map[harness.Tenant][]string{}
	for _, w := range pods {
		p, err := c.get(w.name)
		if err != nil {
			c.T.Fatal(err)
		}
		n := c.node(p.Spec.NodeName)
		log, err := c.logs(w.name, "gpu")
		if err != nil {
			c.T.Fatal(err)
		}
		// Invariant 9: inside is seen what was given.
		wants := []string{fmt.Sprintf("count %d\n", w.gpus), fmt.Sprintf("memory %d ", w.mib<<20), "name " + w.model}
		if len(look.given[w.name]) != w.gpus {
			c.T.Errorf("pod %s of %+v was given %v", w.name, w, look.given[w.name])
		}
		for _, device := range look.given[w.name] {
			if allocated {
				wants = append(wants, "uuid GPU-"+strings.TrimPrefix(device, "gpu-"))
			}
		}
		for _, want := range wants {
			if !strings.Contains(log, want) {
				c.T.Errorf("pod %s of %+v does not see %q: %s", w.name, w, want, log)
			}
		}
		if ids[n.Name] == nil {
			ids[n.Name] = map[harness.Tenant][]string{}
		}
		tenant := c.tenant(w.name, "gpu")
		ids[n.Name][tenant] = append(ids[n.Name][tenant], c.vgpu(n, w.name, "gpu"))
	}
	for _, n := range c.Nodes {
		if len(ids[n.Name]) == 0 {
			c.T.Errorf("no pod was on node %s", n.Name)
			continue
		}
		c.on(n).NoOverlap()
		c.inTurns(n, before[n.Name], ids[n.Name])
	}
}

// inTurns fails the test if work on a node's GPUs, after so many operations of their log,
// was submitted in no turn of who it is of. A tenant is the number of a mount namespace,
// which the kernel gives out again: the vGPUs of one had it one after another.
func (c *three) inTurns(n *Node, before int, ids map[harness.Tenant][]string) {
	c.T.Helper()
	turns, err := n.Daemon.Turns()
	if err != nil {
		c.T.Fatal(err)
	}
	log, err := n.Daemon.Log(c.Ctx)
	if err != nil {
		c.T.Fatal(err)
	}
	seen := map[harness.Tenant]int{}
	for _, op := range log[before:] {
		if op.Class != harness.ClassWork {
			continue
		}
		seen[op.Tenant]++
		if !slices.ContainsFunc(ids[op.Tenant], func(id string) bool { return harness.Within(turns, id, op.Submit) }) {
			c.T.Errorf("node %s: %s was submitted at %v, in no turn of the vGPUs %v", n.Name, op.Name, op.Submit, ids[op.Tenant])
			return
		}
	}
	for tenant, all := range ids {
		if want := len(all) * hundredBursts * hundredLaunches; seen[tenant] < want {
			c.T.Errorf("the GPUs of node %s have seen %d pieces of work of the vGPUs %v, want %d", n.Name, seen[tenant], all, want)
		}
	}
}

func (c *cluster) node(name string) *Node {
	c.T.Helper()
	for _, n := range c.Nodes {
		if n.Name == name {
			return n
		}
	}
	c.T.Fatalf("there is no node %q", name)
	return nil
}

// look is what is seen of the cluster while it works.
type look struct {
	c           *three
	allocated   bool                                                       // each vGPU is on the GPU that was allocated
	capacity    map[string]map[resourceapi.QualifiedName]resource.Quantity // of each device
	allocatable map[string]corev1.ResourceList                             // of each node
	idle        map[string]int                                             // looks in a row that have found a GPU free and somebody waiting for it

	most     int                 // pods that computed at once
	waited   int                 // pods that had no node at once
	pending  int                 // looks in which a GPU was wanted by several
	promised bool                // memory of some GPU, in some look
	where    map[string]int      // pods that ran on each node
	given    map[string][]string // devices of each pod
}

func newLook(c *three, allocated bool) *look {
	l := &look{
		c: c, allocated: allocated, capacity: map[string]map[resourceapi.QualifiedName]resource.Quantity{},
		allocatable: map[string]corev1.ResourceList{}, idle: map[string]int{}, given: map[string][]string{},
	}
	for _, n := range c.Nodes {
		c.publishesAll(n)
		for _, d := range c.published(n) {
			l.capacity[d.Name] = map[resourceapi.QualifiedName]resource.Quantity{"memory": d.Capacity["memory"].Value, "share": d.Capacity["share"].Value}
		}
		node, err := c.Client.CoreV1().Nodes().Get(c.Ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			c.T.Fatal(err)
		}
		l.allocatable[n.Name] = node.Status.Allocatable
	}
	return l
}

// devices adds up what the claims take of each device.
func (l *look) devices() {
	list, err := l.c.Client.ResourceV1().ResourceClaims(metav1.NamespaceDefault).List(l.c.Ctx, metav1.ListOptions{})
	if err != nil {
		l.c.T.Fatal(err)
	}
	for _, wrong := range Overcommitted(list.Items, l.capacity) {
		l.c.T.Error(wrong)
	}
	for _, claim := range list.Items {
		if claim.Status.Allocation != nil {
			pod := claim.OwnerReferences[0].Name
			l.given[pod] = nil
			for _, r := range claim.Status.Allocation.Devices.Results {
				l.given[pod] = append(l.given[pod], r.Device)
			}
		}
	}
}

// nodes looks at what each vgpud says of its GPUs and vGPUs.
func (l *look) nodes() {
	for _, n := range l.c.Nodes {
		gpus, err := n.Daemon.PhysicalGPUs(l.c.Ctx)
		vgpus, err2 := n.Daemon.VGPUs(l.c.Ctx)
		if err := errors.Join(err, err2); err != nil {
			l.c.T.Fatal(err)
		}
		for _, g := range gpus {
			if g.GetMemoryReservedBytes() > g.GetMemoryBytes() || g.GetMemoryUsedBytes() > g.GetMemoryBytes() {
				l.c.T.Errorf("of GPU %s with %d bytes %d are reserved, and %d used", g.GetUuid(), g.GetMemoryBytes(), g.GetMemoryReservedBytes(), g.GetMemoryUsedBytes())
			}
			// Invariant 11. With guests the scheduler may promise what one has taken in the same moment.
			if l.allocated && g.GetMemoryPromisedBytes()+g.GetMemoryGuestBytes() > g.GetMemoryBytes() {
				l.c.T.Errorf("of GPU %s with %d bytes %d are promised, and guests have %d", g.GetUuid(), g.GetMemoryBytes(), g.GetMemoryPromisedBytes(), g.GetMemoryGuestBytes())
			}
			l.promised = l.promised || g.GetMemoryPromisedBytes() > 0
			if g.GetPending() > 0 {
				l.pending++
			}
			// Invariant 3. What is seen in one look may be a moment between two turns.
			if l.idle[g.GetUuid()]++; g.GetState() != "FREE" || g.GetPending() == 0 {
				l.idle[g.GetUuid()] = 0
			}
			if l.idle[g.GetUuid()] > 30 {
				l.c.T.Errorf("GPU %s stays free, and %d wait for it", g.GetUuid(), g.GetPending())
			}
		}
		for _, v := range vgpus {
			// The scheduler has seen to it that there is memory.
			if l.allocated && strings.Contains(v.GetReason(), "of memory are") {
				l.c.T.Errorf("vGPU %s of pod %s waits for memory: %s", v.GetId(), v.GetPod().GetName(), v.GetReason())
			}
		}
	}
}

// pods looks at the pods, and returns how many are done.
func (l *look) pods() (done int) {
	list, err := l.c.Client.CoreV1().Pods(metav1.NamespaceDefault).List(l.c.Ctx, metav1.ListOptions{})
	if err != nil {
		l.c.T.Fatal(err)
	}
	running, waiting := 0, 0
	l.where = map[string]int{}
	taken := map[string]map[corev1.ResourceName]*resource.Quantity{}
	for n := range l.allocatable {
		taken[n] = map[corev1.ResourceName]*resource.Quantity{corev1.ResourceCPU: {}, corev1.ResourceMemory: {}}
	}
	for _, p := range list.Items {
		switch {
		case p.Status.Phase == corev1.PodSucceeded:
			done++
		case p.Status.Phase == corev1.PodFailed:
			l.c.T.Errorf("pod %s has failed: %s", p.Name, l.c.about(&p))
		case p.Spec.NodeName == "":
			waiting++
		case p.Status.Phase == corev1.PodRunning:
			running++
		}
		if p.Spec.NodeName == "" {
			continue
		}
		l.where[p.Spec.NodeName]++
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for name, sum := range taken[p.Spec.NodeName] {
			sum.Add(p.Spec.Containers[0].Resources.Requests[name])
			sum.Add(p.Spec.Overhead[name])
		}
	}
	for n, all := range taken {
		for name, sum := range all {
			if most := l.allocatable[n][name]; sum.Cmp(most) > 0 {
				l.c.T.Errorf("of node %s is taken %s %s, and it has %s", n, sum, name, most.String())
			}
		}
	}
	l.most, l.waited = max(l.most, running), max(l.waited, waiting)
	return done
}
