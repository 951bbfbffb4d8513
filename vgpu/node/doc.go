// SPDX-License-Identifier: Apache-2.0

// Package node is vgpud, the node daemon: it connects the engine to real
// clients, containers and GPUs.
//
// One goroutine, the loop, owns the engine and all the grant words. It sleeps
// in epoll on everything that can happen: messages of clients, deaths of their
// processes (pidfd), new connections, timers, and functions posted by other
// goroutines. So there is no lock around the engine, and a hand-over costs one
// wake-up of vgpud. Nothing in the loop blocks: sockets are non-blocking, the
// store is written by a goroutine of its own, and a client that floods its
// socket is read one message a round. What a container could make it wait for is
// done elsewhere: files that it passed are received and closed by the vGPU's
// chores, its processes are looked at by a goroutine (see look), and the log is
// written behind the back of whoever logs. Readers of events take them from a
// ring (events) when they get to it; one that is slower is told what it missed.
//
// A vGPU's memory is leased to its processes (memory.go, ledger.go); what the
// driver itself needs is looked up off the loop (look.go). Programs that only look
// are observers (observer.go): they hold up nothing.
//
// What the loop may do to a grant word, and when, are the rules R1 to R9 of
// docs/grant-word.md; the code that changes words is in words.go and turn.go
// and names the rule it follows.
//
// On disk, under the state directory (a tmpfs):
//
//	lock        one vgpud at a time
//	vgpud.sock  the control API
//	c/<dir>/    one directory per vGPU, mounted into its container
//	store.db    bbolt: one record per vGPU, with its live pages (rule R7), and
//	            what the operator set; records that this vgpud could not use
//	accounts    what each vGPU and GPU used so far, and the turns under way
//	*.kept      one of the two that this vgpud could not use, such as a newer one's
package node
