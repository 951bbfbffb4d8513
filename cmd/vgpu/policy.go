// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

func (a *app) policyCommand() *cobra.Command {
	var (
		gpu   string
		slots uint32
	)
	cmd := &cobra.Command{
		Use: "policy [NAME]", Short: "Show or choose how time is shared",
		Long: `Show how time is shared on this node and on each GPU; with a NAME, choose it, for
the node, or with --gpu for one GPU. It holds from the next turn on, and over
restarts of vgpud.

  default         what each vGPU asks for: weight, shares, class; with --gpu, as on
                  the node
  native          no turns: the hardware slices
  average         each vGPU has one slot of the GPU, whether others use theirs or not
  fair            equal parts of what is there
  weighted        parts by weight of what is there
  fixed           each has the share that it asks for, no more and no less; without
                  one, a slot
  hybrid          those that ask for a share have that, the others share the rest
  online-offline  high priority goes first, all others use what it leaves

UUID may be the beginning of the GPU's UUID, if it fits one GPU only.`,
		Example: "  vgpu policy\n  vgpu policy fair\n  vgpu policy average --slots 4 --gpu GPU-5eaf",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage{fmt.Errorf("unexpected argument %q; see vgpu policy --help", args[1])}
			}
			if len(args) == 1 && args[0] == "" {
				return usage{errors.New("the NAME is empty; see vgpu policy --help")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && cmd.Flags().Changed("slots") {
				return usage{errors.New("--slots without a NAME; see vgpu policy --help")}
			}
			if cmd.Flags().Changed("slots") && slots == 0 {
				return usage{errors.New("--slots=0: must be from 1 to 100")}
			}
			if cmd.Flags().Changed("gpu") && gpu == "" {
				return usage{errors.New("--gpu: the UUID is empty")}
			}
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			return a.policy(cmd.Context(), cmd.OutOrStdout(), gpu, name, slots)
		},
	}
	cmd.Flags().StringVar(&gpu, "gpu", "", "one GPU, by its `UUID`; without it, the node")
	cmd.Flags().Uint32Var(&slots, "slots", 0, "parts that average and fixed make of a GPU, 1 to 100; as configured if not given")
	return cmd
}

type policiesJSON struct {
	Node policyJSON    `json:"node"`
	GPUs []policyOfGPU `json:"gpus"`
}

type policyOfGPU struct {
	UUID string `json:"uuid"`
	gpuPolicyJSON
}

// policy chooses a policy if it has a name, and shows what is in force.
func (a *app) policy(ctx context.Context, w io.Writer, gpu, name string, slots uint32) error {
	var err error
	if gpu != "" {
		if gpu, err = a.whichGPU(ctx, gpu); err != nil {
			return err
		}
	}
	if name != "" {
		if err := a.ask(ctx, "choose the policy", func(ctx context.Context, c v1.ControlClient) error {
			_, err := c.SetPolicy(ctx, &v1.SetPolicyRequest{Gpu: gpu, Policy: name, Slots: slots})
			return err
		}); err != nil {
			return err
		}
	}
	var info *v1.InfoResponse
	if err := a.ask(ctx, "show the policy", func(ctx context.Context, c v1.ControlClient) (err error) {
		info, err = c.Info(ctx, &v1.InfoRequest{})
		return err
	}); err != nil {
		return err
	}
	all, err := a.listGPUs(ctx)
	if err != nil {
		return err
	}
	shown := policiesJSON{Node: asPolicy(info.GetPolicy()), GPUs: []policyOfGPU{}}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "WHERE\tPOLICY\tSET FOR\nnode\t%s\t-\n", policyText(info.GetPolicy()))
	for _, g := range all {
		if gpu != "" && g.GetUuid() != gpu {
			continue
		}
		from := "the node"
		if g.GetOwnPolicy() {
			from = "this GPU"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", g.GetUuid(), policyText(g.GetPolicy()), from)
		shown.GPUs = append(shown.GPUs, policyOfGPU{g.GetUuid(), gpuPolicyJSON{asPolicy(g.GetPolicy()), g.GetOwnPolicy()}})
	}
	if a.output == "json" {
		return writeJSON(w, shown)
	}
	return t.Flush()
}
