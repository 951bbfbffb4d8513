// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// job is one of the containers: bursts of GPU work with a CPU phase between.
type job struct {
	name   string
	bursts int
	gpu    time.Duration // of one burst
	cpu    time.Duration // computing between two
	rest   time.Duration // waiting between two: for data, requests, a person
	notes  map[string]string
}

// jobs have the rhythms of a training, a notebook and an inference service. Alone
// each of them leaves the GPU idle for more than half of its time; together they
// need almost all of it.
func jobs() []job {
	const ms = time.Millisecond
	return []job{
		{"training", 32, 60 * ms, 30 * ms, 60 * ms, map[string]string{"vgpu-shim.dev/memory": "4Gi"}},
		{"notebook", 12, 120 * ms, 20 * ms, 250 * ms, map[string]string{"vgpu-shim.dev/memory": "2Gi"}},
		{"serving", 60, 15 * ms, 5 * ms, 30 * ms, map[string]string{"vgpu-shim.dev/memory": "1Gi"}},
	}
}

// A burst is made of so many kernels, and the program looks at its results after
// every few of them.
const (
	launches  = 20
	syncEvery = 4
)

func (j job) spec(rootfs, suffix string) harness.Spec {
	return harness.Spec{
		ID:          j.name + suffix,
		Rootfs:      rootfs,
		Annotations: j.notes,
		Args: []string{
			"/vgpu/burst", "--bursts", fmt.Sprint(j.bursts), "--launches", fmt.Sprint(launches), "--sync-every", fmt.Sprint(syncEvery),
			"--gpu-us", fmt.Sprint(j.gpu.Microseconds()), "--cpu-us", fmt.Sprint(j.cpu.Microseconds()),
			"--rest-us", fmt.Sprint(j.rest.Microseconds()),
		},
	}
}

// result is what the container's program prints.
type result struct {
	BeginNS int64 `json:"begin_ns"`
	EndNS   int64 `json:"end_ns"`
}

func (r result) wall() time.Duration { return time.Duration(r.EndNS - r.BeginNS) }

// demo is one run of the whole.
type demo struct {
	node   *harness.Node
	real   bool
	screen screen
}

func (d *demo) play(ctx context.Context) (*report, error) {
	rootfs := filepath.Join(d.node.Dir, "rootfs")
	if err := harness.BusyboxRootfs(d.node.Paths, rootfs); err != nil {
		return nil, err
	}
	r := &report{real: d.real}
	if err := d.alone(ctx, rootfs, r); err != nil {
		return nil, err
	}
	if err := d.together(ctx, rootfs, r); err != nil {
		return nil, err
	}
	return r, d.witness(ctx, r)
}

// alone runs the containers one after another, for comparison.
func (d *demo) alone(ctx context.Context, rootfs string, r *report) error {
	fmt.Println("\nFirst one after another, each alone on the GPU:")
	for _, j := range jobs() {
		c, err := d.node.Containerd.Launch(ctx, j.spec(rootfs, "-alone"))
		if err != nil {
			return err
		}
		got, err := finish(ctx, c)
		if err != nil {
			return err
		}
		fmt.Printf("  %-9s %5.1f s\n", j.name, got.wall().Seconds())
		r.alone = append(r.alone, got.wall())
	}
	return nil
}

// together runs the containers at the same time, and watches.
func (d *demo) together(ctx context.Context, rootfs string, r *report) error {
	fmt.Println("\nThen together:")
	var containers []*harness.Container
	var names []string
	for _, j := range jobs() {
		spec := j.spec(rootfs, "")
		fmt.Printf("  %s\n", command(d.node.Containerd, spec))
		c, err := d.node.Containerd.Launch(ctx, spec)
		if err != nil {
			return err
		}
		containers, names = append(containers, c), append(names, j.name)
		// Who it is in the simulated GPU's log can be seen only while it runs.
		tenant, err := c.Tenant()
		if err != nil {
			return err
		}
		r.tenants = append(r.tenants, tenant)
	}
	fmt.Println()
	samples, err := d.watch(ctx, names, containers)
	if err != nil {
		return err
	}
	r.names, r.samples = names, samples
	// The accounts go with the containers, so they are read before.
	vgpus, err := d.node.Daemon.VGPUs(ctx)
	if err != nil {
		return err
	}
	byID := map[string]*v1.VGPU{}
	for _, v := range vgpus {
		byID[v.GetContainer().GetId()] = v
	}
	for _, name := range names {
		if byID[name] == nil {
			return fmt.Errorf("vgpud knows no vGPU of container %s", name)
		}
		r.vgpus = append(r.vgpus, byID[name])
	}
	gpus, err := d.node.Daemon.PhysicalGPUs(ctx)
	if err != nil {
		return err
	}
	// All three live on one GPU where there is but one; on a host with several
	// the busiest is shown.
	for _, g := range gpus {
		if r.gpu == nil || g.GetTurns() > r.gpu.GetTurns() {
			r.gpu = g
		}
	}
	if r.gpu == nil {
		return errors.New("vgpud knows no GPU")
	}
	var begin, end int64
	for i, c := range containers {
		got, err := finish(ctx, c)
		if err != nil {
			return err
		}
		if i == 0 || got.BeginNS < begin {
			begin = got.BeginNS
		}
		end = max(end, got.EndNS)
	}
	r.begin, r.end = time.Duration(begin), time.Duration(end)
	return nil
}

// finish waits for a container, removes it and reads what its program printed.
func finish(ctx context.Context, c *harness.Container) (result, error) {
	var r result
	status, err := c.Wait(ctx)
	if err != nil {
		return r, err
	}
	if status != 0 {
		return r, fmt.Errorf("container %s ended with status %d: %s", c.ID, status, c.Output())
	}
	lines := strings.Split(strings.TrimSpace(c.Output()), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		return r, fmt.Errorf("container %s printed no result: %w: %s", c.ID, err, c.Output())
	}
	return r, c.Remove(ctx)
}

// command is how a user would have started the container.
func command(c *harness.Containerd, s harness.Spec) string {
	line := "$ ctr " + strings.Join(c.RunArgs(s, "--detach"), " ")
	return strings.Replace(line, " --rootfs", " \\\n      --rootfs", 1)
}
