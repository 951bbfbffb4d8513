// SPDX-License-Identifier: Apache-2.0

// Command vgpu shows the operator what vgpud does, and changes it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/request"
	"github.com/vgpu-shim/vgpu/vgpu/version"
)

// Exit codes. Scripts use them: never changed, only added to.
const (
	exitFailure    = 1
	exitUsage      = 2
	exitNotRunning = 3
	exitSilent     = 4
)

const defaultAddress = "/run/vgpu/vgpud.sock"

const long = `vgpu shows the virtual GPUs of this machine's containers and the physical GPUs
that they share, tells what happens to them, and changes who gets how much. It
asks vgpud over its control socket, which only root may use.

Exit codes: 0 done, 1 failed, 2 wrong use, 3 vgpud does not run, 4 vgpud runs but
does not answer.
The fields of --output json are described in docs/cli.md and stay as they are.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := command()
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "vgpu:", err)
	var (
		wrong  usage
		absent notRunning
		mute   silent
	)
	switch {
	case errors.As(err, &wrong):
		return exitUsage
	case errors.As(err, &absent):
		return exitNotRunning
	case errors.As(err, &mute):
		return exitSilent
	}
	return exitFailure
}

// usage is a mistake in the command line.
type usage struct{ error }

func (u usage) Unwrap() error { return u.error }

// app is what the commands share.
type app struct {
	address string
	output  string
	timeout time.Duration
}

func command() *cobra.Command {
	a := &app{}
	cmd := &cobra.Command{
		Use:           "vgpu",
		Short:         "Show virtual and physical GPUs, and change who gets how much",
		Long:          long,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage{fmt.Errorf("unknown command %q; see vgpu --help", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if a.output != "table" && a.output != "json" {
				return usage{fmt.Errorf("--output=%s: must be table or json", a.output)}
			}
			if a.timeout <= 0 {
				return usage{fmt.Errorf("--timeout=%v: must be above 0", a.timeout)}
			}
			return nil
		},
	}
	cmd.CompletionOptions.HiddenDefaultCmd = true
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return usage{fmt.Errorf("%w; see vgpu --help", err)}
	})
	f := cmd.PersistentFlags()
	f.StringVar(&a.address, "address", defaultAddress, "vgpud's control socket")
	f.StringVarP(&a.output, "output", "o", "table", "table or json")
	f.DurationVar(&a.timeout, "timeout", defaultTimeout, "how long to wait for vgpud's answer")

	cmd.AddCommand(
		a.getCommand(), a.gpusCommand(), a.doctorCommand(), a.eventsCommand(), a.policyCommand(), a.statsCommand(),
		a.installCommand(), a.uninstallCommand(), a.probeCommand(),
		&cobra.Command{
			Use: "ps", Short: "List the vGPUs", Args: none,
			Long: "List the vGPUs of this machine: whose they are, on which GPU, and how they fared.\n\n" +
				"HELD is exact GPU time, from grant to last completion without idle gaps; WAITED\n" +
				"is the time from pending to grant; LINGERED is how long GPUs were kept idle for\n" +
				"the vGPU while others waited. DRAINS are turns that were taken away, OVERRUNS\n" +
				"those of them that did not drain in time. POLICY is the one in force for it.\n" +
				"Below the table it says why a vGPU has no GPU yet, and what else needs saying.",
			RunE: func(cmd *cobra.Command, _ []string) error { return a.ps(cmd.Context(), cmd.OutOrStdout()) },
		},
		&cobra.Command{
			Use: "set ID KEY=VALUE...", Short: "Change a vGPU while its container runs", Args: assignments,
			Long: "Change what a container asked for while it runs. It holds from vgpud's next\n" +
				"decision on, and over a restart of vgpud. Either all of it is changed, or nothing.\n\n" +
				"ID is tried as the vGPU's, as the container's, and as the beginning of the vGPU's;\n" +
				"it must fit one vGPU only.\n\n" +
				"KEY is one of " + strings.Join(request.LiveKeys(), ", ") + ",\n" +
				"with or without \"" + request.Prefix + "\" in front; docs/annotations.md says what each\n" +
				"means. Without a VALUE it goes back to its default.",
			Example: "  vgpu set train weight=300 max-share=",
			RunE:    func(cmd *cobra.Command, args []string) error { return a.set(cmd.Context(), cmd.OutOrStdout(), args) },
		},
		&cobra.Command{
			Use: "version", Short: "Show the versions of vgpu and vgpud", Args: none,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return a.version(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			},
		},
	)
	return cmd
}

func none(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage{fmt.Errorf("unexpected argument %q; see %s --help", args[0], cmd.CommandPath())}
	}
	return nil
}

func (a *app) ps(ctx context.Context, w io.Writer) error {
	var resp *v1.ListResponse
	if err := a.ask(ctx, "list the vGPUs", func(ctx context.Context, c v1.ControlClient) (err error) {
		resp, err = c.List(ctx, &v1.ListRequest{})
		return err
	}); err != nil {
		return err
	}
	if a.output == "json" {
		return writeJSON(w, vgpusJSON(resp.GetVgpus()))
	}
	return writeVGPUs(w, resp.GetVgpus())
}

// version shows its own version even where vgpud does not run, or does not
// answer; the latter is a failure all the same.
func (a *app) version(ctx context.Context, w, stderr io.Writer) error {
	v := versionJSON{Client: buildJSON{Version: version.Version, Commit: version.Commit}}
	var info *v1.InfoResponse
	err := a.ask(ctx, "ask vgpud for its version", func(ctx context.Context, c v1.ControlClient) (err error) {
		info, err = c.Info(ctx, &v1.InfoRequest{})
		return err
	})
	var (
		absent notRunning
		mute   silent
	)
	switch {
	case err == nil:
		v.Server = &serverJSON{
			buildJSON: buildJSON{Version: info.GetVersion(), Commit: info.GetCommit()},
			Source:    info.GetSource(), DriverVersion: info.GetDriverVersion(),
			Protocol: info.GetProtocol(), Started: info.GetStarted().AsTime().Format(time.RFC3339Nano), Epoch: info.GetEpoch(),
			Libraries: asLibraries(info.GetLibraries()),
		}
	case !errors.As(err, &absent) && !errors.As(err, &mute):
		return err
	}
	if werr := a.writeVersion(w, v); werr != nil {
		return werr
	}
	if errors.As(err, &absent) {
		if a.output == "table" {
			fmt.Fprintf(stderr, "vgpud does not run at %s\n", a.address)
		}
		return nil
	}
	return err
}

func (a *app) writeVersion(w io.Writer, v versionJSON) error {
	if a.output == "json" {
		return writeJSON(w, v)
	}
	fmt.Fprintf(w, "vgpu  %s (%s)\n", v.Client.Version, v.Client.Commit)
	if v.Server != nil {
		fmt.Fprintf(w, "vgpud %s (%s), %s, driver %s, protocol %d\n",
			v.Server.Version, v.Server.Commit, v.Server.Source, v.Server.DriverVersion, v.Server.Protocol)
	}
	return nil
}
