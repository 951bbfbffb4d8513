// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// Two containers of one gang compute a collective on one GPU beside a third:
// each has to run for the other to end, so they get there only if they are
// granted together. A member that computes nothing does not keep them; who has
// the gang's name in another namespace is not of it.
func TestGang(t *testing.T) {
	t.Parallel()
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: harness.DaemonOptions{
		// For a quantum, and more the next times, a drain of ranks is resumed: time for them to get a CPU.
		Drain: longest, Quantum: 200 * time.Millisecond,
	}})
	events := n.follow()
	meet := n.meeting("gang", 0)
	gang := map[string]string{"vgpu-shim.dev/gang": "job"}
	silent := n.Launch(harness.Spec{ID: "silent", Args: []string{"inert", "--init"}, Annotations: gang})
	n.Says(silent, "loaded")
	other := n.Launch(harness.Spec{
		ID: "other", Namespace: n.Containerd.Namespace + "-other", Args: longHog(), Annotations: gang,
	})
	n.Says(other, "running")
	var ranks []*harness.Container
	var tenants []harness.Tenant
	for _, id := range []string{"rank0", "rank1"} {
		c := n.Launch(harness.Spec{
			ID: id, Args: []string{"rank", "--meet", "/meet", "--ranks", "2", "--rounds", "200"}, Annotations: gang,
			Mounts: []string{"type=bind,src=" + meet + ",dst=/meet,options=rbind:rw"},
		})
		ranks, tenants = append(ranks, c), append(tenants, n.tenant(c))
	}
	for _, c := range ranks {
		if out := n.Finish(c); !strings.HasSuffix(out, "done\n") {
			t.Errorf("%s says %q", c.ID, out)
		}
	}
	log, err := n.Daemon.Log(n.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	if harness.Together(log, is(tenants[0]), is(tenants[1])) == 0 {
		t.Error("the ranks never computed at once")
	}
	if got := harness.Together(log, is(tenants...), is(n.tenant(other))); got != 0 {
		t.Errorf("%d pieces of the ranks' work were in flight with some of the other namespace's", got)
	}
	if v, err := n.VGPU("other"); err != nil || v.GetUsage().GetDrains() == 0 {
		t.Errorf("the other namespace's container should have given way: %v, %v", v.GetUsage(), err)
	}
	if events.count("OVERRUN", "") != 0 {
		t.Errorf("an overrun: %+v", events.all())
	}
}
