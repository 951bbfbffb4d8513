// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"

	"golang.org/x/sys/unix"
)

// chores are what the loop must not do itself because a container can make it
// wait: to receive a file from there, and to give up the last reference to it (a
// TCP socket lingers, a file system in user space answers when it likes).
//
// Each vGPU has its own, done one after the other, in order: what a container
// holds up is its own, and one thread. Nobody waits for them, not even the end
// of vgpud: the kernel ends them with it.
type chores struct {
	mu    sync.Mutex
	queue []func() // the first one runs
}

// add has fn done on another goroutine.
func (c *chores) add(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, fn)
	if len(c.queue) == 1 {
		go c.run()
	}
}

func (c *chores) run() {
	for {
		c.mu.Lock()
		fn := c.queue[0]
		c.mu.Unlock()
		fn()
		c.mu.Lock()
		c.queue = c.queue[1:]
		left := len(c.queue)
		c.mu.Unlock()
		if left == 0 {
			return // the next add starts another
		}
	}
}

// left is how many are not done.
func (c *chores) left() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue)
}

// close hangs up a socket now, and closes it and all that lies in it unread.
func (c *chores) close(fd int) {
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	c.add(func() { unix.Close(fd) })
}
