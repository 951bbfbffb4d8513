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
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

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

// all is what each process uses of each GPU, in the order of GPUs; nil for a GPU of
// which the driver does not say. All are asked at once.
func (p *processList) all(inventory gpu.Inventory, log *logrus.Entry) []map[int]uint64 {
	gpus := inventory.GPUs()
	all := make([]map[int]uint64, len(gpus))
	var wg sync.WaitGroup
	for i, g := range gpus {
		wg.Go(func() {
			used, err := p.of(inventory, g.UUID)
			if err != nil {
				log.WithField("gpu", g.UUID).WithError(err).Debug("who uses it is not known")
				return
			}
			if all[i] = used; used == nil {
				all[i] = map[int]uint64{}
			}
		})
	}
	wg.Wait()
	return all
}

// ListProcesses tells which processes use the GPUs, as the driver says.
func (d *Daemon) ListProcesses(context.Context, *v1.ListProcessesRequest) (*v1.ListProcessesResponse, error) {
	resp, err := d.look()
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	resp.Processes = slices.DeleteFunc(resp.Processes, func(p *v1.Process) bool { return p.GetVgpu() != "" && !lookUp(p) })
	return resp, nil
}

// lookAround finds out who uses the GPUs. What clients are called it leaves out: they
// are many, and it is done while nothing happens.
//
// One look is enough to call a process unmanaged: a process says HELLO before it
// touches the driver, so one that uses a GPU is a client for as long as the driver
// lists it. Clients are looked at before and after the driver's list: who was one
// at either time came or went meanwhile.
func (d *Daemon) lookAround() (*v1.ListProcessesResponse, error) {
	var before, after owners
	if err := d.call(func(l *loop) { before = l.owners() }); err != nil {
		return nil, err
	}
	lists := d.processes.all(d.inventory, d.log)
	if err := d.call(func(l *loop) { after = l.owners() }); err != nil {
		return nil, err
	}
	resp := &v1.ListProcessesResponse{}
	gone := false
	for i, g := range d.inventory.GPUs() {
		if lists[i] == nil {
			resp.SilentGpus = append(resp.SilentGpus, g.UUID)
			continue
		}
		for _, pid := range slices.Sorted(maps.Keys(lists[i])) {
			p := &v1.Process{Gpu: g.UUID, Pid: uint32(pid), MemoryBytes: lists[i][pid]}
			after.attribute(p, before)
			if p.GetVgpu() == "" && !lookUp(p) {
				p.Gone, gone = true, true
			}
			resp.Processes = append(resp.Processes, p)
		}
	}
	resp.Processes = d.pastTheLayer(resp.Processes, before, after)
	if !gone {
		return resp, nil
	}
	// Most have just died. One that the driver lists although it was dead before
	// the driver was asked has left its files to a process that it forked.
	again := d.processes.all(d.inventory, d.log)
	resp.Processes = slices.DeleteFunc(resp.Processes, func(p *v1.Process) bool {
		if !p.GetGone() {
			return false
		}
		i := slices.IndexFunc(d.inventory.GPUs(), func(g gpu.GPU) bool { return g.UUID == p.GetGpu() })
		_, listed := again[i][int(p.GetPid())]
		return !listed || !errors.Is(named(int(p.GetPid())), errGone)
	})
	return resp, nil
}

// named says whether there is a process with a pid now: the error is errGone if
// there is none.
func named(pid int) error {
	pidfd, err := openProcess(pid)
	if err != nil {
		return err
	}
	defer unix.Close(pidfd)
	_, err = identify(pid, pidfd)
	return err
}

// lookUp says of a process what it is. False: it is gone.
func lookUp(p *v1.Process) bool {
	pid := int(p.GetPid())
	comm, err := os.ReadFile(procFile(pid, "comm"))
	if err == nil {
		p.Command = strings.ToValidUTF8(strings.TrimSuffix(string(comm), "\n"), "?")
	}
	groups, err := os.ReadFile(procFile(pid, "cgroup"))
	if err == nil {
		p.Cgroup = longestCgroup(string(groups))
	}
	return !errors.Is(named(pid), errGone) // a zombie has all of these files
}

// longestCgroup is the longest path in a /proc/<pid>/cgroup: of the hierarchies of
// version 1, some are not divided. It is for people, who read in it who made it:
// what a path means is up to that one, so nothing is taken from it here.
func longestCgroup(groups string) (longest string) {
	for line := range strings.Lines(groups) {
		// hierarchy:controllers:path, see cgroups(7)
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if path := strings.ToValidUTF8(parts[len(parts)-1], "?"); len(parts) == 3 && len(path) > len(longest) {
			longest = path
		}
	}
	return longest
}
