// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// listed is what vgpu ps shows of a vGPU.
type listed struct {
	Container struct{ ID string }
	State     string
	Clients   int
	Ungated   int
	Usage     struct {
		HeldNS      int64 `json:"held_ns"`
		Turns       int
		Submissions int
	}
}

// ps is vgpu ps of one container.
func ps(n *harnesstest.Node, id string) (listed, error) {
	text, err := n.Daemon.CLI(n.Ctx, "ps", "--output", "json")
	if err != nil {
		return listed{}, err
	}
	var all []listed
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return listed{}, err
	}
	for _, one := range all {
		if one.Container.ID == id {
			return one, nil
		}
	}
	return listed{}, fmt.Errorf("vgpu ps does not show %s: %s", id, text)
}

// gone waits until vgpud knows that no client of a container lives, and returns
// what became of its vGPU: these numbers are the last.
func gone(n *harnesstest.Node, c *harness.Container) (last listed) {
	n.T.Helper()
	n.Wait(func() (err error) {
		if last, err = ps(n, c.ID); err == nil && (last.Clients != 0 || last.State == "HOLDING" || last.State == "DRAINING") {
			err = fmt.Errorf("the vGPU is still in use: %+v", last)
		}
		return err
	})
	return last
}

// inTurns checks that containers whose clients have ended took turns: the
// simulated GPU has seen work of these and of no other, of no two at once, each
// piece in a turn of its own vGPU, and of each before the last and after the first
// of the others. What passed the gate of each is what the log has, and what it
// returns.
func inTurns(n *harnesstest.Node, containers ...*harness.Container) (gated []int) {
	n.T.Helper()
	var last []listed
	for _, c := range containers {
		last = append(last, gone(n, c))
	}
	tenants := n.Tenants(containers...)
	if o := n.NoOverlap(); len(o.Tenants) != len(containers) {
		n.T.Errorf("the simulated GPU has seen %d tenants, want %d", len(o.Tenants), len(containers))
	}
	n.InTurns(n.VGPUIDs(tenants))
	log, err := n.Daemon.Log(n.Ctx)
	if err != nil {
		n.T.Fatal(err)
	}
	works := map[*harness.Container]int{}
	first, latest := map[*harness.Container]time.Duration{}, map[*harness.Container]time.Duration{}
	for _, op := range log {
		c := tenants[op.Tenant]
		if op.Class != harness.ClassWork || c == nil {
			continue
		}
		if works[c]++; works[c] == 1 {
			first[c] = op.Submit
		}
		latest[c] = op.Submit
	}
	for i, c := range containers {
		u := last[i].Usage
		if u.Submissions == 0 || u.Submissions != works[c] || u.Turns == 0 || u.HeldNS == 0 || last[i].Ungated != 0 {
			n.T.Errorf("vgpu ps shows %+v of %s, the simulated GPU has seen %d pieces of work", last[i], c.ID, works[c])
		}
		for _, other := range containers {
			if first[other] > latest[c] {
				n.T.Errorf("%s did nothing before %s had ended: they were not there at once", other.ID, c.ID)
			}
		}
		gated = append(gated, u.Submissions)
	}
	return gated
}
