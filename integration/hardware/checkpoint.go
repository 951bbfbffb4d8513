// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// checkpoint measures how long it takes to move a process off the GPU (the fifth open
// point). It comes last: drivers have been seen to hang in it.
func (h *hardware) checkpoint(ctx context.Context) error {
	for _, gib := range []int{1, 4} {
		lines, err := h.output(ctx, h.driver, 15*time.Second, h.program("checkpoint"), fmt.Sprint(gib<<30))
		if err != nil {
			h.finding("checkpoint", "%d GiB: %v", gib, err)
			return nil
		}
		if strings.HasPrefix(lines[0], "refused") {
			h.finding("checkpoint", "%s", lines[0])
			return nil
		}
		var bytes, lock, save, restore, unlock float64
		if _, err := fmt.Sscanf(lines[0], "checkpoint %f %f %f %f %f", &bytes, &lock, &save, &restore, &unlock); err != nil {
			return fmt.Errorf("checkpoint says %q: %w", lines, err)
		}
		for name, ns := range map[string]float64{"lock": lock, "save": save, "restore": restore, "unlock": unlock} {
			h.measure(fmt.Sprintf("checkpoint_%dGiB_%s", gib, name), ns/1e6, "ms", 1)
		}
	}
	return nil
}
