// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// place makes a claim and a pod with it that does nothing, waits until it has a node,
// and returns what was allocated.
func (c *cluster) place(name string, spec resourceapi.ResourceClaimSpec) []resourceapi.DeviceRequestAllocationResult {
	c.T.Helper()
	c.claiming(name, spec, idles())
	c.placed(name)
	return c.getClaim(name).Status.Allocation.Devices.Results
}

// placed waits until a pod has a node.
func (c *cluster) placed(name string) (node string) {
	c.T.Helper()
	c.wait(func() error {
		p, err := c.get(name)
		if err == nil && p.Spec.NodeName == "" {
			err = fmt.Errorf("pod %s waits: %s", name, c.about(p))
		}
		if err == nil {
			node = p.Spec.NodeName
		}
		return err
	})
	return node
}

// refused makes a claim and a pod with it, for which there is no room.
func (c *cluster) refused(name string, spec resourceapi.ResourceClaimSpec) {
	c.T.Helper()
	c.claiming(name, spec, idles())
	c.waits(name, "cannot allocate all claims")
}

// devices are the names of a node's GPUs in the API, in vgpud's order.
func (c *cluster) devices(n *Node) []string {
	c.T.Helper()
	all := c.uuids(n)
	for i := range all {
		all[i] = strings.ToLower(all[i])
	}
	return all
}

// publishedBy selects the slices of a node's driver.
func publishedBy(n *Node) string {
	return fmt.Sprintf("%s=%s,%s=%s", resourceapi.ResourceSliceSelectorNodeName, n.Name, resourceapi.ResourceSliceSelectorDriver, DriverName)
}

