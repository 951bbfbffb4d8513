// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/proto"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// A stream ends when its reader hangs up, or when vgpud stops: then the context
// is done. A reader that does not read holds up the goroutine of its stream, no
// more: Send waits for it and has one message.

// Watch sends events.
func (d *Daemon) Watch(ctx context.Context, r *v1.WatchRequest, s v1.Control_WatchServer) error {
	e := d.loop.events
	if err := checkWatch(r, e); err != nil {
		return errgrpc.ToGRPC(err)
	}
	bell := e.join()
	defer e.leave(bell)
	after := r.GetAfter()
	if (r.GetEpoch() != "" && r.GetEpoch() != e.epoch) || after > e.newest() {
		again := e.restart()
		if err := s.Send(again); err != nil {
			return err
		}
		after = again.GetSequence()
	}
	for {
		batch := e.after(after)
		for _, ev := range batch {
			if ctx.Err() != nil {
				break
			}
			if err := s.Send(ev); err != nil {
				return err
			}
			after = ev.GetSequence()
		}
		if len(batch) == 0 {
			select {
			case <-bell:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return errgrpc.ToGRPC(errStopping)
		}
	}
}

func checkWatch(r *v1.WatchRequest, e *events) error {
	var f faults
	if r.GetEpoch() != "" && !isHex16(r.GetEpoch()) {
		f.add("epoch", "must be 16 hexadecimal digits, as vgpud gave them, or empty")
	}
	if newest := e.newest(); r.GetEpoch() == e.epoch && r.GetAfter() > newest {
		f.add("after", fmt.Sprintf("%d is above %d, the newest event", r.GetAfter(), newest))
	}
	return f.err()
}

const (
	// watchPause is how often a list of GPUs is sent at most: turns change it
	// thousands of times a second.
	watchPause = 100 * time.Millisecond
	// watchLook is how often it is looked at without any sign: a process that
	// takes its turn up again before somebody else waits rings no bell.
	watchLook = time.Second
)

// WatchGPUs sends the list of GPUs whenever it has changed.
func (d *Daemon) WatchGPUs(ctx context.Context, _ *v1.WatchGPUsRequest, s v1.Control_WatchGPUsServer) error {
	bell := make(chan struct{}, 1)
	ring(bell) // the first list comes at once
	if err := d.call(func(l *loop) { l.gpuWatchers[bell] = struct{}{} }); err != nil {
		return errgrpc.ToGRPC(err)
	}
	defer func() { _ = d.call(func(l *loop) { delete(l.gpuWatchers, bell) }) }()
	look := time.NewTicker(watchLook)
	defer look.Stop()
	pause := time.NewTicker(watchPause)
	defer pause.Stop()
	var sent *v1.WatchGPUsResponse
	for {
		select {
		case <-bell:
		case <-look.C:
		case <-ctx.Done():
			return errgrpc.ToGRPC(errStopping)
		}
		list, err := d.listGPUs()
		if err != nil {
			return errgrpc.ToGRPC(err)
		}
		if sent == nil || !slices.EqualFunc(sent.GetGpus(), list.GetGpus(), sameForWatch) {
			sent = &v1.WatchGPUsResponse{Gpus: list.GetGpus()}
			if err := s.Send(sent); err != nil {
				return err
			}
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return errgrpc.ToGRPC(errStopping)
		}
	}
}

// sameForWatch says whether a reader of WatchGPUs knows b if it knows a. Counters
// are not what it waits for.
func sameForWatch(a, b *v1.GPU) bool {
	return a.GetUuid() == b.GetUuid() && a.GetState() == b.GetState() && a.GetReason() == b.GetReason() &&
		a.GetCordon() == b.GetCordon() && slices.Equal(a.GetNotes(), b.GetNotes()) && a.GetBound() == b.GetBound() && slices.Equal(a.GetVgpus(), b.GetVgpus()) &&
		a.GetMemoryPromisedBytes() == b.GetMemoryPromisedBytes() && a.GetMemoryGuestBytes() == b.GetMemoryGuestBytes() &&
		a.GetOwnPolicy() == b.GetOwnPolicy() && proto.Equal(a.GetPolicy(), b.GetPolicy())
}
