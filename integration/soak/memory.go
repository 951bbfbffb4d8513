// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// measure looks how much memory each container has, by the GPUs' own word.
func (s *soak) measure(ctx context.Context) {
	gpus, err := s.node.Daemon.Memory(ctx)
	if err == nil && len(s.beyond(gpus)) > 0 {
		// One that was seen before it died and what came in its place are added
		// up. That does not happen twice.
		gpus, err = s.node.Daemon.Memory(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		s.wrong("memory", "%v", err)
		return
	}
	for _, text := range s.beyond(gpus) {
		s.wrong("memory", "%s", text)
	}
}

// beyond tells of each container that has more memory than it may.
func (s *soak) beyond(gpus []harness.DeviceMemory) (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range gpus {
		for _, b := range s.order {
			if used := g.Tenants[b.tenant]; b.tenant != 0 && b.removed == 0 && b.limited() && used > limit {
				all = append(all, fmt.Sprintf("%s has %d bytes of GPU %s, and may have %d", b.id, used, g.UUID, limit))
			}
		}
	}
	return all
}

// limited says whether a box has a limit.
func (b *box) limited() bool { return b.profile.annotations[request.Prefix+"memory"] != "" }

// nothingIsHeld comes when all containers were removed: no memory is used or
// reserved, by vgpud's word and by the GPUs' own.
func (s *soak) nothingIsHeld() {
	s.wait60("all memory is free", func() error {
		gpus, err := s.node.Daemon.PhysicalGPUs(s.ctx)
		if err != nil {
			return err
		}
		for _, g := range gpus {
			if g.GetMemoryUsedBytes() != 0 || g.GetMemoryReservedBytes() != 0 || g.GetMemoryFreeBytes() != g.GetMemoryBytes() {
				return fmt.Errorf("of GPU %s vgpud tells %d bytes used, %d reserved and %d of %d free",
					g.GetUuid(), g.GetMemoryUsedBytes(), g.GetMemoryReservedBytes(), g.GetMemoryFreeBytes(), g.GetMemoryBytes())
			}
		}
		own, err := s.node.Daemon.Memory(s.ctx)
		for _, g := range own {
			if g.Used != 0 {
				return fmt.Errorf("of GPU %s %d bytes are used", g.UUID, g.Used)
			}
		}
		return err
	})
}
