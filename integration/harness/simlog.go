// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Tenant is what tells containers apart in the simulated GPU's log: the inode
// number of their mount namespace.
type Tenant uint64

// Tenant of the container; it must still run.
func (c *Container) Tenant() (Tenant, error) {
	var s syscall.Stat_t
	if err := syscall.Stat(fmt.Sprintf("/proc/%d/ns/mnt", c.PID), &s); err != nil {
		return 0, fmt.Errorf("failed to see the mount namespace of container %s: %w", c.ID, err)
	}
	return Tenant(s.Ino), nil
}

// Classes of the log.
const (
	ClassWork  = "work"
	ClassOrder = "order"
	ClassSetup = "setup"
)

// Operation is a record of the simulated GPU's log. Times are of
// CLOCK_MONOTONIC; End is 0 while it is in flight, and if its process died.
type Operation struct {
	GPU    int
	Tenant Tenant
	Class  string
	Name   string
	Submit time.Duration
	Start  time.Duration
	End    time.Duration
}

// Log reads the log of the daemon's simulated GPUs, in the order of submission.
func (d *Daemon) Log(ctx context.Context) ([]Operation, error) {
	return MachineLog(ctx, d.paths, d.Machine)
}

// MachineLog reads the log of a simulated machine, in the order of submission.
func MachineLog(ctx context.Context, paths Paths, machine string) ([]Operation, error) {
	out, err := Simgpu(ctx, paths, "log", machine)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimRight(string(out), "\n"), "\n")
	column := map[string]int{}
	for i, name := range strings.Split(lines[0], "\t") {
		column[name] = i
	}
	for _, need := range []string{"gpu", "tenant", "class", "name", "submit_ns", "start_ns", "end_ns"} {
		if _, ok := column[need]; !ok {
			return nil, fmt.Errorf("the simulated GPU's log has no column %s: %s", need, lines[0])
		}
	}
	all := make([]Operation, 0, len(lines)-1)
	for _, line := range lines[1:] {
		fields := strings.Split(line, "\t")
		var wrong error
		number := func(name string) int64 {
			n, err := strconv.ParseInt(fields[column[name]], 10, 64)
			wrong = errors.Join(wrong, err)
			return n
		}
		if len(fields) < len(column) {
			return nil, fmt.Errorf("the simulated GPU's log has a short line: %q", line)
		}
		all = append(all, Operation{
			GPU:    int(number("gpu")),
			Tenant: Tenant(number("tenant")),
			Class:  fields[column["class"]],
			Name:   fields[column["name"]],
			Submit: time.Duration(number("submit_ns")),
			Start:  time.Duration(number("start_ns")),
			End:    time.Duration(number("end_ns")),
		})
		if wrong != nil {
			return nil, fmt.Errorf("the simulated GPU's log has a bad line %q: %w", line, wrong)
		}
	}
	return all, nil
}

// Overlap is what the simulated GPU's log says about exclusion: for how long
// work of two or more tenants was in flight on one GPU.
type Overlap struct {
	OverlapNS   int64 `json:"overlap_ns"`
	Pairs       int64 `json:"pairs"` // of operations
	BusyNS      int64 `json:"busy_ns"`
	Submissions int64 `json:"submissions"`
	Open        int64 `json:"open"` // operations still in flight
	Lost        int64 `json:"lost"` // records that did not fit into the log
	GPUs        []struct {
		OverlapNS   int64 `json:"overlap_ns"`
		BusyNS      int64 `json:"busy_ns"`
		Submissions int64 `json:"submissions"`
	} `json:"gpus"`
	Tenants []struct {
		Tenant      Tenant `json:"tenant"`
		BusyNS      int64  `json:"busy_ns"`
		Submissions int64  `json:"submissions"`
	} `json:"tenants"`
}

// Overlap asks the simulated GPU's own tool.
func (d *Daemon) Overlap(ctx context.Context) (Overlap, error) {
	var o Overlap
	out, err := d.simgpu(ctx, "overlap", "--json", d.Machine)
	if err != nil {
		return o, err
	}
	if err := json.Unmarshal(out, &o); err != nil {
		return o, fmt.Errorf("failed to read what simgpu overlap says: %w: %s", err, out)
	}
	return o, nil
}

// LogText is the log as simgpu log prints it.
func (d *Daemon) LogText(ctx context.Context) ([]byte, error) {
	return d.simgpu(ctx, "log", d.Machine)
}

// Inject makes a simulated GPU suffer: see simgpu inject --help.
func (d *Daemon) Inject(ctx context.Context, gpu int, condition ...string) error {
	_, err := d.simgpu(ctx, append([]string{"inject", d.Machine, "--gpu", strconv.Itoa(gpu)}, condition...)...)
	return err
}

// Together counts the pieces of work of a that were in flight together with some
// of b on the same GPU. What has not ended counts until now.
func Together(log []Operation, a, b func(Tenant) bool) int {
	type span struct{ from, to time.Duration }
	spans := map[int][]span{} // of b, by GPU
	over := func(op Operation) span {
		if op.End == 0 {
			return span{op.Submit, 1<<63 - 1}
		}
		return span{op.Submit, op.End}
	}
	for _, op := range log {
		if op.Class == ClassWork && b(op.Tenant) {
			spans[op.GPU] = append(spans[op.GPU], over(op))
		}
	}
	n := 0
	for _, op := range log {
		if op.Class != ClassWork || !a(op.Tenant) {
			continue
		}
		mine := over(op)
		if slices.ContainsFunc(spans[op.GPU], func(s span) bool { return s.from < mine.to && mine.from < s.to }) {
			n++
		}
	}
	return n
}

func (d *Daemon) simgpu(ctx context.Context, args ...string) ([]byte, error) {
	return Simgpu(ctx, d.paths, args...)
}

// Simgpu runs the simulated GPU's own tool and returns its stdout.
func Simgpu(ctx context.Context, paths Paths, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(paths.Simulated, "bin", "simgpu"), args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("simgpu %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}
