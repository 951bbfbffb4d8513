// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"errors"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// read takes in vgpud's metrics (docs/metrics.md).
func (n *node) read(text []byte) error {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return err
	}
	if families["vgpu_daemon_info"] == nil {
		return errors.New("they are not vgpud's: vgpu_daemon_info is missing")
	}
	each := func(name string, f func(labels map[string]string, value float64)) {
		for _, m := range families[name].GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			f(labels, value(m))
		}
	}
	each("vgpu_daemon_info", func(l map[string]string, _ float64) { n.Version, n.Driver = l["version"], l["driver"] })
	n.readGPUs(each)
	n.readVGPUs(each)
	return nil
}

type eachMetric func(name string, f func(labels map[string]string, value float64))

func (n *node) readGPUs(each eachMetric) {
	gpus := map[string]*gpu{}
	each("vgpu_gpu_info", func(l map[string]string, _ float64) {
		g := &gpu{UUID: l["gpu"], Model: l["model"]}
		gpus[g.UUID] = g
		n.GPUs = append(n.GPUs, g)
	})
	slices.SortFunc(n.GPUs, func(a, b *gpu) int { return cmp.Compare(a.UUID, b.UUID) })
	of := func(name string, f func(g *gpu, l map[string]string, v float64)) {
		each(name, func(l map[string]string, v float64) {
			if g := gpus[l["gpu"]]; g != nil {
				f(g, l, v)
			}
		})
	}
	of("vgpu_gpu_state", func(g *gpu, l map[string]string, v float64) {
		if v == 1 {
			g.State = l["state"]
		}
	})
	of("vgpu_gpu_bound_vgpus", func(g *gpu, _ map[string]string, v float64) { g.Bound = int(v) })
	of("vgpu_gpu_pending_vgpus", func(g *gpu, _ map[string]string, v float64) { g.Pending = int(v) })
	of("vgpu_gpu_memory_bytes", func(g *gpu, _ map[string]string, v float64) { g.MemoryBytes = uint64(v) })
	of("vgpu_gpu_memory_reserved_bytes", func(g *gpu, _ map[string]string, v float64) { g.ReservedBytes = uint64(v) })
	of("vgpu_gpu_memory_used_bytes", func(g *gpu, _ map[string]string, v float64) { g.UsedBytes = uint64(v) })
	of("vgpu_gpu_memory_free_bytes", func(g *gpu, _ map[string]string, v float64) { free := uint64(v); g.FreeBytes = &free })
	of("vgpu_unmanaged_processes", func(g *gpu, _ map[string]string, v float64) { g.Unmanaged += int(v) })
}

func (n *node) readVGPUs(each eachMetric) {
	vgpus := map[string]*vgpu{}
	each("vgpu_info", func(l map[string]string, _ float64) {
		v := &vgpu{ID: l["id"], ContainerID: l["container"], Namespace: l["pod_namespace"], Pod: l["pod"], Container: l["pod_container"], GPUs: []string{}}
		vgpus[v.ID] = v
		n.VGPUs = append(n.VGPUs, v)
	})
	slices.SortFunc(n.VGPUs, func(a, b *vgpu) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container), cmp.Compare(a.ID, b.ID))
	})
	of := func(name string, f func(v *vgpu, l map[string]string, value float64)) {
		each(name, func(l map[string]string, value float64) {
			if v := vgpus[l["id"]]; v != nil {
				f(v, l, value)
			}
		})
	}
	of("vgpu_state", func(v *vgpu, l map[string]string, value float64) {
		if value == 1 {
			v.State = l["state"]
		}
	})
	of("vgpu_memory_limit_bytes", func(v *vgpu, l map[string]string, value float64) {
		v.GPUs = append(v.GPUs, l["gpu"])
		v.LimitBytes = uint64(value)
	})
	of("vgpu_memory_used_bytes", func(v *vgpu, _ map[string]string, value float64) { v.UsedBytes += uint64(value) })
	of("vgpu_held_seconds_total", func(v *vgpu, _ map[string]string, value float64) { v.Held = value })
	of("vgpu_waited_seconds_total", func(v *vgpu, _ map[string]string, value float64) { v.Waited = value })
	of("vgpu_turns_total", func(v *vgpu, _ map[string]string, value float64) { v.Turns = uint64(value) })
	of("vgpu_overruns_total", func(v *vgpu, _ map[string]string, value float64) { v.Overruns = uint64(value) })
	for _, v := range n.VGPUs {
		slices.Sort(v.GPUs)
	}
}

// value is that of a counter or a gauge.
func value(m *dto.Metric) float64 {
	if c := m.GetCounter(); c != nil {
		return c.GetValue()
	}
	if g := m.GetGauge(); g != nil {
		return g.GetValue()
	}
	return m.GetUntyped().GetValue()
}