// published are the devices of a node, in the order in which the scheduler takes them.
func (c *cluster) published(n *Node) (all []resourceapi.Device) {
	c.T.Helper()
	list, err := c.Client.ResourceV1().ResourceSlices().List(c.Ctx, metav1.ListOptions{FieldSelector: publishedBy(n)})
	if err != nil {
		c.T.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	for _, s := range list.Items {
		all = append(all, s.Spec.Devices...)
	}
	return all
}

// publishes waits until what a node publishes is right.
func (c *cluster) publishes(n *Node, right func([]resourceapi.Device) bool) {
	c.T.Helper()
	c.wait(func() error {
		all := c.published(n)
		if len(all) == 0 || !right(all) {
			return fmt.Errorf("node %s publishes %+v", n.Name, all)
		}
		return nil
	})
}

func deviceNames(all []resourceapi.Device) (names []string) {
	for _, d := range all {
		names = append(names, d.Name)
	}
	return names
}

// driven starts the driver of a node anew, with flags, and again without at the end of
// the test. Whoever uses the node must wait until it publishes what the flags make of it.
func (c *three) driven(n *Node, flags ...string) {
	c.T.Helper()
	again := func(flags ...string) {
		if err := errors.Join(n.KillDriver(), n.StartDriver(c.Ctx, flags...)); err != nil {
			c.T.Fatal(err)
		}
	}
	again(flags...)
	names := c.devices(n)
	c.T.Cleanup(func() {
		again()
		c.publishes(n, func(all []resourceapi.Device) bool {
			memory := all[0].Capacity["memory"]
			return slices.Equal(deviceNames(all), names) && memory.Value.Cmp(*memory.RequestPolicy.ValidRange.Max) == 0
		})
	})
}

// modellingTable: what a GPU as a device with capacities can and can not do, row by row.
// The rows on a pool of GPUs as one device, and on counters, are not of this driver,
// which publishes each GPU.
func (c *three) modellingTable() {
	gpus := c.devices(c.two)
	gpu := func(memory, share string, more ...func(*resourceapi.ExactDeviceRequest)) resourceapi.ResourceClaimSpec {
		return claimOf(ask("gpu", memory, share, append(more, where("model", modelTwo))...))
	}
	row := func(description string, run func()) {
		run()
		if c.T.Failed() {
			c.T.Logf("in the row %q", description)
		}
		c.clear()
	}
	// on fails the test unless that was allocated, in that order.
	on := func(results []resourceapi.DeviceRequestAllocationResult, want ...string) {
		c.T.Helper()
		var got []string
		for _, r := range results {
			got = append(got, r.Device)
		}
		if !slices.Equal(got, want) {
			c.T.Errorf("allocated was %v, want %v", got, want)
		}
	}
	row("three claims that fit on one GPU are on one", func() {
		for i := range 3 {
			on(c.place(fmt.Sprintf("claim-%d", i), gpu("10Gi", "10")), gpus[0])
		}
	})
	row("a third claim of more than half of a GPU is refused on two", func() {
		on(c.place("first", gpu("25Gi", "10")), gpus[0])
		on(c.place("second", gpu("25Gi", "10")), gpus[1])
		c.refused("third", gpu("25Gi", "10"))
	})
	row("a request of two GPUs has two different ones, one of three is refused", func() {
		on(c.place("pair", gpu("10Gi", "10", of(2))), gpus...)
		c.refused("triple", gpu("10Gi", "10", of(3)))
	})
	row("two requests of one claim may share a GPU, and each container has its own", func() {
		more := where("model", modelTwo)
		c.claim("two", claimOf(ask("a", "10Gi", "10", more), ask("b", "20Gi", "20", more)))
		p := with("two", pod("two", nil, container("a", "sh", "-c", "monitor; exec sleep 100000"), container("b", "sh", "-c", "monitor; exec sleep 100000")))
		for i := range p.Spec.Containers {
			p.Spec.Containers[i].Resources.Claims[0].Request = p.Spec.Containers[i].Name
		}
		c.create(p)
		c.says("two", "a", fmt.Sprintf("memory %d ", uint64(10)<<30))
		c.says("two", "b", fmt.Sprintf("memory %d ", uint64(20)<<30))
		results := c.getClaim("two").Status.Allocation.Devices.Results
		on(results, gpus[0], gpus[0])
		if a, b := results[0].ShareID, results[1].ShareID; a == nil || b == nil || *a == *b {
			c.T.Errorf("the shares are %v and %v", a, b)
		}
	})
	row("share 100 is a whole GPU, and who has it shares with nobody", func() {
		on(c.place("whole", gpu("1Gi", "100")), gpus[0])
		on(c.place("part", gpu("1Gi", "1")), gpus[1])
		c.refused("other", gpu("1Gi", "100"))
	})
	row("a request that says nothing takes the default", func() {
		if r := c.place("default", gpu("", "")); !takes(r[0], "4Gi", "10") {
			c.T.Errorf("it takes %v", r)
		}
	})
	row("memory is rounded up to the step", func() {
		if r := c.place("step", gpu("1000.5Mi", "10")); !takes(r[0], "1001Mi", "10") {
			c.T.Errorf("it takes %v", r)
		}
	})
	c.driven(c.two, "--oversubscription=2")
	c.publishes(c.two, func(all []resourceapi.Device) bool {
		memory := all[0].Capacity["memory"].Value
		return memory.Cmp(resource.MustParse("80Gi")) == 0
	})
	row("with twice the memory, a GPU takes three claims of more than half of it, and no fourth", func() {
		for i := range 6 {
			on(c.place(fmt.Sprintf("claim-%d", i), gpu("25Gi", "10")), gpus[i/3])
		}
		c.refused("seventh", gpu("25Gi", "10"))
	})
	row("but no claim of more than a GPU has", func() {
		c.refused("large", gpu("41Gi", "10"))
	})
	row("first fit fragments: a request of two GPUs is refused though memory for it is free", func() {
		for i := range 3 {
			on(c.place(fmt.Sprintf("claim-%d", i), gpu("25Gi", "10")), gpus[0])
		}
		c.refused("pair", gpu("30Gi", "10", of(2)))
	})
}

// allIsFree: a pod names CPU, memory and a GPU, and goes where all of it is free. While
// one of them is taken it waits, and starts when that becomes free.
func (c *three) allIsFree() {
	large := func() resourceapi.ResourceClaimSpec { return claimOf(ask("gpu", "6Gi", "60")) }
	// wants is a pod that wants half of a CPU, 1Gi of memory and most of a T4, which each
	// node has.
	wants := func(name string, node *Node) *corev1.Pod {
		c.claim(name, large())
		p := with(name, pod(name, nil, container("gpu", "sh", "-c", "vecadd && echo computed && exec sleep 100000")))
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("1Gi"),
		}
		if node != nil {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node.Name}
		}
		return p
	}
	// takes makes a pod that leaves too little of something on a node.
	takes := func(name string, n *Node, what corev1.ResourceName) {
		p := pod(name, nil, idles())
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.Name}
		switch what {
		case corev1.ResourceCPU, corev1.ResourceMemory:
			node, err := c.Client.CoreV1().Nodes().Get(c.Ctx, n.Name, metav1.GetOptions{})
			if err != nil {
				c.T.Fatal(err)
			}
			most := node.Status.Allocatable[what]
			most.Sub(map[corev1.ResourceName]resource.Quantity{corev1.ResourceCPU: resource.MustParse("400m"), corev1.ResourceMemory: resource.MustParse("900Mi")}[what])
			p.Spec.RuntimeClassName = nil
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{what: most}
		default:
			c.claim(name, claimOf(ask("gpu", "3Gi", "50", of(int64(len(c.devices(n)))), where("model", *c.published(n)[0].Attributes["model"].StringValue))))
			with(name, p)
		}
		c.create(p)
		c.placed(name)
	}
	const gpu = corev1.ResourceName("gpu")
	for what, says := range map[corev1.ResourceName]string{
		corev1.ResourceCPU: "Insufficient cpu", corev1.ResourceMemory: "Insufficient memory", gpu: "cannot allocate all claims",
	} {
		takes("taker", c.three, what)
		c.create(wants("waiter", c.three))
		c.waits("waiter", says)
		c.remove("taker")
		c.says("waiter", "gpu", "computed")
		c.clear()
	}
	// Each of the three is free somewhere, and all of them nowhere.
	takes("cpu", c.one, corev1.ResourceCPU)
	takes("memory", c.two, corev1.ResourceMemory)
	takes("gpus", c.three, gpu)
	c.create(wants("waiter", nil))
	for _, says := range []string{"1 Insufficient cpu", "1 Insufficient memory", "1 cannot allocate all claims"} {
		c.waits("waiter", says)
	}
	c.remove("memory")
	c.says("waiter", "gpu", "computed")
	if node := c.placed("waiter"); node != c.two.Name {
		c.T.Errorf("it went to node %s", node)
	}
}

