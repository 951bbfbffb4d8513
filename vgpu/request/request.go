// SPDX-License-Identifier: Apache-2.0

// Package request turns a container's annotations into a Request. It is the
// only place that knows the keys.
package request

import "time"

// Prefix starts every annotation that is ours. A key under it that Parse does
// not know is an error, never ignored.
const Prefix = "vgpu-shim.dev/"

// Priority is a strict class: whatever is pending in a higher class goes first.
type Priority int8

// The classes, in ascending order; the zero value is Normal.
const (
	Low    Priority = -1
	Normal Priority = 0
	High   Priority = 1
)

// Bind says when the GPU of a vGPU is chosen.
type Bind uint8

const (
	// BindLate chooses when the first process initialises CUDA. The default.
	BindLate Bind = iota
	// BindEarly chooses when the container is created.
	BindEarly
)

// WhenFull says what becomes of a process that needs a GPU when there is none for
// it.
type WhenFull uint8

const (
	// Wait until there is one. The default.
	Wait WhenFull = iota
	// Fail: CUDA says that there is no device.
	Fail
)

// Request is what a container asks for. The zero value of each field but Count
// means that the container did not say.
type Request struct {
	Count       int     // GPUs; 0 passes the container through
	MemoryBytes uint64  // device memory on each GPU; 0: no limit asked for
	Weight      int     // share inside a class; 0 stands for DefaultWeight
	MinShare    float64 // guaranteed part of each GPU's time, 0 to 1
	MaxShare    float64 // cap on it, 0 to 1; 0: none
	Priority    Priority
	Quantum     time.Duration // 0: the node's default
	Model       string        // only on GPUs whose model contains this
	UUIDs       string        // only on these GPUs, separated by commas
	Gang        string        // granted together with the others of this name
	Bind        Bind
	WhenFull    WhenFull
	Policy      Preset  // over that of the node and the GPU
	Overrun     Overrun // if it is stricter than the node's
}

// DefaultWeight is the weight of a container that names none.
const DefaultWeight = 100
