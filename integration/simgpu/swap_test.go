// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// swapper is the program swap.
type swapper struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (m *machine) swapper(bytes int) *swapper {
	m.t.Helper()
	cmd := m.command(true, "swap", strconv.Itoa(bytes))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	s := &swapper{m.t, cmd, in, bufio.NewReader(out)}
	m.t.Cleanup(s.end)
	if said := s.line(); said != "running" {
		m.t.Fatalf("swap said %q", said)
	}
	return s
}

func (s *swapper) line() string {
	s.t.Helper()
	line, err := s.out.ReadString('\n')
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// computes once, and says how long that took.
func (s *swapper) computes() time.Duration {
	s.t.Helper()
	fmt.Fprintln(s.in)
	us, err := strconv.Atoi(s.line())
	if err != nil {
		s.t.Fatal(err)
	}
	return time.Duration(us) * time.Microsecond
}

func (s *swapper) end() {
	s.in.Close()
	_ = s.cmd.Wait()
}

// TestManagedMemoryMoves: two have 200 MiB each of a GPU of 256, with 16 for the context
// and 2 for the module of each. Who computes has its own there, and waits for that at
// 1 GiB a second; the other keeps what there is room for.
func TestManagedMemoryMoves(t *testing.T) {
	const mib = 1 << 20
	m := newMachine(t, "--gpus", "1", "--memory", "256Mi", "--context-memory", "16Mi", "--swap-rate", "1Gi")
	_, devices := m.openNVML()
	a, b := m.swapper(200*mib), m.swapper(200*mib)
	on := func(s *swapper) int {
		t.Helper()
		processes, _ := devices[0].GetComputeRunningProcesses()
		for _, p := range processes {
			if int(p.Pid) == s.cmd.Process.Pid {
				return int(p.UsedGpuMemory) / mib
			}
		}
		t.Fatalf("%d is not among %v", s.cmd.Process.Pid, processes)
		return 0
	}
	are := func(when string, wantA, wantB int) {
		t.Helper()
		if gotA, gotB := on(a), on(b); gotA != wantA || gotB != wantB {
			t.Errorf("%s: %d and %d MiB, want %d and %d", when, gotA, gotB, wantA, wantB)
		}
	}
	// least is how long it takes at least to move so much.
	least := func(moved int) time.Duration { return time.Second * time.Duration(moved) / 1024 }
	are("before", 18, 18)
	if took := a.computes(); took < least(200) {
		t.Errorf("200 MiB came in %v", took)
	}
	are("a computed", 218, 18)
	if took := b.computes(); took < least(200+180) { // 20 were free
		t.Errorf("200 MiB came, for which 180 left, in %v", took)
	}
	are("b computed", 38, 218)
	b.computes()
	are("b computed again", 38, 218)
	if took := a.computes(); took < least(180+180) {
		t.Errorf("180 MiB came, for which 180 left, in %v", took)
	}
	are("a computed again", 218, 38)
	// What stays where it is drives out what can move.
	other := m.command(true, "endless", strconv.Itoa(200*mib))
	m.start(other)
	are("another allocated all that is left", 18, 18)
	_ = other.Process.Kill()
	_ = other.Wait()
	b.end()
	if took := a.computes(); took < least(200) {
		t.Errorf("200 MiB came in %v", took)
	}
	if memory, _ := devices[0].GetMemoryInfo(); memory.Used != 218*mib {
		t.Errorf("%d bytes are used", memory.Used)
	}
}
