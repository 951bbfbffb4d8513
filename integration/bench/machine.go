// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// describe says what is measured on.
func describe(short bool) {
	var name unix.Utsname
	_ = unix.Uname(&name)
	fmt.Printf("machine: %d CPUs (%s), Linux %s; runnable tasks before: %.1f\n",
		runtime.NumCPU(), cpuModel(), unix.ByteSliceToString(name.Release[:]), runnableFor(500*time.Millisecond))
	if short {
		fmt.Println("short form: fewer samples, shorter windows")
	}
	fmt.Printf("\n%-20s %10s  %-10s %-22s %-6s %8s\n", "name", "value", "budget", "unit", "", "samples")
}

func cpuModel() string {
	data, _ := os.ReadFile("/proc/cpuinfo")
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		if key, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// runnable is how many tasks want a CPU now, beside the one that asks.
func runnable() (int, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "procs_running "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(rest))
			return n - 1, err
		}
	}
	return 0, fmt.Errorf("/proc/stat does not say how many tasks are runnable")
}

// runnableFor is the mean over so long.
func runnableFor(long time.Duration) float64 {
	stop := watchRunnable()
	time.Sleep(long)
	return stop()
}

// watchRunnable looks from time to time until it is stopped; that returns the
// mean.
func watchRunnable() func() float64 {
	stop, mean := make(chan struct{}), make(chan float64)
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		sum, looks := 0, 0
		for {
			select {
			case <-tick.C:
				if n, err := runnable(); err == nil {
					sum, looks = sum+n, looks+1
				}
			case <-stop:
				mean <- float64(sum) / float64(max(looks, 1))
				return
			}
		}
	}()
	return func() float64 { close(stop); return <-mean }
}

// cpuTime is what a process has used, exactly: the scheduler's own sum (the clock
// id is that of clock_getcpuclockid, include/linux/posix-timers_types.h).
func cpuTime(pid int) (time.Duration, error) {
	const sched = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &ts); err != nil {
		return 0, fmt.Errorf("failed to read the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// memory is a line of /proc/PID/status, such as VmRSS.
func memory(pid int, key string) (bytes int64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no %s", pid, key)
}

// cpus says who runs where. vgpud has a CPU to itself, as far as this program
// goes, and the clients have the others: so each wake-up crosses CPUs, as on a
// machine where most are idle, and the floor's do, too. Where there is but one, all
// share it.
type cpus struct {
	all     unix.CPUSet
	vgpud   int
	clients []int
}

func splitCPUs() (c cpus, err error) {
	if err := unix.SchedGetaffinity(0, &c.all); err != nil {
		return c, fmt.Errorf("failed to read which CPUs may be used: %w", err)
	}
	for cpu := range 8 * int(unsafe.Sizeof(c.all)) {
		if c.all.IsSet(cpu) {
			c.clients = append(c.clients, cpu)
		}
	}
	last := len(c.clients) - 1
	c.vgpud = c.clients[last]
	if last > 0 {
		c.clients = c.clients[:last]
	}
	return c, nil
}

// pin keeps a process, and what it starts, on CPUs: all threads that it has now.
func pin(pid int, cpus ...int) error {
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("failed to pin process %d: %w", pid, err)
		}
	}
	return nil
}
