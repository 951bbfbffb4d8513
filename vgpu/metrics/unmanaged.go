// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

type unmanagedDescs struct{ processes, memory *prometheus.Desc }

func (c *collector) describeUnmanaged() {
	labels := append([]string{"gpu"}, vgpuLabels...)
	labels = append(labels, "pod_namespace", "pod")
	c.unmanaged = unmanagedDescs{
		processes: c.desc("vgpu_unmanaged_processes", "Processes that use the GPU and are clients of no vGPU, in the container that is named, or in none with a vGPU.", labels...),
		memory:    c.desc("vgpu_unmanaged_memory_bytes", "Memory of the GPU that they use.", labels...),
	}
}

// place is where unmanaged processes are: one series each, however many they are.
type place struct{ gpu, id, namespace, container, podNamespace, pod string }

// collectUnmanaged counts unmanaged processes. Of a GPU that has none it says so,
// of one of which the driver does not tell, nothing.
func (c *collector) collectUnmanaged(ch chan<- prometheus.Metric, gpus []*v1.GPU, all *v1.ListProcessesResponse) {
	type sum struct{ processes, bytes float64 }
	sums := make(map[place]*sum)
	for _, g := range gpus {
		if !slices.Contains(all.GetSilentGpus(), g.GetUuid()) {
			sums[place{gpu: g.GetUuid()}] = &sum{}
		}
	}
	for _, p := range all.GetProcesses() {
		if p.GetVgpu() != "" {
			continue
		}
		at := place{
			p.GetGpu(), p.GetInside(), utf8(p.GetContainer().GetNamespace()), utf8(p.GetContainer().GetId()),
			utf8(p.GetPod().GetNamespace()), utf8(p.GetPod().GetName()),
		}
		if sums[at] == nil {
			sums[at] = &sum{}
		}
		sums[at].processes++
		sums[at].bytes += float64(p.GetMemoryBytes())
	}
	for at, s := range sums {
		labels := []string{at.gpu, at.id, at.namespace, at.container, at.podNamespace, at.pod}
		gauge(ch, c.unmanaged.processes, s.processes, labels...)
		gauge(ch, c.unmanaged.memory, s.bytes, labels...)
	}
}
