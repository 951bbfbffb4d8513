// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/spf13/cobra"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/version"
)

// What a check can come to.
const (
	checkOK      = "ok"
	checkFault   = "fault"
	checkSkipped = "skipped" // what it looks at is not known
)

// finding is what a check came to. Its fields are the JSON of vgpu doctor.
type finding struct {
	Check  string `json:"check"`
	Result string `json:"result"`
	Detail string `json:"detail"`
	Advice string `json:"advice"` // what to do about a fault

	Process *processJSON `json:"process,omitempty"` // that it is about
}

func ok(format string, args ...any) finding {
	return finding{Result: checkOK, Detail: fmt.Sprintf(format, args...)}
}

func fault(advice, format string, args ...any) finding {
	return finding{Result: checkFault, Detail: fmt.Sprintf(format, args...), Advice: advice}
}

// patient is what the checks look at.
type patient struct {
	err   error // vgpud did not answer; the rest is empty then
	info  *v1.InfoResponse
	vgpus []*v1.VGPU
	gpus  []*v1.GPU

	processes *v1.ListProcessesResponse // nil: an older vgpud does not say

	host *host // this machine, whether vgpud answers or not
}

// check is one thing that the doctor looks at.
type check struct {
	name  string
	alone bool // it needs no vgpud
	look  func(*patient) []finding
}

// checks are all, in the order in which they are made: what comes first explains
// what comes later.
func checks() []check {
	return []check{
		{"vgpud", true, checkDaemon},
		{"kernel", true, checkModule},
		{"cgroups", true, checkCgroups},
		{"space", true, checkSpace},
		{"permissions", true, checkPermissions},
		{"runc", true, checkRunc},
		{"containerd", true, checkContainerd},
		{"driver", false, checkDriver},
		{"library", false, checkLibrary},
		{"names", false, checkNames},
		{"container", false, checkContainer},
		{"gpus", false, checkGPUs},
		{"gate", false, checkGate},
		{"processes", false, checkProcesses},
		{"connections", false, checkConnections},
	}
}

func (a *app) doctorCommand() *cobra.Command {
	var m machine
	var without bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "Look for faults on this machine, and say what to do", Args: none,
		Long: "Look whether vgpud answers, whether the driver and the library that containers get\n" +
			"in its place can be loaded here and fit each other, whether containerd, runc,\n" +
			"control groups, free space and permissions are as they must be, whether a container\n" +
			"(without an image, for a moment) gets what it should, whether the GPUs are well,\n" +
			"and whether somebody computes past the gate. Each line says ok or fault, and what\n" +
			"to do about a fault. It changes nothing, and ends also where something hangs.\n\n" +
			"The exit code is 1 if there is a fault.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			m.limit = a.timeout
			return a.doctor(cmd.Context(), cmd.OutOrStdout(), m, !without)
		},
	}
	f := cmd.Flags()
	f.StringVar(&m.containerd, "containerd", "containerd", "containerd's `PROGRAM`")
	f.StringVar(&m.config, "containerd-config", containerdConfig, "containerd's configuration `FILE`")
	f.StringVar(&m.socket, "containerd-address", "/run/containerd/containerd.sock", "containerd's `SOCKET`")
	f.StringVar(&m.runc, "runc", "runc", "runc's `PROGRAM`")
	f.StringVar(&m.ctr, "ctr", "ctr", "containerd's client `PROGRAM`, which starts a container")
	f.BoolVar(&without, "no-container", false, "start no container")
	return cmd
}

func (a *app) doctor(ctx context.Context, w io.Writer, m machine, container bool) error {
	p := a.patient(ctx)
	p.host = m.look(ctx, a.address, p.info)
	if container && p.err == nil {
		p.host.probe = m.try(ctx)
	}
	all := examine(p)
	faults := 0
	for _, f := range all {
		if f.Result == checkFault {
			faults++
		}
	}
	var err error
	if a.output == "json" {
		err = writeJSON(w, all)
	} else {
		err = writeFindings(w, all)
	}
	switch {
	case err != nil:
		return err
	case faults == 1:
		return fmt.Errorf("there is a fault")
	case faults > 1:
		return fmt.Errorf("there are %d faults", faults)
	}
	return nil
}

// patient asks vgpud for all that checks look at.
func (a *app) patient(ctx context.Context) *patient {
	p := &patient{}
	p.err = a.ask(ctx, "examine vgpud", func(ctx context.Context, c v1.ControlClient) (err error) {
		if p.info, err = c.Info(ctx, &v1.InfoRequest{}); err != nil {
			return err
		}
		vgpus, err := c.List(ctx, &v1.ListRequest{})
		if err != nil {
			return err
		}
		gpus, err := c.ListGPUs(ctx, &v1.ListGPUsRequest{})
		p.vgpus, p.gpus = vgpus.GetVgpus(), gpus.GetGpus()
		if err != nil {
			return err
		}
		p.processes, err = c.ListProcesses(ctx, &v1.ListProcessesRequest{})
		if errdefs.IsNotImplemented(errgrpc.ToNative(err)) {
			return nil
		}
		return err
	})
	return p
}

// examine makes all checks. Each has at least one finding.
func examine(p *patient) []finding {
	var all []finding
	for _, c := range checks() {
		found := []finding{{Result: checkSkipped, Detail: "vgpud knows, and did not answer"}}
		if c.alone || p.err == nil {
			found = c.look(p)
		}
		for _, f := range found {
			f.Check = c.name
			all = append(all, f)
		}
	}
	return all
}

func checkDaemon(p *patient) []finding {
	if p.err != nil {
		detail, advice, _ := strings.Cut(p.err.Error(), "\n")
		return []finding{fault(or(strings.ReplaceAll(advice, "\n", " "), "see its log (\"journalctl -u vgpud\")"), "%s", detail)}
	}
	if v := p.info.GetVersion(); v != version.Version {
		return []finding{fault("run \"systemctl restart vgpud\" after an upgrade; containers go on meanwhile",
			"vgpud is version %s, vgpu is %s", v, version.Version)}
	}
	return []finding{ok("version %s answers, on %d GPUs (%s)", p.info.GetVersion(), len(p.gpus), p.info.GetSource())}
}

func writeFindings(w io.Writer, all []finding) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, f := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Result, f.Check, f.Detail)
		if f.Advice != "" {
			fmt.Fprintf(t, "\t\t-> %s\n", f.Advice)
		}
	}
	return t.Flush()
}
