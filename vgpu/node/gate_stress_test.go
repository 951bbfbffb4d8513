// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The C gate against this daemon, with quanta short enough that every path of
// the grant word is taken: threads of three vGPUs, one of them with two
// processes, submit as fast as they can, and each looks whether work of another
// vGPU is in flight (hooks/gate/testdata/stress.c). Half way through the daemon
// is killed and started again.
func TestGateAndDaemonExcludeUnderStress(t *testing.T) {
	stress := buildStress(t)
	n := newProcessNode(t, settings{quantum: time.Millisecond, drain: time.Minute, stall: never})
	runs, _ := startStress(t, n, stress, 3000)
	n.until("the clients have submitted some", func() bool {
		return n.vgpu("stress2").GetUsage().GetSubmissions() > 300
	})
	n.kill()
	n.startProcess()
	for _, run := range runs {
		out, err := run.output()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// The same without the gate finds violations: the test above can fail.
func TestStressSeesViolationsWithoutTheGate(t *testing.T) {
	stress := buildStress(t, "-DVGPU_NO_GATE")
	n := newProcessNode(t, settings{quantum: time.Millisecond, drain: time.Minute, stall: never})
	violated := false
	runs, _ := startStress(t, n, stress, 3000)
	for _, run := range runs {
		_, err := run.output()
		violated = violated || err != nil
	}
	if !violated {
		t.Error("nobody saw another vGPU's work in flight, although the gate was off")
	}
}

// The same while the clients compute without the daemon that was killed. What they
// submit once they are connected again is of its turns, and excludes each other.
func TestGateAndDaemonExcludeAfterAnAbsence(t *testing.T) {
	stress := buildStress(t, "-DABSENCE")
	n := newProcessNode(t, settings{quantum: time.Millisecond, drain: time.Minute, stall: never, absence: time.Millisecond})
	runs, w := startStress(t, n, stress, 1<<40)
	submissions := func() uint64 { return n.vgpu("stress2").GetUsage().GetSubmissions() }
	n.until("the clients have submitted some", func() bool { return submissions() > 300 })
	for range 4 {
		n.kill()
		alone := w.alone.Load()
		n.until("the clients have submitted some without vgpud", func() bool { return w.alone.Load() > alone+3000 })
		n.startProcess()
		before := submissions()
		n.until("the clients have submitted some more", func() bool { return submissions() > before+1000 })
	}
	w.stop.Store(1)
	for _, run := range runs {
		out, err := run.output()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// A thread of ours with a small stack could not be created in such a program.
func TestGateStartsInAProgramWithLargeStaticTLS(t *testing.T) {
	bin := buildStress(t, "-DLARGE_TLS")
	n := newNode(t, settings{})
	n.create("large")
	witness := filepath.Join(t.TempDir(), "witness")
	if err := os.WriteFile(witness, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(bin, n.created["large"], witness, "0", "1", "10").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

type stressRun struct {
	cmd *exec.Cmd
	out *os.File
}

func (r stressRun) output() (string, error) {
	err := r.cmd.Wait()
	b, _ := os.ReadFile(r.out.Name())
	return string(b), err
}

func buildStress(t *testing.T, flags ...string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "stress")
	gate, err := filepath.Glob("../../hooks/gate/*.c")
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-std=c11", "-O2", "-pthread", "-o", bin, "../../hooks/gate/testdata/stress.c"}, gate...)
	args = append(args, flags...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// stressWitness is struct witness of stress.c.
type stressWitness struct {
	inFlight    [64]atomic.Uint64
	alone, stop atomic.Uint64
}

func mapStressWitness(t *testing.T, path string) *stressWitness {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return (*stressWitness)(unsafe.Pointer(&mem[0]))
}

func startStress(t *testing.T, n *node, bin string, submissions int) ([]stressRun, *stressWitness) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "witness")
	w := mapStressWitness(t, path)
	var runs []stressRun
	for i, tenant := range []int{0, 1, 2, 2} {
		id := fmt.Sprintf("stress%d", tenant)
		if n.created[id] == "" {
			n.create(id)
		}
		out, err := os.Create(filepath.Join(t.TempDir(), fmt.Sprint("out", i)))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(bin, n.created[id], path, fmt.Sprint(tenant), "3", fmt.Sprint(submissions))
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); out.Close() })
		runs = append(runs, stressRun{cmd, out})
	}
	return runs, w
}
