// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// Policy open: while vgpud stays away, who waits computes without it; once it is
// back, they take turns again.
func TestAbsenceOpen(t *testing.T) {
	t.Parallel()
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: harness.DaemonOptions{
		Engine: "absence = \"open\"\nabsence_after = \"1s\"\n",
	}})
	hogs := []*harness.Container{
		n.Launch(harness.Spec{ID: "one", Args: []string{"hog", "--ms", "0"}}),
		n.Launch(harness.Spec{ID: "two", Args: []string{"hog", "--ms", "0"}}),
	}
	tenants := n.Tenants(hogs...)
	n.GoOn(tenants, nil)
	n.NoOverlap()
	if err := n.Daemon.Process().Kill(); err != nil {
		t.Fatal(err)
	}
	n.GoOn(tenants, n.Submissions()) // one of them waits when vgpud goes
	// The gate opens before that is said.
	n.Wait(func() error {
		for _, h := range hogs {
			if strings.Contains(h.Output(), "vgpu: vgpud has been away for ") {
				return nil
			}
		}
		return errors.New("none says that it computes without vgpud")
	})
	if err := n.Daemon.Start(n.Ctx); err != nil {
		t.Fatal(err)
	}
	n.Wait(func() error {
		for _, h := range hogs {
			if v, err := n.VGPU(h.ID); err != nil || v.GetClients() != 1 {
				return fmt.Errorf("the process of %s is not back yet: %v, %w", h.ID, v, err)
			}
		}
		return nil
	})
	n.alone(monotonic(t), hogs...)
}
