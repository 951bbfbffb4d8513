// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"encoding/hex"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

const mib = 1 << 20

// newMachine makes a simulated machine of n GPUs with 1 GiB each.
func newMachine(t *testing.T, n int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "machine")
	if err := run(filepath.Join(simulated, "bin", "simgpu"), "create", "--gpus", fmt.Sprint(n), "--memory", "1Gi", "--model", "Test GPU", dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// listed is what the program devices says of a GPU.
type listed struct {
	facts string // UUID, PCI bus id, minor number, ECC: what stays real
	name  string // with the index before
}

func (l listed) uuid() (u [16]byte) {
	text, _, _ := strings.Cut(strings.TrimPrefix(l.facts, "GPU-"), " ")
	b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err != nil || len(b) != 16 {
		panic("no UUID in " + l.facts)
	}
	return [16]byte(b)
}

func list(lines []string) (gpus []listed) {
	for i := 1; i+1 < len(lines); i += 2 {
		gpus = append(gpus, listed{lines[i], lines[i+1]})
	}
	return gpus
}

// gpusOf lists the GPUs of a machine as the simulated NVML alone shows them.
func gpusOf(t *testing.T, machine string) []listed {
	t.Helper()
	return list(bare(t, machine, "devices").all())
}

func words(gpus ...listed) (args []string) {
	for _, g := range gpus {
		args = append(args, strings.Fields(g.facts)[:2]...)
	}
	return args
}

func TestOnlyTheVGPUsDevicesAreThere(t *testing.T) {
	m := newMachine(t, 4)
	all := gpusOf(t, m)
	if len(all) != 4 {
		t.Fatalf("%v", all)
	}
	for _, tc := range []struct {
		name   string
		bound  []int // as vgpud names them
		order  []int // as NVML numbers them
		others []int
	}{
		{"the first of them", []int{0}, []int{0}, []int{1, 2, 3}},
		{"another one", []int{2}, []int{2}, []int{0, 1, 3}},
		{"two, in the order of the machine", []int{3, 1}, []int{1, 3}, []int{0, 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := newVgpud(t)
			for _, i := range tc.bound {
				v.gpus = append(v.gpus, all[i].uuid())
			}
			var foreign []listed
			for _, i := range tc.others {
				foreign = append(foreign, all[i])
			}
			lines := start(t, v, m, append([]string{"devices"}, words(foreign...)...)...).all()
			if want := fmt.Sprintf("count %d", len(tc.bound)); lines[0] != want {
				t.Errorf("%q, want %q", lines[0], want)
			}
			got := list(lines)
			for i, real := range tc.order {
				if got[i].facts != all[real].facts {
					t.Errorf("device %d is %q, want %q", i, got[i].facts, all[real].facts)
				}
				if want := fmt.Sprintf("%d Test GPU (vGPU)", i); got[i].name != want {
					t.Errorf("device %d is called %q, want %q", i, got[i].name, want)
				}
			}
			// The last shutdown hangs up.
			v.settles(0)
		})
	}
}

func TestInitAsksNothingAndACountBindsNothing(t *testing.T) {
	m := newMachine(t, 2)
	v := newVgpud(t, gpusOf(t, m)[1].uuid())
	p := start(t, v, m, "inert")
	p.Expect("initialised")
	if ever := v.ever(); ever != 0 {
		t.Errorf("%d connections after nvmlInit", ever)
	}
	p.GoOn()
	p.Expect("counted 1")
	if q := v.questions(); fmt.Sprint(q) != "[tell]" {
		t.Errorf("for a count vgpud was asked %v", q)
	}
	p.GoOn()
	p.Expect("found")
	if q := v.questions(); fmt.Sprint(q) != "[bind]" {
		t.Errorf("for a handle vgpud was asked %v", q)
	}
	v.settles(1) // the count's is hung up
	p.GoOn()
	p.Expect("shut down")
	v.settles(0)
	p.GoOn()
	p.Done()
	// The witness: nobody has called the driver.
	log, err := exec.Command(filepath.Join(simulated, "bin", "simgpu"), "log", m).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(log), "seq") || strings.Contains(string(log), "\tcu") {
		t.Errorf("%v: %s", err, log)
	}
}

func TestMemoryIsTheVGPUs(t *testing.T) {
	m := newMachine(t, 1)
	gpu := gpusOf(t, m)[0].uuid()
	for _, tc := range []struct {
		name              string
		limit, used       uint64
		total, uses, free uint64
	}{
		{"a limit", 400 * mib, 100 * mib, 400 * mib, 100 * mib, 300 * mib},
		{"all of the GPU", 1024 * mib, 0, 1024 * mib, 0, 1024 * mib},
		{"a limit larger than the GPU", 4096 * mib, 24 * mib, 1024 * mib, 24 * mib, 1000 * mib},
		{"more used than the limit", 100 * mib, 130 * mib, 100 * mib, 100 * mib, 0},
		{"absurd numbers", 1<<64 - 1, 1<<64 - 1, 1024 * mib, 1024 * mib, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := newVgpud(t, gpu)
			v.set(gpu, usage{limit: tc.limit, used: tc.used})
			lines := start(t, v, m, "memory").all()
			for i, version := range []string{"v1", "v2"} {
				if want := fmt.Sprintf("%s %d %d %d", version, tc.total, tc.uses, tc.free); lines[i] != want {
					t.Errorf("%q, want %q", lines[i], want)
				}
			}
		})
	}
}

