// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// DeviceMemory is the memory of one of the simulated GPUs in bytes, as its own
// NVML tells outside of any container.
type DeviceMemory struct {
	UUID              string
	Total, Used, Free uint64
	Tenants           map[Tenant]uint64 // used by processes; without those that are gone by now
}

// Memory asks the simulated GPUs how much of their memory is used, and by whom.
func (d *Daemon) Memory(ctx context.Context) (all []DeviceMemory, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(d.paths.Workload, "monitor"))
	cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Join(d.paths.Simulated, "lib"), "SIMGPU_MACHINE=" + d.Machine}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("failed to monitor the simulated GPUs: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if words[0] == "uuid" {
			all = append(all, DeviceMemory{UUID: words[1], Tenants: map[Tenant]uint64{}})
		}
		if len(all) == 0 {
			continue
		}
		g := &all[len(all)-1]
		switch words[0] {
		case "memory":
			_, err = fmt.Sscan(line[len("memory"):], &g.Total, &g.Used, &g.Free)
		case "pid":
			var s syscall.Stat_t
			var bytes uint64
			bytes, err = strconv.ParseUint(words[2], 10, 64)
			if syscall.Stat("/proc/"+words[1]+"/ns/mnt", &s) == nil {
				g.Tenants[Tenant(s.Ino)] += bytes
			}
		}
		if err != nil {
			return nil, fmt.Errorf("the monitor says %q: %w", line, err)
		}
	}
	return all, nil
}
