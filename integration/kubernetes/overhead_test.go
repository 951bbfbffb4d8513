// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The overhead that the class charges a pod covers all that a shim has in memory, also
// the program's pages: where there is one pod, nobody shares them. docs/kubernetes.md
// has the numbers.
func TestOverheadCoversTheShim(t *testing.T) {
	c := use(t)
	class, err := c.Client.NodeV1().RuntimeClasses().Get(c.Ctx, "vgpu", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if class.Overhead == nil {
		t.Fatal("the class charges nothing")
	}
	overhead := class.Overhead.PodFixed.Memory().Value()
	// What makes a shim large: several containers with vGPUs, and processes that came
	// later.
	const pods = 3
	for i := range pods {
		name := fmt.Sprintf("pod-%d", i)
		c.create(pod(name, nil,
			container("a", "sh", "-c", "vecadd && echo computed && exec sleep 100000"),
			container("b", "sh", "-c", "vecadd && echo computed && exec sleep 100000")))
	}
	for i := range pods {
		name := fmt.Sprintf("pod-%d", i)
		for _, container := range []string{"a", "b"} {
			c.says(name, container, "computed")
			if out, err := c.Kubectl(c.Ctx, "exec", name, "--container", container, "--", "vecadd"); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}
	}
	shims, err := c.one.shims()
	if err != nil || len(shims) != pods {
		t.Fatalf("%d shims for %d pods: %v", len(shims), pods, err)
	}
	for _, pid := range shims {
		rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			t.Fatal(err)
		}
		text := string(rollup)
		rss := kilobytes(t, text, "Rss")
		t.Logf("shim %d: Rss %d KiB, Pss %d KiB, Pss_Anon %d KiB", pid, rss, kilobytes(t, text, "Pss"), kilobytes(t, text, "Pss_Anon"))
		if rss<<10 > overhead {
			t.Errorf("a shim has %d KiB in memory, and the class charges %d", rss, overhead>>10)
		}
	}
}

// kilobytes reads a number of smaps_rollup, see proc_pid_smaps(5).
func kilobytes(t *testing.T, rollup, name string) (n int64) {
	t.Helper()
	for line := range strings.Lines(rollup) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			if _, err := fmt.Sscanf(value, "%d kB", &n); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			return n
		}
	}
	t.Fatalf("no %s in %s", name, rollup)
	return 0
}
