// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// suffering is a simulated machine whose GPUs are watched through the simulated
// NVML and made to suffer by its tool.
type suffering struct {
	*testing.T
	root, machine string
	inv           gpu.Inventory
	changes       chan gpu.Health
	stop          context.CancelFunc
	watching      sync.WaitGroup

	mu   sync.Mutex
	log  []string
	seen gpu.Health // told last
}

// suffer makes a machine, injects what is said, and watches it. The first
// healths are still to be read. No GPU is silent, however late a look ends.
func suffer(t *testing.T, gpus int, poll time.Duration, inject ...string) *suffering {
	t.Helper()
	return sufferWith(t, math.MaxInt, gpus, poll, inject...)
}

// sufferSilence is suffer where a GPU is silent that does not answer: for longer than a
// GPU that does may take on a busy machine.
func sufferSilence(t *testing.T) *suffering {
	t.Helper()
	return sufferWith(t, 30, 2, 100*time.Millisecond)
}

func sufferWith(t *testing.T, patience, gpus int, poll time.Duration, inject ...string) *suffering {
	t.Helper()
	s := &suffering{T: t, root: simulatedRoot(t), machine: filepath.Join(t.TempDir(), "machine"), changes: make(chan gpu.Health)}
	s.tool("create", "--gpus", fmt.Sprint(gpus), "--memory", "1Gi", s.machine)
	if len(inject) > 0 {
		s.inject(inject...)
	}
	inv, err := Open(Config{
		GPUs: fmt.Sprintf("sim:%d", gpus), SimulatedRoot: s.root, Machine: s.machine, Poll: poll,
		Log: func(format string, args ...any) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.log = append(s.log, fmt.Sprintf(format, args...))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.inv = inv
	inv.(*inventory).patience = patience
	before := runtime.NumGoroutine()
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	s.watching.Go(func() { inv.Watch(ctx, s.changes) })
	t.Cleanup(func() {
		s.end()
		s.inject("--gpu", "0", "--hang", "off")
		if err := inv.Close(); err != nil {
			t.Error(err)
		}
		// Those that were in NVML have left it; now they end.
		for runtime.NumGoroutine() > before {
			if t.Failed() {
				break
			}
			runtime.Gosched()
		}
	})
	return s
}

// end ends the watch, which must not wait for anybody.
func (s *suffering) end() {
	s.stop()
	s.watching.Wait()
}

func (s *suffering) tool(args ...string) {
	s.Helper()
	if out, err := exec.Command(filepath.Join(s.root, "bin", "simgpu"), args...).CombinedOutput(); err != nil {
		s.Fatalf("simgpu %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (s *suffering) inject(args ...string) {
	s.Helper()
	s.tool(append([]string{"inject", s.machine}, args...)...)
}

func (s *suffering) next() gpu.Health {
	s.Helper()
	select {
	case h := <-s.changes:
		s.seen = h
		return h
	case <-time.After(30 * time.Second):
		s.Fatal("nothing is told")
		panic("unreachable")
	}
}

// first reads the first healths of n GPUs.
func (s *suffering) first(n int) map[string]gpu.Health {
	s.Helper()
	all := map[string]gpu.Health{}
	for range n {
		h := s.next()
		all[h.UUID] = h
	}
	if len(all) != n {
		s.Fatalf("first told is %v", all)
	}
	return all
}

func (s *suffering) uuid(n int) string { return s.inv.GPUs()[n].UUID }

// want reads until the state of GPU 1 is this one; no other GPU may be told.
func (s *suffering) want(down, cordon string, notes ...string) {
	s.Helper()
	want := gpu.Health{UUID: s.uuid(1), Down: down, Cordon: cordon, Notes: notes}
	for !s.seen.Same(want) {
		h := s.next()
		if h.UUID != want.UUID {
			s.Fatalf("told %+v, want %+v", h, want)
		}
	}
}

// Each condition comes to be told when it is injected, of the right GPU alone, and
// goes when it is cleared.
func TestConditionsOfASimulatedGPU(t *testing.T) {
	s := suffer(t, 2, 100*time.Millisecond)
	for _, h := range s.first(2) {
		if h.Down != "" || h.Cordon != "" || h.Notes != nil {
			t.Fatalf("%+v", h)
		}
	}
	for _, test := range []struct {
		inject, clear string
		down, cordon  string
		notes         []string
	}{
		{inject: "--lost on", clear: "--lost off", down: "NVML does not reach it: GPU is lost"},
		{inject: "--compute-mode exclusive", clear: "--compute-mode default", cordon: "its compute mode is EXCLUSIVE_PROCESS"},
		{inject: "--compute-mode prohibited", clear: "--compute-mode default", cordon: "its compute mode is PROHIBITED"},
		{inject: "--mig on", clear: "--mig off", cordon: "MIG is enabled; its instances are not configured as GPUs"},
		{inject: "--mps client", clear: "--mps off", cordon: "MPS is active on it"},
		{inject: "--mps server", clear: "--mps off", cordon: "MPS is active on it"},
		{inject: "--recovery reset", clear: "--recovery none", down: "the driver wants the GPU to be reset"},
		{inject: "--recovery drain-p2p", clear: "--recovery none", cordon: "the driver wants peer-to-peer traffic to be drained"},
		{inject: "--remap-failed on", clear: "--remap-failed off", down: "a bad memory row could not be remapped"},
		{inject: "--remap-pending on", clear: "--clear", notes: []string{"a memory row is remapped at the next reset"}},
		{inject: "--retirement-pending on", clear: "--retirement-pending off", notes: []string{"a memory page is retired at the next reset"}},
		{
			inject: "--retirement-pending on --double-bit", clear: "--clear",
			down:  "a memory page with an uncorrectable error waits for its retirement by a reset",
			notes: []string{"uncorrectable ECC errors since the driver was loaded: 1"},
		},
		{
			inject: "--clocks 200", clear: "--clocks 0", // 0x8 | 0x40 | 0x80
			notes: []string{"clocks are held down: hardware slowdown", "clocks are held down: thermal slowdown by hardware", "clocks are held down: power brake"},
		},
	} {
		t.Run(test.inject, func(t *testing.T) {
			s := &suffering{T: t, root: s.root, machine: s.machine, inv: s.inv, changes: s.changes}
			s.inject(append([]string{"--gpu", "1"}, strings.Fields(test.inject)...)...)
			s.want(test.down, test.cordon, test.notes...)
			s.inject(append([]string{"--gpu", "1"}, strings.Fields(test.clear)...)...)
			s.want("", "")
		})
	}
}

// Events are told without a poll: it comes once an hour here.
func TestEventsOfASimulatedGPU(t *testing.T) {
	s := suffer(t, 2, time.Hour)
	s.first(2)
	told := func(down, event string, xid uint64) {
		t.Helper()
		h := s.next()
		for h.UUID == s.uuid(1) && h.Event == "" { // a look that the event before it brought about came first
			h = s.next()
		}
		if h.UUID != s.uuid(1) || h.Down != down || h.Event != event || h.Xid != xid {
			t.Fatalf("told %+v, want %q, Xid %d", h, event, xid)
		}
	}
	s.inject("--gpu", "1", "--xid", "31")
	told("", "Xid 31: GPU memory page fault", 31)
	s.inject("--gpu", "1", "--xid", "777")
	told("", "Xid 777", 777)
	s.inject("--gpu", "1", "--double-bit")
	told("", "uncorrectable (double-bit) ECC error", 0)
	s.want("", "", "uncorrectable ECC errors since the driver was loaded: 1")
	s.inject("--gpu", "1", "--xid", "95")
	const down = "Xid 95: uncontained memory error"
	told(down, down, 95)

	// It is not over because it is quiet, but after a reset: the driver wants one,
	// and then no more. Another event makes us look.
	s.inject("--gpu", "1", "--clear", "--xid", "13")
	told(down, "Xid 13: graphics engine exception", 13)
	s.want(down, "")
	s.inject("--gpu", "1", "--recovery", "reset", "--xid", "13")
	s.want(down+"; the driver wants the GPU to be reset", "")
	s.inject("--gpu", "1", "--clear", "--xid", "13")
	s.want("", "")
}

// A GPU that is lost is told without a poll, too, though no event names it.
func TestALostGPUIsToldAtOnce(t *testing.T) {
	s := suffer(t, 2, time.Hour)
	s.first(2)
	s.inject("--gpu", "1", "--lost", "on")
	s.want("NVML does not reach it: GPU is lost", "")
}

// A lost GPU makes the whole set of events fail. The other GPU is still heard, and
// the lost one when it is back.
func TestEventsBesideALostGPU(t *testing.T) {
	s := suffer(t, 2, 500*time.Millisecond)
	s.first(2)
	s.inject("--gpu", "1", "--xid", "79")
	if h := s.next(); h.UUID != s.uuid(1) || h.Xid != 79 || h.Down == "" {
		t.Fatalf("%+v", h)
	}
	s.inject("--gpu", "1", "--lost", "on")
	s.want("NVML does not reach it: GPU is lost", "")
	for range 3 {
		s.inject("--gpu", "0", "--xid", "31")
		if h := s.next(); h.UUID != s.uuid(0) || h.Xid != 31 {
			t.Fatalf("told %+v", h)
		}
	}
	s.inject("--gpu", "1", "--lost", "off")
	s.want("", "")
	s.heard(1)
}

// heard tries until an event of a GPU is told: when it was registered again can not be
// seen from here otherwise.
func (s *suffering) heard(n int) {
	s.Helper()
	late := time.After(30 * time.Second)
	for {
		s.inject("--gpu", fmt.Sprint(n), "--xid", "31")
		select {
		case h := <-s.changes:
			if h.UUID != s.uuid(n) || h.Xid != 31 {
				s.Fatalf("told %+v", h)
			}
			return
		case <-late:
			s.Fatal("no event is told")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// The only GPU was lost, so there was nothing to be heard. It is again as soon as a look
// has found it, whoever looked.
func TestAGPUThatIsBackIsHeardAtOnce(t *testing.T) {
	s := suffer(t, 1, time.Hour)
	s.first(1)
	s.inject("--gpu", "0", "--lost", "on")
	if h := s.next(); h.Down == "" {
		t.Fatalf("told %+v", h)
	}
	s.inject("--gpu", "0", "--lost", "off")
	s.inv.(*inventory).look(0, reading{})
	s.heard(0)
}

func TestADriverWithoutEventsIsPolledAndSaysSoOnce(t *testing.T) {
	s := suffer(t, 1, 100*time.Millisecond, "--no-events", "on")
	s.first(1)
	s.inject("--gpu", "0", "--mig", "on")
	if h := s.next(); h.Cordon == "" {
		t.Fatalf("%+v", h)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := strings.Count(strings.Join(s.log, "\n"), "tells no events (Not Supported)"); n != 1 {
		t.Fatalf("said %d times: %q", n, s.log)
	}
}

// One GPU's calls hang. The other's state is told, its memory can be read, and the
// watch ends; only Close can not do its work.
func TestAHangingDriverHoldsUpNobody(t *testing.T) {
	s := sufferSilence(t)
	s.first(2)
	s.inject("--gpu", "0", "--hang", "on")
	if h := s.next(); h.UUID != s.uuid(0) || h.Cordon != "the driver does not answer for this GPU" {
		t.Fatalf("%+v", h)
	}
	s.inject("--gpu", "1", "--compute-mode", "prohibited")
	s.want("", "its compute mode is PROHIBITED")
	if _, err := s.inv.Free(s.uuid(1)); err != nil {
		t.Fatal(err)
	}
	s.end()
	if err := s.inv.Close(); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Fatal(err)
	}
}

func TestAHangIsOver(t *testing.T) {
	s := sufferSilence(t)
	s.first(2)
	s.inject("--gpu", "1", "--hang", "on")
	s.want("", "the driver does not answer for this GPU")
	s.inject("--gpu", "1", "--hang", "off")
	s.want("", "")
}

func TestFreeMemoryOfASimulatedGPU(t *testing.T) {
	s := suffer(t, 2, time.Hour)
	s.first(2)
	free := func(n int) uint64 {
		t.Helper()
		bytes, err := s.inv.Free(s.uuid(n))
		if err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	if free(0) != 1<<30 || free(1) != 1<<30 {
		t.Errorf("%d and %d bytes are free", free(0), free(1))
	}
	s.inject("--gpu", "1", "--foreign", "256Mi")
	if free(0) != 1<<30 || free(1) != 768<<20 {
		t.Errorf("%d and %d bytes are free", free(0), free(1))
	}
	s.inv.(*inventory).there["nvmlDeviceGetMemoryInfo_v2"] = false
	if free(1) != 768<<20 {
		t.Errorf("an older library says that %d bytes are free", free(1))
	}
	if _, err := s.inv.Free("GPU-other"); err == nil {
		t.Error("a GPU that is not there has free memory")
	}
	s.inject("--gpu", "1", "--lost", "on")
	if _, err := s.inv.Free(s.uuid(1)); err == nil || !strings.Contains(err.Error(), nvml.ERROR_GPU_IS_LOST.Error()) {
		t.Error(err)
	}
}

func TestALostGPUIsLeftOut(t *testing.T) {
	s := suffer(t, 2, time.Hour, "--gpu", "0", "--lost", "on")
	if n := len(s.inv.GPUs()); n != 1 || len(s.log) != 1 || !strings.Contains(s.log[0], "left out GPU number 0") {
		t.Fatalf("%d GPUs, said %q", n, s.log)
	}
	s.first(1)
	_, err := Open(Config{GPUs: "sim:3", SimulatedRoot: s.root, Machine: s.machine})
	if err == nil || !strings.Contains(err.Error(), "has 2 GPUs, not 3") {
		t.Fatal(err)
	}
}
