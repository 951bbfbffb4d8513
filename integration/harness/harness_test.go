// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The harness itself, with the stock runtime: what the other tests stand on.
func TestStockRuntime(t *testing.T) {
	paths, err := DefaultPaths()
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range Versions() {
		t.Run(string(version), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			n, err := Start(ctx, paths, Options{Version: version, Runtime: RuncRuntime, NoDaemon: true})
			if err != nil {
				t.Fatal(err)
			}
			closed := false
			defer func() {
				if !closed {
					t.Error(n.Close(ctx))
				}
			}()
			rootfs := filepath.Join(n.Dir, "rootfs")
			if err := BusyboxRootfs(paths, rootfs); err != nil {
				t.Fatal(err)
			}

			output, status, err := n.Containerd.Run(ctx, Spec{ID: "a", Rootfs: rootfs, Args: []string{"sh", "-c", "echo hello; exit 7"}})
			if err != nil || status != 7 || output != "hello\n" {
				t.Errorf("got output %q, status %d, error %v", output, status, err)
			}

			overlay, err := n.Overlay()
			if err != nil {
				t.Fatal(err)
			}
			long, err := n.Containerd.Launch(ctx, Spec{ID: "b", Rootfs: overlay.Rootfs, Args: []string{"/usr/bin/python3", "-c", "import time; time.sleep(600)"}})
			if err != nil {
				t.Fatal(err)
			}
			// Observed, since the process is between runc and python for a moment.
			if err := Eventually(ctx, stopPatience, func() error {
				got := strings.Join(n.leaks(ctx), "; ")
				if !strings.Contains(got, "containerd-shim") || !strings.Contains(got, "python3") || !strings.Contains(got, "cgroup") {
					return errors.New("a running container is not seen as left behind: " + got)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
			if err := n.Containerd.Restart(ctx); err != nil {
				t.Fatal(err)
			}
			if out, err := long.Exec(ctx, "/bin/echo", "again"); err != nil || out != "again\n" {
				t.Errorf("exec after restart: %q, %v", out, err)
			}
			shim, err := long.ShimPID()
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(shim, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if err := Eventually(ctx, stopPatience, func() error {
				if !long.Ended() {
					return os.ErrExist
				}
				return nil
			}); err != nil {
				t.Errorf("container outlives its killed shim: %v", err)
			}
			if err := long.Remove(ctx); err != nil {
				t.Error(err)
			}
			if len(n.runcRoots()) != 1 {
				t.Errorf("runc has %v", n.runcRoots())
			}
			closed = true
			if err := n.Close(ctx); err != nil {
				t.Error(err)
			}
			if exists(n.Dir) || len(naming(n.Dir)) > 0 || len(MountsUnder(n.Dir)) > 0 || len(n.cgroups("")) > 0 || len(n.runcRoots()) > 0 {
				t.Error("Close left something behind")
			}
		})
	}
}
