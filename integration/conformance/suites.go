// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/vgpu-shim/vgpu/integration/box"
	"github.com/vgpu-shim/vgpu/integration/harness"
)

// runtimeCase is a runtime that the suites are run with.
type runtimeCase struct {
	name    string // on the command line, in file names and tables
	about   string
	handler string
	ours    bool // whether the shim is ours
	gpus    int  // the handler's default_count
}

// stock is the runtime that the others are held against.
const stock = "stock"

var runtimes = []runtimeCase{
	{stock, "containerd's own runc shim", harness.RuncRuntime, false, 0},
	{"renamed", "ours, installed as containerd-shim-runc-v2", harness.RuncRuntime, true, 0},
	{"without", "ours, `default_count = 0`", harness.VGPURuntime, true, 0},
	{"with", "ours, one vGPU for each container", harness.VGPURuntime, true, 1},
}

// suite is one that nobody here wrote.
type suite struct {
	name string
	// versions of containerd that it is run with.
	versions []harness.Version
	// runtimes that are told apart by the suite, and those of the short form: there one
	// suite shows that a container without a vGPU is as under runc's shim.
	runtimes, shortRuntimes []string
	// short selects the tests of the short form: a regular expression, whose
	// syntax is the suite's.
	short string
	run   func(context.Context, *inside) error
	parse func(output, report string) (results, error)
	// selecting makes the regular expression that selects tests.
	selecting func(tests []string) string
}

var suites = []suite{
	{
		name:     "client",
		versions: []harness.Version{harness.Containerd24, harness.Containerd17, harness.Containerd16},
		runtimes: []string{stock, "renamed", "without", "with"},
		short:    clientShort,
		run:      runClient,
		parse:    parseGoTest,

		shortRuntimes: []string{stock, "renamed", "with"},
		selecting:     selectGoTests,
	},
	{
		name:     "shimtest",
		versions: []harness.Version{harness.Containerd24},
		runtimes: []string{stock, "without", "with"},
		short:    shimtestShort,
		run:      runShimtest,
		parse:    parseGoTest,

		shortRuntimes: []string{stock, "with"},
		selecting:     selectGoTests,
	},
	{
		name:     "critest",
		versions: []harness.Version{harness.ContainerdCRI},
		runtimes: []string{stock, "without", "with"},
		short:    critestShort,
		run:      runCritest,
		parse:    parseGinkgo,

		shortRuntimes: []string{stock, "with"},
		selecting:     selectSpecs,
	},
}

// selectGoTests selects the tests that the names, possibly of parts, belong to.
func selectGoTests(tests []string) string {
	var names []string
	for _, t := range tests {
		name, _, _ := strings.Cut(t, "/")
		names = append(names, regexp.QuoteMeta(name))
	}
	slices.Sort(names)
	return "^(" + strings.Join(slices.Compact(names), "|") + ")$"
}

// selectSpecs is that for Ginkgo.
func selectSpecs(tests []string) string {
	var names []string
	for _, t := range tests {
		names = append(names, regexp.QuoteMeta(t)+"$")
	}
	return strings.Join(names, "|")
}

// inside is a run of a suite, as seen in its box.
type inside struct {
	paths   harness.Paths
	suite   suite
	version harness.Version
	runtime runtimeCase
	tests   string // a regular expression; all if empty
	report  string // where a suite that writes a report of its own puts it

	shim string // path of the shim
	env  []string
}

func (in *inside) tool(elem ...string) string {
	return filepath.Join(append([]string{in.paths.Tools, "suites"}, elem...)...)
}

// command is a program with the environment of the run and its output.
func (in *inside) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = box.Temp, in.env
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

// goTest runs a program made by go test.
func (in *inside) goTest(ctx context.Context, program string, args ...string) error {
	args = append([]string{"-test.v=test2json", "-test.timeout=8m"}, args...)
	if in.tests != "" {
		args = append(args, "-test.run="+in.tests)
	}
	return in.command(ctx, program, args...).Run()
}

