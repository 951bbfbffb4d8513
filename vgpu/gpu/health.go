// SPDX-License-Identifier: Apache-2.0

package gpu

import "slices"

// Health is how a GPU is, and at times what just happened to it.
type Health struct {
	UUID string
	// Down is why it can take no work at all, empty if it can: it is lost, or it
	// has a fault that nothing but a reset clears.
	Down string
	// Cordon is why it must take no new vGPU, empty if it may. Those that live on
	// it go on.
	Cordon string
	// Notes are what else is unusual while it lasts, and changes nothing: its
	// clocks are held down, a memory row is remapped at the next reset.
	Notes []string

	// Event is what happened just now, for the log and the stream of events. It
	// is not part of the state; empty if this Health tells a change of that alone.
	Event string
	// Xid is the number of the driver's error message that Event tells, or 0.
	Xid uint64
}

// Same says whether the state is the same. Events do not count.
func (h Health) Same(o Health) bool {
	return h.UUID == o.UUID && h.Down == o.Down && h.Cordon == o.Cordon && slices.Equal(h.Notes, o.Notes)
}
