// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"strings"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// ended is a client that has ended well.
type ended struct {
	Output string
	Gated  int // submissions that passed the gate
}

// pair runs a client in two containers at once, and checks that both end well,
// computed in turns and in the same time, and are accounted to their containers.
// A client keeps a meeting (workload/meeting.py) before its work and in the middle
// of it: so each has work before and after some of the other's.
func pair(n *harnesstest.Node, s harness.Spec) (both []ended) {
	n.T.Helper()
	s.Mounts = append([]string{fmt.Sprintf("type=bind,src=%s,dst=/meeting,options=rbind:rw", n.T.TempDir())}, s.Mounts...)
	var containers []*harness.Container
	names := []string{"one", "two"}
	for _, name := range names {
		one := s
		one.ID = name
		one.Env = append([]string{"MEETING=/meeting", "MEETING_AS=" + name, "MEETING_OF=" + strings.Join(names, ",")}, s.Env...)
		containers = append(containers, launch(n, one))
	}
	for _, c := range containers {
		both = append(both, ended{Output: exits(n, c)})
	}
	for i, gated := range inTurns(n, containers...) {
		both[i].Gated = gated
	}
	return both
}
