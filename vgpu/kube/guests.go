// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"time"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// The scheduler counts what it allocated of a GPU, and knows of no guests. What these
// reserve is not offered to it. A node writes for that once in guestsPause at most, and
// offers memory again when it was free of guests for guestsRest: they come and go with
// processes, and a vgpud that was restarted finds them only after a while.
const (
	guestsPause = time.Second
	guestsRest  = 10 * time.Second
)

// guests is what guests reserve, by the UUID of the GPU, in mebibytes.
type guests struct {
	seen  map[string]uint64    // last
	less  map[string]time.Time // since when that is what it is, and less than told
	told  map[string]uint64    // to the scheduler
	wrote time.Time            // when told changed last
}

// see takes in what guests reserve now, and says when to look again if nothing is seen
// meanwhile; 0: there is no need. told is replaced, never changed in place.
func (k *guests) see(gpus []*v1.GPU, now time.Time) (again time.Duration) {
	seen, less, told := map[string]uint64{}, map[string]time.Time{}, map[string]uint64{}
	later := func(d time.Duration) {
		if again == 0 || d < again {
			again = d
		}
	}
	pause := k.wrote.Add(guestsPause).Sub(now)
	for _, g := range gpus {
		id := g.GetUuid()
		is, was := (g.GetMemoryGuestBytes()+mebibyte-1)/mebibyte, k.told[id]
		seen[id], told[id] = is, was
		wait := pause
		if is < was {
			less[id] = now
			if since, ok := k.less[id]; ok && k.seen[id] == is {
				less[id] = since
			}
			wait = max(wait, less[id].Add(guestsRest).Sub(now))
		}
		switch {
		case is == was:
		case wait > 0:
			later(wait)
		default:
			told[id] = is
			delete(less, id)
			k.wrote = now
		}
	}
	k.seen, k.less, k.told = seen, less, told
	return again
}
