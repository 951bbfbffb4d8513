// SPDX-License-Identifier: Apache-2.0

package node

import "time"

// queueBounds says to the clients of v how much work they may have in flight, in
// time. While a vGPU of a higher class lives on one of its GPUs that is no more
// than may be in flight while somebody waits: the other one's work is to begin as
// soon as it comes.
func (l *loop) queueBounds(v *vgpu) {
	for _, c := range v.clients {
		l.queueBound(c)
	}
}

func (l *loop) queueBound(c *client) {
	queue := l.queue
	if c.v.outclassed {
		queue = l.budget
	}
	c.page.QueueUS().Store(microseconds(queue))
	c.page.DrainUS().Store(microseconds(l.budget))
}

func microseconds(d time.Duration) uint32 { return uint32(d.Microseconds()) }

// outclass finds out anew which vGPUs share a GPU with one of a higher class.
func (l *loop) outclass() {
	below := l.engine.Outclassed()
	for _, v := range l.vgpus {
		if now := below[v.key]; now != v.outclassed {
			v.outclassed = now
			l.queueBounds(v)
		}
	}
}
