// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// reservation is the memory that vGPUs of one name reserve together: on each GPU on
// which any of them lives as much as the one of them that asks for the most. A vGPU
// that named none has one for itself.
type reservation struct {
	name    string
	words   []string // of the name: the promises that are theirs
	members []*vgpu
}

// compare orders reservations: those with fewer promises to use go first, so that
// others use what these leave.
func (r *reservation) compare(other *reservation) int {
	return cmp.Or(len(r.words)-len(other.words), strings.Compare(r.name, other.name))
}

// reserve puts v, which is new, into the reservation of that name.
func (e *Engine) reserve(v *vgpu, name string) {
	r := &reservation{name: name, words: strings.Fields(name)}
	if name != "" {
		i, found := slices.BinarySearchFunc(e.reservations, r, (*reservation).compare)
		if found {
			r = e.reservations[i]
		} else {
			e.reservations = slices.Insert(e.reservations, i, r)
		}
	}
	r.members = append(r.members, v)
	v.reservation = r
}

func (e *Engine) unreserve(v *vgpu) {
	r := v.reservation
	r.members = slices.DeleteFunc(r.members, func(m *vgpu) bool { return m == v })
	if len(r.members) == 0 {
		e.reservations = slices.DeleteFunc(e.reservations, func(o *reservation) bool { return o == r })
	}
}

// reserves does change, after which v reserves something else on these GPUs.
func (e *Engine) reserves(v *vgpu, gpus []*gpu, change func()) {
	for _, g := range gpus {
		g.ledger -= v.reservation.on(g)
	}
	change()
	for _, g := range gpus {
		g.ledger += v.reservation.on(g)
		g.guests = e.guests(g, nil, 0)
	}
	if len(gpus) > 0 {
		e.residence++
	}
}

// on is how many bytes of g are reserved.
func (r *reservation) on(g *gpu) (bytes uint64) {
	for _, v := range r.members {
		if v.req.MemoryBytes > bytes && slices.Contains(v.gpus, g) {
			bytes = v.req.MemoryBytes
		}
	}
	return bytes
}

func (r *reservation) livesOn(g *gpu) bool {
	return slices.ContainsFunc(r.members, func(v *vgpu) bool { return slices.Contains(v.gpus, g) })
}

func (r *reservation) waits() bool {
	return slices.ContainsFunc(r.members, func(v *vgpu) bool { return v.binding })
}

// settled says whether v must go where others of its reservation live: what they
// reserved is there. Not if too few of those GPUs are up.
func (e *Engine) settled(v *vgpu) bool {
	if len(v.reservation.members) == 1 {
		return false
	}
	up := 0
	for _, g := range e.order {
		if g.down == "" && v.reservation.livesOn(g) {
			up++
		}
	}
	return up >= v.req.Count
}

// promise is memory of a GPU that a scheduler gave away: it is there for who it was
// given to, whenever they come.
type promise struct {
	bytes     uint64
	claimable uint64 // what the scheduler has of the GPU to give away
}

// promised takes in what is promised of g.
func (e *Engine) promised(g *gpu, ev Event) {
	if g.promises == nil {
		g.promises = make(map[string]promise)
	}
	if ev.MemoryBytes == 0 {
		delete(g.promises, ev.Promise)
	} else {
		g.promises[ev.Promise] = promise{ev.MemoryBytes, ev.Claimable}
	}
	g.guests = e.guests(g, nil, 0)
	e.residence++
}

// promised is how many bytes of g are.
func (g *gpu) promised() (sum uint64) {
	for _, p := range g.promises {
		sum += p.bytes
	}
	return sum
}

// claimable is how many bytes of g may be promised, and reserved beside that.
func (g *gpu) claimable() uint64 {
	most := g.memory + g.beyond
	for _, p := range g.promises {
		most = max(most, p.claimable)
	}
	return most
}

// promisedOn is 1 if something of g is promised to those of r, else 0.
func (r *reservation) promisedOn(g *gpu) int {
	for _, word := range r.words {
		if _, ok := g.promises[word]; ok {
			return 1
		}
	}
	return 0
}

// guests is how many bytes of g are reserved by those to whom they were not promised
// there, if v lived there with so many; v may be nil.
func (e *Engine) guests(g *gpu, v *vgpu, bytes uint64) uint64 {
	reserved, invited := g.ledger, uint64(0)
	if v != nil {
		there := v.reservation.on(g)
		reserved += max(bytes, there) - there
	}
	if len(g.promises) == 0 {
		return reserved
	}
	used := make(map[string]uint64)
	for _, r := range e.reservations {
		asks := r.on(g)
		if v != nil && r == v.reservation {
			asks = max(asks, bytes)
		}
		for _, word := range r.words {
			part := min(asks, g.promises[word].bytes-used[word])
			used[word] += part
			invited += part
			asks -= part
		}
	}
	return reserved - invited
}

// Guest is a vGPU that reserves memory of a GPU on which none was promised to it.
type Guest struct {
	GPU  UUID
	VGPU ID
}

// Guests are those who have memory that was promised to the vGPU id, which waits for it;
// none if it waits for something else.
func (e *Engine) Guests(id ID) (all []Guest) {
	v := e.vgpus[id]
	if v == nil || !v.binding {
		return nil
	}
	for _, g := range e.order {
		if v.reservation.promisedOn(g) == 0 || e.lacks(g, v) == "" {
			continue
		}
		for _, other := range e.IDs() {
			if o := e.vgpus[other]; o.req.MemoryBytes > 0 && slices.Contains(o.gpus, g) && o.reservation.promisedOn(g) == 0 {
				all = append(all, Guest{g.uuid, other})
			}
		}
	}
	return all
}

// breaks is why v can not reserve so many bytes of g without breaking what was promised
// there, empty if it can.
func (e *Engine) breaks(g *gpu, v *vgpu, bytes uint64) string {
	guests, promised, most := e.guests(g, v, bytes), g.promised(), g.claimable()
	if guests <= g.guests || promised+guests <= most {
		return "" // not by v, or not at all
	}
	return fmt.Sprintf("%s of %s of memory are promised to claims or reserved, %s more are asked for",
		quantity(promised+g.guests), quantity(most), quantity(guests-g.guests))
}

// lacks is why g has no memory for v, which is not bound, empty if it has.
func (e *Engine) lacks(g *gpu, v *vgpu) string {
	asked, there := v.req.MemoryBytes, v.reservation.on(g)
	if asked <= there {
		return "" // the driver's count has what the others use as well
	}
	switch more := asked - there; {
	case asked > g.memory:
		return fmt.Sprintf("has %s of memory, %s are asked for", quantity(g.memory), quantity(asked))
	case g.ledger+more > g.memory+g.beyond:
		return fmt.Sprintf("%s of %s of memory are reserved, %s more are asked for", quantity(g.ledger), quantity(g.memory+g.beyond), quantity(more))
	case more > g.free+g.beyond:
		return fmt.Sprintf("%s of %s of memory are free in the driver's count, %s are asked for", quantity(g.free), quantity(g.memory), quantity(more))
	}
	return e.breaks(g, v, asked)
}
