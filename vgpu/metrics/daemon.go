// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

type daemonDescs struct {
	info, started, events, eventsDropped, logLinesDropped, storeWrites, storeFailures, unknownNames *prometheus.Desc
}

func (c *collector) describeDaemon() {
	c.daemon = daemonDescs{
		info:            c.desc("vgpu_daemon_info", "Always 1; which vgpud this is, and which driver it found.", "version", "commit", "driver"),
		started:         c.desc("vgpu_daemon_start_time_seconds", "When vgpud started, in seconds since 1970."),
		unknownNames:    c.desc("vgpu_driver_unknown_names", "Names that a library of the driver exports and that the one in its place does not know.", "library"),
		events:          c.desc("vgpu_daemon_events_total", "Events that happened since vgpud started."),
		eventsDropped:   c.desc("vgpu_daemon_events_dropped_total", "Events that readers missed."),
		logLinesDropped: c.desc("vgpu_daemon_log_lines_dropped_total", "Lines of the log that were dropped; absent if that is not known."),
		storeWrites:     c.desc("vgpu_daemon_store_writes_total", "Writes to the store."),
		storeFailures:   c.desc("vgpu_daemon_store_failures_total", "Writes to the store that failed."),
	}
}

func (c *collector) collectDaemon(ch chan<- prometheus.Metric, info *v1.InfoResponse, s *v1.StatsResponse) {
	d := &c.daemon
	gauge(ch, d.info, 1, info.GetVersion(), info.GetCommit(), utf8(info.GetDriverVersion()))
	gauge(ch, d.started, float64(info.GetStarted().AsTime().UnixMilli())/1000)
	for _, l := range info.GetLibraries() {
		if l.GetError() == "" {
			gauge(ch, d.unknownNames, float64(len(l.GetUnknownNames())), utf8(l.GetName()))
		}
	}
	counter(ch, d.events, float64(s.GetEvents()))
	counter(ch, d.eventsDropped, float64(s.GetEventsDropped()))
	if s.LogLinesDropped != nil {
		counter(ch, d.logLinesDropped, float64(s.GetLogLinesDropped()))
	}
	counter(ch, d.storeWrites, float64(s.GetStoreWrites()))
	counter(ch, d.storeFailures, float64(s.GetStoreFailures()))
}
