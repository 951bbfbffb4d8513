// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// node answers with what a test wants to see.
type node struct{ fail error }

func (n node) Info(context.Context, *v1.InfoRequest) (*v1.InfoResponse, error) {
	return &v1.InfoResponse{Version: "v1", Commit: "abc", DriverVersion: "580.1", Started: timestamppb.New(time.Unix(1000, 0)), Libraries: []*v1.DriverLibrary{
		{Name: "libcuda.so.580.1", UnknownNames: []string{"cuA", "cuB"}}, {Name: "libother.so", Error: "not read"},
	}}, n.fail
}

func (node) List(context.Context, *v1.ListRequest) (*v1.ListResponse, error) {
	return &v1.ListResponse{Vgpus: []*v1.VGPU{
		{Id: "00aa", Container: &v1.Container{Namespace: "ns", Id: "train"}, State: "DRAINING", Usage: &v1.Usage{Turns: 99}}, // it had another instance
		{
			Id: "00aa", Container: &v1.Container{Namespace: "ns", Id: "train"}, Pod: &v1.Pod{Namespace: "ml", Name: "train-0", Container: "main"}, State: "HOLDING", Quantum: durationpb.New(2 * time.Second), Swap: durationpb.New(20 * time.Millisecond), Clients: 2, Rubbish: 1, Ungated: 3, UnknownNames: 4,
			Usage:  &v1.Usage{Held: durationpb.New(1500 * time.Millisecond), Waited: durationpb.New(time.Second), Turns: 7, Drains: 2, Overruns: 1, Submissions: 99, Lingered: durationpb.New(time.Millisecond)},
			Memory: []*v1.Memory{{Gpu: "GPU-1", LimitBytes: 1 << 30, UsedBytes: 1 << 20}},
		},
		{Id: "00bb", State: "UNBOUND", Container: &v1.Container{Namespace: "k8s.io", Id: "bad\xff"}},
	}}, nil
}

func (node) ListGPUs(context.Context, *v1.ListGPUsRequest) (*v1.ListGPUsResponse, error) {
	free := uint64(5)
	return &v1.ListGPUsResponse{Gpus: []*v1.GPU{{Uuid: "GPU-2"}, {Uuid: "GPU-3"}, {
		Uuid: "GPU-1", Model: "Test", PciBusId: "0000:01:00.0", State: "HELD", Bound: 2, Pending: 1, Held: durationpb.New(2 * time.Second), Turns: 8,
		Handover: &v1.Latency{Count: 6}, MemoryBytes: 16 << 30, MemoryReservedBytes: 1 << 30, MemoryUsedBytes: 1 << 20, MemoryFreeBytes: &free,
		MemoryPromisedBytes: 3 << 30, MemoryGuestBytes: 1 << 29,
	}}}, nil
}

func (node) ListProcesses(context.Context, *v1.ListProcessesRequest) (*v1.ListProcessesResponse, error) {
	bypass := func(pid uint32) *v1.Process {
		return &v1.Process{
			Gpu: "GPU-1", Pid: pid, MemoryBytes: 10, Command: "train", Cgroup: "/a/b", Inside: "00aa",
			Container: &v1.Container{Namespace: "ns", Id: "train"}, Pod: &v1.Pod{Namespace: "ml", Name: "train-0"},
		}
	}
	return &v1.ListProcessesResponse{SilentGpus: []string{"GPU-3"}, Processes: []*v1.Process{
		{Gpu: "GPU-1", Pid: 7, MemoryBytes: 100, Vgpu: "00aa"},
		bypass(8), bypass(9),
		{Gpu: "GPU-1", Pid: 10, MemoryBytes: 5, Cgroup: "/user.slice"},
		{Gpu: "GPU-1", Pid: 11, MemoryBytes: 6, Cgroup: "/other"},
	}}, nil
}

func (node) Stats(context.Context, *v1.StatsRequest) (*v1.StatsResponse, error) {
	lines := uint64(5)
	return &v1.StatsResponse{Events: 41, EventsDropped: 4, LogLinesDropped: &lines, StoreWrites: 9, StoreFailures: 2}, nil
}

func scrape(t *testing.T, s Source) (int, string, string) {
	t.Helper()
	var errs bytes.Buffer
	server := httptest.NewServer(Handler(s, log.New(&errs, "", 0)))
	defer server.Close()
	resp, err := http.Get(server.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text), errs.String()
}

