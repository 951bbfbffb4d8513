// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func (m *machine) inject(args ...string) {
	m.t.Helper()
	m.tool(append([]string{"inject", m.dir}, args...)...)
}

// openNVML opens the machine's NVML and its devices.
func (m *machine) openNVML() (nvml.Interface, []nvml.Device) {
	m.t.Helper()
	m.t.Setenv("SIMGPU_MACHINE", m.dir)
	lib := nvml.New(nvml.WithLibraryPath(filepath.Join(built.root, "lib", "libnvidia-ml.so.1")))
	if r := lib.Init(); r != nvml.SUCCESS {
		m.t.Fatal(r)
	}
	m.t.Cleanup(func() {
		if r := lib.Shutdown(); r != nvml.SUCCESS {
			m.t.Error(r)
		}
	})
	n, _ := lib.DeviceGetCount()
	var devices []nvml.Device
	for i := range n {
		d, r := lib.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			m.t.Fatal(r)
		}
		devices = append(devices, d)
	}
	return lib, devices
}

// TestALostGPUTakesItsContexts: who waits returns, and nothing of before works
// again, also for a program that made no call while the GPU was lost.
func TestALostGPUTakesItsContexts(t *testing.T) {
	for _, work := range []string{"endless", "value", "idle"} {
		t.Run(work, func(t *testing.T) {
			m := newMachine(t, "--gpus", "1")
			cmd := m.command(false, "lost", work)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			var complaints strings.Builder
			cmd.Stderr = &complaints
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(out)
			expect := func(want string) {
				t.Helper()
				line, err := lines.ReadString('\n')
				if line != want+"\n" {
					_ = cmd.Wait()
					t.Fatalf("it says %q, not %q: %v\n%s", line, want, err, complaints.String())
				}
			}
			goOn := func() {
				t.Helper()
				if _, err := in.Write([]byte("\n")); err != nil {
					t.Fatal(err)
				}
			}
			expect("running")
			m.inject("--lost", "on")
			if work == "idle" {
				m.inject("--lost", "off")
				goOn()
			}
			expect("lost")
			m.inject("--lost", "off")
			goOn()
			expect("back")
			if err := cmd.Wait(); err != nil {
				t.Fatalf("%v\n%s", err, complaints.String())
			}
		})
	}
}

func TestComputeMode(t *testing.T) {
	m := newMachine(t, "--gpus", "1")
	try := func(want string) {
		t.Helper()
		if got := strings.TrimSpace(m.run("mode")); got != want {
			t.Errorf("mode and result are %s, want %s", got, want)
		}
	}
	const unavailable = 46
	holder := m.command(true, "endless", "1")
	m.start(holder)
	try("0 0")
	m.inject("--compute-mode", "exclusive")
	try("3 " + strconv.Itoa(unavailable))
	m.inject("--compute-mode", "prohibited")
	try("2 " + strconv.Itoa(unavailable))
	_ = holder.Process.Kill()
	_ = holder.Wait()
	try("2 " + strconv.Itoa(unavailable))
	m.inject("--compute-mode", "exclusive")
	try("3 0")
}

// TestForeignMemory is taken from everybody, and from what is told.
func TestForeignMemory(t *testing.T) {
	m := newMachine(t, "--gpus", "2", "--memory", "256Mi", "--context-memory", "16Mi")
	_, devices := m.openNVML()
	m.inject("--foreign", "100Mi")
	if got, _ := strconv.Atoi(strings.TrimSpace(m.run("memory"))); got != 140<<20 {
		t.Errorf("a program gets %d bytes", got)
	}
	for i, want := range []uint64{156 << 20, 256 << 20} {
		if info, r := devices[i].GetMemoryInfo(); r != nvml.SUCCESS || info.Free != want {
			t.Errorf("GPU %d: %+v, %v", i, info, r)
		}
	}
}

func TestALostGPUToNVML(t *testing.T) {
	m := newMachine(t, "--gpus", "2")
	lib, devices := m.openNVML()
	m.inject("--gpu", "1", "--lost", "on")
	if _, r := devices[1].GetUUID(); r != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("GetUUID: %v", r)
	}
	if _, r := devices[1].GetMemoryInfo(); r != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("GetMemoryInfo: %v", r)
	}
	if _, r := lib.DeviceGetHandleByIndex(1); r != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("DeviceGetHandleByIndex: %v", r)
	}
	if n, r := lib.DeviceGetCount(); n != 2 || r != nvml.SUCCESS {
		t.Errorf("%d devices, %v", n, r)
	}
	uuid, r := devices[0].GetUUID()
	if r != nvml.SUCCESS {
		t.Errorf("the other GPU: %v", r)
	}
	if _, r := lib.DeviceGetHandleByUUID(uuid); r != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("DeviceGetHandleByUUID of the other: %v", r)
	}
}

