// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// The types below are the JSON of --output json, described in docs/cli.md. A
// field is never renamed, removed or given another unit; new ones may come.

type vgpuJSON struct {
	ID           string        `json:"id"`
	Container    containerJSON `json:"container"`
	State        string        `json:"state"`
	GPUs         []string      `json:"gpus"`
	Count        uint32        `json:"count"`
	MemoryBytes  uint64        `json:"memory_bytes"`
	Weight       uint32        `json:"weight"`
	MinShare     float64       `json:"min_share"`
	MaxShare     float64       `json:"max_share"`
	Priority     string        `json:"priority"`
	QuantumNS    int64         `json:"quantum_ns"`
	Clients      uint32        `json:"clients"`
	Usage        usageJSON     `json:"usage"`
	Created      string        `json:"created"`
	Reason       string        `json:"reason"`
	Rubbish      uint64        `json:"rubbish"`
	Ungated      uint64        `json:"ungated"`
	UnknownNames uint64        `json:"unknown_names"`
	Policy       string        `json:"policy"`
	Gang         string        `json:"gang"`
	Model        string        `json:"model"`
	UUIDs        []string      `json:"uuids"`
	Bind         string        `json:"bind"`
	WhenFull     string        `json:"when_full"`
	Memory       []memoryJSON  `json:"memory"`
	Observers    uint32        `json:"observers"`
	Overrun      string        `json:"overrun"`
	SwapNS       int64         `json:"swap_ns"`
	Pod          *podJSON      `json:"pod"` // null: its container is in none
	Guests       []guestJSON   `json:"guests"`
}

// guestJSON is a vGPU that has memory of a GPU that was promised to another.
type guestJSON struct {
	GPU  string `json:"gpu"`
	VGPU string `json:"vgpu"`
}

type podJSON struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Container string `json:"container"`
}

// processJSON is a process that uses a GPU and is a client of no vGPU.
type processJSON struct {
	PID         uint32        `json:"pid"`
	Gone        bool          `json:"gone"`
	Command     string        `json:"command"`
	Cgroup      string        `json:"cgroup"`
	GPU         string        `json:"gpu"`
	MemoryBytes uint64        `json:"memory_bytes"`
	VGPU        string        `json:"vgpu"` // in whose container it runs
	Container   containerJSON `json:"container"`
	Pod         *podJSON      `json:"pod"`
}

type memoryJSON struct {
	GPU        string `json:"gpu"`
	LimitBytes uint64 `json:"limit_bytes"`
	UsedBytes  uint64 `json:"used_bytes"`
}

type containerJSON struct {
	Containerd string `json:"containerd"`
	Namespace  string `json:"namespace"`
	ID         string `json:"id"`
}

type usageJSON struct {
	HeldNS      int64  `json:"held_ns"`
	WaitedNS    int64  `json:"waited_ns"`
	Turns       uint64 `json:"turns"`
	Drains      uint64 `json:"drains"`
	Overruns    uint64 `json:"overruns"`
	Submissions uint64 `json:"submissions"`
	LingeredNS  int64  `json:"lingered_ns"`
}

type gpuJSON struct {
	UUID                string        `json:"uuid"`
	Model               string        `json:"model"`
	MemoryBytes         uint64        `json:"memory_bytes"`
	PCIBusID            string        `json:"pci_bus_id"`
	State               string        `json:"state"`
	Reason              string        `json:"reason"`
	Holder              string        `json:"holder"`
	Bound               uint32        `json:"bound"`
	Pending             uint32        `json:"pending"`
	HeldNS              int64         `json:"held_ns"`
	Turns               uint64        `json:"turns"`
	Handover            latencyJSON   `json:"handover"`
	Cordon              string        `json:"cordon"`
	Policy              gpuPolicyJSON `json:"policy"`
	VGPUs               []string      `json:"vgpus"`
	Notes               []string      `json:"notes"`
	MemoryReservedBytes uint64        `json:"memory_reserved_bytes"`
	MemoryFreeBytes     *uint64       `json:"memory_free_bytes"` // null: not known
	MemoryUsedBytes     uint64        `json:"memory_used_bytes"`
	MemoryPromisedBytes uint64        `json:"memory_promised_bytes"`
	MemoryGuestBytes    uint64        `json:"memory_guest_bytes"`
}

type policyJSON struct {
	Name  string `json:"name"`
	Slots uint32 `json:"slots"`
}

type gpuPolicyJSON struct {
	policyJSON
	Own bool `json:"own"`
}

type latencyJSON struct {
	Count    uint64 `json:"count"`
	MedianNS int64  `json:"median_ns"`
	P99NS    int64  `json:"p99_ns"`
	MaxNS    int64  `json:"max_ns"`
}

type versionJSON struct {
	Client buildJSON   `json:"client"`
	Server *serverJSON `json:"server"` // null where vgpud does not run or does not answer
}

type buildJSON struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
}

type serverJSON struct {
	buildJSON
	Source        string `json:"source"`
	DriverVersion string `json:"driver_version"`
	Protocol      uint32 `json:"protocol"`
	Started       string `json:"started"`
	Epoch         string `json:"epoch"`

	Libraries []libraryJSON `json:"libraries"`
}

