// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// As much as containerd takes, all at once, and the container computes: 10,000 mounts,
// a path as long as one can be below a bundle, large annotations of others, and names
// with every character that there may be, which differ only in where they are cut.
func TestLargeInput(t *testing.T) {
	const (
		count  = 10_000
		longID = "0.a_b-C.1234567890_1234567890-1234567890.1234567890_1234567890-1234567890.xy" // 76 characters
	)
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v})
		image := n.image("large")
		long := strings.Repeat("/"+strings.Repeat("d", 249), 15)
		mounts := []string{"type=tmpfs,src=tmpfs,dst=" + long}
		for i := range count {
			mounts = append(mounts, fmt.Sprintf("type=tmpfs,src=tmpfs,dst=/many/%d", i))
		}
		annotations := map[string]string{}
		for i := range 5 {
			annotations[fmt.Sprint("example.com/", i)] = strings.Repeat("x", 100_000)
		}
		var result struct{ OK bool }
		out := n.Run(harness.Spec{
			ID: longID, Rootfs: image, Mounts: mounts, Annotations: annotations,
			Args: []string{"sh", "-c", "grep -c ' /many/' /proc/self/mountinfo; grep -c ' " + long + " ' /proc/self/mountinfo; exec vecadd"},
		})
		if !strings.HasPrefix(out, fmt.Sprintf("%d\n1\n", count)) {
			t.Errorf("it says %s", out)
		}
		if harnesstest.LastJSON(t, out, &result); !result.OK {
			t.Error("the sum is not reported as right")
		}

		ns := n.Containerd.Namespace
		for _, c := range [][2]string{{ns + "-a", "b"}, {ns, "a-b"}} {
			n.Launch(harness.Spec{Namespace: c[0], ID: c[1], Args: []string{"sleep", "100000"}})
		}
		if all, err := n.Daemon.VGPUs(n.Ctx); err != nil || len(all) != 2 {
			t.Errorf("%v, %v, want two vGPUs", all, err)
		}
	})
}

// A value that is far too long is refused in a line that people can read.
func TestALongAnnotationIsRefusedShortly(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v})
		many := map[string]string{"vgpu-shim.dev/memory": strings.Repeat("9", 100_000)}
		for i := range 1000 {
			many[fmt.Sprintf("vgpu-shim.dev/c%d.wieght", i)] = strings.Repeat("9", 100)
		}
		_, err := n.Containerd.Launch(n.Ctx, harness.Spec{ID: "wrong", Rootfs: rootfs, Args: []string{"vecadd"}, Annotations: many})
		if text := said(err); !strings.Contains(text, "vgpu-shim.dev/c0.wieght") || !strings.Contains(text, "993 more") || len(text) > 4000 {
			t.Errorf("%d characters: %.1000s", len(text), text)
		}
		if err := n.CheckLeaks(n.Ctx); err != nil {
			t.Error(err)
		}
	})
}
