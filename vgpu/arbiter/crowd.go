// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"cmp"
	"slices"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// crowd is those that wait for one GPU. It counts what makes them unlike each
// other, so that the usual questions, whether anybody waits, of which class, and
// who is first, need not look at each: a heap, ordered by what is left to differ
// in where all are alike.
type crowd struct {
	all     []*gang
	keys    []key         // of all, in the same order
	since   time.Duration // none of them waits for longer
	several int           // how many wait for other GPUs too
	shares  int           // how many have a guarantee or a cap: what holds for them changes with time
	natives int           // how many need not wait for the holder
	classes [request.High - request.Low + 1]int
}

// key is what the heap is ordered by.
type key struct {
	class   request.Priority
	start   time.Duration
	arrival uint64
}

func (k *key) before(o *key) bool {
	if k.class != o.class {
		return k.class > o.class
	}
	return k.start < o.start || k.start == o.start && k.arrival < o.arrival
}

func (c *crowd) add(t *gang) {
	if len(c.all) == 0 || t.pending < c.since {
		c.since = t.pending
	}
	c.all = append(c.all, t)
	c.keys = append(c.keys, key{t.class, t.start, t.arrival})
	c.up(len(c.all) - 1)
	c.count(t, 1)
}

func (c *crowd) remove(t *gang) {
	i, last := slices.Index(c.all, t), len(c.all)-1
	c.swap(i, last)
	c.all, c.keys = c.all[:last], c.keys[:last]
	if i < last {
		c.up(c.down(i))
	}
	c.count(t, -1)
}

func (c *crowd) swap(i, j int) {
	c.all[i], c.all[j] = c.all[j], c.all[i]
	c.keys[i], c.keys[j] = c.keys[j], c.keys[i]
}

func (c *crowd) up(i int) {
	for i > 0 && c.keys[i].before(&c.keys[(i-1)/2]) {
		c.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (c *crowd) down(i int) int {
	for {
		child := 2*i + 1
		if child+1 < len(c.keys) && c.keys[child+1].before(&c.keys[child]) {
			child++
		}
		if child >= len(c.keys) || !c.keys[child].before(&c.keys[i]) {
			return i
		}
		c.swap(i, child)
		i = child
	}
}

// changed takes in a new class or tag of t.
func (c *crowd) changed(t *gang) {
	i := slices.Index(c.all, t)
	c.keys[i] = key{t.class, t.start, t.arrival}
	c.up(c.down(i))
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

// first is who goes next where all are alike, nil if nobody waits: the order of
// Engine.before without what does not make them differ. old is since when one
// waits that aged.
func (c *crowd) first(old time.Duration) *gang {
	if len(c.all) == 0 {
		return nil
	}
	if c.since <= old {
		oldest := slices.MinFunc(c.all, func(a, b *gang) int { return cmp.Compare(a.arrival, b.arrival) })
		if c.since = oldest.pending; c.since <= old {
			return oldest
		}
	}
	return c.all[0]
}

// higher says whether somebody of a class above p waits.
func (c *crowd) higher(p request.Priority) bool {
	for class := p + 1; class <= request.High; class++ {
		if c.classes[class-request.Low] > 0 {
			return true
		}
	}
	return false
}
