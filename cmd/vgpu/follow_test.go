// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// running is a command that runs on.
type running struct {
	t              *testing.T
	stdout, stderr chan string // lines
	interrupt      func()
	code           chan int
}

func start(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r := &running{t: t, stdout: make(chan string, 100), stderr: make(chan string, 100), interrupt: cancel, code: make(chan int, 1)}
	lines := func(to chan string) *io.PipeWriter {
		in, out := io.Pipe()
		go func() {
			defer close(to)
			for s := bufio.NewScanner(in); s.Scan(); {
				to <- s.Text()
			}
		}()
		return out
	}
	out, err := lines(r.stdout), lines(r.stderr)
	go func() {
		code := run(ctx, args, out, err)
		out.Close()
		err.Close()
		r.code <- code
	}()
	return r
}

func (r *running) line(from chan string) string {
	r.t.Helper()
	select {
	case line, ok := <-from:
		if !ok {
			r.t.Fatal("it has ended")
		}
		return line
	case <-time.After(patience):
		r.t.Fatal("nothing came")
	}
	panic("unreachable")
}

func (r *running) ends(want int) {
	r.t.Helper()
	select {
	case code := <-r.code:
		if code != want {
			r.t.Errorf("exit code %d, want %d", code, want)
		}
	case <-time.After(patience):
		r.t.Fatal("it does not end")
	}
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case item := <-from:
		return item
	case <-time.After(patience):
		t.Fatal("nothing came")
	}
	panic("unreachable")
}

const epoch = "00000000000000aa"

func event(sequence uint64) *v1.Event {
	return &v1.Event{
		Sequence: sequence, Epoch: epoch, At: when, Type: "BOUND", Vgpu: "0123456789abcdef", Gpus: []string{"GPU-1"},
		Container: &v1.Container{Containerd: "/c.sock", Namespace: "default", Id: "train"},
	}
}

// all is one event of each kind.
func all() []*v1.Event {
	changed := event(44)
	changed.Type, changed.Gpus, changed.Changes = "CHANGED", nil, map[string]string{"vgpu-shim.dev/weight": "8", "vgpu-shim.dev/max-share": ""}
	return []*v1.Event{
		event(42),
		{Sequence: 43, Epoch: epoch, At: when, Type: "GPU_DOWN", Gpus: []string{"GPU-1"}, Reason: "fell off the bus"},
		changed,
		{Sequence: 45, Epoch: epoch, At: when, Type: "POLICY", Policy: &v1.Policy{Name: "average", Slots: 4}},
		{Sequence: 46, Epoch: epoch, At: when, Type: "RESYNC"},
	}
}

func TestEventsAreTold(t *testing.T) {
	for _, tc := range []struct {
		file string
		args []string
		asks *v1.WatchRequest
	}{
		{"events.txt", nil, &v1.WatchRequest{After: 41, Epoch: epoch}}, // from now on
		{"events.json", []string{"--output", "json", "--after", "7"}, &v1.WatchRequest{After: 7}},
		{"events.txt", []string{"-o", "text", "--after", "0", "--epoch", "00000000000000bb"}, &v1.WatchRequest{Epoch: "00000000000000bb"}},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			events, watched := make(chan *v1.Event, 10), make(chan *v1.WatchRequest, 1)
			r := start(t, append([]string{"events", "--address", serve(t, vgpud{events: events, watched: watched})}, tc.args...)...)
			if asked := receive(t, watched); !proto.Equal(asked, tc.asks) {
				t.Errorf("asked for %v, want %v", asked, tc.asks)
			}
			got := ""
			for _, ev := range all() {
				events <- ev
				got += r.line(r.stdout) + "\n" // at once, not when a buffer is full
			}
			r.interrupt()
			r.ends(0)
			if line, more := <-r.stderr; more {
				t.Errorf("it says %q", line)
			}
			file := filepath.Join("testdata", tc.file)
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s", got)
			}
		})
	}
}

