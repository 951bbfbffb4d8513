// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// ID names a vGPU.
type ID string

// UUID names a GPU.
type UUID string

// Kind says what an Event or an Action is.
type Kind uint8

// The events. The fields that each uses are named behind it.
const (
	_ Kind = iota

	Added   // VGPU, Request: a container was created
	Removed // VGPU: it is gone, and so is what it had in flight
	Changed // VGPU, Request: a live update
	// Bind asks for the GPUs of VGPU. Answered by Bound or Unbindable, at once;
	// a vGPU that is bound already gets the same GPUs again.
	Bind
	Unused // VGPU: no living process of it uses CUDA; it may be bound anew

	// Pending: some client of VGPU stands at a closed gate.
	Pending
	// Complete: every word of the holder VGPU was taken back while IDLE, or its
	// clients are dead. LastWork and Idle say how the turn went, Waiting whether
	// a client stands at the gate again.
	Complete
	// Drained: as Complete, after a Revoke.
	Drained
	// Deadline: the time that VGPU's last Arm named has come.
	Deadline

	GPUUp   // GPU, Model, MemoryBytes: a GPU can be granted
	GPUDown // GPU, Reason: it takes no new grant and no new bind
	// Adopted: after a restart VGPU was found bound to GPUs; Holding them, and
	// Draining, if so. Comes after its Added and before anything else about it.
	Adopted
)

// The actions. What the daemon owes for each is in the package comment.
const (
	_ Kind = iota + 64

	Bound      // VGPU, GPUs
	Unbindable // VGPU, Reason
	Grant      // VGPU: open its gates
	Take       // VGPU: somebody waits; take its words as soon as all are idle
	Keep       // VGPU: nobody waits any more
	Revoke     // VGPU: close its gates, and report Drained when nothing is in flight
	Arm        // VGPU, At: report Deadline then; a later Arm replaces it, At 0 disarms
	Overrun    // VGPU: its drain is late; others are granted beside what it left running
	Account    // VGPU, Turn: a turn ended
)

// Event is what happened. It is a plain value so that the hot path allocates
// nothing.
type Event struct {
	Kind    Kind
	VGPU    ID
	Request request.Request

	LastWork time.Duration // Complete, Drained: when the last work of the turn was complete; 0: none was seen
	Idle     time.Duration // Complete, Drained: idle gaps inside the turn
	Waiting  bool          // Complete, Drained, Adopted

	GPU         UUID
	GPUs        []UUID // Adopted
	Holding     bool   // Adopted
	Draining    bool   // Adopted: a revoke was under way
	Model       string
	MemoryBytes uint64
	Reason      string
}

// Action is what the daemon must do.
type Action struct {
	Kind   Kind
	VGPU   ID
	GPUs   []UUID // Bound; owned by the engine, not to be changed
	At     time.Duration
	Reason string
	Turn   Turn
}

// Turn is the account of one turn, for Account.
type Turn struct {
	Granted time.Duration // when it began
	Ended   time.Duration // the last completion, or the release where none was seen
	Held    time.Duration // Ended - Granted without the idle gaps
	Waited  time.Duration // from pending to grant
	Drained bool          // ended by a Revoke
	Overrun bool          // and late
}
