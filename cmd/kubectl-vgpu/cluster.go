// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// driver is vgpu-kubelet's name in ResourceSlices.
const driver = "vgpu-shim.dev"

// vgpudPods are those of the chart's DaemonSet.
const vgpudPods = "app.kubernetes.io/name=vgpu,app.kubernetes.io/component=vgpud"

// metricsPort is the name of the port at which vgpud serves its metrics.
const metricsPort = "metrics"

// How nodes are asked.
const (
	scrapers      = 32 // at the same time
	scrapeTimeout = 15 * time.Second
)

// source is where all is asked.
type source interface {
	// pods are those of vgpud.
	pods(context.Context) ([]corev1.Pod, error)
	// metrics are those of one of them.
	metrics(ctx context.Context, pod *corev1.Pod, port int32) ([]byte, error)
	// claims are the devices and the claims; both empty where there are none.
	claims(context.Context) ([]resourceapi.ResourceSlice, []resourceapi.ResourceClaim, error)
}

// apiServer is the source that is asked in earnest.
type apiServer struct{ client kubernetes.Interface }

func (a apiServer) pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := a.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: vgpudPods})
	if err != nil {
		return nil, fmt.Errorf("failed to list the pods of vgpud: %w", err)
	}
	return list.Items, nil
}

func (a apiServer) metrics(ctx context.Context, pod *corev1.Pod, port int32) ([]byte, error) {
	return a.client.CoreV1().RESTClient().Get().Namespace(pod.Namespace).Resource("pods").
		Name(fmt.Sprintf("%s:%d", pod.Name, port)).SubResource("proxy").Suffix("metrics").DoRaw(ctx)
}

func (a apiServer) claims(ctx context.Context) ([]resourceapi.ResourceSlice, []resourceapi.ResourceClaim, error) {
	slices, err := a.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + driver})
	if apierrors.IsNotFound(err) { // older than 1.34
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("failed to list ResourceSlices: %w", err)
	}
	if len(slices.Items) == 0 {
		return nil, nil, nil
	}
	claims, err := a.client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("failed to list ResourceClaims: %w", err)
	}
	return slices.Items, claims.Items, nil
}

// cluster is what was seen. Its JSON is documented in docs/kubectl.md.
type cluster struct {
	Nodes []*node `json:"nodes"`

	notes []string
}

type node struct {
	Name    string  `json:"name"`
	Version string  `json:"vgpud_version"`
	Driver  string  `json:"driver_version"`
	Problem string  `json:"problem"` // why nothing is known of it; else empty
	GPUs    []*gpu  `json:"gpus"`
	VGPUs   []*vgpu `json:"vgpus"`
}

type gpu struct {
	UUID          string   `json:"uuid"`
	Model         string   `json:"model"`
	State         string   `json:"state"`
	Held          *float64 `json:"held_ratio"` // part of the time between two looks; nil: there was one
	Bound         int      `json:"bound"`
	Pending       int      `json:"pending"`
	MemoryBytes   uint64   `json:"memory_bytes"`
	ReservedBytes uint64   `json:"memory_reserved_bytes"`
	UsedBytes     uint64   `json:"memory_used_bytes"`
	FreeBytes     *uint64  `json:"memory_free_bytes"` // as the driver says; nil: it does not
	Unmanaged     int      `json:"unmanaged_processes"`
	Claims        *claimed `json:"claims"` // nil: it is not published for claims
}

// claimed is what claims can have of a GPU.
type claimed struct {
	MemoryBytes     uint64 `json:"memory_bytes"` // all that can be claimed
	MemoryFreeBytes uint64 `json:"memory_free_bytes"`
	Share           int64  `json:"share"` // percent of the GPU's time
	ShareFree       int64  `json:"share_free"`
	Claims          int    `json:"allocated"` // claims that have a part
}

type vgpu struct {
	ID          string   `json:"id"`
	Namespace   string   `json:"namespace"` // of the pod; empty: in none
	Pod         string   `json:"pod"`
	Container   string   `json:"container"`
	ContainerID string   `json:"container_id"`
	GPUs        []string `json:"gpus"`
	State       string   `json:"state"`
	UsedBytes   uint64   `json:"memory_used_bytes"`
	LimitBytes  uint64   `json:"memory_limit_bytes"` // of one of its GPUs; 0: it has none yet
	Held        float64  `json:"held_seconds"`
	Waited      float64  `json:"waited_seconds"`
	Turns       uint64   `json:"turns"`
	Overruns    uint64   `json:"overruns"`
}

// only leaves out the vGPUs of pods in other namespaces.
func (c *cluster) only(namespace string) {
	for _, n := range c.Nodes {
		n.VGPUs = slices.DeleteFunc(n.VGPUs, func(v *vgpu) bool { return v.Namespace != namespace })
	}
}

