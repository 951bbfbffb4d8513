// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

func (a *app) statsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "stats", Short: "Show how vgpud itself fares", Args: none,
		Long: "Show the counters of vgpud since it was started: turns and hand-overs, events and\n" +
			"writes that went wrong, and what memory it takes.",
		RunE: func(cmd *cobra.Command, _ []string) error { return a.stats(cmd.Context(), cmd.OutOrStdout()) },
	}
}

type statsJSON struct {
	Epoch           string         `json:"epoch"`
	UptimeNS        int64          `json:"uptime_ns"`
	VGPUs           uint32         `json:"vgpus"`
	Clients         uint32         `json:"clients"`
	Turns           uint64         `json:"turns"`
	Drains          uint64         `json:"drains"`
	Overruns        uint64         `json:"overruns"`
	GPUs            []gpuStatsJSON `json:"gpus"`
	Events          uint64         `json:"events"`
	EventsDropped   uint64         `json:"events_dropped"`
	Watchers        uint32         `json:"watchers"`
	LogLinesDropped *uint64        `json:"log_lines_dropped"` // null: not known
	StoreWrites     uint64         `json:"store_writes"`
	StoreFailures   uint64         `json:"store_failures"`
	RSSBytes        uint64         `json:"rss_bytes"`
	Goroutines      uint32         `json:"goroutines"`
}

type gpuStatsJSON struct {
	UUID     string      `json:"uuid"`
	Handover latencyJSON `json:"handover"`
}

func (a *app) stats(ctx context.Context, w io.Writer) error {
	var s *v1.StatsResponse
	if err := a.ask(ctx, "ask vgpud for its counters", func(ctx context.Context, c v1.ControlClient) (err error) {
		s, err = c.Stats(ctx, &v1.StatsRequest{})
		return err
	}); err != nil {
		return err
	}
	if a.output == "json" {
		out := statsJSON{
			Epoch: s.GetEpoch(), UptimeNS: ns(s.GetUptime()), VGPUs: s.GetVgpus(), Clients: s.GetClients(),
			Turns: s.GetTurns(), Drains: s.GetDrains(), Overruns: s.GetOverruns(), GPUs: []gpuStatsJSON{},
			Events: s.GetEvents(), EventsDropped: s.GetEventsDropped(), Watchers: s.GetWatchers(),
			LogLinesDropped: s.LogLinesDropped, StoreWrites: s.GetStoreWrites(), StoreFailures: s.GetStoreFailures(),
			RSSBytes: s.GetRssBytes(), Goroutines: s.GetGoroutines(),
		}
		for _, g := range s.GetGpuStats() {
			out.GPUs = append(out.GPUs, gpuStatsJSON{g.GetUuid(), asLatency(g.GetHandover())})
		}
		return writeJSON(w, out)
	}
	lines := "not known"
	if s.LogLinesDropped != nil {
		lines = fmt.Sprint(s.GetLogLinesDropped())
	}
	rows := [][2]string{
		{"epoch", s.GetEpoch()},
		{"uptime", short(s.GetUptime())},
		{"vGPUs", fmt.Sprint(s.GetVgpus())},
		{"processes", fmt.Sprint(s.GetClients())},
		{"GPUs", fmt.Sprint(s.GetGpus())},
		{"turns", fmt.Sprintf("%d, of them drained %d, overrun %d", s.GetTurns(), s.GetDrains(), s.GetOverruns())},
	}
	for _, g := range s.GetGpuStats() {
		h := g.GetHandover()
		text := "no hand-over"
		if h.GetCount() > 0 {
			text = fmt.Sprintf("%d hand-overs, median %s, p99 %s, max %s", h.GetCount(), short(h.GetMedian()), short(h.GetP99()), short(h.GetMax()))
		}
		rows = append(rows, [2]string{g.GetUuid(), text})
	}
	return writeRows(w, append(rows, [][2]string{
		{"events", fmt.Sprintf("%d, missed by readers %d", s.GetEvents(), s.GetEventsDropped())},
		{"watchers", fmt.Sprint(s.GetWatchers())},
		{"log lines dropped", lines},
		{"store writes", fmt.Sprintf("%d, failed %d", s.GetStoreWrites(), s.GetStoreFailures())},
		{"memory", fmt.Sprintf("%.1f MiB", float64(s.GetRssBytes())/(1<<20))},
		{"goroutines", fmt.Sprint(s.GetGoroutines())},
	}...))
}
