// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
)

// counters count since vgpud started.
type counters struct {
	turns, drains, overruns uint64
}

func (c *counters) turn(t *arbiter.Turn) {
	if t.Late {
		return // no turn
	}
	c.turns++
	if t.Drained {
		c.drains++
	}
}

// Stats tells how vgpud itself fares.
func (d *Daemon) Stats(context.Context, *v1.StatsRequest) (*v1.StatsResponse, error) {
	out := &v1.StatsResponse{
		Epoch: d.loop.events.epoch, Uptime: durationpb.New(time.Since(d.started)),
		RssBytes: resident(), Goroutines: uint32(runtime.NumGoroutine()),
	}
	if err := d.call(func(l *loop) {
		out.Vgpus, out.Gpus = uint32(len(l.vgpus)), uint32(len(l.order))
		for _, v := range l.vgpus {
			out.Clients += v.connected()
		}
		out.Turns, out.Drains, out.Overruns = l.counters.turns, l.counters.drains, l.counters.overruns
		for _, g := range l.order {
			out.GpuStats = append(out.GpuStats, &v1.GPUStats{Uuid: g.UUID, Handover: g.handover.describe()})
		}
		out.Watchers = uint32(len(l.gpuWatchers))
	}); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	out.Events = d.loop.events.newest()
	dropped, readers := d.loop.events.counts()
	out.EventsDropped = dropped
	out.Watchers += uint32(readers)
	if w, ok := d.log.Logger.Out.(interface{ Dropped() uint64 }); ok {
		lines := w.Dropped()
		out.LogLinesDropped = &lines
	}
	out.StoreWrites, out.StoreFailures = d.loop.store.writes.Load(), d.loop.store.failures.Load()
	return out, nil
}

// connected is how many processes of v are connected.
func (v *vgpu) connected() (n uint32) {
	for _, c := range v.clients {
		if c.conn != nil && c.joined {
			n++
		}
	}
	return n
}

func (h *latency) describe() *v1.Latency {
	return &v1.Latency{
		Count:  h.count,
		Median: durationpb.New(h.quantile(0.5)),
		P99:    durationpb.New(h.quantile(0.99)),
		Max:    durationpb.New(h.max),
	}
}

// resident is how much memory this process has, in bytes; 0 if that can not be
// read.
func resident() uint64 {
	data, err := os.ReadFile("/proc/self/statm") // in pages: size, resident, ...; see proc_pid_statm(5)
	if err != nil {
		return 0
	}
	if f := bytes.Fields(data); len(f) > 1 {
		pages, _ := strconv.ParseUint(string(f[1]), 10, 64)
		return pages * uint64(os.Getpagesize())
	}
	return 0
}
