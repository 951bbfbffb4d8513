// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"time"
)

// kind is a kind of fault.
type kind string

const (
	killClient      kind = "kill a client"
	stopClient      kind = "stop a client"
	killContainer   kind = "kill a container"
	deleteContainer kind = "delete a container"
	killShim        kind = "kill a shim"
	killVGPUD       kind = "kill vgpud"
	createWhileAway kind = "create while vgpud is away"
	killContainerd  kind = "kill containerd"
	execInto        kind = "exec"
	update          kind = "update"
	rubbish         kind = "rubbish"
)

// kinds with how often they come, of each hundred.
var kinds = []struct {
	kind
	percent uint
}{
	{killClient, 20},
	{stopClient, 12},
	{killContainer, 8},
	{deleteContainer, 5},
	{killShim, 7},
	{killVGPUD, 12},
	{createWhileAway, 5},
	{killContainerd, 5},
	{execInto, 9},
	{update, 12},
	{rubbish, 5},
}

// planned is what the seed alone says of a fault. On which container it falls
// also depends on which live then.
type planned struct {
	kind
	after  time.Duration // the fault before it
	pick   uint64        // who, of those that there are
	lasts  time.Duration // of what lasts: a stop, an absence
	detail uint64        // what else there is to choose
}

// plan yields faults, about one a second.
type plan struct{ r *rand.Rand }

func newPlan(seed uint64) *plan { return &plan{rand.New(rand.NewPCG(seed, 0))} }

func (p *plan) next() planned {
	f := planned{
		after:  500*time.Millisecond + time.Duration(p.r.Int64N(int64(time.Second))),
		pick:   p.r.Uint64(),
		detail: p.r.Uint64(),
	}
	n := p.r.UintN(100)
	for _, k := range kinds {
		if n < k.percent {
			f.kind = k.kind
			break
		}
		n -= k.percent
	}
	// A stop is shorter or longer than a drain may take; an absence may be none.
	longest := 3 * time.Second
	if f.kind == stopClient {
		longest = 6 * time.Second
	}
	f.lasts = time.Duration(p.r.Int64N(int64(longest)))
	return f
}
