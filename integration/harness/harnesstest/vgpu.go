// SPDX-License-Identifier: Apache-2.0

package harnesstest

import (
	"fmt"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// VGPU asks vgpud for the vGPU of a container.
func (n *Node) VGPU(id string) (*v1.VGPU, error) {
	all, err := n.Daemon.VGPUs(n.Ctx)
	if err != nil {
		return nil, err
	}
	for _, v := range all {
		if v.GetContainer().GetId() == id {
			return v, nil
		}
	}
	return nil, fmt.Errorf("no vGPU of container %s", id)
}

// In waits until the vGPU of a container is in one of the states.
func (n *Node) In(id string, states ...string) {
	n.T.Helper()
	n.Wait(func() error {
		v, err := n.VGPU(id)
		if err != nil {
			return err
		}
		for _, s := range states {
			if v.GetState() == s {
				return nil
			}
		}
		return fmt.Errorf("the vGPU of container %s is %s, not yet %v", id, v.GetState(), states)
	})
}

// Tenants tells who the containers are in the simulated GPU's log.
func (n *Node) Tenants(all ...*harness.Container) map[harness.Tenant]*harness.Container {
	n.T.Helper()
	tenants := map[harness.Tenant]*harness.Container{}
	for _, c := range all {
		tenant, err := c.Tenant()
		if err != nil {
			n.T.Fatal(err)
		}
		tenants[tenant] = c
	}
	return tenants
}

// VGPUIDs tells the ids of the containers' vGPUs.
func (n *Node) VGPUIDs(tenants map[harness.Tenant]*harness.Container) map[harness.Tenant]string {
	n.T.Helper()
	ids := map[harness.Tenant]string{}
	for tenant, c := range tenants {
		v, err := n.VGPU(c.ID)
		if err != nil {
			n.T.Fatal(err)
		}
		ids[tenant] = v.GetId()
	}
	return ids
}

// InTurns fails the test if any work was submitted outside a turn of the vGPU
// that it is of. vgpud must log at level trace.
func (n *Node) InTurns(ids map[harness.Tenant]string) {
	n.T.Helper()
	n.InTurnsAfter(0, ids)
}

// InTurnsAfter is InTurns for a Node that several tests use: it looks at what comes
// after so many operations of the simulated GPUs' log.
func (n *Node) InTurnsAfter(before int, ids map[harness.Tenant]string) {
	n.T.Helper()
	turns, err := n.Daemon.Turns()
	if err != nil {
		n.T.Fatal(err)
	}
	log, err := n.Daemon.Log(n.Ctx)
	if err != nil {
		n.T.Fatal(err)
	}
	work, outside := 0, 0
	for _, op := range log[before:] {
		if op.Class != harness.ClassWork {
			continue
		}
		work++
		if harness.Within(turns, ids[op.Tenant], op.Submit) {
			continue
		}
		outside++
		if outside <= 5 {
			n.T.Errorf("%s of vGPU %q was submitted at %v, in no turn of it", op.Name, ids[op.Tenant], op.Submit)
		}
	}
	if outside > 0 || work == 0 {
		n.T.Errorf("%d of %d pieces of work were submitted outside a turn", outside, work)
	}
}

// NoOverlap fails the test if work of two tenants was in flight at once, or if
// the log can not tell.
func (n *Node) NoOverlap() harness.Overlap {
	n.T.Helper()
	o, err := n.Daemon.Overlap(n.Ctx)
	if err != nil {
		n.T.Fatal(err)
	}
	if o.OverlapNS != 0 || o.Pairs != 0 || o.Lost != 0 {
		n.T.Errorf("the simulated GPU saw work of two tenants at once: %+v", o)
	}
	return o
}

// Submissions is how much work of each tenant the simulated GPUs have seen.
func (n *Node) Submissions() map[harness.Tenant]int64 {
	n.T.Helper()
	o, err := n.Daemon.Overlap(n.Ctx)
	if err != nil {
		n.T.Fatal(err)
	}
	all := map[harness.Tenant]int64{}
	for _, tenant := range o.Tenants {
		all[tenant.Tenant] = tenant.Submissions
	}
	return all
}

// GoOn waits until each of the containers has submitted work since "before".
func (n *Node) GoOn(tenants map[harness.Tenant]*harness.Container, before map[harness.Tenant]int64) {
	n.T.Helper()
	n.Wait(func() error {
		now := n.Submissions()
		for tenant, c := range tenants {
			if c.Ended() {
				n.T.Fatalf("container %s ended: %s", c.ID, c.Output())
			}
			if now[tenant] <= before[tenant] {
				return fmt.Errorf("container %s has submitted nothing since", c.ID)
			}
		}
		return nil
	})
}
