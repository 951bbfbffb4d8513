// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vgpu-shim/vgpu/integration/box"
	"github.com/vgpu-shim/vgpu/integration/harness"
)

// hosts are the registries that the suites pull from.
var hosts = []string{"ghcr.io", "gcr.io", "k8s.gcr.io", "registry.k8s.io"}

// gpus is the machine that a vgpud in a box has.
const gpus = "sim:1"

// runInside runs a suite in the box that this process is in. That tests failed
// is no error: their outcomes are in the output, or in the report.
func runInside(ctx context.Context, in *inside) error {
	r := newRegistry()
	if err := publish(r); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	const authority = "/run/authority.pem"
	if err := r.serve(hosts, authority); err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	bin, err := in.paths.ContainerdBin(in.version)
	if err != nil {
		return err
	}
	search := []string{bin, in.paths.Bin, in.paths.RuncBin(), in.tool("client"), "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	if in.shim = filepath.Join(bin, "containerd-shim-runc-v2"); in.runtime.ours {
		if in.shim = filepath.Join(in.paths.Bin, "containerd-shim-vgpu-v1"); in.runtime.handler == harness.RuncRuntime {
			search = append([]string{"/run/bin"}, search...)
			if err := installAs("/run/bin/containerd-shim-runc-v2", in.shim); err != nil {
				return err
			}
		}
	}
	in.env = []string{
		"PATH=" + strings.Join(search, ":"),
		"HOME=" + box.Temp,
		"TMPDIR=" + box.Temp,
		"SSL_CERT_FILE=" + authority,
	}
	var daemon *harness.Daemon
	if in.runtime.ours {
		var config string
		if daemon, config, err = startVGPUd(ctx, in); err != nil {
			return err
		}
		in.env = append(in.env, "VGPU_SHIM_CONFIG="+config)
	}
	err = in.suite.run(ctx, in)
	if failed, ok := errors.AsType[*exec.ExitError](err); ok && failed.Exited() {
		err = nil
	}
	if err != nil || daemon == nil {
		return err
	}
	return in.checkVGPUs(ctx, daemon)
}

// checkVGPUs wants containers to have had vGPUs if the handler gives them any,
// without which the run would tell nothing of them. None may be left but those of
// containers that the suite has left running.
func (in *inside) checkVGPUs(ctx context.Context, d *harness.Daemon) error {
	if created := strings.Count(d.Messages(), "vGPU created"); (created > 0) != (in.runtime.gpus > 0) {
		return fmt.Errorf("%d vGPUs were created where each container gets %d", created, in.runtime.gpus)
	}
	return harness.Eventually(ctx, time.Minute, func() error {
		vgpus, err := d.VGPUs(ctx)
		if err != nil {
			return err
		}
		shims, err := containersOfShims()
		if err != nil {
			return err
		}
		for _, v := range vgpus {
			if id := v.GetContainer().GetId(); !slices.Contains(shims, id) {
				return fmt.Errorf("a vGPU is left of container %s, which has no shim any more", id)
			}
		}
		return nil
	})
}

// containersOfShims lists the containers whose shims run.
func containersOfShims() ([]string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	var all []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it ended meanwhile
		}
		args := strings.Split(string(b), "\x00")
		if at := slices.Index(args, "-id"); strings.Contains(args[0], "containerd-shim") && at >= 0 && at+1 < len(args) {
			all = append(all, args[at+1])
		}
	}
	return all, err
}

func installAs(name, program string) error {
	if err := os.Mkdir(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.Symlink(program, name)
}

// startVGPUd starts a vgpud and writes the shim's configuration.
func startVGPUd(ctx context.Context, in *inside) (d *harness.Daemon, config string, err error) {
	d, err = harness.StartDaemon(ctx, in.paths, harness.DaemonOptions{Dir: "/run/v", GPUs: gpus})
	if err != nil {
		return nil, "", err
	}
	if config, err = d.ShimConfig(); err != nil {
		return nil, "", err
	}
	f, err := os.OpenFile(config, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return nil, "", err
	}
	_, err = fmt.Fprintf(f, "default_count = %d\n", in.runtime.gpus)
	return d, config, errors.Join(err, f.Close())
}
