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

// publishesAll waits until a node publishes all memory of its GPUs: guests of before are
// gone.
func (c *cluster) publishesAll(n *Node) {
	c.T.Helper()
	whole := map[string]int64{}
	gpus, err := n.Daemon.PhysicalGPUs(c.Ctx)
	if err != nil {
		c.T.Fatal(err)
	}
	for _, g := range gpus {
		whole[strings.ToLower(g.GetUuid())] = int64(g.GetMemoryBytes())
	}
	c.publishes(n, func(all []resourceapi.Device) bool {
		return !slices.ContainsFunc(all, func(d resourceapi.Device) bool {
			memory := d.Capacity["memory"]
			return memory.Value.Value() != whole[d.Name]
		})
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
// otherModels has the rows on what this driver does not publish.
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

// otherModels: why each GPU is a device. Of a pool of GPUs that is one device a request
// can not have two; whole GPUs beside shared ones take counters. The devices are on a
// node that is an object alone, so nothing prepares them.
func (c *three) otherModels() {
	const node, driver = "paper", "model.example.com"
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("100")}
	nodes, published, classes := c.Client.CoreV1().Nodes(), c.Client.ResourceV1().ResourceSlices(), c.Client.ResourceV1().DeviceClasses()
	ours := metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + driver}
	_, err := nodes.Create(c.Ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{Label: "true"}},
		Status:     corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}, metav1.CreateOptions{})
	if err == nil {
		_, err = classes.Create(c.Ctx, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driver)}}},
		}}, metav1.CreateOptions{})
	}
	if err != nil {
		c.T.Fatal(err)
	}
	defer func() {
		c.clear()
		err := errors.Join(published.DeleteCollection(c.Ctx, metav1.DeleteOptions{}, ours), classes.Delete(c.Ctx, driver, metav1.DeleteOptions{}), nodes.Delete(c.Ctx, node, metav1.DeleteOptions{}))
		if err != nil {
			c.T.Error(err)
		}
	}()
	// publish puts slices of one pool in the place of those before.
	generation := int64(0)
	publish := func(specs ...resourceapi.ResourceSliceSpec) {
		c.T.Helper()
		generation++
		if err := published.DeleteCollection(c.Ctx, metav1.DeleteOptions{}, ours); err != nil {
			c.T.Fatal(err)
		}
		name := node
		for i, s := range specs {
			s.Driver, s.NodeName = driver, &name
			s.Pool = resourceapi.ResourcePool{Name: node, Generation: generation, ResourceSliceCount: int64(len(specs))}
			if _, err := published.Create(c.Ctx, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("model-%d-%d", generation, i)}, Spec: s}, metav1.CreateOptions{}); err != nil {
				c.T.Fatal(err)
			}
		}
	}
	quantity := func(s string) *resource.Quantity { q := resource.MustParse(s); return &q }
	yes := true
	device := func(name, memory string) resourceapi.Device {
		return resourceapi.Device{
			Name: name, AllowMultipleAllocations: &yes, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"name": {StringValue: &name}},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: *quantity(memory), RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default: quantity("10Gi"), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity("1Mi"), Max: quantity("80Gi"), Step: quantity("1Mi")},
			}}},
		}
	}
	request := func(name, memory string, more ...func(*resourceapi.ExactDeviceRequest)) resourceapi.DeviceRequest {
		r := ask(name, memory, "", more...)
		r.Exactly.DeviceClassName = driver
		return r
	}
	named := func(name string) func(*resourceapi.ExactDeviceRequest) {
		return func(r *resourceapi.ExactDeviceRequest) {
			r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.attributes[%q].name == %q", driver, name)}}}
		}
	}
	number := 0
	create := func(requests ...resourceapi.DeviceRequest) string {
		number++
		name := fmt.Sprintf("claim-%d", number)
		c.claim(name, claimOf(requests...))
		p := with(name, pod(name, nil, idles()))
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} // nobody looks after the node
		c.create(p)
		return name
	}
	places := func(requests ...resourceapi.DeviceRequest) []resourceapi.DeviceRequestAllocationResult {
		c.T.Helper()
		name := create(requests...)
		c.placed(name)
		return c.getClaim(name).Status.Allocation.Devices.Results
	}
	refuses := func(requests ...resourceapi.DeviceRequest) {
		c.T.Helper()
		c.waits(create(requests...), "cannot allocate all claims")
	}

	// A pool of two GPUs of 80Gi.
	publish(resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{device("pool", "160Gi")}})
	for range 3 {
		places(request("gpu", "50Gi")) // on two GPUs, whichever they are
	}
	refuses(request("gpu", "50Gi"))
	c.clear()
	places(request("gpu", "50Gi")) // there is room for these two
	refuses(request("gpu", "100Gi"))
	refuses(request("gpu", "10Gi", of(2)))
	c.clear()
	if r := places(request("a", "80Gi"), request("b", "80Gi")); len(r) != 2 || r[0].Device != "pool" || r[1].Device != "pool" || *r[0].ShareID == *r[1].ShareID {
		c.T.Errorf("two requests have %+v", r)
	}
	c.clear()
	// With twice the memory.
	publish(resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{device("pool", "320Gi")}})
	for range 5 {
		places(request("gpu", "60Gi"))
	}
	refuses(request("gpu", "60Gi"))
	c.clear()

	// A GPU that is given away whole, or in parts.
	counts := func(d resourceapi.Device) resourceapi.Device {
		d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: "gpu", Counters: map[string]resourceapi.Counter{"whole": {Value: *quantity("1")}}}}
		return d
	}
	whole := device("whole", "80Gi")
	whole.AllowMultipleAllocations, whole.Capacity = nil, nil
	publish(
		resourceapi.ResourceSliceSpec{SharedCounters: []resourceapi.CounterSet{{Name: "gpu", Counters: map[string]resourceapi.Counter{"whole": {Value: *quantity("1")}}}}},
		resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{counts(whole), counts(device("shared", "80Gi"))}},
	)
	for range 2 {
		places(request("gpu", "40Gi", named("shared")))
	}
	refuses(request("gpu", "", named("whole")))
	c.clear()
	places(request("gpu", "", named("whole")))
	refuses(request("gpu", "1Gi", named("shared")))
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
	const key = deviceClass + ".deviceclass.resource.k8s.io/devices"
	defer c.limited(key, "3")()
	c.usedOfQuota(key, "0")
	c.place("pair", claimOf(ask("gpu", "1Gi", "10", of(2))))
	c.place("one", claimOf(ask("gpu", "1Gi", "10")))
	c.usedOfQuota(key, "3")
	beyond := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "beyond"}, Spec: claimOf(ask("gpu", "1Gi", "10"))}
	_, err := c.Client.ResourceV1().ResourceClaims(metav1.NamespaceDefault).Create(c.Ctx, beyond, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: gpus") {
		c.T.Errorf("a claim beyond the quota: %v", err)
	}
}

const quotaName = "gpus"

// limited bounds what the namespace may have of one thing by a ResourceQuota, until the
// returned function is called.
func (c *cluster) limited(key corev1.ResourceName, hard string) func() {
	c.T.Helper()
	quotas := c.Client.CoreV1().ResourceQuotas(metav1.NamespaceDefault)
	if _, err := quotas.Create(c.Ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: quotaName}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{key: resource.MustParse(hard)}},
	}, metav1.CreateOptions{}); err != nil {
		c.T.Fatal(err)
	}
	return func() {
		if err := quotas.Delete(c.Ctx, quotaName, metav1.DeleteOptions{}); err != nil {
			c.T.Error(err)
		}
	}
}

// usedOfQuota waits until so much of it is used.
func (c *cluster) usedOfQuota(key corev1.ResourceName, want string) {
	c.T.Helper()
	c.wait(func() error {
		q, err := c.Client.CoreV1().ResourceQuotas(metav1.NamespaceDefault).Get(c.Ctx, quotaName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got, ok := q.Status.Used[key]; !ok || got.Cmp(resource.MustParse(want)) != 0 {
			return fmt.Errorf("used of the quota is %v, not yet %s", q.Status.Used, want)
		}
		return nil
	})
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
