// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

func (a *app) getCommand() *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show all about one vGPU",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usage{errors.New("one ID is needed; see vgpu get --help")}
			}
			return nil
		},
		Long: "Show all that vgpud knows about one vGPU.\n\n" +
			"ID is tried as the vGPU's, as the container's, and as the beginning of the vGPU's;\n" +
			"it must fit one vGPU only.",
		Example: "  vgpu get 5eaf\n  vgpu get train --output json",
		RunE:    func(cmd *cobra.Command, args []string) error { return a.get(cmd.Context(), cmd.OutOrStdout(), args[0]) },
	}
}

func (a *app) get(ctx context.Context, w io.Writer, meant string) error {
	id, err := a.whichVGPU(ctx, meant)
	if err != nil {
		return err
	}
	var resp *v1.GetResponse
	if err := a.ask(ctx, "show vGPU "+id, func(ctx context.Context, c v1.ControlClient) (err error) {
		resp, err = c.Get(ctx, &v1.GetRequest{Id: id})
		return err
	}); err != nil {
		return err
	}
	if a.output == "json" {
		return writeJSON(w, vgpusJSON([]*v1.VGPU{resp.GetVgpu()})[0])
	}
	return writeVGPU(w, resp.GetVgpu())
}

func writeVGPU(w io.Writer, v *v1.VGPU) error {
	c, u := v.GetContainer(), v.GetUsage()
	share := func(part float64) string {
		if part == 0 {
			return "none"
		}
		return fmt.Sprintf("%g", part)
	}
	memory := "none reserved"
	if v.GetMemoryBytes() > 0 {
		memory = gib(v.GetMemoryBytes())
	}
	rows := [][2]string{
		{"vGPU", v.GetId()},
		{"container", c.GetId()},
		{"namespace", c.GetNamespace()},
		{"containerd", c.GetContainerd()},
		{"pod", podText(v.GetPod())},
		{"created", v.GetCreated().AsTime().Format(time.RFC3339)},
		{"state", v.GetState()},
		{"GPUs", or(strings.Join(v.GetGpus(), ", "), "none yet")},
		{"GPUs asked for", fmt.Sprint(v.GetCount())},
		{"models", or(v.GetModel(), "any")},
		{"UUIDs", or(strings.Join(v.GetUuids(), ", "), "any")},
		{"bind", v.GetBind()},
		{"when full", v.GetWhenFull()},
		{"memory", memory},
		{"memory used", memoryText(v)},
		{"weight", fmt.Sprint(v.GetWeight())},
		{"priority", v.GetPriority()},
		{"quantum", quantumText(v)},
		{"min share", share(v.GetMinShare())},
		{"max share", share(v.GetMaxShare())},
		{"policy", v.GetPolicy()},
		{"overrun", or(v.GetOverrun(), "unknown")},
		{"gang", or(v.GetGang(), "none")},
		{"processes", fmt.Sprint(v.GetClients())},
		{"observers", fmt.Sprint(v.GetObservers())},
		{"held", short(u.GetHeld())},
		{"waited", short(u.GetWaited())},
		{"lingered", short(u.GetLingered())},
		{"turns", fmt.Sprintf("%d, of them drained %d, overrun %d", u.GetTurns(), u.GetDrains(), u.GetOverruns())},
		{"submissions", fmt.Sprint(u.GetSubmissions())},
	}
	for _, note := range notes(v) {
		rows = append(rows, [2]string{"note", note})
	}
	return writeRows(w, rows)
}

func quantumText(v *v1.VGPU) string {
	if v.GetSwap() == nil {
		return short(v.GetQuantum())
	}
	return fmt.Sprintf("%s; its memory takes %s to come back after others", short(v.GetQuantum()), short(v.GetSwap()))
}

func podText(p *v1.Pod) string {
	if p == nil {
		return "none"
	}
	return fmt.Sprintf("%s/%s, container %s", p.GetNamespace(), p.GetName(), p.GetContainer())
}

// writeRows writes a name and a value in each line.
func writeRows(w io.Writer, rows [][2]string) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\n", r[0], r[1])
	}
	return t.Flush()
}
