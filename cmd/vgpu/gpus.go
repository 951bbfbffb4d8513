// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

const whichGPU = "UUID may be the beginning of the GPU's UUID, if it fits one GPU only."

func (a *app) gpusCommand() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use: "gpus", Short: "List the physical GPUs, cordon and drain them", Args: none,
		Long: "List the physical GPUs of this machine: who holds them, who waits, and how long a\n" +
			"hand-over takes, from the last completion of one vGPU to the grant of the next.\n\n" +
			"With --watch, the list is shown again whenever a GPU's state, cordon, policy or\n" +
			"vGPUs changed, until Ctrl-C; with --output json, each list is one line.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if watch {
				return a.watchGPUs(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			all, err := a.listGPUs(cmd.Context())
			if err != nil {
				return err
			}
			return a.showGPUs(cmd.OutOrStdout(), all)
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show the list again whenever it has changed")

	var reason string
	var wait bool
	one := func(use, short, long, example string, run func(context.Context, io.Writer, io.Writer, string) error) *cobra.Command {
		return &cobra.Command{
			Use: use + " UUID", Short: short, Long: long + "\n\n" + whichGPU, Example: example,
			Args: func(_ *cobra.Command, args []string) error {
				if len(args) != 1 || args[0] == "" {
					return usage{fmt.Errorf("one UUID is needed; see vgpu gpus %s --help", use)}
				}
				return nil
			},
			RunE: func(cmd *cobra.Command, args []string) error {
				return run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0])
			},
		}
	}
	cordon := one("cordon", "Bind no more vGPUs to a GPU",
		"Bind no more vGPUs to a GPU. Those that live there stay, and get their turns. It\n"+
			"holds until vgpu gpus uncordon, over restarts of vgpud.",
		"  vgpu gpus cordon GPU-5eaf --reason 'fan is loud'",
		func(ctx context.Context, w, _ io.Writer, meant string) error {
			g, err := a.changeGPU(ctx, meant, "cordon", func(ctx context.Context, c v1.ControlClient, uuid string) (*v1.GPU, error) {
				r, err := c.CordonGPU(ctx, &v1.CordonGPURequest{Uuid: uuid, Reason: reason})
				return r.GetGpu(), err
			})
			if err != nil {
				return err
			}
			return a.showGPUs(w, []*v1.GPU{g})
		})
	drain := one("drain", "Bind no more vGPUs to a GPU, and show who is left",
		"Bind no more vGPUs to a GPU, as vgpu gpus cordon does, and show which still live\n"+
			"there. Nothing is ended: what a process has on a GPU can not be moved, so it\n"+
			"leaves when the process ends.\n\n"+
			"With --wait, it ends when nobody is left, and says on standard error who is; it\n"+
			"fails if the cordon is lifted meanwhile.",
		"  vgpu gpus drain GPU-5eaf --wait --reason 'to be replaced'",
		func(ctx context.Context, w, stderr io.Writer, meant string) error {
			return a.drain(ctx, w, stderr, meant, reason, wait)
		})
	for _, c := range []*cobra.Command{cordon, drain} {
		c.Flags().StringVar(&reason, "reason", "", "why, for those who look at vgpu gpus")
	}
	drain.Flags().BoolVar(&wait, "wait", false, "wait until nobody is left")
	uncordon := one("uncordon", "Bind vGPUs to a GPU again",
		"Lift what vgpu gpus cordon and vgpu gpus drain set. A GPU that the driver's state\n"+
			"keeps from being used (compute mode, MPS, MIG) stays cordoned for that, which is\n"+
			"said on standard error.",
		"  vgpu gpus uncordon GPU-5eaf",
		func(ctx context.Context, w, stderr io.Writer, meant string) error {
			g, err := a.changeGPU(ctx, meant, "uncordon", func(ctx context.Context, c v1.ControlClient, uuid string) (*v1.GPU, error) {
				r, err := c.UncordonGPU(ctx, &v1.UncordonGPURequest{Uuid: uuid})
				return r.GetGpu(), err
			})
			if err != nil {
				return err
			}
			if why := g.GetCordon(); why != "" {
				fmt.Fprintf(stderr, "vgpu: the operator's cordon is lifted; %s stays cordoned: %s\n", g.GetUuid(), why)
			}
			return a.showGPUs(w, []*v1.GPU{g})
		})
	cmd.AddCommand(cordon, uncordon, drain)
	return cmd
}

func (a *app) listGPUs(ctx context.Context) ([]*v1.GPU, error) {
	var resp *v1.ListGPUsResponse
	err := a.ask(ctx, "list the GPUs", func(ctx context.Context, c v1.ControlClient) (err error) {
		resp, err = c.ListGPUs(ctx, &v1.ListGPUsRequest{})
		return err
	})
	return resp.GetGpus(), err
}

func (a *app) showGPUs(w io.Writer, all []*v1.GPU) error {
	if a.output == "json" {
		return writeJSON(w, gpusJSON(all))
	}
	return writeGPUs(w, all)
}

// watchGPUs shows each list that vgpud sends.
func (a *app) watchGPUs(ctx context.Context, w, stderr io.Writer) error {
	between := ""
	return a.followGPUs(untilClosed(ctx, w), stderr, func(all []*v1.GPU) error {
		if a.output == "json" {
			return writeLine(w, gpusJSON(all))
		}
		if _, err := io.WriteString(w, between); err != nil {
			return ownError{err}
		}
		between = "\n"
		if err := writeGPUs(w, all); err != nil {
			return ownError{err}
		}
		return nil
	})
}

