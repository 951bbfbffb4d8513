// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// kinds are the containers that are compared: under the stock shim, under ours
// without a vGPU, and with one.
const (
	stock = iota
	plainOfOurs
	withVGPU
	kinds
)

var kindNames = [kinds]string{"stock", "plain", "vgpu"}

// kindSpec is a container of a kind, whose first process is program.
func kindSpec(kind int, id, rootfs string, args ...string) harness.Spec {
	s := harness.Spec{ID: id, Rootfs: rootfs, Args: args, Runtime: harness.VGPURuntime}
	switch kind {
	case stock:
		s.Runtime = harness.RuncRuntime
	case plainOfOurs:
		s.Annotations = map[string]string{"vgpu-shim.dev/gpus": "0"}
	}
	return s
}

// house is a containerd with a vgpud, and what its containers run.
type house struct {
	*harness.Node
	api    *harness.API
	rootfs string
	models int // of staying
}

// startHouse starts one. As on a node, what containerd, the shims and vgpud write
// while a container runs is in memory.
func (b *bench) startHouse(ctx context.Context, paths harness.Paths) (_ *house, err error) {
	parent, err := memoryDir()
	if err != nil {
		return nil, err
	}
	n, err := harness.Start(ctx, paths, harness.Options{Version: harness.Containerd24, Parent: parent})
	if err != nil {
		return nil, err
	}
	h := &house{Node: n, rootfs: filepath.Join(n.Dir, "rootfs")}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.stop())
		}
	}()
	if err := harness.BusyboxRootfs(b.paths, h.rootfs); err != nil {
		return nil, err
	}
	program, err := os.ReadFile(filepath.Join(b.programs, "first"))
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(h.rootfs, "first"), program, 0o755); err != nil {
		return nil, err
	}
	h.api, err = n.Containerd.API()
	return h, err
}

// memoryDir is a directory in memory: /run where that is one, as on every node.
func memoryDir() (string, error) {
	for _, dir := range []string{"/run", "/dev/shm"} {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err == nil && fs.Type == unix.TMPFS_MAGIC {
			return dir, nil
		}
	}
	return "", errors.New("neither /run nor /dev/shm is a tmpfs")
}

func (h *house) stop() error {
	var err error
	if h.api != nil {
		err = h.api.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(err, h.Close(ctx))
}

// container measures what the shim costs a container.
func (b *bench) container(ctx context.Context) (err error) {
	if b.size.containers > 0 {
		if err := b.wholeDriver(ctx); err != nil {
			return err
		}
	}
	h, err := b.startHouse(ctx, b.paths)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.stop()) }()
	if b.size.containers > 0 {
		c, err := b.startAndDelete(ctx, h, stock, plainOfOurs, withVGPU)
		if err != nil {
			return err
		}
		c.rows(b, "start", "", &c.starts, 1.05)
		c.rows(b, "delete", "", &c.deletes, 1.05)
	}
	if err := b.shimMemory(ctx, h); err != nil {
		return err
	}
	return b.manyContainers(ctx, h)
}

// startsARound: so many starts of each kind are a round.
const startsARound = 10

// driverParts are the libraries of NVIDIA's driver 580 beside libcuda and libnvidia-ml,
// of which a container gets each.
const driverParts = `EGL_nvidia GLESv1_CM_nvidia GLESv2_nvidia GLX_nvidia cudadebugger nvcuvid nvidia-allocator nvidia-api nvidia-cfg
	nvidia-egl-gbm nvidia-egl-wayland nvidia-egl-xcb nvidia-egl-xlib nvidia-eglcore nvidia-encode nvidia-fbc nvidia-glcore nvidia-glsi
	nvidia-glvkspirv nvidia-gpucomp nvidia-gtk2 nvidia-gtk3 nvidia-ngx nvidia-nscq nvidia-nvvm nvidia-nvvm70 nvidia-opencl
	nvidia-opticalflow nvidia-pkcs11 nvidia-pkcs11-openssl3 nvidia-present nvidia-ptxjitcompiler nvidia-rtcore nvidia-sandboxutils
	nvidia-tileiras nvidia-tls nvidia-vksc-core nvidia-wayland-client nvoptix vdpau_nvidia nvidia-imex nvidia-fatbinaryloader nvidia-compiler`

// wholeDriver measures the same with a driver that has as many libraries as NVIDIA's,
// each with two names as most of them have.
func (b *bench) wholeDriver(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "bench-driver-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	paths := b.paths
	paths.Simulated = filepath.Join(dir, "simgpu")
	if err := os.CopyFS(paths.Simulated, os.DirFS(b.paths.Simulated)); err != nil {
		return err
	}
	libs := filepath.Join(paths.Simulated, "lib")
	cuda, err := filepath.EvalSymlinks(filepath.Join(libs, "libcuda.so"))
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(driverParts) {
		link := filepath.Join(libs, "lib"+name+".so")
		file := link + strings.TrimPrefix(filepath.Base(cuda), "libcuda.so")
		if err := errors.Join(os.WriteFile(file, nil, 0o644), os.Symlink(filepath.Base(file), link)); err != nil {
			return err
		}
	}
	h, err := b.startHouse(ctx, paths)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.stop()) }()
	c, err := b.startAndDelete(ctx, h, stock, withVGPU)
	if err != nil {
		return err
	}
	c.rows(b, "start", "_driver", &c.starts, 0)
	c.rows(b, "delete", "_driver", &c.deletes, 0)
	return nil
}

