// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/vgpu-shim/vgpu/vgpu/kube/plugin"
	"github.com/vgpu-shim/vgpu/vgpu/version"
)

const devicePluginLong = `vgpu-kubelet device-plugin gives the GPUs that vgpud has to pods by their limits, for
clusters without the DRA driver (Kubernetes 1.20 and later):

  vgpu-shim.dev/gpu     GPUs of the container
  vgpu-shim.dev/memory  memory on all of them together, in units of 256 MiB
  vgpu-shim.dev/share   percent of the time of all of them together

A container gets one vGPU for all three. It must ask for gpu; what else it does not
ask for is as --default-memory and --default-share say, and is not counted by the
scheduler. The pod needs the runtime class vgpu.

It runs once per node, as root, beside kubelet and vgpud. It may be stopped or killed
at any time: pods go on. A node has the device plugin or the DRA driver, not both.

It needs nothing of the API server. Where it can reach one it also sees who offers the
GPUs beside it that kubelet does not know, DRA drivers above all: that takes get nodes
and list resourceslices.

Exit codes: 0 stopped, 1 failed, or somebody else offers the GPUs, 2 wrong use.`

const devicePluginExamples = `  vgpu-kubelet device-plugin                      # in a pod, as the DaemonSet runs it
  vgpu-kubelet device-plugin --default-share=25   # a GPU has 4 units of vgpu-shim.dev/gpu
  vgpu-kubelet device-plugin --numa               # for nodes with kubelet's topology manager`

func devicePluginCommand() *cobra.Command {
	cfg, more := plugin.DefaultConfig(), flags{}
	cmd := &cobra.Command{
		Use: "device-plugin", Short: "Give this node's GPUs to pods by their limits, on clusters without DRA",
		Long: devicePluginLong, Example: devicePluginExamples,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage{fmt.Errorf("unexpected argument %q; see vgpu-kubelet device-plugin --help", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			var wrongName, wrongMemory, wrongLog error
			cfg.NodeName, wrongName = nodeName(cfg.NodeName)
			cfg.DefaultMemory, wrongMemory = defaultMemory(more.memory)
			cfg.Log, wrongLog = newLog(more.level, more.format)
			if err := errors.Join(wrongName, wrongMemory, wrongLog, cfg.Check()); err != nil {
				return usage{err}
			}
			return runDevicePlugin(cmd.Context(), cfg, more)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&cfg.NodeName, "node-name", os.Getenv("NODE_NAME"), "name of this `NODE` in Kubernetes (default $NODE_NAME, else the host's name)")
	f.StringVar(&more.kubeconfig, "kubeconfig", "", "`FILE` that says how to reach the API server (default: as a pod that has a token does, else not at all)")
	f.StringVar((*string)(&cfg.Address), "address", string(cfg.Address), "control socket `PATH` of vgpud")
	f.Float64Var(&cfg.Oversubscription, "oversubscription", cfg.Oversubscription, "`FACTOR` by which more memory may be asked for than a GPU has; the same as vgpud's engine.oversubscription: where that is 1, a container that finds none free waits")
	f.IntVar(&cfg.DefaultShare, "default-share", cfg.DefaultShare, "`PERCENT` of a GPU's time for a container that asks for no share; a GPU has as many units of vgpu-shim.dev/gpu as that goes into 100")
	f.StringVar(&more.memory, "default-memory", "", "`SIZE` on each GPU for a container that asks for no memory, such as 4Gi (default: --default-share of the smallest GPU's)")
	f.DurationVar(&cfg.Absence, "absence", cfg.Absence, "keep new pods away when vgpud is gone for so `LONG`")
	f.BoolVar(&cfg.NUMA, "numa", cfg.NUMA, "tell kubelet's topology manager the NUMA nodes of GPUs, and keep containers on the GPUs of those that it chose")
	f.BoolVar(&cfg.AllowContested, "allow-contested", cfg.AllowContested, "let pods have GPUs that another driver or device plugin of this node offers as well")
	f.StringVar(&cfg.Dir, "device-plugins-dir", cfg.Dir, "`DIR` of kubelet's socket for device plugins and of its checkpoint, wherever its --root-dir is")
	f.StringVar(&cfg.PodsDir, "pods-dir", cfg.PodsDir, "`DIR` in which kubelet has a directory for each pod, pods of its --root-dir")
	f.StringVar(&more.metrics, "metrics", "", "serve metrics for Prometheus at `ADDRESS:PORT` (default nowhere)")
	f.StringVar(&more.level, "log-level", "info", "trace, debug, info, warn or error")
	f.StringVar(&more.format, "log-format", "text", "text or json")
	return cmd
}

func runDevicePlugin(ctx context.Context, cfg plugin.Config, more flags) (err error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	logKubernetes(cfg.Log)
	if _, notInPod := rest.InClusterConfig(); more.kubeconfig != "" || notInPod == nil {
		if cfg.Client, err = connect(more.kubeconfig); err != nil {
			return err
		}
	} else {
		cfg.Log.Infof("the API server is not asked who else offers the GPUs: %v", notInPod)
	}
	registerer, stopMetrics, err := serveMetrics(more.metrics)
	if err != nil {
		return err
	}
	defer stopMetrics()
	cfg.Metrics = registerer
	cfg.Log.WithField("version", version.Version).Info("vgpu-kubelet device-plugin starts")
	return plugin.Run(ctx, cfg)
}
