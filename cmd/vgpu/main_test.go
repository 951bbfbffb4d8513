// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

var update = flag.Bool("update", false, "write testdata anew; look at what changes")

// vgpud answers with what a test wants to see.
type vgpud struct {
	v1.ControlService
	fail  error
	asked chan<- *v1.UpdateRequest

	changed chan<- proto.Message         // cordons and the like
	events  <-chan *v1.Event             // what Watch sends; it ends with it
	watched chan<- *v1.WatchRequest      // what Watch was asked for
	lists   <-chan *v1.WatchGPUsResponse // what WatchGPUs sends; it ends with it
	stays   string                       // a cordon that is not the operator's
	refuse  error                        // what Watch answers

	libraries []*v1.DriverLibrary
	version   string
	well      bool // nothing is wrong with a vGPU
	sick      bool // the first GPU is

	processes *v1.ListProcessesResponse // nil: it is an older vgpud
}

var when = timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC))

func (f vgpud) List(context.Context, *v1.ListRequest) (*v1.ListResponse, error) {
	if f.fail != nil {
		return nil, errgrpc.ToGRPC(f.fail)
	}
	if f.well {
		return &v1.ListResponse{}, nil
	}
	return &v1.ListResponse{Vgpus: []*v1.VGPU{
		{
			Id: "0123456789abcdef", Container: &v1.Container{Containerd: "/c.sock", Namespace: "default", Id: "train"},
			State: "HOLDING", Gpus: []string{"GPU-1"}, Count: 1, MemoryBytes: 1 << 30, Weight: 100, MinShare: .25, MaxShare: .5, Priority: "normal",
			Quantum: durationpb.New(2 * time.Second), Swap: durationpb.New(20 * time.Millisecond), Clients: 2, Created: when,
			Usage: &v1.Usage{
				Held: durationpb.New(1234567 * time.Microsecond), Waited: durationpb.New(3 * time.Millisecond),
				Turns: 7, Drains: 2, Overruns: 1, Submissions: 99, Lingered: durationpb.New(time.Millisecond),
			},
			Rubbish: 1, Ungated: 3, UnknownNames: 2, Policy: "fair",
			Gang: "ranks", Model: "Test", Uuids: []string{"GPU-1"}, Bind: "early", WhenFull: "fail", Overrun: "freeze",
			Memory: []*v1.Memory{{Gpu: "GPU-1", LimitBytes: 1 << 30, UsedBytes: 256 << 20}}, Observers: 1,
			Pod: &v1.Pod{Namespace: "ml", Name: "train-0", Uid: "1-2-3", Container: "main"},
		},
		{Id: "fedcba9876543210", Container: &v1.Container{Namespace: "k8s.io", Id: "web"}, State: "UNBOUND", Count: 1, Created: when, Reason: "no room", Observers: 2, Guests: []*v1.Guest{{Gpu: "GPU-1", Vgpu: "0123456789abcdef"}}},
	}}, nil
}

func (f vgpud) ListProcesses(context.Context, *v1.ListProcessesRequest) (*v1.ListProcessesResponse, error) {
	if f.processes == nil {
		return nil, status.Error(codes.Unimplemented, "method ListProcesses")
	}
	return f.processes, nil
}

func (f vgpud) Update(ctx context.Context, r *v1.UpdateRequest) (*v1.UpdateResponse, error) {
	if r.GetAnnotations()["vgpu-shim.dev/weight"] == "0" {
		return nil, errgrpc.ToGRPC(fmt.Errorf("must be a whole number: %w", errdefs.ErrInvalidArgument))
	}
	f.asked <- r
	list, err := f.List(ctx, nil)
	return &v1.UpdateResponse{Vgpu: list.GetVgpus()[0]}, err
}

func (f vgpud) ListGPUs(context.Context, *v1.ListGPUsRequest) (*v1.ListGPUsResponse, error) {
	return &v1.ListGPUsResponse{Gpus: []*v1.GPU{f.gpu(1), f.gpu(2)}}, nil
}

