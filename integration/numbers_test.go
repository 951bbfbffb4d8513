// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// metrics scrapes vgpud: values by name and labels, as they are written.
func (n *node) metrics() map[string]float64 {
	n.T.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", n.Daemon.Metrics)
		},
	}}
	request, err := http.NewRequestWithContext(n.Ctx, http.MethodGet, "http://vgpud/metrics", nil)
	if err != nil {
		n.T.Fatal(err)
	}
	answer, err := client.Do(request)
	if err != nil {
		n.T.Fatal(err)
	}
	defer answer.Body.Close()
	all := map[string]float64{}
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		at := strings.LastIndex(lines.Text(), " ") // there are some in labels
		name, value := lines.Text()[:at], lines.Text()[at+1:]
		if all[name], err = strconv.ParseFloat(value, 64); err != nil {
			n.T.Fatalf("%q: %v", lines.Text(), err)
		}
	}
	return all
}

// At rest the metrics are what vgpu ps and vgpu gpus tell, and vgpu doctor finds
// nothing wrong.
func TestMetricsAreWhatPsTells(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: harness.DaemonOptions{GPUs: "sim:2", Engine: "binding = \"first-fit\"\n"}})
	one, p := n.limited("one", "1Gi")
	two, q := n.memory(harness.Spec{ID: "two"})
	for _, talker := range []*talker{p, q, n.beside(one, "second")} {
		talker.must("ok", "use 0")
		piece := talker.alloc("plain", 32*mib)
		talker.must("ok", "set %s 1", piece)
		talker.must("1", "get %s", piece) // and so it is complete
	}
	n.tells(one, p, gib, 2*contextMemory+64*mib, gib-2*contextMemory-64*mib)
	n.tells(two, q, 15*gib, contextMemory+32*mib, 15*gib-contextMemory-32*mib)

	var ps []struct {
		ID, State string
		Container struct{ Namespace, ID string }
		Clients   float64
		Memory    []struct {
			GPU   string
			Limit float64 `json:"limit_bytes"`
			Used  float64 `json:"used_bytes"`
		}
		Usage struct {
			Held        float64 `json:"held_ns"`
			Turns       float64
			Submissions float64
		}
	}
	var gpus []struct {
		UUID, State string
		Bound       float64
		Memory      float64 `json:"memory_bytes"`
		Reserved    float64 `json:"memory_reserved_bytes"`
		Used        float64 `json:"memory_used_bytes"`
		Free        float64 `json:"memory_free_bytes"`
	}
	n.Wait(func() error { // vgpud looks now and then at what is free
		metrics, want := n.metrics(), map[string]float64{}
		for command, into := range map[string]any{"ps": &ps, "gpus": &gpus} {
			if err := json.Unmarshal([]byte(n.cli(command, "--output", "json")), into); err != nil {
				return err
			}
		}
		for _, v := range ps {
			label := fmt.Sprintf(`container=%q,id=%q,namespace=%q`, v.Container.ID, v.ID, v.Container.Namespace)
			want["vgpu_processes{"+label+"}"] = v.Clients
			want["vgpu_turns_total{"+label+"}"] = v.Usage.Turns
			want["vgpu_submissions_total{"+label+"}"] = v.Usage.Submissions
			want["vgpu_held_seconds_total{"+label+"}"] = v.Usage.Held / 1e9
			want["vgpu_state{"+label+`,state="`+v.State+`"}`] = 1
			for _, m := range v.Memory {
				of := fmt.Sprintf(`{container=%q,gpu=%q,id=%q,namespace=%q}`, v.Container.ID, m.GPU, v.ID, v.Container.Namespace)
				want["vgpu_memory_used_bytes"+of] = m.Used
				want["vgpu_memory_limit_bytes"+of] = m.Limit
			}
		}
		for _, g := range gpus {
			of := fmt.Sprintf("{gpu=%q}", g.UUID)
			want["vgpu_gpu_bound_vgpus"+of] = g.Bound
			want["vgpu_gpu_memory_bytes"+of] = g.Memory
			want["vgpu_gpu_memory_reserved_bytes"+of] = g.Reserved
			want["vgpu_gpu_memory_used_bytes"+of] = g.Used
			want["vgpu_gpu_memory_free_bytes"+of] = g.Free
		}
		for name, value := range want {
			if got, there := metrics[name]; !there || got != value {
				return fmt.Errorf("%s is %v (%v), want %v", name, got, there, value)
			}
		}
		if g := gpus[0]; g.Used != 3*contextMemory+96*mib || g.Reserved != gib || g.Free != g.Memory-g.Used {
			return fmt.Errorf("vgpu gpus tells %+v", g)
		}
		return nil
	})
	if len(ps) != 2 || ps[0].Clients != 2 || ps[0].Usage.Submissions != 4 {
		t.Errorf("vgpu ps tells %+v", ps)
	}

	doctor := n.examined(harness.Containerd24)
	checked := map[string]string{}
	for _, d := range doctor {
		checked[d.Check] = d.Result
		if d.Result == "fault" {
			t.Errorf("vgpu doctor finds a fault: %+v", d)
		}
	}
	for _, check := range []string{"vgpud", "driver", "library", "names", "gpus", "gate", "connections"} {
		if checked[check] != "ok" {
			t.Errorf("vgpu doctor says of %s %q: %+v", check, checked[check], doctor)
		}
	}
}
