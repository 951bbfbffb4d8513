// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"fmt"
	"slices"
)

// reservation is the memory that vGPUs of one name reserve together: on each GPU on
// which any of them lives as much as the one of them that asks for the most. A vGPU
// that named none has one for itself.
type reservation struct {
	name    string
	members []*vgpu
}

// reserve puts v, which is new, into the reservation of that name.
func (e *Engine) reserve(v *vgpu, name string) {
	r := e.reservations[name]
	if r == nil || name == "" {
		r = &reservation{name: name}
	}
	if name != "" {
		e.reservations[name] = r
	}
	r.members = append(r.members, v)
	v.reservation = r
}

func (e *Engine) unreserve(v *vgpu) {
	r := v.reservation
	r.members = slices.DeleteFunc(r.members, func(m *vgpu) bool { return m == v })
	if len(r.members) == 0 {
		delete(e.reservations, r.name)
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

// lacks is why g has no memory for v, which is not bound, empty if it has.
func (g *gpu) lacks(v *vgpu) string {
	asked, there := v.req.MemoryBytes, v.reservation.on(g)
	if asked <= there {
		return "" // the driver's count has what the others use as well
	}
	switch more := asked - there; {
	case g.ledger+more > g.memory:
		return fmt.Sprintf("%s of %s of memory are reserved, %s more are asked for", quantity(g.ledger), quantity(g.memory), quantity(more))
	case more > g.free:
		return fmt.Sprintf("%s of %s of memory are free in the driver's count, %s are asked for", quantity(g.free), quantity(g.memory), quantity(more))
	}
	return ""
}