// orders: which GPU of a node a claim gets is what the driver's order says.
func (c *three) orders() {
	n, gpus := c.three, c.devices(c.three)
	gpu := func(more ...func(*resourceapi.ExactDeviceRequest)) resourceapi.ResourceClaimSpec {
		return claimOf(ask("gpu", "1Gi", "10", append(more, where("model", modelThree))...))
	}
	exactly := func(i int) func(*resourceapi.ExactDeviceRequest) { return where("uuid", c.uuids(n)[i]) }
	first := func(name string) func([]resourceapi.Device) bool {
		return func(all []resourceapi.Device) bool { return all[0].Name == name }
	}
	// The order changes when a claim has been prepared.
	placeOn := func(name string, spec resourceapi.ResourceClaimSpec) string {
		c.T.Helper()
		r := c.place(name, spec)
		c.reaches(name, corev1.PodRunning)
		return r[0].Device
	}
	for i := range 2 {
		if got := placeOn(fmt.Sprintf("first-fit-%d", i), gpu()); got != gpus[0] {
			c.T.Errorf("first-fit: claim %d is on %s, want %s", i, got, gpus[0])
		}
	}
	c.clear()

	c.driven(n, "--order=pack")
	placeOn("pack-given", gpu(exactly(2)))
	c.publishes(n, first(gpus[2]))
	if got := placeOn("pack", gpu()); got != gpus[2] {
		c.T.Errorf("pack: it is on %s, want %s, where one is", got, gpus[2])
	}
	c.clear()

	c.driven(n, "--order=spread")
	used := map[string]int{}
	for i := range 2 * len(gpus) {
		used[placeOn(fmt.Sprintf("spread-%d", i), gpu())]++
		// The least used comes first.
		least := slices.Min([]int{used[gpus[0]], used[gpus[1]], used[gpus[2]], used[gpus[3]]})
		c.publishes(n, func(all []resourceapi.Device) bool { return used[all[0].Name] == least })
	}
	for _, g := range gpus {
		if used[g] != 2 {
			c.T.Errorf("spread: claims on each GPU: %v", used)
		}
	}
	c.clear()

	c.driven(n, "--order=random")
	firsts := map[string]bool{}
	for i := 0; len(firsts) < 2; i++ {
		if i == 20 { // by chance once in 4^19 times
			c.T.Errorf("random: each of %d claims was on %v", i, slices.Collect(maps.Keys(firsts)))
			break
		}
		firsts[placeOn(fmt.Sprintf("random-%d", i), claimOf(ask("gpu", "64Mi", "1", where("model", modelThree))))] = true
	}
	if got := slices.Sorted(slices.Values(deviceNames(c.published(n)))); !slices.Equal(got, slices.Sorted(slices.Values(gpus))) {
		c.T.Errorf("random: published are %v, want %v in any order", got, gpus)
	}
}

