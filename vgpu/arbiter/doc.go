// SPDX-License-Identifier: Apache-2.0

// Package arbiter decides which vGPU holds which GPU. It is a pure state
// machine: it reads no clock, does no I/O, starts no goroutine and takes no
// lock. The same events at the same times give the same actions.
//
// The caller, the node daemon, feeds every Event to Engine.Step, one at a time
// and with a time that never goes back, and carries out the returned actions in
// their order before the next Step:
//
//   - Bound, Unbindable: answer the client that asked.
//   - Grant: open the gates of the vGPU. May come again for a vGPU that holds
//     already; then open what is still closed.
//   - Take: somebody else waits. Set wanted on all pages of the vGPU, then take
//     its words if all are idle; do so again at every doorbell of its clients
//     until it works or a Keep comes, and report Complete when it worked.
//   - Keep: nobody waits any more. Clear wanted.
//   - Revoke: close the gates of the vGPU; when nothing of it is in flight and
//     no thread is inside the gate, report Drained.
//   - Arm: one timer for each vGPU. Report Deadline when it fires.
//   - Overrun: tell the operator. The vGPU still owes its Drained.
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
// both also by a Revoke.
//
// All GPUs of a vGPU are granted together or not at all. While one that waits
// for several GPUs is first on all of them it keeps others from those that are
// free: for no longer than the holders' quantum and drain.
package arbiter
