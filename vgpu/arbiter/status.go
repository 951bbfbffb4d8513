// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"slices"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// State is where a vGPU stands.
type State uint8

// The states of a vGPU.
const (
	Unbound     State = iota // no GPU was chosen yet
	Idle                     // bound, and nothing of it waits or holds
	Waiting                  // pending
	Holding                  // it holds its GPUs
	Draining                 // revoked; it still holds them
	Overrunning              // its drain is late; others are granted meanwhile
)

// String is the name that users see.
func (s State) String() string {
	return [...]string{"UNBOUND", "IDLE", "PENDING", "HOLDING", "DRAINING", "OVERRUN"}[s]
}

// Usage is the account of a vGPU or of a GPU over all its turns.
type Usage struct {
	Held, Waited, Lingered  time.Duration
	Turns, Drains, Overruns uint64
}

func (u *Usage) add(t Turn) {
	u.Held += t.Held
	u.Waited += t.Waited
	u.Lingered += t.Lingered
	if t.Late {
		return
	}
	u.Turns++
	if t.Drained {
		u.Drains++
	}
}

// Status is a vGPU as it stands now.
type Status struct {
	State   State
	GPUs    []UUID          // not to be changed
	Since   time.Duration   // Waiting: pending since; Holding, Draining, Overrunning: granted
	Reason  string          // why it can not be bound
	Policy  request.Preset  // that is in force for it
	Overrun request.Overrun // likewise
	Usage   Usage           // of the turns that ended
	Quantum time.Duration   // that is in force for it, of its gang if it is in one
	Swap    time.Duration   // as the last Swaps said
}

// VGPU is the status of one vGPU.
func (e *Engine) VGPU(id ID) (Status, bool) {
	v := e.vgpus[id]
	if v == nil {
		return Status{}, false
	}
	s := Status{State: v.state(), GPUs: v.uuids, Reason: v.reason, Policy: e.policy(v).Preset, Overrun: e.overrunOf(v), Usage: v.usage, Quantum: v.gang.quantum, Swap: v.swap}
	switch s.State {
	case Waiting:
		s.Since = v.since
	case Holding, Draining, Overrunning:
		s.Since = v.granted
	}
	return s, true
}

func (v *vgpu) state() State {
	switch {
	case len(v.gpus) == 0:
		return Unbound
	case v.in && v.gang.late:
		return Overrunning
	case v.in:
		return v.gang.state // Holding or Draining
	case v.waits:
		return Waiting
	}
	return Idle
}

// Residence is another number whenever it changed which vGPUs are bound to which
// GPUs, of which class they are, or what memory was reserved or promised.
func (e *Engine) Residence() uint64 { return e.residence }

// Outclassed are the vGPUs that share a GPU with one of a higher class. The class
// is that of the gang, as it is in turns.
func (e *Engine) Outclassed() map[ID]bool {
	highest := make(map[*gpu]request.Priority)
	for _, v := range e.vgpus {
		for _, g := range v.gpus {
			if class, ok := highest[g]; !ok || v.gang.class > class {
				highest[g] = v.gang.class
			}
		}
	}
	below := make(map[ID]bool)
	for id, v := range e.vgpus {
		if slices.ContainsFunc(v.gpus, func(g *gpu) bool { return v.gang.class < highest[g] }) {
			below[id] = true
		}
	}
	return below
}

// GPUStatus is a GPU as it stands now.
type GPUStatus struct {
	UUID    UUID
	Down    string // why it takes no grants, if so
	Cordon  string // why it takes no binds, if so
	Policy  Policy // its own; zero: the node's
	Holder  ID     // empty: nobody
	Drains  bool   // the holder was revoked
	Bound   int    // vGPUs that live here
	Pending int    // of them, how many wait
	Ledger  uint64 // bytes reserved
	// Promised are the bytes that are kept for claims, Guests those of Ledger that
	// were not promised here to who reserved them.
	Promised, Guests uint64
	Memory           uint64 // bytes that may be reserved
	Usage            Usage
}

// GPUs is the status of all GPUs, in the order in which they came up.
func (e *Engine) GPUs() []GPUStatus {
	all := make([]GPUStatus, 0, len(e.order))
	for _, g := range e.order {
		all = append(all, g.status())
	}
	return all
}

// GPU is the status of one GPU.
func (e *Engine) GPU(uuid UUID) (GPUStatus, bool) {
	g := e.gpus[uuid]
	if g == nil {
		return GPUStatus{}, false
	}
	return g.status(), true
}

func (g *gpu) status() GPUStatus {
	s := GPUStatus{
		UUID: g.uuid, Down: g.down, Cordon: g.cordon, Policy: g.policy, Bound: g.bound, Pending: len(g.waiting.all),
		Ledger: g.ledger, Promised: g.promised(), Guests: g.guests, Memory: g.memory + g.beyond, Usage: g.usage,
	}
	if g.holder != nil {
		s.Holder, s.Drains = g.holder.on(g), g.holder.state == Draining
	}
	return s
}

// on is the member of t that holds g, or the one for which it is kept.
func (t *gang) on(g *gpu) ID {
	var id ID
	for _, v := range t.members {
		if slices.Contains(v.gpus, g) && (id == "" || v.in) {
			id = v.id
		}
	}
	return id
}

// IDs is every vGPU, sorted.
func (e *Engine) IDs() []ID {
	all := make([]ID, 0, len(e.vgpus))
	for id := range e.vgpus {
		all = append(all, id)
	}
	slices.Sort(all)
	return all
}