// comparison is what starts and deletes of containers took.
type comparison struct {
	starts, deletes [kinds]rounds
	busy            float64 // runnable tasks meanwhile
}

// startAndDelete starts and deletes containers of these kinds in turn.
func (b *bench) startAndDelete(ctx context.Context, h *house, among ...int) (*comparison, error) {
	var cs [kinds]*harness.Container
	for _, kind := range among {
		name := kindNames[kind]
		c, err := h.Containerd.Define(ctx, kindSpec(kind, name, h.rootfs, "/first", "/stamp-"+name))
		if err != nil {
			return nil, err
		}
		cs[kind] = c
		// The first one finds nothing in the caches, and makes the places of mounts.
		if _, _, err := h.once(ctx, c); err != nil {
			return nil, err
		}
	}
	var c comparison
	stop := watchRunnable()
	for range b.size.containers / startsARound {
		var start, del [kinds][]time.Duration
		for range startsARound {
			// Whatever one leaves to the next hits each kind alike.
			for _, i := range rand.Perm(len(among)) {
				kind := among[i]
				s, d, err := h.once(ctx, cs[kind])
				if err != nil {
					return nil, err
				}
				start[kind], del[kind] = append(start[kind], s), append(del[kind], d)
			}
		}
		for _, kind := range among {
			c.starts[kind].add(start[kind])
			c.deletes[kind].add(del[kind])
		}
	}
	c.busy = stop()
	return &c, nil
}

// rows adds a row for each kind of ours that was measured; a budget of 0 is none.
func (c *comparison) rows(b *bench, verb, suffix string, of *[kinds]rounds, budget float64) {
	base := of[stock]
	for _, kind := range []int{withVGPU, plainOfOurs} {
		ours, what := of[kind], "with a vGPU"
		if ours.samples == 0 {
			continue
		}
		if kind == plainOfOurs {
			suffix, what = suffix+"_plain", "without a vGPU"
		}
		r := row{
			name: "container_" + verb + suffix, value: ratio(ours.median, base.median), unit: "of the stock shim", samples: ours.samples,
			note: fmt.Sprintf("%v %s over %v; best of %d rounds; runnable tasks meanwhile: %.1f",
				ours.median, what, base.median, ours.samples/startsARound, c.busy),
		}
		if budget > 0 {
			r.budget, r.rule = budget, most
		}
		b.row(r)
	}
}

// start creates and starts the task of a container.
func (h *house) start(ctx context.Context, id string) error {
	ctx = h.Containerd.Context(ctx)
	if _, err := h.api.Tasks.Create(ctx, &tasks.CreateTaskRequest{ContainerID: id}); err != nil {
		return err
	}
	_, err := h.api.Tasks.Start(ctx, &tasks.StartRequest{ContainerID: id})
	return err
}

// once starts a container's task, whose program notes when it began, and deletes
// it when that has ended.
func (h *house) once(ctx context.Context, c *harness.Container) (start, del time.Duration, err error) {
	ctx = h.Containerd.Context(ctx)
	began := monotonic()
	if err := h.start(ctx, c.ID); err != nil {
		return 0, 0, err
	}
	exit, err := h.api.Tasks.Wait(ctx, &tasks.WaitRequest{ContainerID: c.ID})
	if err != nil {
		return 0, 0, err
	}
	if exit.GetExitStatus() != 0 {
		return 0, 0, fmt.Errorf("container %s ended with status %d", c.ID, exit.GetExitStatus())
	}
	ended := monotonic()
	if _, err := h.api.Tasks.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: c.ID}); err != nil {
		return 0, 0, err
	}
	deleted := monotonic()
	stamp, err := os.ReadFile(filepath.Join(h.rootfs, "stamp-"+c.ID))
	if err != nil {
		return 0, 0, err
	}
	first, err := strconv.ParseInt(strings.TrimSpace(string(stamp)), 10, 64)
	if err != nil {
		return 0, 0, err
	}
	// The server ends a moment after it was told to.
	err = harness.Eventually(ctx, time.Minute, func() error {
		if pid, err := c.ShimPID(); err == nil {
			return fmt.Errorf("the shim %d still runs", pid)
		}
		return nil
	})
	return time.Duration(first) - began, deleted - ended, err
}