type libraryJSON struct {
	Name         string   `json:"name"`
	Driver       string   `json:"driver"`
	Library      string   `json:"library"`
	UnknownNames []string `json:"unknown_names"`
	Error        string   `json:"error"`
}

func vgpusJSON(all []*v1.VGPU) []vgpuJSON {
	out := []vgpuJSON{}
	for _, v := range all {
		u := v.GetUsage()
		out = append(out, vgpuJSON{
			ID:        v.GetId(),
			Container: asContainer(v.GetContainer()),
			State:     v.GetState(), GPUs: append([]string{}, v.GetGpus()...), Count: v.GetCount(),
			MemoryBytes: v.GetMemoryBytes(), Weight: v.GetWeight(), MinShare: v.GetMinShare(), MaxShare: v.GetMaxShare(), Priority: v.GetPriority(),
			QuantumNS: ns(v.GetQuantum()), Clients: v.GetClients(),
			Usage: usageJSON{
				HeldNS: ns(u.GetHeld()), WaitedNS: ns(u.GetWaited()), Turns: u.GetTurns(),
				Drains: u.GetDrains(), Overruns: u.GetOverruns(), Submissions: u.GetSubmissions(), LingeredNS: ns(u.GetLingered()),
			},
			Created: v.GetCreated().AsTime().Format(time.RFC3339Nano), Reason: v.GetReason(),
			Rubbish: v.GetRubbish(), Ungated: v.GetUngated(), UnknownNames: v.GetUnknownNames(), Policy: v.GetPolicy(),
			Gang: v.GetGang(), Model: v.GetModel(), UUIDs: append([]string{}, v.GetUuids()...), Bind: v.GetBind(), WhenFull: v.GetWhenFull(),
			Memory: asMemory(v.GetMemory()), Observers: v.GetObservers(), Overrun: v.GetOverrun(), SwapNS: ns(v.GetSwap()), Pod: asPod(v.GetPod()),
			Guests: asGuests(v.GetGuests()),
		})
	}
	return out
}

func gpusJSON(all []*v1.GPU) []gpuJSON {
	out := []gpuJSON{}
	for _, g := range all {
		out = append(out, gpuJSON{
			UUID: g.GetUuid(), Model: g.GetModel(), MemoryBytes: g.GetMemoryBytes(), PCIBusID: g.GetPciBusId(),
			State: g.GetState(), Reason: g.GetReason(), Holder: g.GetHolder(), Bound: g.GetBound(),
			Pending: g.GetPending(), HeldNS: ns(g.GetHeld()), Turns: g.GetTurns(), Handover: asLatency(g.GetHandover()),
			Cordon: g.GetCordon(), Policy: gpuPolicyJSON{asPolicy(g.GetPolicy()), g.GetOwnPolicy()}, VGPUs: append([]string{}, g.GetVgpus()...),
			Notes:               append([]string{}, g.GetNotes()...),
			MemoryReservedBytes: g.GetMemoryReservedBytes(), MemoryFreeBytes: g.MemoryFreeBytes, MemoryUsedBytes: g.GetMemoryUsedBytes(),
			MemoryPromisedBytes: g.GetMemoryPromisedBytes(), MemoryGuestBytes: g.GetMemoryGuestBytes(),
		})
	}
	return out
}

func asGuests(all []*v1.Guest) []guestJSON {
	out := []guestJSON{}
	for _, g := range all {
		out = append(out, guestJSON{g.GetGpu(), g.GetVgpu()})
	}
	return out
}

func asContainer(c *v1.Container) containerJSON {
	return containerJSON{Containerd: c.GetContainerd(), Namespace: c.GetNamespace(), ID: c.GetId()}
}

func asPod(p *v1.Pod) *podJSON {
	if p == nil {
		return nil
	}
	return &podJSON{Namespace: p.GetNamespace(), Name: p.GetName(), UID: p.GetUid(), Container: p.GetContainer()}
}

func asProcess(p *v1.Process) *processJSON {
	return &processJSON{
		PID: p.GetPid(), Gone: p.GetGone(), Command: p.GetCommand(), Cgroup: p.GetCgroup(), GPU: p.GetGpu(), MemoryBytes: p.GetMemoryBytes(),
		VGPU: p.GetInside(), Container: asContainer(p.GetContainer()), Pod: asPod(p.GetPod()),
	}
}

func asMemory(all []*v1.Memory) []memoryJSON {
	out := []memoryJSON{}
	for _, m := range all {
		out = append(out, memoryJSON{GPU: m.GetGpu(), LimitBytes: m.GetLimitBytes(), UsedBytes: m.GetUsedBytes()})
	}
	return out
}

func asLibraries(all []*v1.DriverLibrary) []libraryJSON {
	out := []libraryJSON{}
	for _, l := range all {
		out = append(out, libraryJSON{
			Name: l.GetName(), Driver: l.GetDriver(), Library: l.GetLibrary(),
			UnknownNames: append([]string{}, l.GetUnknownNames()...), Error: l.GetError(),
		})
	}
	return out
}