func TestEventsGoOnAfterARestart(t *testing.T) {
	address := filepath.Join(t.TempDir(), "s")
	events, watched := make(chan *v1.Event, 10), make(chan *v1.WatchRequest, 10)
	end := serveAt(t, vgpud{events: events, watched: watched}, address)
	r := start(t, "events", "--address", address)
	receive(t, watched)
	events <- event(42)
	r.line(r.stdout)
	close(events)
	end()
	if got := r.line(r.stderr); got != "vgpu: vgpud went away; waiting for it" {
		t.Errorf("%q", got)
	}
	events = make(chan *v1.Event, 10)
	serveAt(t, vgpud{events: events, watched: watched}, address)
	if got := receive(t, watched); got.GetAfter() != 42 || got.GetEpoch() != epoch {
		t.Errorf("asked for %v", got)
	}
	if got := r.line(r.stderr); got != "vgpu: vgpud is back" {
		t.Errorf("%q", got)
	}
	events <- &v1.Event{Epoch: "00000000000000bb", At: when, Type: "RESYNC"}
	if got := r.line(r.stdout); !strings.Contains(got, "RESYNC") {
		t.Errorf("%q", got)
	}
	r.interrupt()
	r.ends(0)
}

// What vgpud refuses it refuses again: no reason to wait for another one.
func TestEventsThatAreRefusedAreNotWaitedFor(t *testing.T) {
	f := vgpud{watched: make(chan *v1.WatchRequest, 1), refuse: fmt.Errorf("after: 9 is above 7: %w", errdefs.ErrInvalidArgument)}
	code, stdout, stderr := vgpu(t, "events", "--after", "9", "--address", serve(t, f))
	if code != 1 || stdout != "" || !strings.HasPrefix(stderr, "vgpu: failed to follow the events: after: 9 is above 7") || strings.Contains(stderr, "waiting") {
		t.Errorf("exit code %d: %s%s", code, stderr, stdout)
	}
}

// ttrpc gives a stream up if its reader takes nothing for a second, as when the
// output is a pipe that is full. What is missing then is asked for anew.
func TestASlowReaderIsNoRestart(t *testing.T) {
	a := &app{address: serve(t, vgpud{}), timeout: patience}
	var stderr strings.Builder
	times := 0
	err := a.follow(t.Context(), &stderr, "follow", func(context.Context, v1.ControlClient, *v1.InfoResponse) error {
		if times++; times == 1 {
			return ttrpc.ErrStreamFull
		}
		return errDone
	})
	if err != nil || times != 2 || stderr.Len() > 0 {
		t.Errorf("%d times, %v: %s", times, err, stderr.String())
	}
}

// closedPipe is the output of vgpu events | head -1, once head has ended.
type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}
}

func TestWhoReadsTheOutputMayEndWhileNothingHappens(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	watched, code := make(chan *v1.WatchRequest, 1), make(chan int, 1)
	address := serve(t, vgpud{watched: watched})
	go func() { code <- run(t.Context(), []string{"events", "--address", address}, out, io.Discard) }()
	receive(t, watched)
	in.Close()
	if got := receive(t, code); got != 0 {
		t.Errorf("exit code %d", got)
	}
}

// brokenDisk is an output that can not be written for another reason.
type brokenDisk struct{}

func (brokenDisk) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

func TestWhoReadsTheOutputMayEnd(t *testing.T) {
	for _, tc := range []struct {
		out  io.Writer
		code int
		says string
	}{{closedPipe{}, 0, ""}, {brokenDisk{}, 1, "the disk is full"}} {
		for _, output := range []string{"json", "text"} {
			events := make(chan *v1.Event, 1)
			events <- event(42)
			var stderr strings.Builder
			code := run(t.Context(), []string{"events", "-o", output, "--address", serve(t, vgpud{events: events, watched: make(chan *v1.WatchRequest, 1)})}, tc.out, &stderr)
			if code != tc.code || !strings.Contains(stderr.String(), tc.says) || tc.says == "" && stderr.Len() > 0 {
				t.Errorf("%T as %s: exit code %d: %s", tc.out, output, code, stderr.String())
			}
		}
	}
}

func lists(f vgpud, change ...func(*v1.GPU)) chan *v1.WatchGPUsResponse {
	c := make(chan *v1.WatchGPUsResponse, len(change))
	for _, fn := range change {
		g := f.gpu(2)
		fn(g)
		c <- &v1.WatchGPUsResponse{Gpus: []*v1.GPU{f.gpu(1), g}}
	}
	return c
}

