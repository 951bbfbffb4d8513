// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/request"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

var _ v1.ControlService = (*Daemon)(nil)

const reasonLost = "its record was lost; what its container asked for is unknown"

var errStopping = fmt.Errorf("vgpud is stopping: %w", errdefs.ErrUnavailable)

// Create makes a vGPU. The same container and instance get what they got
// before; another instance takes the place of the one that was there.
func (d *Daemon) Create(_ context.Context, r *v1.CreateRequest) (*v1.CreateResponse, error) {
	resp, err := d.create(r)
	if err != nil {
		d.log.WithField("container", r.GetContainer().GetId()).WithError(err).Warn("vGPU refused")
		return nil, errgrpc.ToGRPC(err)
	}
	return resp, nil
}

func (d *Daemon) create(r *v1.CreateRequest) (_ *v1.CreateResponse, retErr error) {
	if err := checkCreate(r); err != nil {
		return nil, err
	}
	req, err := request.Parse(r.GetAnnotations(), r.GetAnnotations()[request.ContainerName], int(r.GetDefaultCount()))
	if err != nil {
		return nil, err
	}
	if err := possible(d.inventory.GPUs(), req); err != nil {
		return nil, err
	}
	if err := met(d.inventory.Driver(), d.inventory.GPUs(), req, r.GetRequirements()); err != nil {
		return nil, err
	}
	if err := d.loop.canFreeze(req); err != nil {
		return nil, err
	}
	bundle, err := bundleFile(r.GetBundle())
	if err != nil {
		return nil, err
	}
	c := r.GetContainer()
	id := vgpuID(c.GetContainerd(), c.GetNamespace(), c.GetId())

	defer d.alone(id)()
	var had, stale string
	var early []arbiter.UUID
	if err := d.call(func(l *loop) {
		v := l.current[id]
		switch {
		case v == nil:
		case v.rec.Instance == r.GetInstance():
			had = v.rec.Dir
			if v.req.Bind == request.BindEarly {
				early = v.bound
			}
		default:
			stale = v.rec.Dir
			l.remove(v)
		}
	}); err != nil {
		return nil, err
	}
	if had != "" {
		return d.created(id, had, req, early)
	}
	if stale != "" {
		os.RemoveAll(filepath.Join(d.dirs, stale))
	}

	dir, err := makeDir(d.dirs, id, req.Count, openCLDevices(d.mayUse(req, nil), d.loop.openCLOnCPU))
	if err != nil {
		return nil, err
	}
	path := filepath.Join(d.dirs, dir)
	defer func() {
		if retErr != nil {
			os.RemoveAll(path)
		}
	}()
	fd, err := listenIn(path)
	if err != nil {
		return nil, err
	}
	v := &vgpu{
		// Named by the directory, not by the id: the record of an instance that
		// is still being drained stays beside it.
		key: arbiter.ID(dir), req: req, listen: -1, adopted: true,
		rec: record{
			Version: recordVersion, ID: id, Dir: dir,
			Containerd: c.GetContainerd(), Namespace: c.GetNamespace(), Container: c.GetId(),
			Instance: r.GetInstance(), Bundle: r.GetBundle(), BundleFile: bundle,
			Annotations: req.Annotations(), Pod: podOf(r.GetPod()), Claims: claimRecords(r.GetClaims()),
			Reservation: d.claims.reservation(r.GetClaims()), Created: time.Now().UTC(), Boot: d.loop.boot,
		},
	}
	defer func() {
		if retErr != nil && fd >= 0 {
			unix.Close(fd)
		}
	}()
	written := make(chan error, 1)
	d.loop.store.save(v.record(), func(err error) { written <- err })
	if err := <-written; err != nil {
		return nil, err
	}
	defer func() {
		if retErr != nil {
			d.loop.store.remove(dir, nil)
		}
	}()
	resp, err := d.created(id, dir, req, nil)
	if err != nil {
		return nil, err
	}
	if err := d.loop.accounts.reserve(); err != nil {
		return nil, err
	}
	d.loop.accounts.account(v, d.loop.now())
	defer func() {
		if retErr != nil && fd >= 0 {
			d.loop.accounts.release(v.account)
		}
	}()
	var addErr error
	if err := d.call(func(l *loop) {
		if addErr = l.listenOn(v, fd); addErr == nil {
			l.add(v)
			l.tell(eventCreated, v, "")
		}
	}); err != nil {
		return nil, err
	}
	if addErr != nil {
		return nil, addErr
	}
	if req.Bind == request.BindEarly {
		fd = -1 // the vGPU's now
		if early, err = d.bindEarly(v); err == nil {
			err = writeIn(path, wire.GPUs, openCLDevices(d.mayUse(req, early), d.loop.openCLOnCPU))
		}
		if err == nil {
			resp, err = d.created(id, dir, req, early)
		}
		if err != nil {
			_ = d.call(func(l *loop) { l.remove(v) })
			return nil, err
		}
	}
	d.log.WithFields(v.fields()).WithField("gpus", req.Count).Info("vGPU created")
	return resp, nil
}