func TestAScrape(t *testing.T) {
	code, text, errs := scrape(t, node{})
	if code != http.StatusOK || errs != "" {
		t.Fatalf("%d %s", code, errs)
	}
	const train = `{container="train",id="00aa",namespace="ns"} `
	for _, line := range []string{
		"vgpu_held_seconds_total" + train + "1.5", "vgpu_waited_seconds_total" + train + "1", "vgpu_lingered_seconds_total" + train + "0.001",
		"vgpu_turns_total" + train + "7", "vgpu_drains_total" + train + "2", "vgpu_overruns_total" + train + "1",
		"vgpu_submissions_total" + train + "99", "vgpu_unhooked_lookups_total" + train + "3", "vgpu_unknown_lookups_total" + train + "4",
		"vgpu_rubbish_connections_total" + train + "1", "vgpu_processes" + train + "2",
		`vgpu_info{container="train",id="00aa",namespace="ns",pod="train-0",pod_container="main",pod_namespace="ml"} 1`,
		`vgpu_info{container="bad?",id="00bb",namespace="k8s.io",pod="",pod_container="",pod_namespace=""} 1`,
		`vgpu_state{container="train",id="00aa",namespace="ns",state="HOLDING"} 1`, `vgpu_state{container="train",id="00aa",namespace="ns",state="IDLE"} 0`,
		"vgpu_quantum_seconds" + train + "2", "vgpu_swap_seconds" + train + "0.02",
		`vgpu_memory_used_bytes{container="train",gpu="GPU-1",id="00aa",namespace="ns"} 1.048576e+06`,
		`vgpu_memory_limit_bytes{container="train",gpu="GPU-1",id="00aa",namespace="ns"} 1.073741824e+09`,
		`vgpu_state{container="bad?",id="00bb",namespace="k8s.io",state="UNBOUND"} 1`,
		`vgpu_gpu_info{gpu="GPU-1",model="Test",pci_bus_id="0000:01:00.0"} 1`, `vgpu_gpu_held_seconds_total{gpu="GPU-1"} 2`,
		`vgpu_gpu_turns_total{gpu="GPU-1"} 8`, `vgpu_gpu_handovers_total{gpu="GPU-1"} 6`, `vgpu_gpu_bound_vgpus{gpu="GPU-1"} 2`, `vgpu_gpu_pending_vgpus{gpu="GPU-1"} 1`,
		`vgpu_gpu_state{gpu="GPU-1",state="HELD"} 1`, `vgpu_gpu_state{gpu="GPU-1",state="FREE"} 0`,
		`vgpu_gpu_memory_free_bytes{gpu="GPU-1"} 5`, `vgpu_gpu_memory_used_bytes{gpu="GPU-1"} 1.048576e+06`,
		`vgpu_gpu_memory_promised_bytes{gpu="GPU-1"} 3.221225472e+09`, `vgpu_gpu_memory_guest_bytes{gpu="GPU-1"} 5.36870912e+08`,
		`vgpu_unmanaged_processes{container="train",gpu="GPU-1",id="00aa",namespace="ns",pod="train-0",pod_namespace="ml"} 2`,
		`vgpu_unmanaged_memory_bytes{container="train",gpu="GPU-1",id="00aa",namespace="ns",pod="train-0",pod_namespace="ml"} 20`,
		`vgpu_unmanaged_processes{container="",gpu="GPU-1",id="",namespace="",pod="",pod_namespace=""} 2`,
		`vgpu_unmanaged_memory_bytes{container="",gpu="GPU-1",id="",namespace="",pod="",pod_namespace=""} 11`,
		`vgpu_unmanaged_processes{container="",gpu="GPU-2",id="",namespace="",pod="",pod_namespace=""} 0`,
		`vgpu_daemon_info{commit="abc",driver="580.1",version="v1"} 1`, "vgpu_daemon_start_time_seconds 1000", `vgpu_driver_unknown_names{library="libcuda.so.580.1"} 2`,
		"vgpu_daemon_store_failures_total 2", "vgpu_daemon_log_lines_dropped_total 5", "vgpu_daemon_events_total 41",
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("%s is missing", line)
		}
	}
	// One series for each place, none for a GPU of which nothing is known.
	if n := strings.Count(text, "\nvgpu_unmanaged_processes{"); n != 3 {
		t.Errorf("%d series of unmanaged processes", n)
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestAVgpudThatDoesNotAnswerFailsTheScrape(t *testing.T) {
	code, text, errs := scrape(t, node{fail: errors.New("it is stopping")})
	if code != http.StatusInternalServerError || !strings.Contains(text, "it is stopping") || errs == "" {
		t.Fatalf("%d %s %s", code, text, errs)
	}
}

// Nothing is served that docs/metrics.md does not list, and nothing listed that is
// not served.
func TestAllIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed, served []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(vgpu_[a-z_]+)` \\|").FindAllSubmatch(doc, -1) {
		listed = append(listed, string(m[1]))
	}
	r := prometheus.NewPedanticRegistry() // which checks names, labels and help, too
	r.MustRegister(newCollector(node{}))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		served = append(served, f.GetName())
	}
	slices.Sort(listed)
	slices.Sort(served)
	if !slices.Equal(listed, served) {
		t.Errorf("listed: %v\nserved: %v", listed, served)
	}
}
