// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// gpuRow is a GPU as vgpu gpus shows it.
type gpuRow struct {
	UUID, State, Reason, Cordon string
	VGPUs                       []string
}

// gpus asks vgpu gpus.
func (n *node) gpus() []gpuRow {
	n.T.Helper()
	var all []gpuRow
	if err := json.Unmarshal([]byte(n.cli("gpus", "--output", "json")), &all); err != nil {
		n.T.Fatal(err)
	}
	return all
}

// shows waits until vgpu gpus shows a GPU in a state, with a reason that says why.
func (n *node) shows(gpu int, state, why string) {
	n.T.Helper()
	n.Wait(func() error {
		if g := n.gpus()[gpu]; g.State != state || !strings.Contains(g.Reason, why) {
			return fmt.Errorf("GPU %d is %s (%s), not yet %s for %q", gpu, g.State, g.Reason, state, why)
		}
		return nil
	})
}

// on runs a container to its end and tells on which GPU it was, by the identity
// that the container itself saw.
func (n *node) on(id string, annotations map[string]string) int {
	n.T.Helper()
	return n.ranOn(n.Launch(harness.Spec{ID: id, Args: []string{"vecadd"}, Annotations: annotations}))
}

func (n *node) ranOn(c *harness.Container) int {
	n.T.Helper()
	var saw struct{ UUID string }
	harnesstest.LastJSON(n.T, n.Finish(c), &saw)
	for i, g := range n.gpus() {
		if strings.ReplaceAll(strings.TrimPrefix(g.UUID, "GPU-"), "-", "") == saw.UUID {
			return i
		}
	}
	n.T.Fatalf("container %s was on %s, which is no GPU of this node", c.ID, saw.UUID)
	return -1
}

// inject makes a GPU suffer.
func (n *node) inject(gpu int, condition ...string) {
	n.T.Helper()
	if err := n.Daemon.Inject(n.Ctx, gpu, condition...); err != nil {
		n.T.Fatal(err)
	}
}

// firstFit takes the first GPU that will do.
func firstFit() harness.DaemonOptions {
	return harness.DaemonOptions{GPUs: "sim:2", Engine: "binding = \"first-fit\"\n"}
}

// A GPU that is lost takes nothing more, and says so; who asked for it waits, and
// says so; others are elsewhere; when it is back, all goes on.
func TestLostGPU(t *testing.T) {
	t.Parallel()
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: firstFit()})
	if got := n.on("before", nil); got != 0 {
		t.Fatalf("with all GPUs well it was on %d", got)
	}
	hog := n.Launch(harness.Spec{ID: "hog", Args: []string{"hog", "--ms", "0"}})
	n.Says(hog, "running")
	n.inject(0, "--lost", "on")
	n.shows(0, "UNHEALTHY", "lost")
	// Its process gets the driver's error.
	n.endsWith(hog, 1)
	if got := n.on("elsewhere", nil); got != 1 {
		t.Errorf("with the first GPU lost it was on %d", got)
	}
	waits := n.Launch(harness.Spec{
		ID: "waits", Args: []string{"vecadd"}, Annotations: map[string]string{"vgpu-shim.dev/uuid": n.gpus()[0].UUID},
	})
	n.Wait(func() error {
		if out := waits.Output(); !strings.HasPrefix(out, "vgpu: waiting for a GPU: ") || !strings.Contains(out, "lost") {
			return fmt.Errorf("it does not say why it waits: %q", out)
		}
		return nil
	})
	n.inject(0, "--lost", "off")
	if got := n.ranOn(waits); got != 0 {
		t.Errorf("who asked for the first GPU was on %d", got)
	}
	n.shows(0, "FREE", "")
	if got := n.on("after", nil); got != 0 {
		t.Errorf("with the first GPU back it was on %d", got)
	}
}

// What keeps a GPU from taking new vGPUs, and leaves those that live there alone.
func TestCordonedGPU(t *testing.T) {
	t.Parallel()
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: firstFit()})
	first := n.gpus()[0].UUID
	resident := n.Launch(harness.Spec{ID: "resident", Args: burstArgs(1_000_000)})
	lives := n.Tenants(resident)
	n.GoOn(lives, nil)

	n.inject(0, "--compute-mode", "exclusive")
	n.shows(0, "CORDONED", "EXCLUSIVE_PROCESS")
	if got := n.on("exclusive", nil); got != 1 {
		t.Errorf("with the first GPU in exclusive mode it was on %d", got)
	}
	n.cli("gpus", "cordon", first, "--reason", "fan is loud")
	n.shows(0, "CORDONED", "fan is loud")
	n.inject(0, "--compute-mode", "default")
	n.Wait(func() error {
		if g := n.gpus()[0]; strings.Contains(g.Reason, "EXCLUSIVE") {
			return errors.New(g.Reason)
		}
		return nil
	})
	if got := n.on("cordoned", nil); got != 1 {
		t.Errorf("with the first GPU cordoned it was on %d", got)
	}
	n.GoOn(lives, n.Submissions())

	drain, err := n.Daemon.Follow("drain", "gpus", "drain", first, "--wait")
	if err != nil {
		t.Fatal(err)
	}
	id, err := n.VGPU("resident")
	if err != nil {
		t.Fatal(err)
	}
	n.Wait(func() error {
		if out := drain.Tail(); !strings.Contains(out, id.GetId()) {
			return fmt.Errorf("drain --wait does not say who is left: %q", out)
		}
		return nil
	})
	n.kill(resident)
	<-drain.Done()
	if out := drain.Tail(); !strings.Contains(out, "CORDONED") {
		t.Errorf("drain --wait ended with %q", out)
	}
	n.cli("gpus", "uncordon", first)
	n.shows(0, "FREE", "")
	if got := n.on("uncordoned", nil); got != 0 {
		t.Errorf("with the first GPU uncordoned it was on %d", got)
	}
}

