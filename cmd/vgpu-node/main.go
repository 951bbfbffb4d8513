// SPDX-License-Identifier: Apache-2.0

// Command vgpu-node is what the pods of the Helm chart run to change the node that
// they are on: from their image it places vgpu there, and it becomes the node's vgpud.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/vgpu-shim/vgpu/vgpu/version"
)

const long = `vgpu-node runs in pods that the Helm chart (configs/helm/vgpu) makes, one on each
node. What it does, it does in the node's own mount and cgroup namespaces, which are
those of process 1: the pod must be privileged and have hostPID. Paths are the node's.

Exit codes: 0 done, 1 failed, 2 wrong use.`

func main() {
	os.Setenv("PATH", searchPath) // the image has no programs but ours
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := command().ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "vgpu-node:", err)
	if _, wrong := errors.AsType[usage](err); wrong {
		os.Exit(2)
	}
	os.Exit(1)
}

// usage is an error of whoever wrote the command line.
type usage struct{ error }

func (u usage) Unwrap() error { return u.error }

func command() *cobra.Command {
	cmd := &cobra.Command{
		Use: "vgpu-node", Short: "Place vgpu on the node that this pod is on, and run it there",
		Long: long, Version: version.Version + " (" + version.Commit + ")",
		SilenceUsage: true, SilenceErrors: true,
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return usage{fmt.Errorf("%w; see vgpu-node --help", err)}
	})
	cmd.AddCommand(installCommand(), uninstallCommand(), vgpudCommand())
	return cmd
}

// node is what the commands are told of the node.
type node struct {
	from       string // directory of the product in this pod
	prefix     string
	containerd runtime
}

func (n *node) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&n.from, "from", "/opt/vgpu", "`DIR` of the product, in this pod")
	f.StringVar(&n.prefix, "prefix", "/usr/local", "`DIR` of programs, as for vgpu install")
	f.StringVar(&n.containerd.socket, "containerd-socket", "/run/containerd/containerd.sock", "`PATH` of containerd's socket")
	f.StringVar(&n.containerd.restart, "restart", restartNone, "how containerd is restarted where it must be: "+strings.Join(restarts, ", "))
	f.StringVar(&n.containerd.unit, "unit", "containerd", "systemd's `UNIT` of containerd, for --restart="+restartSystemd)
}

func (n *node) check(args []string) error {
	if len(args) > 0 {
		return usage{fmt.Errorf("unexpected argument %q; see vgpu-node --help", args[0])}
	}
	if !slices.Contains(restarts, n.containerd.restart) {
		return usage{fmt.Errorf("--restart=%s: must be one of %s", n.containerd.restart, strings.Join(restarts, ", "))}
	}
	for name, path := range map[string]string{"from": n.from, "prefix": n.prefix, "containerd-socket": n.containerd.socket} {
		if !filepath.IsAbs(path) {
			return usage{fmt.Errorf("--%s=%s: must be an absolute path", name, path)}
		}
	}
	return nil
}

func installCommand() *cobra.Command {
	n, program, config := node{}, "", ""
	cmd := &cobra.Command{
		Use: "install", Short: "Place vgpu on the node, as vgpu install does, and tell containerd of it",
		Long: "Place the product of this image on the node by \"vgpu install\". A containerd that does\n" +
			"not know the handler vgpu then, or whose configuration was changed, is restarted as\n" +
			"--restart says, and waited for; pods go on meanwhile.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := n.check(args); err != nil {
				return err
			}
			return n.install(cmd.Context(), "--containerd", program, "--containerd-config", config)
		},
	}
	n.flags(cmd)
	cmd.Flags().StringVar(&program, "containerd", "containerd", "containerd's `PROGRAM`, which checks its configuration")
	cmd.Flags().StringVar(&config, "containerd-config", "/etc/containerd/config.toml", "containerd's configuration `FILE`")
	return cmd
}

func uninstallCommand() *cobra.Command {
	n, state, plugin := node{}, "", ""
	cmd := &cobra.Command{
		Use: "uninstall", Short: "Take from the node what install placed there, and what vgpud and vgpu-kubelet kept",
		Long: "Take vgpu from the node by \"vgpu uninstall\", with the directories of vgpud and\n" +
			"vgpu-kubelet. It is refused while containers have vGPUs, claims are prepared or a\n" +
			"vgpud runs: the pod then fails, says so, and is tried again.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := n.check(args); err != nil {
				return err
			}
			return n.uninstall(cmd.Context(), state, plugin)
		},
	}
	n.flags(cmd)
	cmd.Flags().StringVar(&state, "state", "/run/vgpu", "vgpud's state `DIR`")
	cmd.Flags().StringVar(&plugin, "plugin-dir", "/var/lib/kubelet/plugins/vgpu-shim.dev", "`DIR` of vgpu-kubelet")
	return cmd
}

func vgpudCommand() *cobra.Command {
	config, prefix := "", ""
	cmd := &cobra.Command{
		Use: "vgpud [flags] [-- FLAGS OF VGPUD]", Short: "Become the node's vgpud",
		Long: "Become the vgpud that install has placed, in the node's namespaces but for the\n" +
			"network, which stays the pod's, and with no more rights than its systemd unit gives.",
		Example: "  vgpu-node vgpud -- --metrics=:9442",
		RunE: func(_ *cobra.Command, args []string) error {
			return becomeVgpud(filepath.Join(prefix, "bin", "vgpud"), config, args)
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "vgpud's configuration `FILE`, in this pod (default: the node's)")
	cmd.Flags().StringVar(&prefix, "prefix", "/usr/local", "`DIR` of programs, as for vgpu install")
	return cmd
}
