// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
)

// Where memory is oversubscribed, what the vGPUs of a GPU use together may be more
// than it has. The driver keeps what does not fit in the host's memory, and brings
// it back when it is used: in the turn of whoever comes after others. What that takes
// is worked out from what is known: how much is used (the ledgers), how much there
// is, and how fast it moves (swap_rate).
//
// To measure it in turns instead does not work. From grant to the first completion
// is time in which the first kernel ran too, as long as that may be, and only its
// pages came back in it: those of the kernels behind it come later. What is worked
// out is the most that it can be: all that does not fit moves, in both directions,
// before anything is computed.

// swapsAge is how old that may be when a turn ends. After a process was leased memory,
// which it has not allocated yet, it is looked at from swapsSoon on, ever later, up
// to swapsLate.
const (
	swapsAge  = 100 * time.Millisecond
	swapsSoon = time.Millisecond
	swapsLate = time.Second
)

// lookAtSwaps tells the engine what it takes to bring back the memory of each vGPU
// on g, if that is not what it was.
func (l *loop) lookAtSwaps(g *gpuState) {
	if l.swapRate == 0 {
		return
	}
	g.swapsLook = l.now()
	for _, v := range l.vgpus {
		if !slices.Contains(v.bound, arbiter.UUID(g.UUID)) || v.removed {
			continue
		}
		swap := time.Duration(0)
		for _, uuid := range v.bound { // at once on all of its GPUs
			swap = max(swap, l.swapOn(v, uuid))
		}
		if changed := max(swap-v.swap, v.swap-swap); changed > max(swap, v.swap)/8 {
			v.swap = swap
			l.event(arbiter.Event{Kind: arbiter.Swaps, VGPU: v.key, Swap: swap})
		}
	}
}

// swapOn is how long it takes to bring the memory of v on a GPU back when others
// used that: no more than what does not fit, and than v has, without what the driver
// needs for it, which stays. As much leaves before.
func (l *loop) swapOn(v *vgpu, uuid arbiter.UUID) time.Duration {
	i, g := slices.Index(v.bound, uuid), l.gpus[uuid]
	if g == nil {
		return 0
	}
	moves := uint64(0)
	for _, c := range v.clients {
		moves = plus(moves, c.allocated(i))
	}
	moves = min(moves, minus(l.memoryUsed(uuid), g.MemoryBytes))
	return time.Duration(2 * float64(moves) / l.swapRate * float64(time.Second))
}

// lookAtSwapsIn does so after a while, and again after four times as long.
func (l *loop) lookAtSwapsIn(g *gpuState, wait time.Duration) {
	if l.swapRate == 0 || g == nil || wait > swapsLate {
		return
	}
	g.swaps.fire = func() {
		l.lookAtSwaps(g)
		l.lookAtSwapsIn(g, 4*wait)
	}
	l.arm(&g.swaps, l.now()+wait)
}

// lookAtOldSwaps looks again now and then, when a turn of v ends: programs free memory without a word.
func (l *loop) lookAtOldSwaps(v *vgpu) {
	if l.swapRate == 0 {
		return
	}
	for _, uuid := range v.bound {
		if g := l.gpus[uuid]; g != nil && l.now()-g.swapsLook > swapsAge {
			l.lookAtSwaps(g)
		}
	}
}