// shimMemory compares what shims keep for themselves whose containers run.
func (b *bench) shimMemory(ctx context.Context, h *house) error {
	const shims = 10 // of each kind
	var anon, all [kinds][]int64
	var running []*harness.Container
	for kind := range kinds {
		cs, err := h.staying(ctx, kind, shims)
		if err != nil {
			return err
		}
		for _, c := range cs {
			if err := h.start(ctx, c.ID); err != nil {
				return err
			}
			pid, err := c.ShimPID()
			if err != nil {
				return err
			}
			for key, to := range map[string]*[]int64{"RssAnon": &anon[kind], "VmRSS": &all[kind]} {
				bytes, err := memory(pid, key)
				if err != nil {
					return err
				}
				*to = append(*to, bytes)
			}
		}
		slices.Sort(anon[kind])
		slices.Sort(all[kind])
		running = append(running, cs...)
	}
	mib := func(of *[kinds][]int64, kind int) float64 { return float64(of[kind][shims/2]) / (1 << 20) }
	b.row(row{
		name: "shim_rss", value: mib(&anon, withVGPU) - mib(&anon, stock), unit: "MiB over the stock's", budget: 1, rule: most, samples: shims,
		note: fmt.Sprintf("RssAnon %.2f over %.2f, without a vGPU %.2f; VmRSS %.1f over %.1f, without %.1f",
			mib(&anon, withVGPU), mib(&anon, stock), mib(&anon, plainOfOurs), mib(&all, withVGPU), mib(&all, stock), mib(&all, plainOfOurs)),
	})
	return each(running, func(c *harness.Container) error { return h.end(ctx, c) })
}

// manyContainers starts so many containers with a vGPU at once that containerd,
// shims and vgpud have two CPUs for, deletes them at once, and counts what is left.
func (b *bench) manyContainers(ctx context.Context, h *house) error {
	two := append(slices.Clone(b.cpus.clients), b.cpus.vgpud)
	two = two[:min(2, len(two))]
	for _, pid := range []int{h.Containerd.Process().PID(), h.Daemon.Process().PID()} {
		if err := pin(pid, two...); err != nil {
			return err
		}
	}
	all, err := h.staying(ctx, withVGPU, b.size.many)
	if err != nil {
		return err
	}
	began := monotonic()
	if err := each(all, func(c *harness.Container) error { return h.start(ctx, c.ID) }); err != nil {
		return err
	}
	started := monotonic()
	vgpus, err := h.Daemon.VGPUs(ctx)
	if err != nil {
		return err
	}
	if len(vgpus) != len(all) {
		return fmt.Errorf("%d containers have %d vGPUs", len(all), len(vgpus))
	}
	ending := monotonic()
	if err := each(all, func(c *harness.Container) error { return h.end(ctx, c) }); err != nil {
		return err
	}
	ended := monotonic()
	left := h.Left(ctx)
	for _, line := range left[:min(len(left), 5)] {
		fmt.Println("left:", line)
	}
	b.row(row{
		name: "container_many", value: float64(len(left)), unit: "things left", budget: 0, rule: most, samples: len(all),
		note: fmt.Sprintf("at once, each with a vGPU, on %d CPUs; started in %v, deleted in %v", len(two),
			(started - began).Round(time.Millisecond), (ended - ending).Round(time.Millisecond)),
	})
	return nil
}

// staying makes containers of a kind whose program stays.
func (h *house) staying(ctx context.Context, kind, n int) (all []*harness.Container, _ error) {
	h.models++
	name := fmt.Sprintf("stays-%d", h.models)
	model, err := h.Containerd.Define(ctx, kindSpec(kind, name, h.rootfs, "/first", "/stamp-stays", "stay"))
	if err != nil {
		return nil, err
	}
	for i := range n {
		c, err := h.api.Copy(ctx, model, fmt.Sprintf("%s-%d", name, i))
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// end ends the task of a container, and removes both.
func (h *house) end(ctx context.Context, c *harness.Container) error {
	api := h.Containerd.Context(ctx)
	if _, err := h.api.Tasks.Kill(api, &tasks.KillRequest{ContainerID: c.ID, Signal: uint32(unix.SIGKILL)}); err != nil {
		return err
	}
	if _, err := h.api.Tasks.Wait(api, &tasks.WaitRequest{ContainerID: c.ID}); err != nil {
		return err
	}
	if _, err := h.api.Tasks.Delete(api, &tasks.DeleteTaskRequest{ContainerID: c.ID}); err != nil {
		return err
	}
	return h.api.Remove(ctx, c)
}

// each calls f for all of them at once.
func each(all []*harness.Container, f func(*harness.Container) error) error {
	errs := make([]error, len(all))
	var group sync.WaitGroup
	for i, c := range all {
		group.Go(func() {
			if err := f(c); err != nil {
				errs[i] = fmt.Errorf("container %s: %w", c.ID, err)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// monotonic is the clock that the programs in containers read, too.
func monotonic() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // can not fail
	return time.Duration(now.Nano())
}
