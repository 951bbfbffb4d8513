// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// vgpuLabels name a vGPU.
var vgpuLabels = []string{"id", "namespace", "container"}

var vgpuStates = []string{"UNBOUND", "IDLE", "PENDING", "HOLDING", "DRAINING", "OVERRUN"}

type vgpuDescs struct {
	held, waited, lingered, turns, drains, overruns, submissions, unhooked, unknown, rubbish *prometheus.Desc

	processes, observers, state, memoryUsed, memoryLimit, quantum, swap, info *prometheus.Desc
}

func (c *collector) describeVGPUs() {
	of := func(name, help string, more ...string) *prometheus.Desc {
		return c.desc("vgpu_"+name, help, append(vgpuLabels[:len(vgpuLabels):len(vgpuLabels)], more...)...)
	}
	c.vgpu = vgpuDescs{
		held:        of("held_seconds_total", "GPU time that the vGPU held, from grant to last completion without idle gaps."),
		waited:      of("waited_seconds_total", "Time from pending to grant."),
		lingered:    of("lingered_seconds_total", "Time that GPUs were kept idle for the vGPU while others waited."),
		turns:       of("turns_total", "Turns that ended."),
		drains:      of("drains_total", "Turns that were taken away."),
		overruns:    of("overruns_total", "Turns that did not drain in time."),
		submissions: of("submissions_total", "Pieces of work that passed the gate."),
		unhooked:    of("unhooked_lookups_total", "Look-ups of functions that submit work and could not be gated."),
		unknown:     of("unknown_lookups_total", "Look-ups of names that the driver library of vgpu does not know."),
		rubbish:     of("rubbish_connections_total", "Connections that were closed because of what came over them."),
		processes:   of("processes", "Connected processes."),
		observers:   of("observers", "Connected processes that use NVML alone and keep the vGPU on its GPUs."),
		quantum:     of("quantum_seconds", "Quantum that is in force."),
		swap:        of("swap_seconds", "Time that it takes to bring the memory of the vGPU back to its GPU after others; 0 if all that is used there fits."),
		info:        of("info", "Always 1; the pod of the vGPU's container, empty if it is in none.", "pod_namespace", "pod", "pod_container"),
		state:       of("state", "1 for the state in which the vGPU is, 0 for the others.", "state"),
		memoryUsed:  of("memory_used_bytes", "Memory of the GPU that the processes of the vGPU use, with what the driver needs for them.", "gpu"),
		memoryLimit: of("memory_limit_bytes", "Memory of the GPU that the vGPU may use.", "gpu"),
	}
}

func (c *collector) collectVGPUs(ch chan<- prometheus.Metric, all []*v1.VGPU) {
	// Of two of one container the older one is being drained.
	newest := make(map[string]*v1.VGPU)
	for _, v := range all {
		newest[v.GetId()] = v
	}
	d := &c.vgpu
	for _, v := range newest {
		u := v.GetUsage()
		labels := []string{v.GetId(), utf8(v.GetContainer().GetNamespace()), utf8(v.GetContainer().GetId())}
		counter(ch, d.held, seconds(u.GetHeld()), labels...)
		counter(ch, d.waited, seconds(u.GetWaited()), labels...)
		counter(ch, d.lingered, seconds(u.GetLingered()), labels...)
		counter(ch, d.turns, float64(u.GetTurns()), labels...)
		counter(ch, d.drains, float64(u.GetDrains()), labels...)
		counter(ch, d.overruns, float64(u.GetOverruns()), labels...)
		counter(ch, d.submissions, float64(u.GetSubmissions()), labels...)
		counter(ch, d.unhooked, float64(v.GetUngated()), labels...)
		counter(ch, d.unknown, float64(v.GetUnknownNames()), labels...)
		counter(ch, d.rubbish, float64(v.GetRubbish()), labels...)
		gauge(ch, d.processes, float64(v.GetClients()), labels...)
		gauge(ch, d.observers, float64(v.GetObservers()), labels...)
		gauge(ch, d.quantum, seconds(v.GetQuantum()), labels...)
		gauge(ch, d.swap, seconds(v.GetSwap()), labels...)
		gauge(ch, d.info, 1, append(labels[:len(labels):len(labels)], utf8(v.GetPod().GetNamespace()), utf8(v.GetPod().GetName()), utf8(v.GetPod().GetContainer()))...)
		states(ch, d.state, vgpuStates, v.GetState(), labels...)
		for _, m := range v.GetMemory() {
			on := append(labels[:len(labels):len(labels)], m.GetGpu())
			gauge(ch, d.memoryUsed, float64(m.GetUsedBytes()), on...)
			gauge(ch, d.memoryLimit, float64(m.GetLimitBytes()), on...)
		}
	}
}

// utf8 makes a label's value of a name that came from elsewhere.
func utf8(s string) string { return strings.ToValidUTF8(s, "?") }