// oversubscription: claims of more memory than there is are placed, and who finds none
// free waits in its first use of CUDA, until there is.
func (c *three) oversubscription() {
	c.driven(c.two, "--oversubscription=1.5")
	c.publishes(c.two, func(all []resourceapi.Device) bool {
		memory := all[0].Capacity["memory"].Value
		return memory.Cmp(resource.MustParse("60Gi")) == 0
	})
	same := where("uuid", c.uuids(c.two)[0])
	spec := func() resourceapi.ResourceClaimSpec { return claimOf(ask("gpu", "30Gi", "50", same)) }
	c.claiming("first", spec(), script("gpu", bursts(1_000_000)))
	tenant := c.tenant("first", "gpu")
	c.wait(func() error {
		if c.submissions(c.two)[tenant] == 0 {
			return errors.New("the first pod has submitted nothing yet")
		}
		return nil
	})
	c.claiming("second", spec(), container("gpu", "vecadd"))
	c.says("second", "gpu", "vgpu: waiting for a GPU: ")
	c.remove("first")
	c.reaches("second", corev1.PodSucceeded)
}

// quota: a ResourceQuota counts the GPUs of the class, and refuses claims beyond.
func (c *three) quota() {
	quotas := c.Client.CoreV1().ResourceQuotas(metav1.NamespaceDefault)
	const key = deviceClass + ".deviceclass.resource.k8s.io/devices"
	_, err := quotas.Create(c.Ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "gpus"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{key: resource.MustParse("3")}},
	}, metav1.CreateOptions{})
	if err != nil {
		c.T.Fatal(err)
	}
	defer func() {
		if err := quotas.Delete(c.Ctx, "gpus", metav1.DeleteOptions{}); err != nil {
			c.T.Error(err)
		}
	}()
	used := func(want string) {
		c.T.Helper()
		c.wait(func() error {
			q, err := quotas.Get(c.Ctx, "gpus", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got, ok := q.Status.Used[key]; !ok || got.Cmp(resource.MustParse(want)) != 0 {
				return fmt.Errorf("used of the quota is %v, not yet %s", q.Status.Used, want)
			}
			return nil
		})
	}
	used("0")
	c.place("pair", claimOf(ask("gpu", "1Gi", "10", of(2))))
	c.place("one", claimOf(ask("gpu", "1Gi", "10")))
	used("3")
	beyond := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "beyond"}, Spec: claimOf(ask("gpu", "1Gi", "10"))}
	_, err = c.Client.ResourceV1().ResourceClaims(metav1.NamespaceDefault).Create(c.Ctx, beyond, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: gpus") {
		c.T.Errorf("a claim beyond the quota: %v", err)
	}
}

// lateBinding: the scheduler has put two claims on one GPU while an identical one idles.
// Their pods compute at once all the same, each on a GPU of its own; with placement
// "allocated" the second waits for the first.
func (c *three) lateBinding() {
	for _, test := range []struct {
		placement string
		waits     bool
	}{{"identical", false}, {"allocated", true}} {
		spec := func() resourceapi.ResourceClaimSpec {
			return configured(claimOf(ask("gpu", "2Gi", "50", where("model", modelTwo))), map[string]any{"placement": test.placement})
		}
		// One kernel of an hour.
		c.claiming("long", spec(), script("gpu", "burst --bursts 1 --launches 1 --gpu-us 3600000000"))
		c.holds("long")
		c.claiming("short", spec(), container("gpu", "vecadd"))
		c.placed("short")
		long, short := c.getClaim("long").Status.Allocation.Devices.Results, c.getClaim("short").Status.Allocation.Devices.Results
		if long[0].Device != short[0].Device {
			c.T.Fatalf("the scheduler has put them on %s and %s", long[0].Device, short[0].Device)
		}
		if test.waits {
			c.reaches("short", corev1.PodRunning)
			c.wait(func() error {
				if v := c.knownOn(c.two, "short")["gpu"]; v.GetState() != "PENDING" {
					return fmt.Errorf("the vGPU of the second pod is %s", v.GetState())
				}
				return nil
			})
			c.remove("long")
		}
		c.reaches("short", corev1.PodSucceeded)
		if !test.waits {
			c.holds("long") // still
		}
		c.clear()
	}
}

// holds waits until the vGPU of a pod on node two holds its GPU.
func (c *three) holds(name string) {
	c.T.Helper()
	c.reaches(name, corev1.PodRunning)
	c.wait(func() error {
		if v := c.knownOn(c.two, name)["gpu"]; v.GetState() != "HOLDING" {
			return fmt.Errorf("the vGPU of pod %s is %s", name, v.GetState())
		}
		return nil
	})
}
