// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs/pkg/errgrpc"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// processList asks the driver who uses which GPU, for people. A driver that is not
// well can keep who asks for ever: of each GPU one asks at a time, and those who
// come meanwhile get no answer.
type processList struct {
	mu   sync.Mutex
	asks map[string]bool // by UUID
}

var errDriverSilent = errors.New("the driver does not say who uses the GPU")

func (p *processList) begin(uuid string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asks[uuid] {
		return false
	}
	if p.asks == nil {
		p.asks = make(map[string]bool)
	}
	p.asks[uuid] = true
	return true
}

func (p *processList) end(uuid string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.asks, uuid)
}

// of is what each process uses of a GPU, if the driver says so in time.
func (p *processList) of(inventory gpu.Inventory, uuid string) (map[int]uint64, error) {
	if !p.begin(uuid) {
		return nil, errDriverSilent
	}
	type answer struct {
		used map[int]uint64
		err  error
	}
	said := make(chan answer, 1)
	go func() {
		used, err := inventory.Processes(uuid)
		p.end(uuid)
		said <- answer{used, err}
	}()
	select {
	case a := <-said:
		return a.used, a.err
	case <-time.After(lookPatience):
		return nil, errDriverSilent
	}
}

// ListProcesses tells which processes use the GPUs, as the driver says.
func (d *Daemon) ListProcesses(context.Context, *v1.ListProcessesRequest) (*v1.ListProcessesResponse, error) {
	resp := &v1.ListProcessesResponse{}
	for _, g := range d.inventory.GPUs() {
		used, err := d.processes.of(d.inventory, g.UUID)
		if err != nil {
			d.log.WithField("gpu", g.UUID).WithError(err).Debug("who uses it is not known")
			resp.SilentGpus = append(resp.SilentGpus, g.UUID)
			continue
		}
		for _, pid := range slices.Sorted(maps.Keys(used)) {
			resp.Processes = append(resp.Processes, &v1.Process{Gpu: g.UUID, Pid: uint32(pid), MemoryBytes: used[pid]})
		}
	}
	// Only now: who was seen has said HELLO before, if it says that at all.
	var vgpus map[int]string
	if err := d.call(func(l *loop) { vgpus = l.vgpusByPID() }); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	resp.Processes = slices.DeleteFunc(resp.Processes, func(p *v1.Process) bool {
		p.Vgpu = vgpus[int(p.GetPid())]
		return !lookUp(p)
	})
	return resp, nil
}

// vgpusByPID are the ids of the vGPUs of all clients, also of those that are not
// back after a restart.
func (l *loop) vgpusByPID() map[int]string {
	all := make(map[int]string)
	for _, v := range l.vgpus {
		for _, c := range v.clients {
			all[c.PID] = v.rec.ID
		}
		for _, x := range v.expected {
			all[x.PID] = v.rec.ID
		}
	}
	return all
}

// lookUp says of a process what it is. False: it is gone.
func lookUp(p *v1.Process) bool {
	comm, err := os.ReadFile(procFile(int(p.GetPid()), "comm"))
	if err != nil {
		return !noProcess(err)
	}
	p.Command = strings.ToValidUTF8(strings.TrimSuffix(string(comm), "\n"), "?")
	groups, err := os.ReadFile(procFile(int(p.GetPid()), "cgroup"))
	if err != nil {
		return !noProcess(err)
	}
	for line := range strings.Lines(string(groups)) {
		// hierarchy:controllers:path, see cgroups(7)
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if path := strings.ToValidUTF8(parts[len(parts)-1], "?"); len(parts) == 3 && len(path) > len(p.GetCgroup()) {
			p.Cgroup = path
		}
	}
	return true
}
