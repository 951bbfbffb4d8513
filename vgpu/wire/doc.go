// SPDX-License-Identifier: Apache-2.0

// Package wire is the protocol between vgpud and a client, the process that
// loaded a gated driver library: one shared page and a SOCK_SEQPACKET socket of
// small fixed-size messages.
//
// The C side is hooks/gate/wire.h; a test compiles that header and compares
// every constant, size and offset with this package, so neither changes alone.
// The page and the messages are append-only: a field is never moved or given
// another meaning, new ones come out of reserved space.
//
// The grant word in the page is the truth, a message is only a doorbell.
// docs/grant-word.md has the transitions, who may make them and the memory
// orders; Go's atomics are sequentially consistent and satisfy all of them.
package wire
