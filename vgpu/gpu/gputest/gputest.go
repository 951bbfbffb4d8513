// SPDX-License-Identifier: Apache-2.0

// Package gputest has an inventory of GPUs that are not there, for tests.
package gputest

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// MemoryBytes is the memory of each GPU.
const MemoryBytes = 16 << 30

// Inventory is N healthy GPUs, UUID(0) to UUID(N-1), until a test says otherwise.
type Inventory struct {
	gpus []gpu.GPU

	mu      sync.Mutex
	health  map[string]gpu.Health
	free    map[string]uint64
	used    map[string]map[int]uint64
	hung    chan struct{} // the driver does not say who uses what until it is closed
	ends    []func()      // after the next answer who uses what
	pending []gpu.Health  // not yet told to the watcher
	wake    chan struct{}
}

var _ gpu.Inventory = (*Inventory)(nil)

// UUID names GPU n.
func UUID(n int) string { return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012x", n+1) }

// New is an inventory of n GPUs of these compute capabilities, of 9.0 those for which
// there is none.
func New(n int, capabilities ...string) *Inventory {
	i := &Inventory{health: map[string]gpu.Health{}, free: map[string]uint64{}, used: map[string]map[int]uint64{}, wake: make(chan struct{}, 1)}
	for k := range n {
		capability := "9.0"
		if k < len(capabilities) {
			capability = capabilities[k]
		}
		i.gpus = append(i.gpus, gpu.GPU{
			UUID: UUID(k), Model: "Test GPU", MemoryBytes: MemoryBytes, PCIBusID: fmt.Sprintf("00000000:%02X:00.0", k+1),
			Brand: "tesla", Architecture: "Hopper", ComputeCapability: capability,
			Devices: []*v1.Device{{Path: fmt.Sprint("/dev/fake", k)}},
		})
		i.free[UUID(k)] = MemoryBytes
	}
	return i
}

// SetHealth makes a GPU so; who watches is told.
func (i *Inventory) SetHealth(h gpu.Health) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.pending = append(i.pending, h)
	h.Event, h.Xid = "", 0
	i.health[h.UUID] = h
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// SetFree says how much of a GPU's memory is free.
func (i *Inventory) SetFree(uuid string, bytes uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.free[uuid] = bytes
}

// SetUsed says how much of a GPU's memory a process uses.
func (i *Inventory) SetUsed(uuid string, pid int, bytes uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.used[uuid] == nil {
		i.used[uuid] = map[int]uint64{}
	}
	i.used[uuid][pid] = bytes
}

// SetUsedOnce says how much of a GPU's memory a process uses when that is asked for
// next. After that it uses what it did before, or has ended.
func (i *Inventory) SetUsedOnce(uuid string, pid int, bytes uint64) {
	i.mu.Lock()
	before, ok := i.used[uuid][pid]
	i.ends = append(i.ends, func() {
		if ok {
			i.used[uuid][pid] = before
		} else {
			delete(i.used[uuid], pid)
		}
	})
	i.mu.Unlock()
	i.SetUsed(uuid, pid, bytes)
}

// Ended says that a process uses a GPU no more.
func (i *Inventory) Ended(uuid string, pid int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.used[uuid], pid)
}

// Hang keeps all who ask for processes until the returned function is called.
func (i *Inventory) Hang() (end func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	hung := make(chan struct{})
	i.hung = hung
	return sync.OnceFunc(func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.hung = nil
		close(hung)
	})
}

func (i *Inventory) Name() string    { return "fake:" + strconv.Itoa(len(i.gpus)) }
func (i *Inventory) GPUs() []gpu.GPU { return i.gpus }
func (i *Inventory) Close() error    { return nil }

// Driver has paths that are not there.
func (i *Inventory) Driver() gpu.Driver {
	return gpu.Driver{Version: "1.0", CUDAVersion: "12.4", CUDA: "/fake/libcuda.so.1.0", NVML: "/fake/libnvidia-ml.so.1.0"}
}

func (i *Inventory) Free(uuid string) (uint64, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	bytes, ok := i.free[uuid]
	if !ok {
		return 0, fmt.Errorf("there is no GPU %s", uuid)
	}
	return bytes, nil
}

func (i *Inventory) Processes(uuid string) (map[int]uint64, error) {
	i.mu.Lock()
	hung := i.hung
	i.mu.Unlock()
	if hung != nil {
		<-hung
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	used := maps.Clone(i.used[uuid])
	for _, end := range i.ends {
		end()
	}
	i.ends = nil
	return used, nil
}

func (i *Inventory) Watch(ctx context.Context, changes chan<- gpu.Health) {
	for first := true; ; first = false {
		for _, h := range i.news(first) {
			select {
			case changes <- h:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-i.wake:
		case <-ctx.Done():
			return
		}
	}
}

// news is what was not told yet: at first the present health of each GPU.
func (i *Inventory) news(first bool) []gpu.Health {
	i.mu.Lock()
	defer i.mu.Unlock()
	news := i.pending
	i.pending = nil
	if !first {
		return news
	}
	news = nil
	for _, g := range i.gpus {
		h := i.health[g.UUID]
		h.UUID = g.UUID
		news = append(news, h)
	}
	return news
}