func asLatency(h *v1.Latency) latencyJSON {
	return latencyJSON{Count: h.GetCount(), MedianNS: ns(h.GetMedian()), P99NS: ns(h.GetP99()), MaxNS: ns(h.GetMax())}
}

func asPolicy(p *v1.Policy) policyJSON { return policyJSON{Name: p.GetName(), Slots: p.GetSlots()} }

func ns(d *durationpb.Duration) int64 { return d.AsDuration().Nanoseconds() }

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("failed to write JSON: %w", err)
	}
	return nil
}

func writeVGPUs(w io.Writer, all []*v1.VGPU) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "VGPU\tNAMESPACE\tCONTAINER\tGANG\tGPU\tSTATE\tPOLICY\tPROCS\tMEMORY\tHELD\tWAITED\tLINGERED\tTURNS\tDRAINS\tOVERRUNS")
	for _, v := range all {
		u := v.GetUsage()
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%d\t%d\t%d\n",
			v.GetId(), v.GetContainer().GetNamespace(), v.GetContainer().GetId(), or(v.GetGang(), "-"),
			or(strings.Join(v.GetGpus(), ","), "-"), v.GetState(), v.GetPolicy(), v.GetClients(), memoryText(v),
			short(u.GetHeld()), short(u.GetWaited()), short(u.GetLingered()), u.GetTurns(), u.GetDrains(), u.GetOverruns())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, v := range all {
		for _, note := range notes(v) {
			if _, err := fmt.Fprintf(w, "%s: %s\n", v.GetId(), note); err != nil {
				return err
			}
		}
	}
	return nil
}

// notes is what needs saying of a vGPU below the table.
func notes(v *v1.VGPU) []string {
	var all []string
	if v.GetReason() != "" {
		all = append(all, v.GetReason())
	}
	count := func(n uint64, one, more string) {
		switch n {
		case 0:
		case 1:
			all = append(all, "1 "+one)
		default:
			all = append(all, fmt.Sprintf("%d %s", n, more))
		}
	}
	if v.GetClients() == 0 {
		count(uint64(v.GetObservers()), "process that uses NVML keeps it on its GPUs", "processes that use NVML keep it on its GPUs")
	}
	count(v.GetUngated(), "call could not be gated", "calls could not be gated")
	count(v.GetUnknownNames(), "name was asked of the driver that the library does not know",
		"names were asked of the driver that the library does not know")
	count(v.GetRubbish(), "connection was closed because of what came over it",
		"connections were closed because of what came over them")
	return all
}

func writeGPUs(w io.Writer, all []*v1.GPU) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "GPU\tMODEL\tMEMORY\tRESERVED\tSTATE\tPOLICY\tHOLDER\tBOUND\tPENDING\tHELD\tTURNS\tHANDOVER MEDIAN\tP99")
	for _, g := range all {
		h := g.GetHandover()
		median, p99 := "-", "-"
		if h.GetCount() > 0 {
			median, p99 = short(h.GetMedian()), short(h.GetP99())
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%d\t%s\t%s\n",
			g.GetUuid(), g.GetModel(), usedOf(g.GetMemoryUsedBytes(), g.GetMemoryBytes()), gib(g.GetMemoryReservedBytes()), g.GetState(), policyText(g.GetPolicy()), or(g.GetHolder(), "-"),
			g.GetBound(), g.GetPending(), short(g.GetHeld()), g.GetTurns(), median, p99)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, g := range all {
		lines := g.GetNotes()
		if g.GetReason() != "" {
			lines = append([]string{g.GetReason()}, lines...)
		}
		for _, line := range lines {
			if _, err := fmt.Fprintf(w, "%s: %s\n", g.GetUuid(), line); err != nil {
				return err
			}
		}
	}
	return nil
}

// or is a value, or what stands for an empty one.
func or(value, none string) string {
	if value == "" {
		return none
	}
	return value
}

// memoryText is what a vGPU uses of its limit, on each of its GPUs.
func memoryText(v *v1.VGPU) string {
	var all []string
	for _, m := range v.GetMemory() {
		all = append(all, usedOf(m.GetUsedBytes(), m.GetLimitBytes()))
	}
	if len(all) == 0 && v.GetMemoryBytes() > 0 {
		return "-/" + gib(v.GetMemoryBytes())
	}
	return or(strings.Join(all, ","), "-")
}

func usedOf(used, limit uint64) string {
	return fmt.Sprintf("%.1f/%s", float64(used)/(1<<30), gib(limit))
}

// mib is for what may be far less than a GiB.
func mib(bytes uint64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

func gib(bytes uint64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }

// policyText is a policy for people, as in "average/20".
func policyText(p *v1.Policy) string {
	if name := p.GetName(); name == "average" || name == "fixed" {
		return fmt.Sprintf("%s/%d", name, p.GetSlots())
	}
	return p.GetName()
}

// short is a duration for people: three or four digits.
func short(p *durationpb.Duration) string {
	d := p.AsDuration()
	switch {
	case d >= time.Second:
		return d.Round(time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(time.Microsecond).String()
	}
	return d.Round(10 * time.Nanosecond).String()
}
