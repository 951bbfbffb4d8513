// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// watchHealth takes in what the driver says about the GPUs until ctx ends.
func (d *Daemon) watchHealth(ctx context.Context) {
	changes := make(chan gpu.Health)
	go d.inventory.Watch(ctx, changes)
	for {
		select {
		case h := <-changes:
			d.loop.poller.post(func() { d.loop.health(h) })
		case <-ctx.Done():
			return
		}
	}
}

// health takes in how a GPU is. vGPUs that live on one that is down stay: their
// processes know it, and get the driver's errors. Those that were told nothing
// yet go elsewhere (see bound).
func (l *loop) health(h gpu.Health) {
	uuid := arbiter.UUID(h.UUID)
	g := l.gpus[uuid]
	if g == nil {
		return
	}
	log := l.log.WithField("gpu", h.UUID)
	if h.Event != "" {
		log.WithField("xid", h.Xid).Warn(h.Event)
		kind := eventGPUNote
		if h.Xid != 0 {
			kind = eventGPUXid
		}
		l.tellGPU(kind, uuid, h.Event)
	}
	if h.Same(g.health) {
		return
	}
	level := logrus.InfoLevel
	if h.Down != "" {
		level = logrus.ErrorLevel
	}
	log.WithFields(logrus.Fields{"down": h.Down, "cordon": h.Cordon, "notes": h.Notes}).Log(level, "a GPU's health changed")
	g.health = h
	l.setCause(uuid, causeHealth, h.Down)
	l.setCause(uuid, causeMode, h.Cordon)
	l.bellGPUs()
}

// lookPatience is how long a bind waits for the driver to say how much memory is
// free. After that it is admitted by what vgpud itself gave out.
const lookPatience = 500 * time.Millisecond

// memoryLook is a look at the free memory of all GPUs.
type memoryLook struct {
	running bool // a goroutine is at it; a bad driver can keep it for ever
	late    timer
	then    []func()
}

// lookAtMemory asks the driver how much memory is free, tells the engine, and
// then calls then in the loop.
func (l *loop) lookAtMemory(then func()) {
	m := &l.memory
	m.then = append(m.then, then)
	if m.running {
		if m.late.at == 0 { // it is late already
			l.lookedAtMemory()
		}
		return
	}
	m.running = true
	m.late.fire = func() {
		l.log.Warn("the driver does not say how much memory is free; what was known before counts")
		l.lookedAtMemory()
	}
	l.arm(&m.late, l.now()+l.lookPatience)
	gpus := l.inventory.GPUs()
	go func() {
		free := make([]uint64, len(gpus))
		errs := make([]error, len(gpus))
		for i, g := range gpus {
			free[i], errs[i] = l.inventory.Free(g.UUID)
		}
		l.poller.post(func() {
			m.running = false
			for i, g := range gpus {
				if errs[i] != nil {
					l.log.WithField("gpu", g.UUID).WithError(errs[i]).Debug("its free memory is not known")
					continue
				}
				l.gpuMemory(arbiter.UUID(g.UUID), free[i])
			}
			l.lookedAtMemory()
		})
	}()
}

func (l *loop) lookedAtMemory() {
	m := &l.memory
	l.arm(&m.late, 0)
	then := m.then
	m.then = nil
	for _, fn := range then {
		fn()
	}
}

// bindLooked asks the engine for GPUs for v, once it knows how much memory is
// free if that matters.
func (l *loop) bindLooked(v *vgpu) {
	ask := func() {
		if l.vgpus[v.key] == v && !v.removed && v.adopted && (len(v.binders) > 0 || v.early != nil) {
			l.event(arbiter.Event{Kind: arbiter.Bind, VGPU: v.key})
		}
	}
	if v.req.MemoryBytes == 0 || len(v.bound) > 0 {
		ask()
		return
	}
	l.lookAtMemory(ask)
}

// lookForWaiting looks at the free memory if a vGPU waits for some: who gives it
// back may be nobody that vgpud knows.
func (l *loop) lookForWaiting() {
	for _, v := range l.vgpus {
		if len(v.binders) > 0 && v.req.MemoryBytes > 0 && len(v.bound) == 0 {
			l.lookAtMemory(func() {})
			return
		}
	}
}