func processes(n int) (list []wire.Process) {
	for i := range n {
		list = append(list, wire.Process{PID: uint32(i + 1), Bytes: uint64(i+1) * 1000})
	}
	return list
}

func TestProcessesAreTheVGPUs(t *testing.T) {
	m := newMachine(t, 1)
	gpu := gpusOf(t, m)[0].uuid()
	for _, n := range []int{0, 1, 16, 17, 40} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			v := newVgpud(t, gpu)
			v.set(gpu, usage{limit: mib, processes: processes(n)})
			var want []string
			for _, version := range []string{"", "_v2", "_v3"} {
				want = append(want, fmt.Sprintf("nvmlDeviceGetComputeRunningProcesses%s %d", version, n))
				for i := range min(n, 2) {
					want = append(want, fmt.Sprintf("%d %d", i+1, (i+1)*1000))
				}
			}
			for _, name := range []string{"Graphics", "Graphics_v2", "Graphics_v3", "MPSCompute", "MPSCompute_v3"} {
				kind, version, _ := strings.Cut(name, "_")
				if version != "" {
					version = "_" + version
				}
				want = append(want, fmt.Sprintf("nvmlDeviceGet%sRunningProcesses%s 0", kind, version))
			}
			want = append(want, fmt.Sprintf("detail 0 %d", n), "detail 1 0")
			if got := start(t, v, m, "processes").all(); strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

func TestMoreProcessesAreAnnouncedThanCome(t *testing.T) {
	m := newMachine(t, 1)
	gpu := gpusOf(t, m)[0].uuid()
	v := newVgpud(t, gpu)
	v.announced = 1 << 63
	v.set(gpu, usage{limit: mib, used: 7, processes: processes(3)})
	p := start(t, v, m, "absence")
	p.Expect("initialised")
	p.GoOn()
	p.Expect("used 7 by 3")
}

func TestUtilisationIsTheHeldTime(t *testing.T) {
	m := newMachine(t, 1)
	gpu := gpusOf(t, m)[0].uuid()
	for held, want := range map[uint64]string{0: "0 0", 4000: "0 0", 250_000: "25 0", 999_999: "100 0", 1 << 40: "100 0"} {
		v := newVgpud(t, gpu)
		v.set(gpu, usage{limit: mib, heldPPM: held})
		if got := start(t, v, m, "utilisation").all(); got[0] != want {
			t.Errorf("%d ppm: %q, want %q", held, got[0], want)
		}
	}
}

func uuidOf(b byte) (u [16]byte) {
	for i := range u {
		u[i] = b
	}
	return u
}

func TestNoListLeadsToOthers(t *testing.T) {
	for _, lost := range []string{"", "1"} {
		if lost != "" {
			t.Setenv("FAKE_LOST", lost)
		}
		v := newVgpud(t, uuidOf(4), uuidOf(2))
		v.set(uuidOf(2), usage{limit: mib, heldPPM: 200_000})
		p := startOver(t, v, filepath.Join(built, "fake.so"), "/nowhere", "nearby")
		p.Expect("20 10") // of the GPU's 80 and 40
		p.Done()
	}
}

func TestForkedChildrenAskForThemselves(t *testing.T) {
	m := newMachine(t, 1)
	gpu := gpusOf(t, m)[0].uuid()
	v := newVgpud(t, gpu)
	v.set(gpu, usage{limit: 9, used: 1})
	p := start(t, v, m, "forks")
	p.Expect("parent 1")
	v.set(gpu, usage{limit: 9, used: 2})
	p.GoOn()
	p.Expect("child 2")
	v.settles(2)
	p.GoOn()
	p.Expect("parent 2")
	v.settles(1)
	v.set(gpu, usage{limit: 9, used: 3})
	p.GoOn()
	p.Expect("clone 3")
	v.settles(2)
	p.GoOn()
	p.Expect("parent 3")
	p.GoOn()
	p.Expect("shut down")
	v.settles(0)
	p.GoOn()
	p.Done()
}

func TestSixtyFourThreads(t *testing.T) {
	m := newMachine(t, 1)
	gpu := gpusOf(t, m)[0].uuid()
	v := newVgpud(t, gpu)
	v.set(gpu, usage{limit: 1000000000, used: 123000000, processes: processes(40)})
	start(t, v, m, "crowd").Done()
	if ever := v.ever(); ever > 3 { // one that counts, one that binds
		t.Errorf("%d connections", ever)
	}
}

func TestVgpudIsAway(t *testing.T) {
	m := newMachine(t, 1)
	gpu := gpusOf(t, m)[0].uuid()
	v := newVgpud(t, gpu)
	v.set(gpu, usage{limit: 9, used: 1, processes: processes(1)})
	v.away()
	p := start(t, v, m, "absence")
	p.Expect("initialised")
	p.GoOn()
	p.Says("vgpud does not answer at /.vgpu/sock; waiting for it")
	p.Silent()
	v.back()
	p.Expect("used 1 by 1")
	// Once told, it answers what it was told last.
	v.away()
	v.set(gpu, usage{limit: 9, used: 2, processes: processes(2)})
	for range 2 {
		p.GoOn()
		p.Expect("used 1 by 1")
	}
	v.back()
	v.questions()
	p.GoOn()
	p.Expect("used 2 by 2")
	// What it was told is to stay so: the new vgpud binds it again.
	if q := v.questions(); q[0] != "bind" {
		t.Errorf("the new vgpud was asked %v", q)
	}
}

// A vgpud that stands still is not waited for by each question of a program that
// looks every second.
func TestAVgpudThatStandsStillIsAskedNowAndThen(t *testing.T) {
	m := newMachine(t, 1)
	gpu := gpusOf(t, m)[0].uuid()
	v := newVgpud(t, gpu)
	v.set(gpu, usage{limit: 9, used: 1, processes: processes(1)})
	p := start(t, v, m, "absence")
	p.Expect("initialised")
	p.GoOn()
	p.Expect("used 1 by 1")
	speak := func(mute bool) {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.mute = mute
	}
	speak(true)
	for range 4 {
		p.GoOn()
		p.Expect("used 1 by 1")
	}
	if ever := v.ever(); ever > 3 {
		t.Errorf("%d connections", ever)
	}
	speak(false)
	v.set(gpu, usage{limit: 9, used: 2, processes: processes(2)})
	// It asks only when it is asked, and not before some time has passed.
	questions := time.NewTicker(10 * time.Millisecond)
	defer questions.Stop()
	for late := time.After(patience); ; {
		select {
		case <-questions.C:
		case <-late:
			t.Fatal("it is not asked again")
		}
		if p.GoOn(); p.Line() == "used 2 by 2" {
			break
		}
	}
}

func TestAWaitForABindCanBeInterrupted(t *testing.T) {
	m := newMachine(t, 1)
	v := newVgpud(t, gpusOf(t, m)[0].uuid())
	v.slow = true
	p := start(t, v, m, "interrupted")
	p.Says("vgpu: waiting for a GPU: all are taken")
	p.GoOn()
	p.Expect("asked")
	p.Silent()
	v.bind()
	p.Expect("found")
	p.Done()
}

func TestAVGPUThatIsElsewhereIsNoAnswer(t *testing.T) {
	m := newMachine(t, 2)
	gpus := gpusOf(t, m)
	v := newVgpud(t, gpus[0].uuid())
	p := start(t, v, m, "moved")
	p.Expect("0")
	v.mu.Lock()
	v.gpus = [][16]byte{gpus[1].uuid()}
	v.mu.Unlock()
	p.GoOn()
	// The same connection stands, and vgpud says that the GPU is not the vGPU's.
	p.Expect("23")
	v.away()
	v.back()
	p.GoOn()
	// A new connection is told who the vGPU is now.
	p.Expect("2 0")
	p.Done()
}

func TestARefusalIsAnErrorAndSaid(t *testing.T) {
	m := newMachine(t, 1)
	v := newVgpud(t, gpusOf(t, m)[0].uuid())
	v.refuse = &wire.Msg{Type: wire.Refused, Code: wire.ErrNoGPU}
	copy(v.refuse.Text[:], "no GPU has 8Gi left")
	p := start(t, v, m, "refused")
	p.Expect("count 1")
	p.Expect("23 23") // NVML_ERROR_INSUFFICIENT_RESOURCES
	p.Done()
	if got := p.Stderr.String(); got != "vgpu: vgpud refused: no GPU has 8Gi left\n" {
		t.Errorf("stderr: %q", got)
	}
}

// Who is refused does not see the node's own number either.
func TestARefusedCountIsNotTheNodes(t *testing.T) {
	m := newMachine(t, 4)
	v := newVgpud(t, gpusOf(t, m)[0].uuid())
	v.refuse, v.refuseAll = &wire.Msg{Type: wire.Refused, Code: wire.ErrRemoved}, true
	p := start(t, v, m, "refused", "all")
	p.Expect("count 77")
	p.Expect("999 999") // NVML_ERROR_UNKNOWN
	p.Done()
}

// A program that closes what it did not open does not cut its connection.
func TestDescriptorsAreOutOfTheWay(t *testing.T) {
	m := newMachine(t, 1)
	gpu := gpusOf(t, m)[0].uuid()
	v := newVgpud(t, gpu)
	v.set(gpu, usage{limit: 9, used: 1})
	start(t, v, m, "descriptors").Done()
	if ever := v.ever(); ever != 1 {
		t.Errorf("%d connections", ever)
	}
}
