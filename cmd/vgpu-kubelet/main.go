// SPDX-License-Identifier: Apache-2.0

// Command vgpu-kubelet is the node's DRA driver: it publishes the GPUs that vgpud has
// to Kubernetes, and prepares the claims that pods have on them. For older clusters it
// is a device plugin instead.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/vgpu-shim/vgpu/vgpu/kube"
	"github.com/vgpu-shim/vgpu/vgpu/version"
)

const long = `vgpu-kubelet is the DRA driver vgpu-shim.dev of this node (Kubernetes 1.34 and later).

It publishes each GPU that vgpud has as a device that many claims may share, with
the capacities memory and share (percent of its time), and its model,
architecture, compute capability, driver version, UUID, PCI root and NUMA node
for selectors. A GPU that is unhealthy, cordoned or without vgpud is tainted.
Claims that kubelet brings become records of vgpud's; the runtime class vgpu gives
their containers a vGPU each.

It runs once per node, as root, beside kubelet and vgpud, and sees their
directories under the same paths as they do. It may be stopped or killed at any
time: pods go on, and what was prepared stands in --plugin-dir.

It needs in the cluster: get nodes; create events; get, list and watch
resourceclaims; all of resourceslices; for the status of claims patch
resourceclaims/status, and associated-node:patch resourceclaims/driver of the name
vgpu-shim.dev. The feature gate DRAConsumableCapacity must be on (by default from
Kubernetes 1.36 on). docs/kubernetes-dra.md has claims to copy. Where that is not to
be had, vgpu-kubelet device-plugin gives GPUs to pods by their limits.

Exit codes: 0 stopped, 1 failed, 2 wrong use.`

const examples = `  vgpu-kubelet                                     # in a pod, as the DaemonSet runs it
  vgpu-kubelet --kubeconfig=/etc/kubernetes/kubelet.conf --node-name=worker-3
  vgpu-kubelet --order=pack                        # fill one GPU before the next
  vgpu-kubelet --oversubscription=1.5              # 1.5 times the memory may be claimed; vgpud.toml says the same
  vgpu-kubelet --default-memory=4Gi --default-share=25`

func main() {
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "vgpu-kubelet:", err)
		if _, wrong := errors.AsType[usage](err); wrong {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

// usage is an error of whoever wrote the command line.
type usage struct{ error }

func (u usage) Unwrap() error { return u.error }

// flags are those that are not in kube.Config as they are.
type flags struct {
	kubeconfig, order, memory, metrics, level, format string
}

func command() *cobra.Command {
	cfg, more := kube.DefaultConfig(), flags{}
	cmd := &cobra.Command{
		Use: "vgpu-kubelet", Short: "Publish this node's GPUs to Kubernetes and prepare claims on them",
		Long: long, Example: examples, Version: version.Version + " (" + version.Commit + ")",
		SilenceUsage: true, SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage{fmt.Errorf("unexpected argument %q; see vgpu-kubelet --help", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := configure(&cfg, more); err != nil {
				return usage{err}
			}
			return run(cmd.Context(), cfg, more)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return usage{fmt.Errorf("%w; see vgpu-kubelet --help", err)}
	})
	cmd.AddCommand(devicePluginCommand())
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&cfg.NodeName, "node-name", os.Getenv("NODE_NAME"), "name of this `NODE` in Kubernetes (default $NODE_NAME, else the host's name)")
	f.StringVar(&more.kubeconfig, "kubeconfig", "", "`FILE` that says how to reach the API server (default: as a pod does)")
	f.StringVar(&cfg.Address, "address", cfg.Address, "control socket `PATH` of vgpud")
	f.StringVar(&more.order, "order", string(cfg.Order), "in which order pods fill GPUs: "+strings.Join(kube.Orders(), ", "))
	f.Float64Var(&cfg.Oversubscription, "oversubscription", cfg.Oversubscription, "`FACTOR` by which more memory may be claimed than a GPU has; the same as vgpud's engine.oversubscription: where that is 1, a container that finds none free waits")
	f.IntVar(&cfg.DefaultShare, "default-share", cfg.DefaultShare, "`PERCENT` of a GPU's time for a request that names no share")
	f.StringVar(&more.memory, "default-memory", "", "`SIZE` for a request that names no memory, such as 4Gi (default: --default-share of the GPU's)")
	f.DurationVar(&cfg.Absence, "absence", cfg.Absence, "keep new pods away when vgpud is gone for so `LONG`")
	f.BoolVar(&cfg.AllowContested, "allow-contested", false, "let claims have GPUs that another driver or device plugin of this node offers as well")
	f.DurationVar(&cfg.StatusInterval, "status-interval", cfg.StatusInterval, "write the status of a claim (held and waited time, GPU in use) when it changed, at most once in so `LONG`; 0: never")
	f.StringVar(&cfg.PluginDir, "plugin-dir", cfg.PluginDir, "`DIR` of the driver's socket and of what it must remember; not a tmpfs")
	f.StringVar(&cfg.RegistryDir, "registry-dir", cfg.RegistryDir, "`DIR` in which kubelet looks for drivers")
	f.StringVar(&cfg.CDIDir, "cdi-dir", cfg.CDIDir, "`DIR` in which containerd looks for CDI specs")
	f.StringVar(&more.metrics, "metrics", "", "serve metrics for Prometheus at `ADDRESS:PORT` (default nowhere)")
	f.StringVar(&more.level, "log-level", "info", "trace, debug, info, warn or error")
	f.StringVar(&more.format, "log-format", "text", "text or json")
	cmd.AddCommand(labelCommand())
	return cmd
}

// configure puts the flags together and says all that is wrong with them.
func configure(cfg *kube.Config, more flags) error {
	var errs []error
	var err error
	if cfg.NodeName, err = nodeName(cfg.NodeName); err != nil {
		errs = append(errs, err)
	}
	cfg.Order = kube.Order(more.order)
	if cfg.DefaultMemory, err = defaultMemory(more.memory); err != nil {
		errs = append(errs, err)
	}
	if cfg.Log, err = newLog(more.level, more.format); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, cfg.Check())...)
}