// created answers with the edits for a vGPU: the device nodes of the GPUs to
// which it is bound or, if there are none yet, of all to which it may be.
func (d *Daemon) created(id, dir string, req request.Request, bound []arbiter.UUID) (*v1.CreateResponse, error) {
	driver := d.inventory.Driver()
	driver.Devices = slices.Clone(driver.Devices)
	for _, g := range d.mayUse(req, bound) {
		driver.Devices = append(driver.Devices, g.Devices...)
	}
	edits, err := d.takeOver.Edits(driver, filepath.Join(d.dirs, dir))
	if err != nil {
		return nil, fmt.Errorf("failed to work out the edits: %w", err)
	}
	return &v1.CreateResponse{Id: id, Edits: edits}, nil
}

// mayUse are the GPUs to which a vGPU is bound or, if there are none yet, all to which
// it may be.
func (d *Daemon) mayUse(req request.Request, bound []arbiter.UUID) (all []gpu.GPU) {
	for _, g := range d.inventory.GPUs() {
		if slices.Contains(bound, arbiter.UUID(g.UUID)) || len(bound) == 0 && candidate(g, req) {
			all = append(all, g)
		}
	}
	return all
}

// canFreeze is why a request to be frozen can not be met. It may be called from
// anywhere.
func (l *loop) canFreeze(req request.Request) error {
	if req.Overrun != request.Freeze {
		return nil
	}
	if err := l.freezer.missing(); err != nil {
		return fmt.Errorf("%soverrun=%s: %s: %w", request.Prefix, req.Overrun, err.Error(), errdefs.ErrFailedPrecondition)
	}
	return nil
}

// bundleFile is the directory of a bundle. Whether it is gone is how vgpud knows
// that a vGPU was leaked, so it must be seen from here.
func bundleFile(bundle string) (file, error) {
	f, err := stat(bundle)
	if err != nil {
		return f, fmt.Errorf("vgpud can not see the bundle %s (%s): run vgpud in the host's mount namespace: %w", bundle, err.Error(), errdefs.ErrFailedPrecondition)
	}
	return f, nil
}

func stat(path string) (file, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return file{}, err
	}
	return file{Dev: st.Dev, Ino: st.Ino}, nil
}

func checkCreate(r *v1.CreateRequest) error {
	var f faults
	f.container(r.GetContainer())
	f.name("instance", r.GetInstance())
	f.name("bundle", r.GetBundle())
	if b := r.GetBundle(); b != "" && !filepath.IsAbs(b) {
		f.add("bundle", clip(b)+" is not an absolute path")
	}
	f.annotations(r.GetAnnotations())
	f.pod("pod", r.GetPod())
	f.requirements(r.GetRequirements())
	f.pointers("claims", r.GetClaims())
	if n := r.GetDefaultCount(); n > request.MaxCount {
		f.add("default_count", fmt.Sprintf("%d is above %d", n, request.MaxCount))
	}
	return f.err()
}

// possible says whether a node with these GPUs could ever serve a request.
func possible(all []gpu.GPU, req request.Request) error {
	if req.Count == 0 {
		return fmt.Errorf("%sgpus=0: a container without GPUs has no vGPU: %w", request.Prefix, errdefs.ErrInvalidArgument)
	}
	fit := 0
	for _, g := range all {
		if candidate(g, req) {
			fit++
		}
	}
	if fit >= req.Count {
		return nil
	}
	var have []string
	for _, g := range all {
		have = append(have, fmt.Sprintf("%s, a %s with %s", g.UUID, g.Model, request.FormatBytes(g.MemoryBytes)))
	}
	return fmt.Errorf("%d of %d GPUs asked for exist on this node (it has: %s): %w",
		fit, req.Count, strings.Join(have, ", "), errdefs.ErrFailedPrecondition)
}

// candidate says whether a request may be bound to g when it is empty.
func candidate(g gpu.GPU, req request.Request) bool {
	return request.NamesGPU(req.UUIDs, g.UUID) && req.MemoryBytes <= g.MemoryBytes &&
		(req.Model == "" || strings.Contains(strings.ToLower(g.Model), strings.ToLower(req.Model)))
}