// gpu is the first or the second GPU; the second one is cordoned.
func (f vgpud) gpu(n int) *v1.GPU {
	if n == 1 {
		free := uint64(10 << 30)
		if f.sick {
			return &v1.GPU{Uuid: "GPU-1", State: "UNHEALTHY", Reason: "Xid 79"}
		}
		return &v1.GPU{
			Uuid: "GPU-1", Model: "Test", MemoryBytes: 16 << 30, PciBusId: "0000:01:00.0", State: "HELD", Holder: "0123456789abcdef",
			Bound: 2, Pending: 1, Held: durationpb.New(time.Second), Turns: 7, Handover: handover(),
			Policy: &v1.Policy{Name: "average", Slots: 4}, OwnPolicy: true, Vgpus: []string{"0123456789abcdef"},
			MemoryReservedBytes: 1 << 30, MemoryFreeBytes: &free, MemoryUsedBytes: 256 << 20,
		}
	}
	return &v1.GPU{
		Uuid: "GPU-22", Model: "Test", MemoryBytes: 16 << 30, PciBusId: "0000:02:00.0", State: "CORDONED",
		Reason: "cordoned by the operator: fan", Cordon: "cordoned by the operator: fan", Policy: &v1.Policy{Name: "fair"},
	}
}

func handover() *v1.Latency {
	return &v1.Latency{Count: 3, Median: durationpb.New(25 * time.Microsecond), P99: durationpb.New(90 * time.Microsecond), Max: durationpb.New(time.Millisecond)}
}

func (f vgpud) Info(context.Context, *v1.InfoRequest) (*v1.InfoResponse, error) {
	return &v1.InfoResponse{
		Version: cmp.Or(f.version, "v1"), Commit: "abc", Source: "sim:1", DriverVersion: "999.10", Protocol: 1, Started: when,
		Epoch: "00000000000000aa", Sequence: 41, Policy: &v1.Policy{Name: "fair"},
		Libraries: f.libraries,
	}, nil
}

func (f vgpud) Get(ctx context.Context, r *v1.GetRequest) (*v1.GetResponse, error) {
	list, err := f.List(ctx, nil)
	for _, v := range list.GetVgpus() {
		if v.GetId() == r.GetId() {
			return &v1.GetResponse{Vgpu: v}, nil
		}
	}
	return nil, err
}

func (f vgpud) Stats(context.Context, *v1.StatsRequest) (*v1.StatsResponse, error) {
	lines := uint64(5)
	return &v1.StatsResponse{
		Epoch: "00000000000000aa", Uptime: durationpb.New(time.Hour), Vgpus: 2, Clients: 3, Gpus: 2, Turns: 70, Drains: 20, Overruns: 1,
		GpuStats: []*v1.GPUStats{{Uuid: "GPU-1", Handover: handover()}, {Uuid: "GPU-22"}},
		Events:   41, EventsDropped: 4, Watchers: 1, LogLinesDropped: &lines, StoreWrites: 9, StoreFailures: 2, RssBytes: 20 << 20, Goroutines: 12,
	}, nil
}

func (f vgpud) CordonGPU(_ context.Context, r *v1.CordonGPURequest) (*v1.CordonGPUResponse, error) {
	f.changed <- r
	return &v1.CordonGPUResponse{Gpu: f.gpu(2)}, nil
}

func (f vgpud) UncordonGPU(_ context.Context, r *v1.UncordonGPURequest) (*v1.UncordonGPUResponse, error) {
	f.changed <- r
	g := f.gpu(2)
	g.State, g.Reason, g.Cordon = "CORDONED", f.stays, f.stays
	return &v1.UncordonGPUResponse{Gpu: g}, nil
}

func (f vgpud) DrainGPU(_ context.Context, r *v1.DrainGPURequest) (*v1.DrainGPUResponse, error) {
	f.changed <- r
	g := f.gpu(2)
	g.Vgpus = []string{"0123456789abcdef", "1111111111111111"}
	return &v1.DrainGPUResponse{Gpu: g}, nil
}

func (f vgpud) SetPolicy(_ context.Context, r *v1.SetPolicyRequest) (*v1.SetPolicyResponse, error) {
	if r.GetPolicy() == "unfair" {
		return nil, errgrpc.ToGRPC(fmt.Errorf("policy: must be one of those: %w", errdefs.ErrInvalidArgument))
	}
	f.changed <- r
	return &v1.SetPolicyResponse{}, nil
}

func (f vgpud) Watch(ctx context.Context, r *v1.WatchRequest, s v1.Control_WatchServer) error {
	f.watched <- r
	if f.refuse != nil {
		return errgrpc.ToGRPC(f.refuse)
	}
	return send(ctx, f.events, s.Send)
}

func (f vgpud) WatchGPUs(ctx context.Context, _ *v1.WatchGPUsRequest, s v1.Control_WatchGPUsServer) error {
	return send(ctx, f.lists, s.Send)
}

