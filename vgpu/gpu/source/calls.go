// SPDX-License-Identifier: Apache-2.0

package source

import (
	"sync"
	"time"
)

// calls counts who is inside NVML: it must not be closed under them. A driver
// that is not well may keep one for ever.
type calls struct {
	mu     sync.Mutex
	n      int
	closed bool
	none   chan struct{} // closed when the last one leaves after close
}

// begin says whether NVML may be called; then end must follow.
func (c *calls) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.n++
	return true
}

func (c *calls) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 && c.none != nil {
		close(c.none)
		c.none = nil
	}
}

// close lets nobody in any more, and waits for those inside. False: somebody is
// still there.
func (c *calls) close(patience time.Duration) bool {
	c.mu.Lock()
	c.closed = true
	if c.n == 0 {
		c.mu.Unlock()
		return true
	}
	none := make(chan struct{})
	c.none = none
	c.mu.Unlock()
	select {
	case <-none:
		return true
	case <-time.After(patience):
		return false
	}
}
