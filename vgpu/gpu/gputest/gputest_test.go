// SPDX-License-Identifier: Apache-2.0

package gputest

import (
	"context"
	"testing"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

func TestAWatcherIsTold(t *testing.T) {
	i := New(2)
	i.SetHealth(gpu.Health{UUID: UUID(1), Down: "before", Event: "not any more"})
	ctx, cancel := context.WithCancel(t.Context())
	changes, over := make(chan gpu.Health), make(chan struct{})
	go func() {
		i.Watch(ctx, changes)
		close(over)
	}()
	for n, want := range []gpu.Health{{UUID: UUID(0)}, {UUID: UUID(1), Down: "before"}} {
		if h := <-changes; !h.Same(want) || h.Event != "" {
			t.Fatalf("first told of GPU %d is %+v", n, h)
		}
	}
	i.SetHealth(gpu.Health{UUID: UUID(0), Event: "Xid 13", Xid: 13})
	i.SetHealth(gpu.Health{UUID: UUID(0), Cordon: "MIG"})
	if h := <-changes; h.Xid != 13 {
		t.Fatalf("%+v", h)
	}
	if h := <-changes; h.Cordon != "MIG" {
		t.Fatalf("%+v", h)
	}
	cancel()
	<-over
}
