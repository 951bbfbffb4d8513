// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// table writes rows under each other.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer) *table {
	return &table{tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)}
}

func (t *table) row(cells ...string) { fmt.Fprintln(t.w, strings.Join(cells, "\t")) }
func (t *table) flush() error        { return t.w.Flush() }

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func printTop(t *table, c *cluster) {
	t.row("NODE", "GPU", "MODEL", "STATE", "HELD", "VGPUS", "WAITING", "MEMORY", "USED", "UNRESERVED", "CLAIMABLE", "SHARE LEFT")
	for _, n := range c.Nodes {
		for _, g := range n.GPUs {
			memory, share := "-", "-"
			if g.Claims != nil {
				memory, share = size(g.Claims.MemoryFreeBytes), fmt.Sprintf("%d%%", g.Claims.ShareFree)
			}
			t.row(n.Name, short(g.UUID), g.Model, g.State, ratio(g.Held), fmt.Sprint(g.Bound), fmt.Sprint(g.Pending),
				size(g.MemoryBytes), size(g.UsedBytes), size(g.MemoryBytes-min(g.ReservedBytes, g.MemoryBytes)), memory, share)
		}
	}
}

func printPS(t *table, c *cluster) {
	t.row("NAMESPACE", "POD", "CONTAINER", "NODE", "GPU", "STATE", "USED", "LIMIT", "HELD", "WAITED", "OVERRUNS")
	for _, n := range c.Nodes {
		for _, v := range n.VGPUs {
			t.row(append([]string{cmp.Or(v.Namespace, "-"), cmp.Or(v.Pod, "-")}, v.cells(n.Name)...)...)
		}
	}
}

// cells are those of a vGPU's row behind its pod.
func (v *vgpu) cells(node string) []string {
	var gpus []string
	for _, g := range v.GPUs {
		gpus = append(gpus, short(g))
	}
	limit := "-"
	if v.LimitBytes > 0 {
		limit = size(v.LimitBytes)
	}
	return []string{
		cmp.Or(v.Container, v.ContainerID), node, cmp.Or(strings.Join(gpus, ","), "-"), v.State,
		size(v.UsedBytes), limit, seconds(v.Held), seconds(v.Waited), fmt.Sprint(v.Overruns),
	}
}

func printNodes(t *table, c *cluster) {
	for i, n := range c.Nodes {
		if i > 0 {
			t.row()
		}
		t.row("Name:", n.Name)
		t.row("vgpud:", cmp.Or(n.Version, "unknown"))
		t.row("Driver:", cmp.Or(n.Driver, "unknown"))
		for _, g := range n.GPUs {
			printGPU(t, n, g)
		}
	}
}

func printGPU(t *table, n *node, g *gpu) {
	t.row()
	t.row("GPU:", g.UUID)
	t.row("  Model:", g.Model)
	t.row("  State:", g.State)
	t.row("  Held:", ratio(g.Held))
	t.row("  vGPUs:", fmt.Sprintf("%d, of which %d wait", g.Bound, g.Pending))
	t.row("  Memory:", fmt.Sprintf("%s, reserved by vGPUs %s, used by them %s", size(g.MemoryBytes), size(g.ReservedBytes), size(g.UsedBytes)))
	if g.FreeBytes != nil {
		t.row("  Free:", size(*g.FreeBytes)+", as the driver says")
	}
	if k := g.Claims; k != nil {
		t.row("  Claims:", fmt.Sprintf("%d; left to claim: memory %s of %s, share %d%% of %d%%", k.Claims, size(k.MemoryFreeBytes), size(k.MemoryBytes), k.ShareFree, k.Share))
	}
	if g.Unmanaged > 0 {
		t.row("  Past the gate:", fmt.Sprintf("%d processes that are clients of no vGPU (vgpu doctor on the node names them)", g.Unmanaged))
	}
	for _, v := range n.VGPUs {
		for _, uuid := range v.GPUs {
			if uuid == g.UUID {
				t.row("  "+cmp.Or(strings.Trim(v.Namespace+"/"+v.Pod, "/"), "no pod")+":",
					fmt.Sprintf("%s, %s, used %s, held %s, waited %s", cmp.Or(v.Container, v.ContainerID), v.State, size(v.UsedBytes), seconds(v.Held), seconds(v.Waited)))
			}
		}
	}
}

// short is the beginning of a UUID, which is enough to tell those of a node apart.
func short(uuid string) string {
	const enough = len("GPU-00000000")
	return uuid[:min(len(uuid), enough)]
}

// size is a quantity in Mi or above that stands for bytes, rounded down.
func size(bytes uint64) string {
	const mebibyte = 1 << 20
	return resource.NewQuantity(int64(bytes/mebibyte*mebibyte), resource.BinarySI).String() //nolint:gosec // G115: no GPU has so much
}

func ratio(r *float64) string {
	if r == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", *r*100)
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond).String()
}
