// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// find looks for the drivers, and for what this machine allows.
func (h *hardware) find(ctx context.Context, root string) (err error) {
	if h.simulated, err = h.simulatedDriver(filepath.Join(h.dir, "sim")); err != nil {
		return err
	}
	h.driver = h.simulated
	if !h.simulate {
		if h.driver, err = h.realDriver(ctx, root); err != nil {
			return err
		}
	}
	if !h.noMounts {
		if err := h.tryMounts(); err != nil {
			h.noMounts = true
			h.finding("mounts", "this machine allows no private mounts, so the take-over is by LD_LIBRARY_PATH alone: %v", err)
		}
	}
	if h.noMounts {
		if h.undo, err = linkInRoot(); err != nil {
			return fmt.Errorf("the take-over is possible neither with mounts nor without: %w", err)
		}
	}
	return nil
}

// machine says what this is, and how much work a microsecond is.
func (h *hardware) machine(ctx context.Context) error {
	if h.driver.cuda == "" {
		return errors.New("no driver")
	}
	var name unix.Utsname
	_ = unix.Uname(&name)
	facts := h.Machine
	facts["kernel"] = unix.ByteSliceToString(name.Release[:])
	facts["cpus"] = runtime.NumCPU()
	facts["simulated"] = h.simulate
	facts["mounts"] = !h.noMounts
	facts["driver"] = h.driver.version
	facts["libcuda"], facts["libnvidia-ml"] = h.driver.cuda, h.driver.nvml
	var errs []error
	if lines, err := h.output(ctx, h.driver, 30*time.Second, h.program("monitor")); err != nil {
		errs = append(errs, err)
	} else {
		seen := parseMonitor(lines)
		h.gpus = max(len(seen), 1)
		facts["gpus"] = seen
	}
	if lines, err := h.output(ctx, h.driver, 30*time.Second, h.program("names")); err != nil {
		errs = append(errs, err)
	} else if version, err := strconv.Atoi(strings.TrimPrefix(lines[0], "version ")); err == nil {
		facts["cuda"] = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
	}
	lines, err := h.output(ctx, h.driver, 60*time.Second, h.program("bursts"), "--calibrate", "--kernels", h.paths.Kernels)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	h.loops = strings.TrimPrefix(lines[0], "loops ")
	facts["loops_per_us"] = h.loops
	for key, value := range facts {
		fmt.Printf("    %s: %v\n", key, value)
	}
	return errors.Join(errs...)
}

// seenGPU is what NVML tells of a GPU (workload/monitor.c).
type seenGPU struct {
	UUID, Name        string
	Total, Used, Free uint64
	Processes         map[int]uint64 // bytes that each uses
}

// unknownMemory is what NVML says where it does not know (NVML_VALUE_NOT_AVAILABLE).
const unknownMemory = 1<<64 - 1

func parseMonitor(lines []string) (all []seenGPU) {
	for _, line := range lines {
		word, rest, _ := strings.Cut(line, " ")
		if word == "uuid" {
			all = append(all, seenGPU{UUID: rest, Processes: map[int]uint64{}})
		}
		if len(all) == 0 {
			continue
		}
		g := &all[len(all)-1]
		switch word {
		case "name":
			g.Name = rest
		case "memory":
			_, _ = fmt.Sscan(rest, &g.Total, &g.Used, &g.Free) // zero, if not
		case "pid":
			var pid int
			var bytes uint64
			if _, err := fmt.Sscan(rest, &pid, &bytes); err == nil {
				g.Processes[pid] = bytes
			}
		}
	}
	return all
}

// nvidiaSMI is where that program is; empty: nowhere.
func (h *hardware) nvidiaSMI() string {
	dirs := append(filepath.SplitList(os.Getenv("PATH")), "/usr/bin", "/usr/local/nvidia/bin",
		filepath.Join(filepath.Dir(h.driver.nvml), "..", "bin"))
	for _, dir := range dirs {
		path := filepath.Join(dir, "nvidia-smi")
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && !h.simulate {
			return path
		}
	}
	return ""
}
