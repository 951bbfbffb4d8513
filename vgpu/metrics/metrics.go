// SPDX-License-Identifier: Apache-2.0

// Package metrics tells Prometheus what vgpud knows. Each scrape asks vgpud once,
// as the command line does, and turns the answers into metrics: exact counters,
// not samples of them. docs/metrics.md lists all.
package metrics

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// Source is the part of the control API that metrics come from.
type Source interface {
	Info(context.Context, *v1.InfoRequest) (*v1.InfoResponse, error)
	List(context.Context, *v1.ListRequest) (*v1.ListResponse, error)
	ListGPUs(context.Context, *v1.ListGPUsRequest) (*v1.ListGPUsResponse, error)
	ListProcesses(context.Context, *v1.ListProcessesRequest) (*v1.ListProcessesResponse, error)
	Stats(context.Context, *v1.StatsRequest) (*v1.StatsResponse, error)
}

// What whoever scrapes may take of vgpud.
const (
	scrapes = 2 // at the same time
	timeout = 10 * time.Second
)

// Handler serves the metrics of a vgpud under /metrics. What goes wrong is told to
// whoever scrapes, and to errors.
func Handler(s Source, errors *log.Logger) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(newCollector(s), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{
		ErrorLog: errors, MaxRequestsInFlight: scrapes, Timeout: timeout,
	}))
	return mux
}

// collector is a prometheus.Collector of a vgpud.
type collector struct {
	source Source
	all    []*prometheus.Desc
	failed *prometheus.Desc

	vgpu   vgpuDescs
	gpu    gpuDescs
	daemon daemonDescs

	unmanaged unmanagedDescs
}

var _ prometheus.Collector = (*collector)(nil)

func newCollector(s Source) *collector {
	c := &collector{source: s}
	c.failed = c.desc("vgpu_scrape", "Only there if vgpud could not be asked.")
	c.describeVGPUs()
	c.describeGPUs()
	c.describeUnmanaged()
	c.describeDaemon()
	return c
}

func (c *collector) desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(name, help, labels, nil)
	c.all = append(c.all, d)
	return d
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.all {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	info, err := c.source.Info(ctx, &v1.InfoRequest{})
	var vgpus *v1.ListResponse
	if err == nil {
		vgpus, err = c.source.List(ctx, &v1.ListRequest{})
	}
	var gpus *v1.ListGPUsResponse
	if err == nil {
		gpus, err = c.source.ListGPUs(ctx, &v1.ListGPUsRequest{})
	}
	var processes *v1.ListProcessesResponse
	if err == nil {
		processes, err = c.source.ListProcesses(ctx, &v1.ListProcessesRequest{})
	}
	var stats *v1.StatsResponse
	if err == nil {
		stats, err = c.source.Stats(ctx, &v1.StatsRequest{})
	}
	if err != nil {
		ch <- prometheus.NewInvalidMetric(c.failed, fmt.Errorf("failed to ask vgpud: %w", err))
		return
	}
	c.collectVGPUs(ch, vgpus.GetVgpus())
	c.collectGPUs(ch, gpus.GetGpus())
	c.collectUnmanaged(ch, gpus.GetGpus(), processes)
	c.collectDaemon(ch, info, stats)
}

func counter(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// states says which of all states holds: 1 for that one, 0 for the others.
func states(ch chan<- prometheus.Metric, d *prometheus.Desc, all []string, now string, labels ...string) {
	for _, s := range all {
		v := 0.
		if s == now {
			v = 1
		}
		gauge(ch, d, v, append(labels[:len(labels):len(labels)], s)...)
	}
}

func seconds(d *durationpb.Duration) float64 { return d.AsDuration().Seconds() }
