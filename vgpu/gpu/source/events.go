// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// waitInterval bounds one wait for events, which nothing can interrupt: so long
// can it last to close NVML.
const waitInterval = time.Second

// listen implements prober.
func (i *inventory) listen(ctx context.Context, ready func(), tell func(event)) {
	defer ready()
	l := &listener{i: i, said: make([]bool, len(i.devices)), broken: make([]bool, len(i.devices))}
	defer l.replace(nil, tell)
	for failures := 0; ctx.Err() == nil; {
		more := l.subscribe(tell)
		ready()
		if !more {
			return
		}
		if l.hear(ctx, tell) {
			failures = 0
			continue
		}
		// It fails as soon as it is asked. If again: not so fast.
		if failures++; failures == 1 {
			continue
		}
		select {
		case <-ctx.Done():
		case <-i.back:
		case <-time.After(i.poll):
		}
	}
}

// listener is the state of listen, on its goroutine alone.
type listener struct {
	i      *inventory
	set    nvml.EventSet // nil: no GPU could be registered
	said   []bool        // that a GPU has no events
	broken []bool        // registering it has spoilt a set
}

// eventFunctions are there since long; a library without them has no events.
var eventFunctions = []string{"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait", "nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes"}

// subscribe makes a set of all GPUs that can be heard now. False: none ever can.
func (l *listener) subscribe(tell func(event)) bool {
	for _, f := range eventFunctions {
		if !l.i.has(f) {
			l.i.log("the driver's library has no %s: the state of the GPUs is only polled", f)
			return false
		}
	}
	for {
		if !l.i.calls.begin() {
			return false
		}
		set, ret := l.i.lib.EventSetCreate()
		l.i.calls.end()
		if ret != nvml.SUCCESS {
			return true
		}
		registered, hopeless, spoilt := l.register(set)
		if spoilt {
			l.drop(set)
			continue
		}
		if registered == 0 {
			l.drop(set)
			set = nil
		}
		l.replace(set, tell)
		return registered > 0 || hopeless < len(l.i.devices)
	}
}

// register registers each GPU in a set. Those that have no events are hopeless;
// one that is lost may come back.
func (l *listener) register(set nvml.EventSet) (registered, hopeless int, spoilt bool) {
	for n, d := range l.i.devices {
		if l.broken[n] {
			hopeless++
			continue
		}
		ret := l.registerOne(set, d)
		switch ret {
		case nvml.SUCCESS:
			registered++
		case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_UNINITIALIZED:
			l.i.unheard[n].Store(true)
		case nvml.ERROR_UNKNOWN:
			// "Event set is in undefined state and should be freed" (nvml.h).
			l.broken[n] = true
			return 0, 0, true
		default:
			hopeless++
			if !l.said[n] {
				l.said[n] = true
				l.i.log("%s tells no events (%s): its state is only polled, and an Xid is seen by what it leaves behind", l.i.gpus[n].UUID, ret)
			}
		}
	}
	return registered, hopeless, false
}

func (l *listener) registerOne(set nvml.EventSet, d nvml.Device) nvml.Return {
	if !l.i.calls.begin() {
		return nvml.ERROR_UNINITIALIZED
	}
	defer l.i.calls.end()
	supported, ret := d.GetSupportedEventTypes()
	if ret != nvml.SUCCESS {
		return ret
	}
	// Single-bit errors are corrected: nothing follows from one.
	types := supported & (nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError)
	if types == 0 {
		return nvml.ERROR_NOT_SUPPORTED
	}
	return d.RegisterEvents(types, set)
}

// hear tells the events of the set until it must be made anew. False: it could
// not be asked even once.
func (l *listener) hear(ctx context.Context, tell func(event)) (heard bool) {
	for ctx.Err() == nil && l.set != nil {
		if !l.i.calls.begin() {
			return heard
		}
		e, ret := l.set.Wait(uint32(waitInterval.Milliseconds()))
		l.i.calls.end()
		switch ret {
		case nvml.SUCCESS:
			tell(l.i.event(e))
		case nvml.ERROR_TIMEOUT:
		default:
			// One GPU that is lost makes the whole set fail, which does not say which
			// one: all are looked at. The next set leaves it out.
			tell(event{gpu: nobody})
			return heard
		}
		heard = true
		select {
		case <-l.i.back:
			return heard
		default:
		}
	}
	return heard
}

func (i *inventory) event(e nvml.EventData) event {
	n := slices.Index(i.devices, e.Device)
	if n < 0 {
		return event{gpu: nobody}
	}
	if e.EventType == nvml.EventTypeDoubleBitEccError {
		return event{gpu: n, ecc: true}
	}
	return event{gpu: n, xid: e.EventData}
}

// replace puts a new set, which hears already, in the place of the old one, whose
// events are told first: rather one twice than one not at all.
func (l *listener) replace(set nvml.EventSet, tell func(event)) {
	old := l.set
	l.set = set
	if old == nil || !l.i.calls.begin() {
		return // it went with NVML
	}
	defer l.i.calls.end()
	for {
		e, ret := old.Wait(0)
		if ret != nvml.SUCCESS {
			break
		}
		tell(l.i.event(e))
	}
	_ = old.Free()
}

func (l *listener) drop(set nvml.EventSet) {
	if !l.i.calls.begin() {
		return // it went with NVML
	}
	defer l.i.calls.end()
	_ = set.Free()
}
