// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// tidyLimit is how long it may take at least to remove what a container left, in each
// of its steps: a short --timeout is no reason to leave it.
const tidyLimit = 10 * time.Second

// probed is what came of a container, and what it saw.
type probed struct {
	absent error // nothing could be tried
	err    error // it did not run
	seen   sight
}

// sight is what the probe sees in its container.
type sight struct {
	Files  map[string]string `json:"files"`  // hash of each file in the driver's place, by path
	Socket bool              `json:"socket"` // vgpud's for this container

	Layer      bool   `json:"layer"`       // it has an OpenCL layer, which was loaded
	LayerError string `json:"layer_error"` // why that failed
}

// probeCommand is what runs in the container, from an empty root file system.
func (a *app) probeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "probe", Short: "Say what a container sees (for vgpu doctor)", Hidden: true, Args: none,
		Long: "Say which files are in the driver's place, and whether vgpud's socket is there. The\n" +
			"doctor runs it in a container.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := observe("/")
			if err != nil {
				return err
			}
			s.Layer, s.LayerError = load(cmd.Context(), "/")
			return json.NewEncoder(cmd.OutOrStdout()).Encode(s)
		},
	}
}

// observe looks for the driver's libraries where linkers do.
func observe(root string) (sight, error) {
	s := sight{Files: map[string]string{}}
	info, err := os.Stat(filepath.Join(root, gpu.ContainerDir, wire.Socket))
	s.Socket = err == nil && info.Mode().Type() == fs.ModeSocket
	for _, pattern := range []string{"usr/lib/*/lib*", "usr/lib64/lib*"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return s, err
		}
		for _, file := range found {
			if !strings.HasPrefix(path.Base(file), "libcuda.so") && !strings.HasPrefix(path.Base(file), "libnvidia-ml.so") {
				continue
			}
			if s.Files[strings.TrimPrefix(file, strings.TrimSuffix(root, "/"))], err = hashFile(file); err != nil {
				return s, err
			}
		}
	}
	return s, nil
}

func hashFile(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// runcState is where runc keeps what it knows under containerd, in a directory for each
// namespace that nobody else removes.
const runcState = "/run/containerd/runc"

// try runs a container of this very program, under our runtime, and takes it away
// again. It needs no image.
func (m machine) try(ctx context.Context) *probed {
	p := &probed{}
	if _, err := exec.LookPath(m.ctr); err != nil {
		p.absent = err
		return p
	}
	rootfs, err := os.MkdirTemp("", "vgpu-doctor-")
	if err != nil {
		p.absent = err
		return p
	}
	defer os.RemoveAll(rootfs)
	// This program is linked statically.
	if err := errors.Join(copyProgram("/proc/self/exe", filepath.Join(rootfs, "vgpu")), copyLibc(rootfs)); err != nil {
		p.absent = err
		return p
	}
	id := filepath.Base(rootfs)
	defer os.Remove(filepath.Join(runcState, id)) // an empty one alone
	ctr := func(ctx context.Context, limit time.Duration, args ...string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		cmd := exec.CommandContext(ctx, m.ctr, append([]string{"--address", m.socket, "--namespace", id}, args...)...) //nolint:gosec // G204: the operator names it, and no shell reads the rest
		cmd.WaitDelay = time.Second                                                                                    // its pipes may be the container's, too
		out, err := cmd.Output()
		var exit *exec.ExitError
		switch {
		case ctx.Err() != nil:
			err = fmt.Errorf("no end within %v", limit)
		case errors.As(err, &exit):
			err = errors.New(strings.TrimSpace(string(exit.Stderr)))
		}
		return out, err
	}
	out, err := ctr(ctx, 6*m.limit, "run", "--rm", "--runtime", "io.containerd.vgpu.v1", "--annotation", "vgpu-shim.dev/gpus=1",
		"--cgroup", "/"+id, "--rootfs", rootfs, id, "/vgpu", "probe")
	if err == nil {
		err = json.Unmarshal(out, &p.seen)
	}
	p.err = err
	// A context of its own: that one may be what ended. What is gone is an error, too.
	after := context.WithoutCancel(ctx)
	tidy := max(2*m.limit, tidyLimit)
	if err != nil {
		_, _ = ctr(after, tidy, "task", "delete", "--force", id)
		_, _ = ctr(after, tidy, "container", "delete", id)
	}
	_, _ = ctr(after, tidy, "namespaces", "remove", id)
	return p
}

// checkContainer looks whether a container got our libraries in the driver's place.
func checkContainer(p *patient) []finding {
	switch c := p.host.probe; {
	case c == nil:
		return []finding{{Result: checkSkipped, Detail: "not tried (--no-container)"}}
	case c.absent != nil:
		return []finding{{Result: checkSkipped, Detail: fmt.Sprintf("not tried: %v", c.absent)}}
	case c.err != nil:
		return []finding{fault("the message says what; containerd's log (\"journalctl -u containerd\") may say more", "a container under io.containerd.vgpu.v1 did not run: %s", c.err)}
	case !c.seen.Socket:
		return []finding{fault("see vgpud's log (\"journalctl -u vgpud\")", "a container ran, without vgpud's socket")}
	default:
		all := eachLibrary(p, func(l *v1.DriverLibrary) finding { return taken(c.seen, l.GetName(), l.GetLibrary()) })
		return append(all, checkLayer(c.seen)...)
	}
}

// taken compares what is in a library's place in the container with ours.
func taken(seen sight, name, library string) finding {
	want, err := hashFile(library)
	if err != nil {
		return finding{Result: checkSkipped, Detail: err.Error()}
	}
	var ours, others []string
	for file, hash := range seen.Files {
		switch {
		case path.Base(file) != name:
		case hash == want:
			ours = append(ours, file)
		default:
			others = append(others, file)
		}
	}
	slices.Sort(ours)
	slices.Sort(others)
	switch {
	case len(others) > 0:
		return fault("restart vgpud (\"systemctl restart vgpud\"): it may have been upgraded since", "in a container, %s is not %s", some(others), library)
	case len(ours) == 0:
		return fault("see vgpud's log (\"journalctl -u vgpud\"), and the section [library] of vgpud.toml", "in a container, %s is not in the driver's place", name)
	}
	return ok("a container ran, and had ours as %s", some(ours))
}
