// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

var gpuStates = []string{"FREE", "HELD", "DRAINING", "CORDONED", "UNHEALTHY"}

type gpuDescs struct {
	info, held, turns, handovers, bound, pending, state *prometheus.Desc

	memory, memoryReserved, memoryPromised, memoryGuest, memoryUsed, memoryFree *prometheus.Desc
}

func (c *collector) describeGPUs() {
	of := func(name, help string, more ...string) *prometheus.Desc {
		return c.desc("vgpu_gpu_"+name, help, append([]string{"gpu"}, more...)...)
	}
	c.gpu = gpuDescs{
		info:           of("info", "Always 1; what the GPU is.", "model", "pci_bus_id"),
		held:           of("held_seconds_total", "Time that vGPUs held the GPU in turns that ended."),
		turns:          of("turns_total", "Turns on the GPU that ended."),
		handovers:      of("handovers_total", "Grants for which somebody waited while another vGPU held the GPU."),
		bound:          of("bound_vgpus", "vGPUs that are bound to the GPU."),
		pending:        of("pending_vgpus", "vGPUs that wait for the GPU."),
		state:          of("state", "1 for the state in which the GPU is, 0 for the others.", "state"),
		memory:         of("memory_bytes", "Memory that the GPU has."),
		memoryReserved: of("memory_reserved_bytes", "Memory that vGPUs asked for."),
		memoryPromised: of("memory_promised_bytes", "Memory that is kept for claims."),
		memoryGuest:    of("memory_guest_bytes", "Memory that vGPUs asked for and that was not promised to them there."),
		memoryUsed:     of("memory_used_bytes", "Memory that vGPUs use."),
		memoryFree:     of("memory_free_bytes", "Memory that is free as the driver says; absent if it does not."),
	}
}

func (c *collector) collectGPUs(ch chan<- prometheus.Metric, all []*v1.GPU) {
	d := &c.gpu
	for _, g := range all {
		gpu := g.GetUuid()
		gauge(ch, d.info, 1, gpu, utf8(g.GetModel()), utf8(g.GetPciBusId()))
		counter(ch, d.held, seconds(g.GetHeld()), gpu)
		counter(ch, d.turns, float64(g.GetTurns()), gpu)
		counter(ch, d.handovers, float64(g.GetHandover().GetCount()), gpu)
		gauge(ch, d.bound, float64(g.GetBound()), gpu)
		gauge(ch, d.pending, float64(g.GetPending()), gpu)
		states(ch, d.state, gpuStates, g.GetState(), gpu)
		gauge(ch, d.memory, float64(g.GetMemoryBytes()), gpu)
		gauge(ch, d.memoryReserved, float64(g.GetMemoryReservedBytes()), gpu)
		gauge(ch, d.memoryPromised, float64(g.GetMemoryPromisedBytes()), gpu)
		gauge(ch, d.memoryGuest, float64(g.GetMemoryGuestBytes()), gpu)
		gauge(ch, d.memoryUsed, float64(g.GetMemoryUsedBytes()), gpu)
		if g.MemoryFreeBytes != nil {
			gauge(ch, d.memoryFree, float64(g.GetMemoryFreeBytes()), gpu)
		}
	}
}