// TestEventSets: what is registered is told, in order, at once, and nothing else.
func TestEventSets(t *testing.T) {
	m := newMachine(t, "--gpus", "2")
	lib, devices := m.openNVML()
	set, r := lib.EventSetCreate()
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	defer func() { _ = set.Free() }()
	next := func(timeoutMS uint32, want nvml.Return) nvml.EventData {
		t.Helper()
		e, r := set.Wait(timeoutMS)
		if r != want {
			t.Fatalf("Wait gives %v, not %v", r, want)
		}
		return e
	}
	is := func(e nvml.EventData, d nvml.Device, kind, data uint64) {
		t.Helper()
		if e.Device != d || e.EventType != kind || e.EventData != data {
			t.Fatalf("event %+v", e)
		}
	}
	m.inject("--xid", "1") // before it is registered
	if r := devices[0].RegisterEvents(nvml.EventTypeXidCriticalError, set); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	if r := devices[1].RegisterEvents(nvml.EventTypeDoubleBitEccError, set); r != nvml.SUCCESS {
		t.Fatal(r)
	}
	next(0, nvml.ERROR_TIMEOUT)

	// One that comes while we wait. The wait has no end of its own in this test, and
	// no child ends meanwhile, whose signal would end it too.
	const hour = 3600000
	told := make(chan nvml.EventData)
	go func() {
		e, _ := set.Wait(hour)
		told <- e
	}()
	inject := exec.Command("sh", "-c", `"$0" inject "$1" --xid 31; read line`, filepath.Join(built.root, "bin", "simgpu"), m.dir)
	in, err := inject.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := inject.Start(); err != nil {
		t.Fatal(err)
	}
	is(<-told, devices[0], nvml.EventTypeXidCriticalError, 31)
	in.Close()
	_ = inject.Wait()

	// The other GPU is registered for ECC errors alone.
	m.inject("--gpu", "1", "--xid", "48", "--double-bit")
	is(next(hour, nvml.SUCCESS), devices[1], nvml.EventTypeDoubleBitEccError, 0)
	next(0, nvml.ERROR_TIMEOUT)

	// Many: the newest are kept, in order.
	for i := 1; i <= 70; i++ {
		m.inject("--xid", strconv.Itoa(i))
	}
	for i := 7; i <= 70; i++ {
		is(next(hour, nvml.SUCCESS), devices[0], nvml.EventTypeXidCriticalError, uint64(i))
	}

	// A lost GPU: what came before is told, then it is the whole set's error.
	m.inject("--xid", "79", "--lost", "on")
	is(next(hour, nvml.SUCCESS), devices[0], nvml.EventTypeXidCriticalError, 79)
	next(hour, nvml.ERROR_GPU_IS_LOST)
	m.inject("--lost", "off")
	next(0, nvml.ERROR_TIMEOUT)

	m.inject("--no-events", "on")
	if types, r := devices[0].GetSupportedEventTypes(); types != 0 || r != nvml.SUCCESS {
		t.Errorf("supported are %x, %v", types, r)
	}
	if r := devices[0].RegisterEvents(nvml.EventTypeXidCriticalError, set); r != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("RegisterEvents: %v", r)
	}
}

// TestAHangingGPU keeps its own callers until it is over, and nobody else's.
func TestAHangingGPU(t *testing.T) {
	m := newMachine(t, "--gpus", "2")
	_, devices := m.openNVML()
	m.inject("--gpu", "1", "--hang", "on")
	over := make(chan nvml.Return)
	go func() {
		_, r := devices[1].GetMemoryInfo()
		over <- r
	}()
	if _, r := devices[0].GetMemoryInfo(); r != nvml.SUCCESS {
		t.Error(r)
	}
	select {
	case r := <-over:
		t.Fatalf("it did not hang: %v", r)
	default:
	}
	m.inject("--gpu", "1", "--clear")
	if r := <-over; r != nvml.SUCCESS {
		t.Error(r)
	}
}
