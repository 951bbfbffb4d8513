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

	// Added: a container was created. VGPU, Request; Gang, if it is in one, is
	// unique for the namespace; those with the same Reservation reserve memory
	// together, and its words name the promises that are theirs; Usage is what it had
	// before a restart.
	Added
	Removed // VGPU: it is gone, and so is what it had in flight
	Changed // VGPU, Request: a live update
	// Bind asks for the GPUs of VGPU. Answered by Bound, at once or when there
	// are some, or by Unbindable if the request says so; a vGPU that is bound
	// already gets the same GPUs again.
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
	// Deadline: the time that VGPU's last Arm named has come. If it drains:
	// Waiting says whether a thread of it stands at the gate, Progress whether
	// work of it was seen to complete since the last Revoke or Deadline, Advanced
	// whether some was since it was resumed.
	Deadline

	// Runs: VGPU overran and was to be frozen, and could not be. What it uses beside
	// others is accounted.
	Runs

	// Swaps: VGPU, Swap: how long it takes to bring the memory of VGPU back to its GPU
	// when others had that; 0: all that is used there fits.
	Swaps

	GPUUp     // GPU, Model, MemoryBytes: a GPU can be granted; Usage: what it had before a restart
	GPUDown   // GPU, Reason: it takes no new grant and no new bind
	Cordon    // GPU, Reason: it takes no new bind; those that live there stay; empty: it does again
	GPUMemory // GPU, MemoryBytes: what is free there, as the driver says; others use it too
	SetPolicy // GPU, or empty for the node; Policy
	// Promised: a scheduler counts MemoryBytes of GPU as Promise, out of Claimable in
	// all. They are kept there for the vGPUs whose Reservation has that word, whether
	// there are any; 0: no more.
	Promised
	// Adopted: after a restart VGPU was found bound to GPUs; Holding them, and
	// Draining, if so. Comes after its Added and before anything else about it.
	Adopted
)

// The actions. What the daemon owes for each is in the package comment.
const (
	_ Kind = iota + 64

	Bound      // VGPU, GPUs
	BindWaits  // VGPU, Reason: there is none for it now; Bound follows when there is
	Unbindable // VGPU, Reason: there is none for it now, and it does not want to wait
	Grant      // VGPU: open its gates
	Take       // VGPU, Linger: somebody waits; take its words once all were idle for so long
	Keep       // VGPU: nobody waits any more
	Revoke     // VGPU: close its gates, and report Drained when nothing is in flight
	// Resume: the drain of VGPU depends on work that stands at its gate. Open
	// again what was revoked; a Revoke follows.
	Resume
	Arm     // VGPU, At: report Deadline then; a later Arm replaces it, At 0 disarms
	Overrun // VGPU, Overrun (never the node's): its drain is late; others are granted beside what it left running
	Account // VGPU, Turn: a turn ended
)

// Event is what happened. It is a plain value so that the hot path allocates
// nothing.
type Event struct {
	Kind    Kind
	VGPU    ID
	Request request.Request

	LastWork time.Duration // Complete, Drained: when the last work of the turn was complete; 0: none was seen
	Idle     time.Duration // Complete, Drained, Deadline: idle gaps inside the turn
	Lingered time.Duration // Complete, Drained, Deadline: of the idle time, what passed while somebody waited
	Gaps     *Gaps         // Complete, Drained: the idle gaps inside the turn; may be nil
	Waiting  bool          // Complete, Drained, Adopted, Deadline
	Swap     time.Duration // Swaps
	Progress bool          // Deadline
	Advanced bool          // Deadline

	Gang        string // Added
	Reservation string // Added; empty: it reserves for itself, and nothing was promised to it
	Promise     string // Promised; without spaces
	Claimable   uint64 // Promised
	Usage       Usage  // Added, GPUUp
	Policy      Policy // SetPolicy

	GPU         UUID
	GPUs        []UUID        // Adopted
	Since       time.Duration // Adopted: when the turn began that it holds, or its wait for one; 0: not known
	Waited      time.Duration // Adopted: how long it had waited for the turn that it holds
	Holding     bool          // Adopted
	Draining    bool          // Adopted: a revoke was under way
	Model       string
	MemoryBytes uint64
	Reason      string
}

// Action is what the daemon must do.
type Action struct {
	Kind    Kind
	VGPU    ID
	GPUs    []UUID // Bound; owned by the engine, not to be changed
	At      time.Duration
	Linger  time.Duration // Take
	Reason  string
	Overrun request.Overrun
	Turn    Turn
}

// Turn is the account of one turn, for Account.
type Turn struct {
	Granted time.Duration // when it began
	Ended   time.Duration // the last completion, or the release where none was seen
	Held    time.Duration // Ended - Granted without the idle gaps
	Waited  time.Duration // from pending to grant
	// Lingered is how long its GPUs were kept idle for it while somebody waited.
	Lingered time.Duration
	Drained  bool // ended by a Revoke
	// Late: no turn, but what an overrun went on to use beside the turns of
	// others, from Granted to Ended.
	Late bool
}
