// SPDX-License-Identifier: Apache-2.0

// Command kubectl-vgpu is a plugin of kubectl: it shows the GPUs and vGPUs of all nodes
// of a cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/vgpu-shim/vgpu/vgpu/version"
)

const long = `kubectl vgpu shows the GPUs and vGPUs of all nodes.

What GPUs and vGPUs do is asked of each node's vgpud: its metrics, through the API
server. What is claimed of a GPU comes from ResourceSlices and ResourceClaims; without
them (mode none) those columns are empty.

It needs in the cluster: list pods and get pods/proxy where vgpud runs; for what is
claimed, list resourceslices and resourceclaims.

Exit codes: 0 done, 1 failed, or a node is missing in what is shown, 2 wrong use.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "error:", err)
	if _, wrong := errors.AsType[usage](err); wrong {
		os.Exit(2)
	}
	os.Exit(1)
}

// usage is an error of whoever wrote the command line.
type usage struct{ error }

func (u usage) Unwrap() error { return u.error }

// app is what the commands share.
type app struct {
	rules    *clientcmd.ClientConfigLoadingRules // those of kubectl
	flags    clientcmd.ConfigOverrides
	output   string
	interval time.Duration // between two looks, by which what happens in a time is told
	connect  func() (source, error)
}

func command() *cobra.Command {
	a := &app{}
	a.connect = a.cluster
	return commandFor(a)
}

func commandFor(a *app) *cobra.Command {
	a.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	cmd := &cobra.Command{
		Use: "kubectl-vgpu", Short: "Show the GPUs and vGPUs of all nodes", Long: long,
		Version: version.Version + " (" + version.Commit + ")", SilenceUsage: true, SilenceErrors: true,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl vgpu"},
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if a.output != "table" && a.output != "json" {
				return usage{fmt.Errorf("--output=%s: must be table or json", a.output)}
			}
			if a.interval < 0 || a.interval > time.Minute {
				return usage{fmt.Errorf("--interval=%v: must be from 0 to 1m", a.interval)}
			}
			return nil
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return usage{fmt.Errorf("%w; see kubectl vgpu --help", err)}
	})
	f := cmd.PersistentFlags()
	f.StringVarP(&a.output, "output", "o", "table", "table or json")
	f.StringVar(&a.rules.ExplicitPath, clientcmd.RecommendedConfigPathFlag, "", "`FILE` that says how to reach the API server, as for kubectl")
	clientcmd.BindOverrideFlags(&a.flags, f, clientcmd.RecommendedConfigOverrideFlags(""))
	cmd.AddCommand(a.topCommand(), a.psCommand(), a.describeCommand())
	return cmd
}

func (a *app) topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "top [NODE...]", Short: "The GPUs: how busy they are, what is free of memory and share",
		RunE: func(cmd *cobra.Command, nodes []string) error { return a.show(cmd, nodes, a.interval, printTop) },
	}
	a.intervalFlag(cmd)
	return cmd
}

func (a *app) psCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ps [NODE...]", Short: "The vGPUs: pod, GPU, state, memory, held, waited",
		Long: "The vGPUs of all nodes. With --namespace, of the pods in that.",
		RunE: func(cmd *cobra.Command, nodes []string) error { return a.show(cmd, nodes, 0, printPS) },
	}
}

func (a *app) describeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "describe", Short: "All about a node"}
	node := &cobra.Command{
		Use: "node NODE...", Short: "The GPUs of a node, with their vGPUs",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage{errors.New("name a node: kubectl vgpu describe node NODE")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, nodes []string) error { return a.show(cmd, nodes, a.interval, printNodes) },
	}
	a.intervalFlag(node)
	cmd.AddCommand(node)
	return cmd
}

func (a *app) intervalFlag(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&a.interval, "interval", 2*time.Second, "`TIME` between two looks, of which HELD tells; 0: one look, and no HELD")
}

// cluster is the one that the flags of kubectl name.
func (a *app) cluster() (source, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(a.rules, &a.flags).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("failed to find the API server: %w", err)
	}
	config.QPS, config.Burst = 100, 200 // one call for each node
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("failed to make a client of the API server: %w", err)
	}
	return apiServer{client}, nil
}

// show looks at the nodes and prints what it saw. What could not be seen is said, and
// is the error.
func (a *app) show(cmd *cobra.Command, nodes []string, interval time.Duration, print func(*table, *cluster)) error {
	s, err := a.connect()
	if err != nil {
		return err
	}
	c, err := look(cmd.Context(), s, nodes, interval)
	if err != nil {
		return err
	}
	if namespace := a.flags.Context.Namespace; namespace != "" {
		c.only(namespace)
	}
	if a.output == "json" {
		if err := writeJSON(cmd.OutOrStdout(), c); err != nil {
			return err
		}
	} else {
		t := newTable(cmd.OutOrStdout())
		print(t, c)
		if err := t.flush(); err != nil {
			return err
		}
	}
	for _, note := range c.notes {
		fmt.Fprintln(cmd.ErrOrStderr(), "note:", note)
	}
	var missing []string
	for _, n := range c.Nodes {
		if n.Problem != "" {
			missing = append(missing, fmt.Sprintf("node %s: %s", n.Name, n.Problem))
		}
	}
	if len(missing) > 0 {
		return errors.New(strings.Join(missing, "\n  "))
	}
	return nil
}