// look looks at nodes, or at all if none is named. What can not be seen of one of them
// is its Problem.
func look(ctx context.Context, s source, names []string, interval time.Duration) (*cluster, error) {
	pods, err := s.pods(ctx)
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("no pod of vgpud is in this cluster (label %s): install the Helm chart configs/helm/vgpu", vgpudPods)
	}
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool {
		return p.Spec.NodeName == "" || len(names) > 0 && !slices.Contains(names, p.Spec.NodeName)
	})
	for _, name := range names {
		if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == name }) {
			return nil, fmt.Errorf("no pod of vgpud is on node %s: see whether there is such a node, and whether the chart's nodeSelector fits it (kubectl get nodes --show-labels)", name)
		}
	}
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Spec.NodeName, b.Spec.NodeName) })
	c := &cluster{Nodes: scrapeAll(ctx, s, pods)}
	if interval > 0 {
		began := time.Now()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(interval):
		}
		later := scrapeAll(ctx, s, pods)
		elapsed := time.Since(began)
		for i, n := range later {
			n.since(c.Nodes[i], elapsed)
		}
		c.Nodes = later
	}
	if err := c.claims(ctx, s); err != nil {
		c.notes = append(c.notes, fmt.Sprintf("what is claimed is not shown: %v", err))
	}
	return c, nil
}

// scrapeAll asks the vgpud in each pod.
func scrapeAll(ctx context.Context, s source, pods []corev1.Pod) []*node {
	nodes := make([]*node, len(pods))
	slots := make(chan struct{}, scrapers)
	var wg sync.WaitGroup
	for i := range pods {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			n := &node{Name: pods[i].Spec.NodeName, GPUs: []*gpu{}, VGPUs: []*vgpu{}}
			if err := n.scrape(ctx, s, &pods[i]); err != nil {
				n.Problem = err.Error()
			}
			nodes[i] = n
		})
	}
	wg.Wait()
	return nodes
}

func (n *node) scrape(ctx context.Context, s source, pod *corev1.Pod) error {
	logs := fmt.Sprintf("see kubectl -n %s logs %s --all-containers", pod.Namespace, pod.Name)
	if pod.Status.Phase != corev1.PodRunning {
		return fmt.Errorf("its vgpud does not run, pod %s/%s is %s: %s", pod.Namespace, pod.Name, pod.Status.Phase, logs)
	}
	var port int32
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == metricsPort {
				port = p.ContainerPort
			}
		}
	}
	if port == 0 {
		return errors.New("its vgpud serves no metrics: set metrics.enabled=true in the chart's values")
	}
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	text, err := s.metrics(ctx, pod, port)
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; you need get on pods/proxy in namespace %s", err, pod.Namespace)
	}
	if err != nil {
		return fmt.Errorf("its vgpud does not answer: %w; %s", err, logs)
	}
	if err := n.read(text); err != nil {
		return fmt.Errorf("failed to read the metrics of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// since tells how much GPUs were held since an earlier look. A vGPU holds all its GPUs
// at the same time.
func (n *node) since(earlier *node, elapsed time.Duration) {
	if n.Problem != "" || earlier.Problem != "" {
		return
	}
	before := map[string]float64{}
	for _, v := range earlier.VGPUs {
		before[v.ID] = v.Held
	}
	held := map[string]float64{}
	for _, v := range n.VGPUs {
		for _, uuid := range v.GPUs {
			// One that is new began at 0.
			held[uuid] += max(v.Held-before[v.ID], 0)
		}
	}
	for _, g := range n.GPUs {
		ratio := min(held[g.UUID]/elapsed.Seconds(), 1)
		g.Held = &ratio
	}
}

// claims adds what is claimed of the GPUs.
func (c *cluster) claims(ctx context.Context, s source) error {
	published, claims, err := s.claims(ctx)
	if err != nil {
		return err
	}
	type device struct{ pool, name string }
	taken := map[device]*claimed{}
	for _, rc := range claims {
		if rc.Status.Allocation == nil {
			continue
		}
		for _, r := range rc.Status.Allocation.Devices.Results {
			if r.Driver != driver || r.AdminAccess != nil && *r.AdminAccess {
				continue
			}
			t := taken[device{r.Pool, r.Device}]
			if t == nil {
				t = &claimed{}
				taken[device{r.Pool, r.Device}] = t
			}
			memory, share := r.ConsumedCapacity["memory"], r.ConsumedCapacity["share"]
			t.MemoryBytes += bytesOf(memory)
			t.Share += share.Value()
			t.Claims++
		}
	}
	for _, slice := range published {
		pool := slice.Spec.Pool.Name
		for _, d := range slice.Spec.Devices {
			g := c.gpu(slice.Spec.NodeName, d.Name)
			if g == nil {
				continue
			}
			memory, share := d.Capacity["memory"], d.Capacity["share"]
			g.Claims = &claimed{MemoryBytes: bytesOf(memory.Value), Share: share.Value.Value()}
			g.Claims.MemoryFreeBytes, g.Claims.ShareFree = g.Claims.MemoryBytes, g.Claims.Share
			if t := taken[device{pool, d.Name}]; t != nil {
				g.Claims.Claims = t.Claims
				g.Claims.MemoryFreeBytes -= min(t.MemoryBytes, g.Claims.MemoryFreeBytes)
				g.Claims.ShareFree -= min(t.Share, g.Claims.ShareFree)
			}
		}
	}
	return nil
}

// bytesOf is a capacity of memory, which is never below 0.
func bytesOf(q resource.Quantity) uint64 { return uint64(max(q.Value(), 0)) }

// gpu finds the GPU that a device of a node is: it has its UUID's name, in small letters.
func (c *cluster) gpu(nodeName *string, device string) *gpu {
	for _, n := range c.Nodes {
		if nodeName == nil || n.Name != *nodeName {
			continue
		}
		for _, g := range n.GPUs {
			if strings.ToLower(g.UUID) == device {
				return g
			}
		}
	}
	return nil
}