// runClient runs containerd's own tests of its client. They start the daemon
// that they find in PATH.
func runClient(ctx context.Context, in *inside) error {
	in.env = append(in.env, "TEST_RUNTIME="+in.runtime.handler)
	args := []string{"-test.root"}
	if in.version == harness.Containerd16 {
		if err := in.withoutDevmapper(); err != nil {
			return err
		}
		args = append(args, "-test.skip="+hangsUnder16)
	}
	return in.goTest(ctx, in.tool("client", "client.test"), args...)
}

// hangsUnder16 are tests of newer containerds that wait for ever under 1.6, whatever
// the shim: of bugs that it still has.
const hangsUnder16 = "^TestIssue10589$"

// withoutDevmapper puts a program before containerd 1.6 that starts it without its
// plugin devmapper: it fails where nobody has set it up, and the tests accept no
// plugin that fails. The configuration is the tests' own.
func (in *inside) withoutDevmapper() error {
	bin, err := in.paths.ContainerdBin(in.version)
	if err != nil {
		return err
	}
	const dir = "/run/devmapper"
	script := fmt.Sprintf(`#!/bin/sh
for last; do if [ "$before" = --config ]; then config=$last; fi; before=$last; done
grep -q disabled_plugins "$config" || sed -i '1a disabled_plugins = ["io.containerd.snapshotter.v1.devmapper"]' "$config"
exec %s/containerd "$@"
`, bin)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	in.env[0] = "PATH=" + dir + ":" + strings.TrimPrefix(in.env[0], "PATH=")
	return os.WriteFile(filepath.Join(dir, "containerd"), []byte(script), 0o755)
}

// runShimtest runs containerd's tests of a shim without a daemon. What needs
// another network than the box's own is left out, and what runc's shim has not.
func runShimtest(ctx context.Context, in *inside) error {
	config := filepath.Join(box.Temp, "shim.json") // its name is part of the tests' names
	text := fmt.Sprintf(`{"shim_binary": %q, "skip": ["layers", "net", "transfer", "uds"]}`, in.shim)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	in.env = append(in.env, "SHIMTEST_TESTBIN="+in.tool("shimtest", "testbin"))
	return in.goTest(ctx, in.tool("shimtest", "shimtest.test"), "-test.short", "-shimtest.config="+config)
}

// runCritest runs Kubernetes' tests of a CRI on a containerd whose handler
// "tested" is the runtime.
func runCritest(ctx context.Context, in *inside) error {
	const socket = "/run/containerd/containerd.sock"
	if err := os.WriteFile("/etc/containerd.toml", []byte(in.criConfig()), 0o644); err != nil {
		return err
	}
	if err := os.MkdirAll("/etc/cni/net.d", 0o755); err != nil {
		return err
	}
	if err := os.WriteFile("/etc/cni/net.d/box.conflist", []byte(network), 0o644); err != nil {
		return err
	}
	bin, err := in.paths.ContainerdBin(in.version)
	if err != nil {
		return err
	}
	daemon := in.command(ctx, filepath.Join(bin, "containerd"), "--config", "/etc/containerd.toml", "--log-level", "info")
	log, err := os.OpenFile(in.report+".containerd.log", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	daemon.Stdout, daemon.Stderr = log, log
	if err := daemon.Start(); err != nil {
		return err
	}
	err = harness.Eventually(ctx, time.Minute, func() error {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err != nil {
		return err
	}
	args := []string{
		"-runtime-endpoint=unix://" + socket, "-runtime-handler=tested",
		"-ginkgo.no-color", "-ginkgo.seed=1", "-ginkgo.json-report=" + in.report,
	}
	if in.tests != "" {
		args = append(args, "-ginkgo.focus="+in.tests)
	}
	return in.command(ctx, in.tool("critest", "critest"), args...).Run()
}

// criConfig is containerd's configuration for critest. A machine's root may not
// be allowed to lower oom_score_adj.
func (in *inside) criConfig() string {
	return fmt.Sprintf(`version = 3

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = [%q]

[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = 'tested'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.tested]
  runtime_type = %q
`, in.tool("cni"), in.runtime.handler)
}

// network is the pods' network: a bridge in the box.
const network = `{
  "cniVersion": "1.0.0",
  "name": "box",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "box0",
      "isGateway": true,
      "ipMasq": true,
      "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`
