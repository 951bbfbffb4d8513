// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"slices"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// crowd is those that wait for one GPU, in no order. It counts what makes them
// unlike each other, so that the usual question, whether anybody waits and of
// which class, need not look at each.
type crowd struct {
	all     []*gang
	several int // how many wait for other GPUs too
	shares  int // how many have a guarantee or a cap: what holds for them changes with time
	natives int // how many need not wait for the holder
	classes [request.High - request.Low + 1]int
}

func (c *crowd) add(t *gang) {
	c.all = append(c.all, t)
	c.count(t, 1)
}

func (c *crowd) remove(t *gang) {
	i, last := slices.Index(c.all, t), len(c.all)-1
	c.all[i] = c.all[last]
	c.all = c.all[:last]
	c.count(t, -1)
}

func (c *crowd) count(t *gang, n int) {
	if len(t.gpus) > 1 {
		c.several += n
	}
	if t.minimum.rate > 0 || t.maximum.rate > 0 {
		c.shares += n
	}
	if t.native {
		c.natives += n
	}
	c.classes[t.class-request.Low] += n
}

// alike says whether all of them may be granted, if their GPU is up, and differ
// only in class, weight and arrival.
func (c *crowd) alike() bool { return c.several == 0 && c.shares == 0 && c.natives == 0 }

// higher says whether somebody of a class above p waits.
func (c *crowd) higher(p request.Priority) bool {
	for class := p + 1; class <= request.High; class++ {
		if c.classes[class-request.Low] > 0 {
			return true
		}
	}
	return false
}
