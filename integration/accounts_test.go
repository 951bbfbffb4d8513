// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// What vgpu ps tells never gets less, though vgpud is killed in the middle of a
// turn again and again; in the end that turn was accounted from its real start,
// and is what the simulated GPU itself has seen.
func TestAccountsOverKill(t *testing.T) {
	t.Parallel()
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: harness.DaemonOptions{LogLevel: "trace"}})
	// It keeps its queue full, even on a busy machine. A container whose program
	// ended still has its vGPU.
	hog := n.Launch(harness.Spec{ID: "hog", Args: []string{
		"sh", "-c", "hog --ms 0 --kernel-us 5000 --depth 40; exec sleep 100000",
	}})
	n.Says(hog, "running")
	var held time.Duration
	var submissions uint64
	look := func() {
		t.Helper()
		v, err := n.VGPU("hog")
		if err != nil {
			t.Fatal(err)
		}
		u := v.GetUsage()
		if u.GetHeld().AsDuration() < held || u.GetSubmissions() < submissions {
			t.Errorf("it had held the GPU for %v with %d submissions, and now %v", held, submissions, u)
		}
		held, submissions = u.GetHeld().AsDuration(), u.GetSubmissions()
	}
	for range 3 {
		look()
		if err := n.Daemon.Process().Kill(); err != nil {
			t.Fatal(err)
		}
		if err := n.Daemon.Start(n.Ctx); err != nil {
			t.Fatal(err)
		}
		// It is seen to go on.
		n.Wait(func() error {
			before := held
			if look(); held == before {
				return errNotYet
			}
			return nil
		})
	}
	// Long enough for half a per cent of it to be more than what it takes to look.
	n.Wait(func() error {
		if look(); held < 2*time.Second {
			return errNotYet
		}
		return nil
	})
	if err := syscall.Kill(n.child(hog), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	n.Wait(func() error {
		if v, err := n.VGPU("hog"); err != nil || v.GetClients() != 0 {
			return fmt.Errorf("it still runs: %v, %w", v, err)
		}
		return nil
	})
	look()

	turns, err := n.Daemon.Turns()
	if err != nil {
		t.Fatal(err)
	}
	log, err := n.Daemon.Log(n.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	first, busy, err := inFlight(log)
	if err != nil || len(turns) != 1 {
		t.Fatalf("want the work of one turn: %v, %+v", err, turns)
	}
	// Between the grant and the first submission nothing is in flight.
	if least, most := busy*995/1000, busy*1005/1000+first-turns[0].Granted; held < least || held > most {
		t.Errorf("it held the GPU for %v, want %v to %v: the simulated GPU was busy for %v", held, least, most, busy)
	}
}

// inFlight tells when work was first submitted, and for how long there was some
// in flight.
func inFlight(log []harness.Operation) (first, busy time.Duration, err error) {
	var end time.Duration
	for _, op := range log {
		if op.Class != harness.ClassWork {
			continue
		}
		if first == 0 {
			first = op.Submit
		}
		if op.End == 0 {
			err = errors.New("work that has not ended")
		}
		busy += max(op.End-max(op.Submit, end), 0)
		end = max(end, op.End)
	}
	return first, busy, err
}

// vgpu events over what happens to a container, and over a vgpud that is killed.
func TestEventsOverKill(t *testing.T) {
	t.Parallel()
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: overruns("corun")})
	events := n.follow()
	a := n.long("a")
	n.Run(harness.Spec{ID: "b", Args: []string{"vecadd"}})
	events.wait("OVERRUN", "a", 1)
	n.cli("policy", "fair")
	events.wait("POLICY", "", 1)
	before := events.all()
	if err := n.Daemon.Process().Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Daemon.Start(n.Ctx); err != nil {
		t.Fatal(err)
	}
	events.wait("RESYNC", "", 1)
	a.let(t)
	n.endsWith(a.Container, 7)
	events.wait("REMOVED", "a", 1)

	var of []string // a
	for i, ev := range before {
		if ev.Container.ID == "a" {
			of = append(of, ev.Type)
			if ev.Container.Namespace != n.Containerd.Namespace || ev.VGPU == "" {
				t.Errorf("whose event is it? %+v", ev)
			}
		}
		if ev.Sequence != uint64(i+1) || ev.Epoch != before[0].Epoch {
			t.Errorf("event %d of vgpud is %+v", i+1, ev)
		}
	}
	if got := strings.Join(of, " "); got != "CREATED BOUND OVERRUN" {
		t.Errorf("the events of a were %s", got)
	}
	after := events.all()[len(before):]
	if after[0].Type != "RESYNC" || after[0].Epoch == before[0].Epoch {
		t.Errorf("the first event of the other vgpud is %+v", after[0])
	}
	for i, ev := range after[1:] {
		if ev.Sequence != after[i].Sequence+1 || ev.Epoch != after[0].Epoch || ev.Type == "RESYNC" {
			t.Errorf("behind %+v comes %+v", after[i], ev)
		}
	}

	// Somebody who comes back so late that the numbers alone would do.
	late := n.followFrom("late", "--after", "1", "--epoch", before[0].Epoch)
	late.wait("REMOVED", "a", 1)
	if first := late.all()[0]; first.Type != "RESYNC" {
		t.Errorf("the first event for who knows another vgpud's is %+v", first)
	}
}
