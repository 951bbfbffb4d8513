// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"

	"github.com/sirupsen/logrus"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// maxTold bounds how many unmanaged processes are told at once: a container can
// start as many as it likes. The rest is told later, if it is still there.
const maxTold = 16

// use is the use of a GPU by a process.
type use struct {
	gpu string
	pid uint32
}

// unmanaged are the uses of GPUs that were told, by processes that are clients of
// no vGPU. Each is told once when it is seen and once when it is not seen any more,
// whatever the look was for.
type unmanaged map[use]*v1.Process

// look takes in what was seen, and returns what to tell.
func (told unmanaged) look(seen *v1.ListProcessesResponse) (came, went []*v1.Process) {
	now := make(map[use]bool)
	for _, p := range seen.GetProcesses() {
		if p.GetVgpu() != "" {
			continue
		}
		u := use{p.GetGpu(), p.GetPid()}
		now[u] = true
		if told[u] == nil && len(came) < maxTold {
			told[u] = p
			came = append(came, p)
		}
	}
	for u, p := range told {
		if !now[u] && !slices.Contains(seen.GetSilentGpus(), u.gpu) {
			delete(told, u)
			went = append(went, p)
		}
	}
	slices.SortFunc(went, func(a, b *v1.Process) int { return int(a.GetPid()) - int(b.GetPid()) })
	return came, went
}

// look finds out who uses the GPUs, and tells in the log and the events which
// processes began or ended to use one without being a client. There is one look at a
// time: what an older one saw must not be told after what a newer one did.
func (d *Daemon) look() (*v1.ListProcessesResponse, error) {
	d.looking.Lock()
	defer d.looking.Unlock()
	seen, err := d.lookAround()
	if err != nil {
		return nil, err
	}
	came, went := d.told.look(seen)
	for _, p := range came {
		d.tellUnmanaged(logrus.WarnLevel, "a process uses a GPU and is a client of no vGPU", eventUnmanaged, p)
	}
	for _, p := range went {
		d.tellUnmanaged(logrus.InfoLevel, "a process that is a client of no vGPU uses a GPU no more", eventUnmanagedGone, p)
	}
	return seen, nil
}

func (d *Daemon) tellUnmanaged(level logrus.Level, text, event string, p *v1.Process) {
	fields := logrus.Fields{"gpu": p.GetGpu(), "pid": p.GetPid(), "memory_bytes": p.GetMemoryBytes()}
	more := map[string]string{
		"command": p.GetCommand(), "cgroup": p.GetCgroup(), "vgpu": p.GetInside(),
		"namespace": p.GetContainer().GetNamespace(), "container": p.GetContainer().GetId(),
		"pod_namespace": p.GetPod().GetNamespace(), "pod": p.GetPod().GetName(),
	}
	for name, value := range more {
		if value != "" {
			fields[name] = value
		}
	}
	if p.GetGone() {
		fields["gone"] = true
	}
	d.log.WithFields(fields).Log(level, text)
	reason := fmt.Sprintf("process %d (%q, cgroup %q)", p.GetPid(), p.GetCommand(), p.GetCgroup())
	if p.GetGone() {
		reason = fmt.Sprintf("process %d, which is gone: another one has its files", p.GetPid())
	}
	d.loop.events.add(&v1.Event{Type: event, Vgpu: p.GetInside(), Container: p.GetContainer(), Gpus: []string{p.GetGpu()}, Reason: reason})
}