// send sends what comes. At its end vgpud stops, as the reader is told.
func send[T any](ctx context.Context, from <-chan T, to func(T) error) error {
	for {
		select {
		case item, ok := <-from:
			if !ok {
				return errgrpc.ToGRPC(fmt.Errorf("vgpud is stopping: %w", errdefs.ErrUnavailable))
			}
			if err := to(item); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func serve(t *testing.T, f vgpud) string {
	t.Helper()
	address := filepath.Join(t.TempDir(), "s")
	serveAt(t, f, address)
	return address
}

// serveAt returns what ends it.
func serveAt(t *testing.T, f vgpud, address string) (end func()) {
	t.Helper()
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	// As vgpud makes them.
	if err := errors.Join(os.Chmod(address, 0o600), os.Chmod(filepath.Dir(address), 0o700)); err != nil {
		t.Fatal(err)
	}
	s, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	v1.RegisterControlService(s, f)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _ = s.Serve(ctx, l) }()
	end = func() {
		cancel()
		_ = s.Shutdown(context.Background())
	}
	t.Cleanup(end)
	return end
}

func vgpu(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), args, &out, &err)
	return code, out.String(), err.String()
}

// The JSON is an interface: these files change only by new fields.
func TestJSONIsStable(t *testing.T) {
	address := serve(t, vgpud{libraries: []*v1.DriverLibrary{
		{Name: "libcuda.so.1", Driver: "/lib/libcuda.so.1", Library: "/ours.so", UnknownNames: []string{"cuNew"}}, {Name: "other", Error: "not read"},
	}})
	for _, args := range [][]string{{"ps"}, {"gpus"}, {"version"}, {"get", "train"}, {"stats"}, {"policy"}} {
		name := args[0]
		code, got, stderr := vgpu(t, append(args, "--output", "json", "--address", address)...)
		file := filepath.Join("testdata", name+".json")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if code != 0 || stderr != "" || got != string(want) {
			t.Errorf("%s: exit code %d, %s%s", name, code, stderr, got)
		}
	}
}

func TestTables(t *testing.T) {
	address := serve(t, vgpud{})
	_, ps, _ := vgpu(t, "ps", "--address", address)
	for _, s := range []string{"VGPU ", "HELD", "0123456789abcdef  default    train      ranks  GPU-1  HOLDING  fair ", "0.2/1.0 GiB  1.235s  3ms     1ms ", "web        -      -      UNBOUND"} {
		if !strings.Contains(ps, s) {
			t.Errorf("%q is not in\n%s", s, ps)
		}
	}
	// Nothing is said of counters that are zero.
	const notes = `
0123456789abcdef: 3 calls could not be gated
0123456789abcdef: 2 names were asked of the driver that the library does not know
0123456789abcdef: 1 connection was closed because of what came over it
fedcba9876543210: no room
fedcba9876543210: 2 processes that use NVML keep it on its GPUs
`
	if !strings.HasSuffix(ps, notes) {
		t.Errorf("%q is not the end of\n%s", notes, ps)
	}
	_, gpus, _ := vgpu(t, "gpus", "--address", address)
	for _, s := range []string{"GPU-1", "0.2/16.0 GiB  1.0 GiB ", "25µs", "90µs", "0123456789abcdef", "HELD      average/4", "CORDONED  fair", "\nGPU-22: cordoned by the operator: fan\n"} {
		if !strings.Contains(gpus, s) {
			t.Errorf("%q is not in\n%s", s, gpus)
		}
	}
}

func TestSet(t *testing.T) {
	asked := make(chan *v1.UpdateRequest, 1)
	address := serve(t, vgpud{asked: asked})
	for _, id := range []string{"0123456789abcdef", "0", "01234", "train"} {
		code, got, stderr := vgpu(t, "set", id, "weight=300", "vgpu-shim.dev/max-share=", "--address", address)
		if code != 0 || !strings.HasPrefix(got, "VGPU ") || !strings.Contains(got, "0123456789abcdef  default    train") ||
			strings.Contains(got, "fedcba9876543210") {
			t.Fatalf("exit code %d: %s%s", code, stderr, got)
		}
		want := &v1.UpdateRequest{
			Id:          "0123456789abcdef",
			Annotations: map[string]string{"vgpu-shim.dev/weight": "300", "vgpu-shim.dev/max-share": ""},
		}
		if r := <-asked; !proto.Equal(r, want) {
			t.Errorf("%s: asked for %v", id, r)
		}
	}

	// The JSON is that of ps, a list of one.
	_, ps, _ := vgpu(t, "ps", "--output", "json", "--address", address)
	_, one, _ := vgpu(t, "set", "train", "weight=300", "--output", "json", "--address", address)
	<-asked
	var all, some []any
	if err := errors.Join(json.Unmarshal([]byte(ps), &all), json.Unmarshal([]byte(one), &some)); err != nil || len(all) != 2 || !reflect.DeepEqual(all[:1], some) {
		t.Errorf("%v: %s", err, one)
	}

	for _, tc := range []struct {
		args []string
		says string
	}{
		{[]string{"set", "nobody", "weight=1"}, `no vGPU "nobody"`},
		{[]string{"set", "train", "weight=0"}, "failed to change vGPU 0123456789abcdef: must be a whole number"},
	} {
		if code, stdout, stderr := vgpu(t, append(tc.args, "--address", address)...); code != 1 || stdout != "" || !strings.Contains(stderr, tc.says) {
			t.Errorf("%v: exit code %d: %s%s", tc.args, code, stdout, stderr)
		}
	}
	if len(asked) > 0 {
		t.Errorf("asked for %v", <-asked)
	}
}