// Delete removes a vGPU. It does not wait for what the vGPU has in flight.
func (d *Daemon) Delete(_ context.Context, r *v1.DeleteRequest) (*v1.DeleteResponse, error) {
	c := r.GetContainer()
	var f faults
	f.container(c)
	f.text("instance", r.GetInstance(), maxName)
	if err := f.err(); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	id := vgpuID(c.GetContainerd(), c.GetNamespace(), c.GetId())
	defer d.alone(id)()
	if err := d.delete(id, func(v *vgpu) bool {
		// One whose record was lost has no instance.
		return r.GetInstance() == "" || v.rec.Instance == "" || r.GetInstance() == v.rec.Instance
	}); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &v1.DeleteResponse{}, nil
}

// delete removes the vGPU id if it is there and meant. It is alone.
func (d *Daemon) delete(id string, meant func(*vgpu) bool) error {
	var dir string
	if err := d.call(func(l *loop) {
		if v := l.current[id]; v != nil && meant(v) {
			dir = v.rec.Dir
			l.log.WithFields(v.fields()).Info("vGPU removed")
			l.remove(v)
		}
	}); err != nil {
		return err
	}
	if dir == "" {
		return nil
	}
	// The record goes first, in the loop; what a crash leaves is swept.
	if err := os.RemoveAll(filepath.Join(d.dirs, dir)); err != nil {
		return fmt.Errorf("failed to remove a vGPU's directory: %w", err)
	}
	return nil
}

// Update changes what a vGPU asked for.
func (d *Daemon) Update(_ context.Context, r *v1.UpdateRequest) (*v1.UpdateResponse, error) {
	v, err := d.update(r.GetId(), r.GetAnnotations())
	if err != nil {
		d.log.WithField("vgpu", r.GetId()).WithError(err).Warn("vGPU not changed")
		return nil, errgrpc.ToGRPC(err)
	}
	return &v1.UpdateResponse{Vgpu: v}, nil
}

func (d *Daemon) update(id string, changes map[string]string) (*v1.VGPU, error) {
	var f faults
	f.vgpuID("id", id)
	if len(changes) == 0 {
		f.add("annotations", "must not be empty")
	}
	f.annotations(changes)
	if err := f.err(); err != nil {
		return nil, err
	}
	defer d.alone(id)()
	var out *v1.VGPU
	done := make(chan error, 1)
	if err := d.call(func(l *loop) {
		l.update(id, changes, func(v *vgpu, err error) {
			if err == nil {
				out = l.describe(v)
			}
			done <- err
		})
	}); err != nil {
		return nil, err
	}
	select {
	case err := <-done:
		return out, err
	case <-d.ended: // before the store's answer came back into the loop
		return nil, errStopping
	}
}

// update changes what the vGPU id asked for, once that stands in the store, and
// then calls fn.
func (l *loop) update(id string, changes map[string]string, fn func(*vgpu, error)) {
	v := l.current[id]
	switch {
	case v == nil:
		fn(nil, fmt.Errorf("vGPU %q: %w", id, errdefs.ErrNotFound))
		return
	case v.rec.Container == "":
		fn(nil, fmt.Errorf("%s: %w", reasonLost, errdefs.ErrFailedPrecondition))
		return
	}
	req, err := request.Change(v.rec.Annotations, changes)
	if err == nil {
		err = l.canChange(v, req)
	}
	if err != nil {
		fn(nil, err)
		return
	}
	// Every record that is written from now on has it, whatever it is written for.
	before := v.rec.Annotations
	v.rec.Annotations = req.Annotations()
	l.saved(v, func(err error) {
		if err == nil {
			err = l.canChange(v, req) // others may have been bound meanwhile
		}
		if err != nil {
			v.rec.Annotations = before
			l.saved(v, func(error) {})
			fn(nil, err)
			return
		}
		v.req = req
		l.event(arbiter.Event{Kind: arbiter.Changed, VGPU: v.key, Request: req})
		l.log.WithFields(v.fields()).WithField("changes", changes).Info("vGPU changed")
		l.tellChanged(v, changes)
		fn(v, nil)
	})
}

func (l *loop) canChange(v *vgpu, req request.Request) error {
	if l.recovery != nil && req.MinShare > v.req.MinShare { // what is guaranteed is not known yet
		return fmt.Errorf("%s; try again: %w", reasonRecovering, errdefs.ErrFailedPrecondition)
	}
	if v.rec.Reservation != "" && req.MemoryBytes != v.req.MemoryBytes {
		return fmt.Errorf("its memory is that of its Kubernetes claim, reserved for all containers of the claim together: "+
			"start the pods anew with a claim that asks for as much: %w", errdefs.ErrFailedPrecondition)
	}
	if err := l.canFreeze(req); err != nil {
		return err
	}
	var all []gpu.GPU
	for _, g := range l.order {
		all = append(all, g.GPU)
	}
	if err := possible(all, req); err != nil {
		return err
	}
	if err := l.engine.CanChange(v.key, req); err != nil {
		return fmt.Errorf("%s: %w", err.Error(), errdefs.ErrFailedPrecondition)
	}
	return nil
}

