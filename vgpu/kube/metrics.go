// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the driver's own; what GPUs and vGPUs do is vgpud's to tell.
type metrics struct {
	took     *prometheus.HistogramVec
	prepared prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "vgpu_kubelet_request_duration_seconds", Help: "How long kubelet waited for one claim.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}, []string{"method", "outcome"}),
		prepared: prometheus.NewGauge(prometheus.GaugeOpts{Name: "vgpu_kubelet_claims", Help: "Claims that are prepared on this node."}),
	}
	if r != nil {
		r.MustRegister(m.took, m.prepared)
	}
	return m
}

func (m *metrics) observe(method string, began time.Time, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	m.took.WithLabelValues(method, outcome).Observe(time.Since(began).Seconds())
}