func TestWhichVGPUIsMeant(t *testing.T) {
	named := func(id, container string) *v1.VGPU {
		return &v1.VGPU{Id: id, Container: &v1.Container{Id: container}}
	}
	all := []*v1.VGPU{
		named("aa01", "train"), named("aa02", "web"), named("ab03", "web"), named("cc04", "a"),
		named("dd05", "gone"), named("dd05", "gone"), // the old one is being drained
	}
	for meant, want := range map[string]string{
		"aa01": "aa01", "aa02": "aa02", "ab": "ab03", "train": "aa01", "a": "cc04", "gone": "dd05", "d": "dd05",
		"aa": `"aa" could be any of the vGPUs aa01, aa02`, "web": `"web" could be any of the vGPUs aa02, ab03`,
		"tra": `no vGPU "tra"`,
	} {
		got, err := find(all, meant)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", meant, got, want)
		}
	}
}

// mute accepts connections and answers nothing, as a vgpud does that is stopped
// or hangs.
func mute(t *testing.T) string {
	t.Helper()
	address := filepath.Join(t.TempDir(), "mute.sock")
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() }) // the kernel accepts; nobody reads
	return address
}

// full is the socket of a vgpud that is stopped for so long that the kernel
// takes no more connections for it.
func full(t *testing.T) string {
	t.Helper()
	address := filepath.Join(t.TempDir(), "full.sock")
	at := &unix.SockaddrUnix{Name: address}
	socket := func() int {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	l := socket()
	if err := errors.Join(unix.Bind(l, at), unix.Listen(l, 0)); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		switch err := unix.Connect(socket(), at); {
		case errors.Is(err, unix.EAGAIN):
			return address
		case err != nil:
			t.Fatal(err)
		}
	}
	t.Fatal("the queue never fills")
	return ""
}

// Without a limit on the answer each of these hangs until the test's own.
func TestASilentVgpudHangsNoCommand(t *testing.T) {
	for _, c := range []struct{ description, address, cause string }{
		{"never answers", mute(t), "within 50ms"},
		{"accepts no more", full(t), "too many connections"},
	} {
		for _, command := range []string{
			"ps", "gpus", "version", "get 0", "stats", "policy", "policy fair", "events", "gpus --watch", "gpus cordon GPU", "gpus uncordon GPU",
			"gpus drain GPU", "gpus drain GPU --wait",
		} {
			t.Run(c.description+", "+command, func(t *testing.T) {
				code, stdout, stderr := vgpu(t, append(strings.Fields(command), "--address", c.address, "--timeout", "50ms")...)
				if code != 4 {
					t.Errorf("exit code %d", code)
				}
				for _, s := range []string{"vgpud runs but does not answer", c.address, c.cause, "log", "systemctl restart vgpud"} {
					if !strings.Contains(stderr, s) {
						t.Errorf("%q does not say %q", stderr, s)
					}
				}
				if strings.Contains(stderr, "does not run") || strings.Contains(stderr, "systemctl start") {
					t.Errorf("%q speaks of a vgpud that does not run", stderr)
				}
				// The version of the command itself is known all the same.
				if strings.Contains(stdout, "vgpu ") != (command == "version") {
					t.Errorf("the output is %q", stdout)
				}
			})
		}
	}
}