func TestGPUsAreWatched(t *testing.T) {
	free := func(g *v1.GPU) { g.State, g.Reason, g.Cordon = "FREE", "", "" }
	same := func(*v1.GPU) {}
	r := start(t, "gpus", "--watch", "--output", "json", "--address", serve(t, vgpud{lists: lists(vgpud{}, same, free)}))
	for _, state := range []string{"CORDONED", "FREE"} {
		var all []gpuJSON
		if err := json.Unmarshal([]byte(r.line(r.stdout)), &all); err != nil || len(all) != 2 || all[1].State != state {
			t.Errorf("%v %v", all, err)
		}
	}
	r.interrupt()
	r.ends(0)

	r = start(t, "gpus", "-w", "--address", serve(t, vgpud{lists: lists(vgpud{}, same, free)}))
	var got []string
	for range 8 {
		got = append(got, strings.SplitN(r.line(r.stdout), " ", 2)[0])
	}
	if want := "GPU,GPU-1,GPU-22,GPU-22:,,GPU,GPU-1,GPU-22"; strings.Join(got, ",") != want {
		t.Errorf("%q", got)
	}
	r.interrupt()
	r.ends(0)
}

func TestADrainWaitsUntilNobodyIsLeft(t *testing.T) {
	two := func(g *v1.GPU) { g.Vgpus = []string{"0123456789abcdef", "1111111111111111"} }
	one := func(g *v1.GPU) { g.Vgpus = []string{"0123456789abcdef"} }
	none := func(*v1.GPU) {}
	changed := make(chan proto.Message, 1)
	f := vgpud{changed: changed, lists: lists(vgpud{}, two, two, one, none)}
	code, stdout, stderr := vgpu(t, "gpus", "drain", "GPU-2", "--wait", "--reason", "fan", "--address", serve(t, f), "-o", "json")
	const says = `2 left on GPU-22: 0123456789abcdef (default/train), 1111111111111111
1 left on GPU-22: 0123456789abcdef (default/train)
`
	var all []gpuJSON
	err := json.Unmarshal([]byte(stdout), &all)
	if code != 0 || stderr != says || err != nil || len(all) != 1 || all[0].UUID != "GPU-22" || len(all[0].VGPUs) != 0 {
		t.Errorf("exit code %d: %s%s (%v)", code, stderr, stdout, err)
	}
	if r := <-changed; !proto.Equal(r, &v1.DrainGPURequest{Uuid: "GPU-22", Reason: "fan"}) {
		t.Errorf("asked for %v", r)
	}

	f.lists = lists(vgpud{}, two, func(g *v1.GPU) { g.State, g.Cordon = "FREE", "" })
	if code, stdout, stderr := vgpu(t, "gpus", "drain", "GPU-22", "--wait", "--address", serve(t, f)); code != 1 || stdout != "" ||
		!strings.HasSuffix(stderr, "vgpu: the cordon of GPU-22 was lifted meanwhile; vGPUs there: 0\n") {
		t.Errorf("exit code %d: %s%s", code, stderr, stdout)
	}
	<-changed

	f.lists = lists(vgpud{}, two)
	r := start(t, "gpus", "drain", "GPU-22", "--wait", "--address", serve(t, f))
	r.line(r.stderr)
	r.interrupt()
	if got := r.line(r.stderr); got != "vgpu: stopped waiting; GPU-22 stays cordoned" {
		t.Error(got)
	}
	r.ends(1)
}