// nodeName is that of the flag --node-name, else what kubelet makes of the host's.
func nodeName(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("failed to read the host's name: %w; name the node with --node-name", err)
	}
	return strings.ToLower(name), nil
}

// connect makes a client of the API server that a file tells of; without a file, of that
// of the pod.
func connect(kubeconfig string) (kubernetes.Interface, error) {
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("failed to find the API server: %w; name a file with --kubeconfig", err)
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("failed to make a client of the API server: %w", err)
	}
	return client, nil
}

// logKubernetes lets what Kubernetes' libraries log go into the same log, the most of it
// below info.
func logKubernetes(log *logrus.Entry) {
	klog.SetLogger(funcr.New(func(prefix, args string) {
		log.WithField("from", strings.TrimSpace("kubernetes "+prefix)).Debug(args)
	}, funcr.Options{Verbosity: 3}))
}

// defaultMemory reads the flag of that name, in bytes; 0: it is not there.
func defaultMemory(value string) (uint64, error) {
	if value == "" {
		return 0, nil
	}
	q, err := resource.ParseQuantity(value)
	n, whole := q.AsInt64()
	if err != nil || !whole || n <= 0 {
		return 0, fmt.Errorf("--default-memory=%s: must be a size such as 4Gi", value)
	}
	return uint64(n), nil
}

// newLog makes a log by the flags --log-level and --log-format.
func newLog(level, format string) (*logrus.Entry, error) {
	var errs []error
	log := logrus.New()
	l, err := logrus.ParseLevel(level)
	if err != nil {
		errs = append(errs, fmt.Errorf("--log-level=%s: must be trace, debug, info, warn or error", level))
	}
	log.SetLevel(l)
	switch format {
	case "text":
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true})
	case "json":
		log.SetFormatter(&logrus.JSONFormatter{})
	default:
		errs = append(errs, fmt.Errorf("--log-format=%s: must be text or json", format))
	}
	return logrus.NewEntry(log), errors.Join(errs...)
}

// serveMetrics serves what is registered in the registry until it is stopped. Without an
// address there is none.
func serveMetrics(address string) (_ prometheus.Registerer, stop func(), _ error) {
	if address == "" {
		return nil, func() {}, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to serve metrics: %w", err)
	}
	registry := prometheus.NewRegistry()
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }()
	return registry, func() { _ = server.Close() }, nil
}

func run(ctx context.Context, cfg kube.Config, more flags) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	logKubernetes(cfg.Log)
	var err error
	if cfg.Client, err = connect(more.kubeconfig); err != nil {
		return err
	}
	registerer, stopMetrics, err := serveMetrics(more.metrics)
	if err != nil {
		return err
	}
	defer stopMetrics()
	cfg.Metrics = registerer
	cfg.Log.WithField("version", version.Version).WithField("node", cfg.NodeName).Info("vgpu-kubelet starts")
	return kube.Run(ctx, cfg)
}
