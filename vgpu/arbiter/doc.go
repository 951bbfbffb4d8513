// SPDX-License-Identifier: Apache-2.0

// Package arbiter decides which vGPU holds which GPU. It is a pure state
// machine: it reads no clock, does no I/O, starts no goroutine and takes no
// lock. The same events at the same times give the same actions.
//
// The caller, the node daemon, feeds every Event to Engine.Step, one at a time
// and with a time that never goes back, and carries out the returned actions in
// their order before the next Step:
//
//   - Bound, Unbindable: answer the client that asked. BindWaits: tell it why it
//     waits; Bound or Unbindable comes later.
//   - Grant: open the gates of the vGPU. May come again for a vGPU that holds
//     already; then open what is still closed. If it drains since an overrun,
//     open that too: what it has in flight is in its own turn from now on.
//   - Take: somebody else waits. Set wanted on all pages of the vGPU, then take
//     its words if all are idle, and were for as long as Linger says; do so again
//     at every doorbell of its clients until it works or a Keep comes, and report
//     Complete when it worked. A later Take has another Linger.
//   - Keep: nobody waits any more. Clear wanted.
//   - Revoke: close the gates of the vGPU; when nothing of it is in flight and
//     no thread is inside the gate, report Drained.
//   - Resume: open what was revoked, under a new epoch.
//   - Arm: one timer for each vGPU. Report Deadline when it fires, and how its
//     drain gets on if it drains.
//   - Overrun: tell the operator, and freeze or kill its processes if that is
//     the policy. The vGPU still owes its Drained. One that is frozen is thawed
//     at its next Grant.
//   - Account: a turn ended; feed the metrics.
//
// A holder whose clients are all dead is reported Complete (or Drained, if it
// was revoked) at once, whether a Take was asked for or not.
//
// A turn runs from Grant to Complete or Drained. It is not ended by the clock
// unless somebody else waits: then the quantum, counted from the grant, ends in
// a Revoke. A vGPU that nobody waits behind keeps its GPUs, idle or not, so
// that its next work starts without a message.
//
// Who goes next is said in order.go: ageing, guaranteed minimum, class, weighted
// fair queueing of held time, arrival; a cap comes before all of them. A higher
// class that waits ends a turn after the minimum turn, a cap when it is used up,
// both also by a Revoke. What a policy by name makes of a request is in policy.go.
//
// Whoever computes in brief bursts with rests between them is let in before the end of
// another's quantum (brief.go).
//
// How long a GPU stays with one that became idle while others wait is learned
// from its own idle gaps (linger.go).
//
// Where vGPUs use more memory of a GPU than it has, what one of them had there must
// be brought back when it comes after others. The caller says how long that takes
// (Swaps); turns are as long as it takes for that to be a small part of them (swap.go).
//
// All GPUs of a vGPU, and of all vGPUs of a gang (gang.go), are granted together
// or not at all. While one that waits for several GPUs is first on all of them
// it keeps others from those that are free: for no longer than the holders'
// quantum and drain.
//
// vGPUs of one reservation reserve memory together (reservation.go): once on each GPU
// on which any of them lives, so a later one goes where an earlier one is. What a
// scheduler promised of a GPU is kept there for those whose reservation has its name:
// others, the GPU's guests, are let in only beside all that is promised.
//
// A drain can depend on work that stands at the gate. One that gets nowhere while
// a thread stands there is resumed, a few times if that does not help, before it is
// an overrun.
package arbiter
