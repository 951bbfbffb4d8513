// SPDX-License-Identifier: Apache-2.0

// Command vgpud is the node daemon: it gives each container's vGPU its turns on
// the physical GPUs of this machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/vgpu-shim/vgpu/vgpu/gpu/source"
	"github.com/vgpu-shim/vgpu/vgpu/node"
	"github.com/vgpu-shim/vgpu/vgpu/version"
)

const long = `vgpud shares the GPUs of this machine among containers. Each container that runs
under the runtime io.containerd.vgpu.v1 has a virtual GPU; vgpud grants the
physical GPU to whichever of them has work, one at a time, and takes it back as
soon as that work is complete, or at the end of the quantum when others wait.

It needs root, and the host's pid namespace. Everything it keeps is in the state
directory. Stopping or restarting it does not disturb containers: work that runs
goes on, and waiting processes wait until it is back.

Configuration: ` + node.DefaultConfigFile + ` if it is there, or --config FILE; flags win
over the file. The file of the release, with every key explained, is
configs/vgpud.toml.

Exit codes: 0 stopped, 1 failed, 2 wrong use or configuration.`

const examples = `  vgpud                                    # the GPUs of this machine
  vgpud --gpus=sim:2                       # two simulated GPUs, no hardware needed
  vgpud --gpus=sim:1 --state=/run/vgpu-2   # beside another vgpud
  vgpu ps --address=/run/vgpu-2/vgpud.sock # ask it what runs`

// logLines is how many lines of the log may wait to be written.
const logLines = 8192

func main() {
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "vgpud:", err)
		var u usage
		if errors.As(err, &u) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

// usage is an error of whoever wrote the command line or the configuration.
type usage struct{ error }

func (u usage) Unwrap() error { return u.error }

func command() *cobra.Command {
	var file string
	flags := node.Config{}
	cmd := &cobra.Command{
		Use:           "vgpud",
		Short:         "Share the GPUs of this machine among containers",
		Long:          long,
		Example:       examples,
		Version:       version.Version + " (" + version.Commit + ")",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage{fmt.Errorf("unexpected argument %q; see vgpud --help", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			listen, passed, err := passedSocket(activation.Files(true))
			if err != nil {
				return usage{err}
			}
			cfg, err := configure(cmd, file, flags, passed)
			if err != nil {
				return usage{err}
			}
			return run(cmd.Context(), cfg, listen)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return usage{fmt.Errorf("%w; see vgpud --help", err)}
	})
	f := cmd.Flags()
	f.StringVar(&file, "config", "", "configuration `FILE` (default: "+node.DefaultConfigFile+" if it is there)")
	f.StringVar(&flags.GPUs, "gpus", "", "which GPUs: auto, nvml, or sim:N for N simulated ones (default auto)")
	f.StringVar(&flags.State, "state", "", "state `DIR`, on a tmpfs (default /run/vgpu)")
	f.StringVar(&flags.Socket, "socket", "", "control socket `PATH` (default vgpud.sock in the state directory)")
	f.StringVar(&flags.Metrics, "metrics", "", "serve metrics for Prometheus at `ADDRESS:PORT`, or a unix socket at a path (default nowhere)")
	f.StringVar(&flags.Log.Level, "log-level", "", "trace, debug, info, warn or error (default info)")
	f.StringVar(&flags.Log.Format, "log-format", "", "text or json (default text)")
	return cmd
}

// configure reads the file and puts the flags that were given over it. A socket
// that was passed must fit what they say.
func configure(cmd *cobra.Command, file string, flags node.Config, passed string) (node.Config, error) {
	cfg := node.DefaultConfig()
	if file == "" {
		switch _, err := os.Stat(node.DefaultConfigFile); {
		case err == nil:
			file = node.DefaultConfigFile
		case !errors.Is(err, os.ErrNotExist):
			return cfg, fmt.Errorf("failed to look for the configuration: %w; name one with --config", err)
		}
	}
	if file != "" {
		var err error
		if cfg, err = node.LoadConfig(file); err != nil {
			return cfg, err
		}
	}
	for _, f := range []struct {
		name     string
		to, from *string
	}{
		{"gpus", &cfg.GPUs, &flags.GPUs},
		{"state", &cfg.State, &flags.State},
		{"socket", &cfg.Socket, &flags.Socket},
		{"metrics", &cfg.Metrics, &flags.Metrics},
		{"log-level", &cfg.Log.Level, &flags.Log.Level},
		{"log-format", &cfg.Log.Format, &flags.Log.Format},
	} {
		if cmd.Flags().Changed(f.name) {
			*f.to = *f.from
		}
	}
	if err := use(passed, &cfg); err != nil {
		return cfg, err
	}
	return cfg, cfg.Check()
}

// run is vgpud once it is configured. The control socket is its own to make if
// listen is nil.
func run(ctx context.Context, cfg node.Config, listen net.Listener) (retErr error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	syscall.Umask(0o077)

	log := logrus.New()
	lines := newLogWriter(os.Stderr, logLines)
	defer lines.close(time.Second)
	log.SetOutput(lines)
	level, err := logrus.ParseLevel(cfg.Log.Level)
	if err != nil {
		return usage{err}
	}
	log.SetLevel(level)
	if cfg.Log.Format == "json" {
		log.SetFormatter(&logrus.JSONFormatter{})
	} else {
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, DisableColors: true})
	}
	entry := logrus.NewEntry(log)

	manager := func(state string) {
		if _, err := daemon.SdNotify(false, state); err != nil {
			entry.WithError(err).Warn("failed to tell the service manager")
		}
	}
	watchdog, err := daemon.SdWatchdogEnabled(true)
	if err != nil {
		return usage{fmt.Errorf("failed to read what the service manager says about its watchdog: %w", err)}
	}

	// First of all: what follows makes files in there.
	state, err := node.OpenState(cfg.State, cfg.Socket)
	if err != nil {
		return err
	}
	manager(opening)
	inventory, err := source.Open(source.Config{
		GPUs: cfg.GPUs, SimulatedRoot: cfg.Simulated.Root, Machine: cfg.Simulated.Machine,
		Log: entry.Infof,
	})
	if err != nil {
		return errors.Join(err, state.Close())
	}
	defer func() { retErr = errors.Join(retErr, inventory.Close()) }()
	for _, g := range inventory.GPUs() {
		entry.WithFields(logrus.Fields{"uuid": g.UUID, "model": g.Model, "memory_bytes": g.MemoryBytes}).Info("found a GPU")
	}
	d, err := node.New(cfg, state, listen, inventory, entry, node.Build{Version: version.Version, Commit: version.Commit})
	if err != nil {
		return err
	}
	entry.WithFields(logrus.Fields{"version": version.Version, "gpus": inventory.Name(), "socket": cfg.Socket, "socket_passed": listen != nil}).Info("vgpud serves")

	tick := time.NewTicker(beat(watchdog))
	defer tick.Stop()
	attended := make(chan struct{})
	go func() {
		defer close(attended)
		attend(ctx, d.Status, tick.C, watchdog > 0, manager)
	}()
	err = d.Serve(ctx)
	stop() // if it ended by itself
	<-attended
	entry.Info("vgpud stops; containers go on")
	return err
}