// followGPUs gives each list of GPUs that vgpud sends to show.
func (a *app) followGPUs(ctx context.Context, stderr io.Writer, show func([]*v1.GPU) error) error {
	return a.follow(ctx, stderr, "watch the GPUs", func(ctx context.Context, c v1.ControlClient, _ *v1.InfoResponse) error {
		s, err := c.WatchGPUs(ctx, &v1.WatchGPUsRequest{})
		for err == nil {
			var list *v1.WatchGPUsResponse
			if list, err = s.Recv(); err == nil {
				err = show(list.GetGpus())
			}
		}
		return err
	})
}

// writeLine writes a value as one line of JSON.
func writeLine(w io.Writer, v any) error {
	if err := json.NewEncoder(w).Encode(v); err != nil {
		return ownError{fmt.Errorf("failed to write JSON: %w", err)}
	}
	return nil
}

// whichGPU asks vgpud for the UUID of the GPU that is meant.
func (a *app) whichGPU(ctx context.Context, meant string) (string, error) {
	all, err := a.listGPUs(ctx)
	if err != nil {
		return "", err
	}
	return findGPU(all, meant)
}

// findGPU is the UUID that is meant by itself or by its beginning.
func findGPU(all []*v1.GPU, meant string) (string, error) {
	var uuids []string
	for _, g := range all {
		switch {
		case g.GetUuid() == meant:
			return meant, nil
		case strings.HasPrefix(g.GetUuid(), meant):
			uuids = append(uuids, g.GetUuid())
		}
	}
	switch len(uuids) {
	case 0:
		return "", fmt.Errorf("no GPU %q; see vgpu gpus", meant)
	case 1:
		return uuids[0], nil
	}
	return "", fmt.Errorf("%q could be any of the GPUs %s", meant, strings.Join(uuids, ", "))
}

// changeGPU changes the GPU that is meant.
func (a *app) changeGPU(ctx context.Context, meant, verb string, change func(context.Context, v1.ControlClient, string) (*v1.GPU, error)) (g *v1.GPU, _ error) {
	uuid, err := a.whichGPU(ctx, meant)
	if err != nil {
		return nil, err
	}
	err = a.ask(ctx, verb+" "+uuid, func(ctx context.Context, c v1.ControlClient) (err error) {
		g, err = change(ctx, c, uuid)
		return err
	})
	return g, err
}

// drain cordons a GPU and shows who is left there.
func (a *app) drain(ctx context.Context, w, stderr io.Writer, meant, reason string, wait bool) error {
	g, err := a.changeGPU(ctx, meant, "drain", func(ctx context.Context, c v1.ControlClient, uuid string) (*v1.GPU, error) {
		r, err := c.DrainGPU(ctx, &v1.DrainGPURequest{Uuid: uuid, Reason: reason})
		return r.GetGpu(), err
	})
	if err != nil {
		return err
	}
	if !wait {
		if err := a.showGPUs(w, []*v1.GPU{g}); err != nil || a.output == "json" { // it is in there
			return err
		}
		return a.left(ctx, w, g)
	}
	uuid := g.GetUuid()
	var last []string
	if err := a.followGPUs(ctx, stderr, func(all []*v1.GPU) error {
		i := slices.IndexFunc(all, func(g *v1.GPU) bool { return g.GetUuid() == uuid })
		if i < 0 {
			return ownError{fmt.Errorf("GPU %s is gone", uuid)}
		}
		g = all[i]
		switch {
		case g.GetCordon() == "":
			return ownError{fmt.Errorf("the cordon of %s was lifted meanwhile; vGPUs there: %d", uuid, len(g.GetVgpus()))}
		case len(g.GetVgpus()) == 0:
			return errDone
		case slices.Equal(g.GetVgpus(), last):
			return nil
		}
		last = g.GetVgpus()
		return a.left(ctx, stderr, g)
	}); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.New("stopped waiting; " + uuid + " stays cordoned")
	}
	return a.showGPUs(w, []*v1.GPU{g})
}

// left says who lives on a GPU.
func (a *app) left(ctx context.Context, w io.Writer, g *v1.GPU) error {
	if len(g.GetVgpus()) == 0 {
		_, err := fmt.Fprintf(w, "nobody is left on %s\n", g.GetUuid())
		return err
	}
	var list *v1.ListResponse
	if err := a.ask(ctx, "list the vGPUs", func(ctx context.Context, c v1.ControlClient) (err error) {
		list, err = c.List(ctx, &v1.ListRequest{})
		return err
	}); err != nil {
		return err
	}
	names := make(map[string]string)
	for _, v := range list.GetVgpus() {
		names[v.GetId()] = " (" + v.GetContainer().GetNamespace() + "/" + v.GetContainer().GetId() + ")"
	}
	var who []string
	for _, id := range g.GetVgpus() {
		who = append(who, id+names[id])
	}
	_, err := fmt.Fprintf(w, "%d left on %s: %s\n", len(who), g.GetUuid(), strings.Join(who, ", "))
	return err
}
