// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
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
}

var when = timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC))

func (f vgpud) List(context.Context, *v1.ListRequest) (*v1.ListResponse, error) {
	if f.fail != nil {
		return nil, errgrpc.ToGRPC(f.fail)
	}
	return &v1.ListResponse{Vgpus: []*v1.VGPU{
		{
			Id: "0123456789abcdef", Container: &v1.Container{Containerd: "/c.sock", Namespace: "default", Id: "train"},
			State: "HOLDING", Gpus: []string{"GPU-1"}, Count: 1, MemoryBytes: 1 << 30, Weight: 100, MinShare: .25, MaxShare: .5, Priority: "normal",
			Quantum: durationpb.New(20 * time.Millisecond), Clients: 2, Created: when,
			Usage: &v1.Usage{
				Held: durationpb.New(1234567 * time.Microsecond), Waited: durationpb.New(3 * time.Millisecond),
				Turns: 7, Drains: 2, Overruns: 1, Submissions: 99,
			},
			Rubbish: 1, Ungated: 3, UnknownNames: 2,
		},
		{Id: "fedcba9876543210", Container: &v1.Container{Namespace: "k8s.io", Id: "web"}, State: "UNBOUND", Count: 1, Created: when, Reason: "no room"},
	}}, nil
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
	return &v1.ListGPUsResponse{Gpus: []*v1.GPU{{
		Uuid: "GPU-1", Model: "Test", MemoryBytes: 16 << 30, PciBusId: "0000:01:00.0", State: "HELD", Holder: "0123456789abcdef",
		Bound: 2, Pending: 1, Held: durationpb.New(time.Second), Turns: 7,
		Handover: &v1.Latency{Count: 3, Median: durationpb.New(25 * time.Microsecond), P99: durationpb.New(90 * time.Microsecond), Max: durationpb.New(time.Millisecond)},
	}}}, nil
}

func (f vgpud) Info(context.Context, *v1.InfoRequest) (*v1.InfoResponse, error) {
	return &v1.InfoResponse{Version: "v1", Commit: "abc", Source: "sim:1", DriverVersion: "999.10", Protocol: 1, Started: when}, nil
}

func serve(t *testing.T, f vgpud) string {
	t.Helper()
	address := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	v1.RegisterControlService(s, f)
	go func() { _ = s.Serve(context.Background(), l) }()
	t.Cleanup(func() { s.Close() })
	return address
}

func vgpu(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), args, &out, &err)
	return code, out.String(), err.String()
}

// The JSON is an interface: these files change only by new fields.
func TestJSONIsStable(t *testing.T) {
	address := serve(t, vgpud{})
	for _, name := range []string{"ps", "gpus", "version"} {
		code, got, stderr := vgpu(t, name, "--output", "json", "--address", address)
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
	for _, s := range []string{"VGPU ", "HELD", "0123456789abcdef  default    train", "1.235s  3ms"} {
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
`
	if !strings.HasSuffix(ps, notes) {
		t.Errorf("%q is not the end of\n%s", notes, ps)
	}
	_, gpus, _ := vgpu(t, "gpus", "--address", address)
	for _, s := range []string{"GPU-1", "16.0 GiB", "25µs", "90µs", "0123456789abcdef"} {
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
		for _, command := range []string{"ps", "gpus", "version"} {
			t.Run(c.description+", "+command, func(t *testing.T) {
				code, stdout, stderr := vgpu(t, command, "--address", c.address, "--timeout", "50ms")
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