func TestGPUsAreChanged(t *testing.T) {
	changed := make(chan proto.Message, 1)
	address := serve(t, vgpud{changed: changed, stays: "MIG is on"})
	for _, tc := range []struct {
		args           string
		asks           proto.Message
		stdout, stderr string
	}{
		{"gpus cordon GPU-22 --reason fan", &v1.CordonGPURequest{Uuid: "GPU-22", Reason: "fan"}, "GPU-22: cordoned by the operator: fan\n", ""},
		{"gpus cordon GPU-1", &v1.CordonGPURequest{Uuid: "GPU-1"}, "CORDONED", ""},
		{"gpus uncordon GPU-2", &v1.UncordonGPURequest{Uuid: "GPU-22"}, "CORDONED", "vgpu: the operator's cordon is lifted; GPU-22 stays cordoned: MIG is on\n"},
		{
			"gpus drain GPU-22", &v1.DrainGPURequest{Uuid: "GPU-22"},
			"GPU-22: cordoned by the operator: fan\n2 left on GPU-22: 0123456789abcdef (default/train), 1111111111111111\n", "",
		},
		{"policy native", &v1.SetPolicyRequest{Policy: "native"}, "node    fair       -\nGPU-1   average/4  this GPU\nGPU-22  fair       the node\n", ""},
		{"policy average --slots 7 --gpu GPU-2", &v1.SetPolicyRequest{Gpu: "GPU-22", Policy: "average", Slots: 7}, "node    fair    -\nGPU-22  fair    the node\n", ""},
	} {
		code, stdout, stderr := vgpu(t, append(strings.Fields(tc.args), "--address", address)...)
		if code != 0 || !strings.Contains(stdout, tc.stdout) || stderr != tc.stderr {
			t.Errorf("%s: exit code %d: %s%s", tc.args, code, stderr, stdout)
		}
		if r := <-changed; !proto.Equal(r, tc.asks) {
			t.Errorf("%s: asked for %v", tc.args, r)
		}
	}
	for args, says := range map[string]string{
		"gpus cordon GPU-3":       `no GPU "GPU-3"`,
		"gpus drain GPU-":         `"GPU-" could be any of the GPUs GPU-1, GPU-22`,
		"policy fair --gpu GPU-3": `no GPU "GPU-3"`,
		"policy unfair":           "failed to choose the policy: policy: must be one of those",
		"get nobody":              `no vGPU "nobody"`,
	} {
		if code, stdout, stderr := vgpu(t, append(strings.Fields(args), "--address", address)...); code != 1 || stdout != "" || !strings.Contains(stderr, says) {
			t.Errorf("%s: exit code %d: %s%s", args, code, stderr, stdout)
		}
	}
	if len(changed) > 0 {
		t.Errorf("asked for %v", <-changed)
	}
}

func TestDetailsForPeople(t *testing.T) {
	address := serve(t, vgpud{})
	for args, lines := range map[string][]string{
		"get 0123": {
			"vGPU            0123456789abcdef\n", "container       train\n", "memory          1.0 GiB\n", "max share       0.5\n",
			"policy          fair\n", "overrun         freeze\n", "gang            ranks\n", "models          Test\n", "UUIDs           GPU-1\n", "bind            early\n", "when full       fail\n", "turns           7, of them drained 2, overrun 1\n", "lingered        1ms\n", "note            3 calls could not be gated\n",
		},
		"get web": {"memory          none reserved\n", "min share       none\n", "gang            none\n", "UUIDs           any\n", "GPUs            none yet\n", "note            no room\n"},
		"stats": {
			"turns              70, of them drained 20, overrun 1\n", "GPU-1              3 hand-overs, median 25µs, p99 90µs, max 1ms\n", "GPU-22             no hand-over\n",
			"events             41, missed by readers 4\n", "log lines dropped  5\n", "store writes       9, failed 2\n", "memory             20.0 MiB\n",
		},
	} {
		code, stdout, stderr := vgpu(t, append(strings.Fields(args), "--address", address)...)
		if code != 0 || stderr != "" {
			t.Errorf("%s: exit code %d: %s", args, code, stderr)
		}
		for _, line := range lines {
			if !strings.Contains(stdout, line) {
				t.Errorf("%s: %q is not in\n%s", args, line, stdout)
			}
		}
	}
}

func TestEveryCommandIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range command().Commands() {
		for _, c := range append(c.Commands(), c) {
			name := c.CommandPath()
			if c.Short == "" || (c.Long == "") != (name == "vgpu version") {
				t.Errorf("%s --help says nothing", name)
			}
			if !strings.Contains(string(doc), "    "+name+" ") {
				t.Errorf("docs/cli.md does not know %s", name)
			}
			for _, flag := range regexp.MustCompile(`--[a-z]+`).FindAllString(c.LocalNonPersistentFlags().FlagUsages(), -1) {
				if flag != "--help" && !strings.Contains(string(doc), flag) {
					t.Errorf("docs/cli.md does not know %s %s", name, flag)
				}
			}
		}
	}
}

func TestWhatCanBeSetIsDocumented(t *testing.T) {
	_, help, _ := vgpu(t, "set", "--help")
	all, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, doc, _ := strings.Cut(string(all), "\n## `vgpu set`\n")
	doc, _, _ = strings.Cut(doc, "\n## ")
	for _, key := range request.LiveKeys() {
		if !strings.Contains(help, key) {
			t.Errorf("vgpu set --help does not know %s", key)
		}
		if !strings.Contains(doc, "`"+key+"`") {
			t.Errorf("docs/cli.md does not know vgpu set %s", key)
		}
	}
}
