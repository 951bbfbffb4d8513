// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
)

// toldOf is what is told of a look, as "+pid" and "-pid".
func toldOf(told unmanaged, seen *v1.ListProcessesResponse) (all []string) {
	came, went := told.look(seen)
	for _, p := range came {
		all = append(all, fmt.Sprint("+", p.GetPid()))
	}
	for _, p := range went {
		all = append(all, fmt.Sprint("-", p.GetPid()))
	}
	return all
}

func TestAnUnmanagedProcessIsToldOnceAndOnceMore(t *testing.T) {
	on := func(gpu string, pids ...uint32) *v1.ListProcessesResponse {
		resp := &v1.ListProcessesResponse{Processes: []*v1.Process{{Gpu: gpu, Pid: 1, Vgpu: "of a vGPU"}}}
		for _, pid := range pids {
			resp.Processes = append(resp.Processes, &v1.Process{Gpu: gpu, Pid: pid})
		}
		return resp
	}
	told := make(unmanaged)
	for i, step := range []struct {
		seen *v1.ListProcessesResponse
		want string
	}{
		{on("G"), ""},
		{on("G", 7), "+7"},
		{on("G", 7), ""},
		{on("G", 7, 8), "+8"},
		{&v1.ListProcessesResponse{SilentGpus: []string{"G"}}, ""}, // nobody knows
		{on("G", 8), "-7"},
		{on("H", 8), "+8 -8"}, // on another GPU
		{on("H"), "-8"},
		{on("H", 8), "+8"},
	} {
		if got := strings.Join(toldOf(told, step.seen), " "); got != step.want {
			t.Errorf("look %d: told %q, want %q", i, got, step.want)
		}
	}
}

// A container can start as many as it likes; none of them is forgotten.
func TestManyUnmanagedProcessesAreToldInParts(t *testing.T) {
	seen := &v1.ListProcessesResponse{}
	for pid := range uint32(2*maxTold + 1) {
		seen.Processes = append(seen.Processes, &v1.Process{Gpu: "G", Pid: pid + 2})
	}
	told := make(unmanaged)
	for _, want := range []int{maxTold, maxTold, 1, 0} {
		if got := toldOf(told, seen); len(got) != want {
			t.Errorf("%d were told, want %d: %v", len(got), want, got)
		}
	}
}

func TestTheLogAndTheEventsTellOfUnmanagedProcesses(t *testing.T) {
	d := idle(t, 1) // its own looks would tell first
	gpus, ok := d.inventory.(*gputest.Inventory)
	if !ok {
		t.Fatal("other GPUs")
	}
	var log lines
	d.log.Logger.SetOutput(&log)
	ended := make(chan error, 1)
	go func() { ended <- d.loop.poller.run() }()
	defer func() {
		d.loop.poller.quit()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	pid := stranger(t, "echo ready; read end")
	gpus.SetUsed(gpuUUID(0), pid, 5)
	for range 2 {
		if _, err := d.look(); err != nil {
			t.Error(err)
		}
	}
	gpus.Ended(gpuUUID(0), pid)
	for range 2 {
		if _, err := d.look(); err != nil {
			t.Error(err)
		}
	}
	events := since(d.loop.events, 0)
	process := fmt.Sprintf(`process %d ("sh", cgroup `, pid)
	if len(events) != 2 || !strings.HasPrefix(events[0], "UNMANAGED "+process) || !strings.HasPrefix(events[1], "UNMANAGED_GONE "+process) {
		t.Errorf("events: %q", events)
	}
	for line, times := range map[string]int{
		`level=warning msg="a process uses a GPU and is a client of no vGPU"`:       1,
		`level=info msg="a process that is a client of no vGPU uses a GPU no more"`: 1,
		fmt.Sprintf("command=sh gpu=%s memory_bytes=5 pid=%d", gpuUUID(0), pid):     2,
	} {
		if got := log.count(line); got != times {
			t.Errorf("the log has %d times, not %d times: %s", got, times, line)
		}
	}
}
