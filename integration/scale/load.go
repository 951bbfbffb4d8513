// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/vgpu-shim/vgpu/integration/kubernetes"
)

// className is the device class of all claims.
const className = "vgpu"

// wish is what a pod asks for.
type wish struct {
	name       string
	memory     int64 // MiB of each GPU
	share      int64
	gpus       int64
	model      string // empty: any
	cpu        int64  // thousandths
	host       int64  // MiB of memory
	impossible bool   // no GPU has it
}

// wishes are n, the same for one seed. Most of the nodes' CPUs are asked for, so that
// it is not only GPUs that fill up; one in a thousand asks for more than any GPU has.
func wishes(n int, s sizes) []wish {
	r := rand.New(rand.NewPCG(s.seed, 0))
	between := func(from, to int64) int64 { return from + r.Int64N(to-from+1) }
	mean := max(int64(s.nodes)*nodeCPUs*1000*8/10/int64(n), 10) // of a pod's CPU, for 80 % of all
	all := make([]wish, n)
	for i := range all {
		w := wish{
			name: fmt.Sprintf("p%05d", i), memory: between(2<<10, 40<<10), share: between(5, 60), gpus: 1,
			cpu: min(between(mean/2, mean*3/2), nodeCPUs*1000/2), host: between(1<<10, 32<<10),
		}
		switch r.IntN(8) {
		case 0:
			w.model = kinds[0].model
		case 1:
			w.model = kinds[1].model
		case 2:
			w.gpus, w.share = between(2, int64(max(2, min(s.gpus, 4)))), between(5, 30)
		}
		if i%1000 == 999 {
			w.memory, w.impossible = (kinds[0].memory+1)<<10, true
		}
		all[i] = w
	}
	return all
}

func (w *wish) claim() *resourceapi.ResourceClaim {
	r := &resourceapi.ExactDeviceRequest{DeviceClassName: className, Count: w.gpus, Capacity: &resourceapi.CapacityRequirements{
		Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": *resource.NewQuantity(w.memory<<20, resource.BinarySI), "share": *resource.NewQuantity(w.share, resource.DecimalSI),
		},
	}}
	if w.model != "" {
		r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf("device.attributes[%q].model == %q", kubernetes.DriverName, w.model),
		}}}
	}
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: w.name}, Spec: resourceapi.ResourceClaimSpec{
		Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: r}}},
	}}
}

func (w *wish) pod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: w.name}, Spec: corev1.PodSpec{
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &w.name}},
		Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{
			Claims: []corev1.ResourceClaim{{Name: "gpu"}},
			Requests: corev1.ResourceList{
				corev1.ResourceCPU: *resource.NewMilliQuantity(w.cpu, resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(w.host<<20, resource.BinarySI),
			},
		}}},
	}}
}

// loaded is how the pods got their nodes.
type loaded struct {
	wishes map[string]wish
	took   time.Duration            // from the first pod to the last one's node
	waited map[string]time.Duration // of each pod: from when it was there until it was seen with its node

	mu    sync.Mutex
	made  map[string]time.Time
	slots chan struct{}
	last  time.Time
}

// load makes the pods, each when there are few enough without a node, and waits until
// all have one that can have one.
func (p *place) load(ctx context.Context) (*loaded, error) {
	l := &loaded{
		wishes: map[string]wish{}, waited: map[string]time.Duration{}, made: map[string]time.Time{}, slots: make(chan struct{}, p.atOnce),
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	factory := informers.NewSharedInformerFactory(p.cluster.Client, 0)
	informer := factory.Core().V1().Pods().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, obj any) { l.saw(obj) }}); err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	all := wishes(p.pods, p.sizes)
	possible := 0
	for _, w := range all {
		l.wishes[w.name] = w
		if !w.impossible {
			possible++
		}
	}
	began := time.Now()
	todo := make(chan wish)
	var makers sync.WaitGroup
	for range workers {
		makers.Go(func() {
			for w := range todo {
				if err := p.make(ctx, l, w); err != nil {
					cancel(err)
				}
			}
		})
	}
	said := time.Now()
	for i, w := range all {
		if !w.impossible {
			select {
			case l.slots <- struct{}{}:
			case <-ctx.Done():
			}
		}
		select {
		case todo <- w:
		case <-ctx.Done():
		}
		if time.Since(said) > 30*time.Second {
			said = time.Now()
			fmt.Printf("scale: %d pods made after %v\n", i, time.Since(began).Round(time.Second))
		}
	}
	close(todo)
	makers.Wait()
	for {
		l.mu.Lock()
		n := len(l.waited)
		l.mu.Unlock()
		if n == possible {
			break
		}
		if ctx.Err() != nil {
			return nil, errors.Join(context.Cause(ctx), fmt.Errorf("%d of %d pods have a node", n, possible))
		}
		time.Sleep(50 * time.Millisecond)
	}
	l.took = l.last.Sub(began)
	return l, context.Cause(ctx)
}

func (p *place) make(ctx context.Context, l *loaded, w wish) error {
	if _, err := p.cluster.Client.ResourceV1().ResourceClaims(metav1.NamespaceDefault).Create(ctx, w.claim(), metav1.CreateOptions{}); err != nil {
		return err
	}
	l.mu.Lock()
	l.made[w.name] = time.Now()
	l.mu.Unlock()
	_, err := p.cluster.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, w.pod(), metav1.CreateOptions{})
	return err
}

// saw takes in that a pod has a node.
func (l *loaded) saw(obj any) {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return
	}
	now := time.Now()
	l.mu.Lock()
	_, again := l.waited[pod.Name]
	if !again {
		l.waited[pod.Name] = now.Sub(l.made[pod.Name])
		l.last = now
	}
	l.mu.Unlock()
	if !again {
		<-l.slots
	}
}
