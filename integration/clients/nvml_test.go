// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// seen is what a lister shows of its container's only GPU.
type seen struct {
	uuid      string // or the part that it shows, or empty if it shows none
	name      string
	memoryMiB int
	processes []int
}

// lister is a program that shows GPUs by NVML.
type lister struct {
	client, packages, does string
	args                   []string // of python3
	version                []string // python3's arguments that make it tell its version
	read                   func(t *testing.T, output string) seen
}

// listerJSON reads what workload/nvml_list.py prints.
func listerJSON(t *testing.T, output string) seen {
	var said struct {
		GPUs []struct {
			UUID, Name string
			Memory     int
			Processes  []int
		}
	}
	harnesstest.LastJSON(t, output, &said)
	if len(said.GPUs) != 1 {
		t.Fatalf("it shows %d GPUs: %s", len(said.GPUs), output)
	}
	g := said.GPUs[0]
	return seen{g.UUID, g.Name, g.Memory >> 20, g.Processes}
}

// gpustatJSON reads gpustat --json.
func gpustatJSON(t *testing.T, output string) seen {
	var said struct {
		GPUs []struct {
			UUID, Name string
			Memory     int `json:"memory.total"`
			Processes  []struct{ PID int }
		}
	}
	if err := json.Unmarshal([]byte(output), &said); err != nil || len(said.GPUs) != 1 {
		t.Fatalf("it shows %d GPUs (%v): %s", len(said.GPUs), err, output)
	}
	s := seen{uuid: said.GPUs[0].UUID, name: said.GPUs[0].Name, memoryMiB: said.GPUs[0].Memory}
	for _, p := range said.GPUs[0].Processes {
		s.processes = append(s.processes, p.PID)
	}
	return s
}

var (
	nvitopGPU     = regexp.MustCompile(`(?m)^\|\s+0\s+(.*?)\s+On \|`)
	nvitopMemory  = regexp.MustCompile(`/ (\d+)MiB `)
	nvitopProcess = regexp.MustCompile(`(?m)^\|\s+0\s+(\d+) C `)
)

// nvitopTable reads the two tables of nvitop --once.
func nvitopTable(t *testing.T, output string) (s seen) {
	gpus, memory := nvitopGPU.FindAllStringSubmatch(output, -1), nvitopMemory.FindAllStringSubmatch(output, -1)
	if len(gpus) != 1 || len(memory) != 1 || strings.Contains(output, "|   1  ") {
		t.Fatalf("it does not show one GPU:\n%s", output)
	}
	s.name = gpus[0][1]
	if _, err := fmt.Sscan(memory[0][1], &s.memoryMiB); err != nil {
		t.Fatal(err)
	}
	for _, m := range nvitopProcess.FindAllStringSubmatch(output, -1) {
		var pid int
		if _, err := fmt.Sscan(m[1], &pid); err != nil {
			t.Fatal(err)
		}
		s.processes = append(s.processes, pid)
	}
	return s
}

// Programs that show GPUs see their container's own, two at once, while both
// containers compute on the same one.
func TestNVMLListers(t *testing.T) {
	const number = `import importlib.metadata as m; print(m.version("%s"))`
	n := start(t, harness.Containerd24)
	limits := map[string]int{"one": 1024, "two": 2048}
	var containers []*harness.Container
	for _, id := range []string{"one", "two"} {
		c := n.Launch(harness.Spec{
			ID: id, Rootfs: host(n), Args: []string{"/vgpu/hog", "--ms", "0"},
			Annotations: map[string]string{"vgpu-shim.dev/memory": fmt.Sprintf("%dMi", limits[id])},
			Env:         []string{"COLUMNS=120", "TERM=dumb", "PYTHONIOENCODING=utf-8", "PYTHONDONTWRITEBYTECODE=1", "HOME=/root"},
			Mounts: []string{
				readOnly(filepath.Join(busybox, "vgpu"), "/vgpu"),
				readOnly(filepath.Join(n.Paths.Root, "integration", "workload"), "/workload"),
				readOnly(filepath.Join(n.Paths.Tools, "nvml-clients"), "/nvml-clients"),
				readOnly(filepath.Join(n.Paths.Tools, "cuda-clients"), "/cuda-clients"),
			},
		})
		n.Says(c, "running")
		containers = append(containers, c)
	}

	for _, l := range []lister{
		{
			"nvidia-ml-py (PyPI)", "nvml-clients", "lists GPUs, memory, processes",
			[]string{"/workload/nvml_list.py", "pynvml"},
			[]string{"-c", fmt.Sprintf(number, "nvidia-ml-py")},
			listerJSON,
		},
		{
			"cuda-bindings (PyPI), NVML", "cuda-clients", "lists GPUs, memory, processes",
			[]string{"/workload/nvml_list.py", "bindings"},
			[]string{"-c", fmt.Sprintf(number, "cuda-bindings")},
			listerJSON,
		},
		{
			"gpustat (PyPI)", "nvml-clients", "lists GPUs, memory, processes",
			[]string{"-m", "gpustat", "--json"},
			[]string{"-m", "gpustat", "--version"},
			gpustatJSON,
		},
		{
			"nvitop (PyPI)", "nvml-clients", "lists GPUs, memory, processes with their command lines",
			[]string{"-m", "nvitop", "--once", "--no-unicode"},
			[]string{"-m", "nvitop", "--version"},
			nvitopTable,
		},
	} {
		t.Run(l.client, func(t *testing.T) {
			n := n.Sub(t)
			python := func(args ...string) []string {
				return append([]string{"/usr/bin/env", "PYTHONPATH=/" + l.packages, "/usr/bin/python3"}, args...)
			}
			outputs := atOnce(n, containers, python(l.args...))
			for i, c := range containers {
				v, err := n.VGPU(c.ID)
				if err != nil {
					t.Fatal(err)
				}
				s := l.read(t, outputs[i])
				if s.uuid != "" && !slices.Equal([]string{s.uuid}, v.GetGpus()) {
					t.Errorf("%s is on %v, and shows %s", c.ID, v.GetGpus(), s.uuid)
				}
				if !strings.HasSuffix(s.name, " (vGPU)") || s.memoryMiB != limits[c.ID] || !slices.Equal(s.processes, []int{1}) {
					t.Errorf("%s shows %+v, not a vGPU of %d MiB and process 1:\n%s", c.ID, s, limits[c.ID], outputs[i])
				}
			}
			version := strings.Fields(atOnce(n, containers[:1], python(l.version...))[0])
			if !t.Failed() {
				rows.add(t, row{l.client, version[len(version)-1], "host", l.does, "-", works})
			}
		})
	}

	for _, c := range containers {
		if c.Ended() {
			t.Errorf("%s ended: %s", c.ID, c.Output())
		}
	}
	if o := n.NoOverlap(); len(o.Tenants) != len(containers) {
		t.Errorf("the simulated GPU has seen %d tenants, want %d", len(o.Tenants), len(containers))
	}
}

// atOnce runs a command in all containers at the same time, and returns the output
// of each.
func atOnce(n *harnesstest.Node, containers []*harness.Container, args []string) []string {
	n.T.Helper()
	outputs, errs := make([]string, len(containers)), make([]error, len(containers))
	var all sync.WaitGroup
	for i, c := range containers {
		all.Go(func() { outputs[i], errs[i] = c.Exec(n.Ctx, args...) })
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			n.T.Fatalf("%s: %v", containers[i].ID, err)
		}
	}
	return outputs
}