// tend does what is due now and again.
func (d *Daemon) tend(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		d.collect()
		d.relisten()
		_ = d.call((*loop).lookForWaiting)
		_, _ = d.look() // fails when vgpud is stopping
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// collect removes vGPUs that nobody will remove: their bundle is gone, and no
// process of theirs is left.
func (d *Daemon) collect() {
	type place struct {
		path string
		file file
	}
	bundles := make(map[arbiter.ID]place)
	if d.call(func(l *loop) {
		for _, v := range l.current {
			if v.rec.Bundle != "" { // else its record was lost
				bundles[v.key] = place{v.rec.Bundle, v.rec.BundleFile}
			}
		}
	}) != nil {
		return
	}
	for key, bundle := range bundles {
		now, err := stat(bundle.path)
		// A path that is there again with another inode is a new container's; the
		// inodes of older records are not known.
		if !errors.Is(err, unix.ENOENT) && (err != nil || bundle.file == file{} || now == bundle.file) {
			continue
		}
		id, _, _ := strings.Cut(string(key), "-")
		end := d.alone(id)
		err = d.delete(id, func(v *vgpu) bool {
			return v.key == key && len(v.clients) == 0 && !v.missing() && len(v.expected) == 0
		})
		end()
		if err != nil {
			d.log.WithField("vgpu", id).WithError(err).Warn("failed to collect a vGPU whose bundle is gone")
		}
	}
}

// Get tells about one vGPU.
func (d *Daemon) Get(_ context.Context, r *v1.GetRequest) (*v1.GetResponse, error) {
	var f faults
	f.vgpuID("id", r.GetId())
	err := f.err()
	resp := &v1.GetResponse{}
	if err == nil {
		err = d.call(func(l *loop) {
			if v := l.current[r.GetId()]; v != nil {
				resp.Vgpu = l.describe(v)
			}
		})
	}
	if err == nil && resp.GetVgpu() == nil {
		err = fmt.Errorf("vGPU %q: %w", r.GetId(), errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return resp, nil
}

// List tells about all vGPUs, in the order in which they were made.
func (d *Daemon) List(context.Context, *v1.ListRequest) (*v1.ListResponse, error) {
	resp := &v1.ListResponse{}
	if err := d.call(func(l *loop) {
		for _, v := range l.vgpus {
			resp.Vgpus = append(resp.Vgpus, l.describe(v))
		}
		resp.Epoch, resp.Sequence = l.events.epoch, l.events.newest()
	}); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	slices.SortFunc(resp.Vgpus, func(a, b *v1.VGPU) int {
		return cmp.Or(a.GetCreated().AsTime().Compare(b.GetCreated().AsTime()), strings.Compare(a.GetId(), b.GetId()))
	})
	return resp, nil
}

func (l *loop) describe(v *vgpu) *v1.VGPU {
	s, _ := l.engine.VGPU(v.key)
	told := l.show(v, s.Usage.Held)
	u := &v1.Usage{
		Held: durationpb.New(told.held), Waited: durationpb.New(s.Usage.Waited),
		Turns: s.Usage.Turns, Drains: s.Usage.Drains, Overruns: s.Usage.Overruns,
		Submissions: told.submissions, Lingered: durationpb.New(s.Usage.Lingered),
	}
	out := &v1.VGPU{
		Id:        v.rec.ID,
		Container: v.container(), Pod: v.rec.Pod.message(), Claims: claimPointers(v.rec.Claims),
		State: s.State.String(), Count: uint32(v.req.Count), MemoryBytes: v.req.MemoryBytes,
		Weight: uint32(cmp.Or(v.req.Weight, request.DefaultWeight)), Priority: v.req.Priority.String(),
		MinShare: v.req.MinShare, MaxShare: v.req.MaxShare,
		Quantum: durationpb.New(s.Quantum), Usage: u,
		Created: timestamppb.New(v.rec.Created), Reason: s.Reason,
		Rubbish: v.rubbish, Ungated: told.unhooked, UnknownNames: told.unknown, Policy: s.Policy.String(),
		Gang: v.req.Gang, Model: v.req.Model, Bind: v.req.Bind.String(), WhenFull: v.req.WhenFull.String(),
		Overrun: s.Overrun.String(),
	}
	if v.req.UUIDs != "" {
		out.Uuids = strings.Split(v.req.UUIDs, ",")
	}
	for _, uuid := range s.GPUs {
		out.Gpus = append(out.Gpus, string(uuid))
		_, used := l.memoryOn(v, uuid)
		out.Memory = append(out.Memory, &v1.Memory{Gpu: string(uuid), LimitBytes: l.memoryLimit(v, uuid), UsedBytes: used})
	}
	for _, g := range l.engine.Guests(v.key) {
		if other := l.vgpus[g.VGPU]; other != nil {
			out.Guests = append(out.Guests, &v1.Guest{Gpu: string(g.GPU), Vgpu: other.rec.ID})
		}
	}
	out.Clients, out.Observers = v.connected(), v.watchers()
	if s.State == arbiter.Holding && v.idle() {
		out.State = arbiter.Idle.String()
	}
	if s.Swap > 0 {
		out.Swap = durationpb.New(s.Swap)
	}
	switch {
	case v.removed:
		out.Reason = "removed; its last work is being drained"
	case !v.adopted:
		out.Reason = reasonRecovering
	case out.Reason == "" && v.rec.Container == "":
		out.Reason = reasonLost
	}
	return out
}

// ListGPUs tells about all GPUs, in the driver's order.
func (d *Daemon) ListGPUs(ctx context.Context, _ *v1.ListGPUsRequest) (*v1.ListGPUsResponse, error) {
	// Who else uses a GPU is seen by looking alone.
	looked := make(chan struct{})
	err := d.call(func(l *loop) { l.lookAtMemory(func() { close(looked) }) })
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	select {
	case <-looked:
	case <-d.ended:
	case <-ctx.Done():
	}
	resp, err := d.listGPUs()
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return resp, nil
}

func (d *Daemon) listGPUs() (*v1.ListGPUsResponse, error) {
	resp := &v1.ListGPUsResponse{}
	err := d.call(func(l *loop) {
		residents := l.residents()
		for _, s := range l.engine.GPUs() {
			if g := l.gpus[s.UUID]; g != nil {
				resp.Gpus = append(resp.Gpus, l.describeGPU(g, s, residents[s.UUID]))
			}
		}
		resp.Epoch, resp.Sequence = l.events.epoch, l.events.newest()
	})
	return resp, err
}

func (l *loop) describeGPU(g *gpuState, s arbiter.GPUStatus, residents []string) *v1.GPU {
	out := &v1.GPU{
		Uuid: g.UUID, Model: g.Model, MemoryBytes: g.MemoryBytes, PciBusId: g.PCIBusID,
		State: "FREE", Reason: g.causes.reason(), Bound: uint32(s.Bound), Pending: uint32(s.Pending),
		Held: durationpb.New(s.Usage.Held), Turns: s.Usage.Turns, Handover: g.handover.describe(),
		Cordon: g.causes.cordon(), Policy: l.policyOn(g), OwnPolicy: g.policy != arbiter.Policy{},
		Vgpus: residents, MemoryUsedBytes: l.memoryUsed(s.UUID), MemoryReservedBytes: s.Ledger, MemoryFreeBytes: g.memoryFree,
		Notes: g.health.Notes, Architecture: g.Architecture, ComputeCapability: g.ComputeCapability,
		MemoryPromisedBytes: s.Promised, MemoryGuestBytes: s.Guests,
	}
	holder := l.vgpus[s.Holder]
	if holder != nil && !s.Drains && holder.idle() {
		holder = nil
	}
	if holder != nil {
		out.Holder = holder.rec.ID
	}
	switch {
	case g.causes.unhealthy():
		out.State = "UNHEALTHY"
	case out.Reason != "":
		out.State = "CORDONED"
	case s.Drains:
		out.State = "DRAINING"
	case holder != nil:
		out.State = "HELD"
	}
	return out
}

// Info tells about vgpud itself.
func (d *Daemon) Info(context.Context, *v1.InfoRequest) (*v1.InfoResponse, error) {
	resp := &v1.InfoResponse{
		Version: d.build.Version, Commit: d.build.Commit,
		Source: d.inventory.Name(), DriverVersion: d.inventory.Driver().Version,
		Protocol: wire.Protocol, Started: timestamppb.New(d.started), Libraries: d.libraries,
	}
	if err := d.call(func(l *loop) {
		resp.Epoch, resp.Sequence = l.events.epoch, l.events.newest()
		resp.Policy = l.policyOn(nil)
	}); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return resp, nil
}
