// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"os"
	"path"
	"strings"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// owner is whose a process is: a vGPU and its container.
type owner struct {
	id        string
	container *v1.Container
	pod       *v1.Pod
	gpu       string // the first to which it is bound; empty: none
}

// owners are all vGPUs, as they stood at a moment.
type owners struct {
	clients   map[int]*owner    // by pid, also those that are not back after a restart
	dirs      map[string]*owner // by the name of the vGPU's directory
	mayReturn bool              // see loop.mayReturn
}

func (l *loop) owners() owners {
	all := owners{clients: make(map[int]*owner), dirs: make(map[string]*owner), mayReturn: l.mayReturn()}
	for _, v := range l.vgpus {
		o := &owner{id: v.rec.ID, container: v.container(), pod: v.rec.Pod.message()}
		if len(v.bound) > 0 {
			o.gpu = string(v.bound[0])
		}
		all.dirs[v.rec.Dir] = o
		for _, c := range v.clients {
			all.clients[c.PID] = o
		}
		for _, x := range v.expected {
			all.clients[x.PID] = o
		}
	}
	return all
}

// gpuOf is the first GPU of a vGPU, empty if it has none.
func (all owners) gpuOf(id string) string {
	for _, o := range all.dirs {
		if o.id == id && o.gpu != "" {
			return o.gpu
		}
	}
	return ""
}

// attribute says whose a process is. before is what was known a moment ago.
func (all owners) attribute(p *v1.Process, before owners) {
	pid := int(p.GetPid())
	o := all.clients[pid]
	if o == nil {
		o = before.clients[pid]
	}
	client := o != nil
	if !client {
		o = all.inside(pid)
		client = o != nil && all.mayReturn
	}
	switch {
	case o == nil:
		return
	case client:
		p.Vgpu = o.id
	default:
		p.Inside = o.id
	}
	p.Container, p.Pod = o.container, o.pod
}

// maxAncestors bounds how far up a process's container is looked for.
const maxAncestors = 64

// inside is the vGPU in whose container a process runs, nil if in none. What tells
// a container is that its vGPU's directory, and no other container's, is mounted in
// it: that holds whatever its pid namespace is, whoever entered it, and however
// its cgroup is named, and it is read without touching the container's files. One
// that sees another root (chroot, a container in the container) is where its
// parent is.
func (all owners) inside(pid int) *owner {
	for range maxAncestors {
		if pid <= 1 {
			break
		}
		if o := all.mounted(pid); o != nil {
			return o
		}
		parent, err := statField(pid, 4)
		if err != nil {
			break
		}
		pid = int(parent)
	}
	return nil
}

// mounted is the vGPU whose directory a process has mounted.
func (all owners) mounted(pid int) *owner {
	mounts, err := os.Open(procFile(pid, "mountinfo"))
	if err != nil {
		return nil
	}
	defer mounts.Close()
	for s := bufio.NewScanner(mounts); s.Scan(); {
		// id parent dev root mountpoint ..., see proc_pid_mountinfo(5)
		f := strings.Fields(s.Text())
		if len(f) < 5 || f[4] != gpu.ContainerDir {
			continue
		}
		if o := all.dirs[path.Base(f[3])]; o != nil {
			return o
		}
	}
	return nil
}