// vgpud can also report itself that it ran out of time.
func TestAVgpudThatRunsOutOfTime(t *testing.T) {
	address := serve(t, vgpud{fail: context.DeadlineExceeded})
	if code, _, stderr := vgpu(t, "ps", "--address", address); code != 4 || !strings.Contains(stderr, "does not answer") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// A user who gives up sees that, and no advice.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, stderr bytes.Buffer
	if code := run(ctx, []string{"ps", "--address", mute(t)}, &out, &stderr); code != 1 || strings.Contains(stderr.String(), "systemctl") {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
}

func TestExitCodes(t *testing.T) {
	address := serve(t, vgpud{fail: errdefs.ErrInternal})
	absent := filepath.Join(t.TempDir(), "absent.sock")
	dead := filepath.Join(t.TempDir(), "dead.sock")
	l, err := net.Listen("unix", dead)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	for _, tc := range []struct {
		description string
		args        []string
		code        int
		says        []string
	}{
		{"no socket", []string{"ps", "--address", absent}, 3, []string{"vgpud does not run", absent, "systemctl start vgpud"}},
		{"a socket of a vgpud that was killed", []string{"gpus", "--address", dead}, 3, []string{"vgpud does not run", dead}},
		{"vgpud fails", []string{"ps", "--address", address}, 1, []string{"failed to list the vGPUs"}},
		{"an unknown command", []string{"pss"}, 2, []string{"pss", "--help"}},
		{"an unknown flag", []string{"ps", "--adress", "x"}, 2, []string{"adress", "--help"}},
		{"an argument too many", []string{"ps", "x"}, 2, []string{`"x"`}},
		{"set without an assignment", []string{"set", "train"}, 2, []string{"KEY=VALUE", "vgpu set --help"}},
		{"set without an ID", []string{"set", "", "weight=1"}, 2, []string{"ID"}},
		{"set without a value", []string{"set", "train", "weight"}, 2, []string{`"weight"`, "KEY=VALUE"}},
		{"set twice", []string{"set", "train", "weight=1", "vgpu-shim.dev/weight=2"}, 2, []string{"vgpu-shim.dev/weight", "twice"}},
		{"set without vgpud", []string{"set", "train", "weight=1", "--address", absent}, 3, []string{"vgpud does not run"}},
		{"get without an ID", []string{"get"}, 2, []string{"vgpu get --help"}},
		{"cordon without a UUID", []string{"gpus", "cordon"}, 2, []string{"vgpu gpus cordon --help"}},
		{"drain of two", []string{"gpus", "drain", "GPU-1", "GPU-2"}, 2, []string{"one UUID", "vgpu gpus drain --help"}},
		{"an unknown thing to do with GPUs", []string{"gpus", "kill"}, 2, []string{"kill"}},
		{"a cordon that waits", []string{"gpus", "cordon", "GPU-1", "--wait"}, 2, []string{"wait"}},
		{"events as a table", []string{"events", "--output", "table"}, 2, []string{"--output=table", "text or json"}},
		{"events after no number", []string{"events", "--after", "x"}, 2, []string{"after"}},
		{"an epoch without a number", []string{"events", "--epoch", "00000000000000aa"}, 2, []string{"--after"}},
		{"events without vgpud", []string{"events", "--address", absent}, 3, []string{"vgpud does not run"}},
		{"a watch without vgpud", []string{"gpus", "--watch", "--address", absent}, 3, []string{"vgpud does not run"}},
		{"slots without a policy", []string{"policy", "--slots", "3"}, 2, []string{"--slots without a NAME"}},
		{"no slots", []string{"policy", "average", "--slots", "0"}, 2, []string{"from 1 to 100"}},
		{"two policies", []string{"policy", "fair", "native"}, 2, []string{`"native"`}},
		{"a policy of no GPU", []string{"policy", "fair", "--gpu", ""}, 2, []string{"--gpu"}},
		{"an unknown format", []string{"ps", "--output", "yaml"}, 2, []string{"yaml", "table or json"}},
		{"a limit that is none", []string{"ps", "--timeout", "0s"}, 2, []string{"--timeout=0s", "above 0"}},
		{"the version without vgpud", []string{"version", "--address", absent}, 0, []string{"does not run"}},
		{"help", []string{"--help"}, 0, nil},
	} {
		t.Run(tc.description, func(t *testing.T) {
			code, _, stderr := vgpu(t, tc.args...)
			if code != tc.code {
				t.Errorf("exit code %d, want %d: %s", code, tc.code, stderr)
			}
			for _, s := range tc.says {
				if !strings.Contains(stderr, s) {
					t.Errorf("%q does not say %q", stderr, s)
				}
			}
		})
	}
}