// Memory that others have on a GPU is not given out.
func TestForeignMemory(t *testing.T) {
	t.Parallel()
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: firstFit()})
	wants := map[string]string{"vgpu-shim.dev/memory": "10Gi"} // of 16
	n.inject(0, "--foreign", "8Gi")
	if got := n.on("other", wants); got != 1 {
		t.Errorf("it was on %d, which has no room", got)
	}
	n.inject(1, "--foreign", "8Gi")
	waits := n.Launch(harness.Spec{ID: "waits", Args: []string{"vecadd"}, Annotations: wants})
	n.Wait(func() error {
		if out := waits.Output(); !strings.HasPrefix(out, "vgpu: waiting for a GPU: ") {
			return fmt.Errorf("it does not say that it waits: %q", out)
		}
		return nil
	})
	if v, err := n.VGPU("waits"); err != nil || v.GetState() != "UNBOUND" || v.GetReason() == "" {
		t.Errorf("vgpu ps does not say why it waits: %v, %v", v, err)
	}
	if got := n.on("small", map[string]string{"vgpu-shim.dev/memory": "1Gi"}); got != 0 {
		t.Errorf("who needs little was on %d", got)
	}
	n.inject(0, "--clear")
	if got := n.ranOn(waits); got != 0 {
		t.Errorf("once there was room it was on %d", got)
	}
}

// Which device nodes a container gets, and the rules of its cgroup for them: of
// all GPUs on which it may come to live, or of that alone which it got already.
func TestDeviceNodes(t *testing.T) {
	t.Parallel()
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: firstFit()})
	second := n.gpus()[1].UUID
	for _, tc := range []struct {
		id, bind, uuid string
		want           []string
	}{
		{"late", "late", "", []string{"/dev/simgpu0", "/dev/simgpu1"}},
		{"early", "early", "", []string{"/dev/simgpu0"}},
		{"late-second", "late", second, []string{"/dev/simgpu1"}},
		{"early-second", "early", second, []string{"/dev/simgpu1"}},
	} {
		t.Run(tc.id, func(t *testing.T) {
			n := n.sub(t)
			annotations := map[string]string{"vgpu-shim.dev/bind": tc.bind}
			if tc.uuid != "" {
				annotations["vgpu-shim.dev/uuid"] = tc.uuid
			}
			c := n.Launch(harness.Spec{
				ID: tc.id, Annotations: annotations, Args: []string{"sh", "-c", "echo /dev/simgpu?*; vecadd; exec sleep 100000"},
			})
			n.Wait(func() error {
				if !strings.Contains(c.Output(), "vecadd") {
					return fmt.Errorf("it says %q", c.Output())
				}
				return nil
			})
			inside, _, _ := strings.Cut(c.Output(), "\n")
			if got := strings.Fields(inside); !slices.Equal(got, tc.want) {
				t.Errorf("inside there are %v, want %v", got, tc.want)
			}
			nodes, rule := devices(t, n.Containerd.BundlePath(tc.id))
			if !slices.Equal(nodes, tc.want) || !rule {
				t.Errorf("its config.json has %v and a rule is %v, want %v", nodes, rule, tc.want)
			}
			v, err := n.VGPU(tc.id)
			if err != nil {
				t.Fatal(err)
			}
			of := slices.IndexFunc(n.gpus(), func(g gpuRow) bool { return len(v.GetGpus()) == 1 && g.UUID == v.GetGpus()[0] })
			if last := tc.want[0]; tc.bind == "early" && last != fmt.Sprintf("/dev/simgpu%d", of) {
				t.Errorf("it has %s and lives on GPU %d", last, of)
			}
		})
	}
}

// devices lists the simulated GPUs' nodes in a bundle's config.json, and tells
// whether there is a rule that lets the container open them: one, since all have
// the same number.
func devices(t *testing.T, bundle string) (nodes []string, rule bool) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	type device struct {
		Path         string
		Major, Minor int64
		Allow        bool
		Access       string
	}
	var spec struct {
		Linux struct {
			Devices   []device
			Resources struct{ Devices []device }
		}
	}
	if err := json.Unmarshal(b, &spec); err != nil {
		t.Fatal(err)
	}
	for _, d := range spec.Linux.Devices {
		if strings.HasPrefix(d.Path, "/dev/simgpu") {
			nodes = append(nodes, d.Path)
		}
	}
	for _, r := range spec.Linux.Resources.Devices {
		// The nodes are those of /dev/null, which everybody has with rwm.
		rule = rule || r.Allow && r.Major == 1 && r.Minor == 3 && r.Access == "rw"
	}
	return nodes, rule
}
