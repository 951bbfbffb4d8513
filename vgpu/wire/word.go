// SPDX-License-Identifier: Apache-2.0

package wire

// The states of a grant word.
const (
	Closed   uint32 = 0 // nobody may submit
	Open     uint32 = 1 // the client may submit
	Closing  uint32 = 2 // the client is finding out whether it is idle
	Idle     uint32 = 3 // granted, nothing in flight: may be taken without asking
	Draining uint32 = 4 // revoked; the client closes it once nothing is in flight
)

// MakeWord puts a state and an epoch together.
func MakeWord(state uint32, epoch uint64) uint64 { return epoch<<8 | uint64(state) }

// State is the state in a grant word.
func State(word uint64) uint32 { return uint32(word & 0xff) }

// Epoch is the epoch in a grant word; it rises when CLOSED is left, or when a
// drain is resumed, and at no other time.
func Epoch(word uint64) uint64 { return word >> 8 }

// StateName is the name of a state, for logs.
func StateName(state uint32) string {
	switch state {
	case Closed:
		return "CLOSED"
	case Open:
		return "OPEN"
	case Closing:
		return "CLOSING"
	case Idle:
		return "IDLE"
	case Draining:
		return "DRAINING"
	}
	return "INVALID"
}
