// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// handler is the name of ours in containerd's configuration.
const handler = "vgpu"

// How containerd is restarted.
const (
	restartNone    = "none"    // somebody does it
	restartSystemd = "systemd" // systemctl restart
	restartSignal  = "signal"  // SIGTERM: whoever supervises it starts it again
)

var restarts = []string{restartNone, restartSystemd, restartSignal}

// restartLimit bounds how long containerd may take until it answers again.
const restartLimit = 2 * time.Minute

// runtime is the node's containerd.
type runtime struct {
	socket  string
	restart string
	unit    string
}

// settle sees to it that containerd has our handler, or has it no more. It is
// restarted for that, and if its configuration was changed otherwise.
func (r *runtime) settle(ctx context.Context, want, changed bool) error {
	has, err := r.hasHandler(ctx)
	if err != nil {
		return err
	}
	if has == want && !changed {
		return nil
	}
	if r.restart == restartNone {
		fmt.Printf("then: restart containerd on this node (systemctl restart %s; pods go on): it has not read its new configuration yet\n", r.unit)
		return nil
	}
	before, err := r.pid(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("restarting containerd, process %d (%s)\n", before, r.restart)
	if r.restart == restartSystemd {
		_, err = onNode(ctx, "systemctl", "restart", r.unit)
	} else {
		err = syscall.Kill(before, syscall.SIGTERM)
	}
	if err != nil {
		return fmt.Errorf("failed to restart containerd: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, restartLimit)
	defer cancel()
	err = eventually(ctx, func() error {
		if now, err := r.pid(ctx); err != nil || now == before {
			return errors.Join(err, fmt.Errorf("process %d has not been replaced", before))
		}
		if has, err := r.hasHandler(ctx); err != nil || has != want {
			return errors.Join(err, fmt.Errorf("the handler %s: there is %t, wanted %t", handler, has, want))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("containerd was to be restarted, and has not come back as it should: %w", err)
	}
	return nil
}

// eventually calls f until it returns nil, or ctx ends: then the error is f's last.
func eventually(ctx context.Context, f func() error) error {
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-again.C:
		}
	}
}

// dial reaches containerd's socket through the node's root.
func (r *runtime) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", onNodePath(r.socket))
}

// pid is that of the containerd that answers.
func (r *runtime) pid(ctx context.Context) (int, error) {
	conn, err := r.dial(ctx)
	if err != nil {
		return 0, fmt.Errorf("failed to reach containerd: %w", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); cerr != nil || err != nil {
		return 0, errors.Join(cerr, err)
	}
	if peer.Pid <= 1 || int(peer.Pid) == os.Getpid() {
		return 0, fmt.Errorf("%s is process %d's: not containerd's own, restart that by hand", r.socket, peer.Pid)
	}
	return int(peer.Pid), nil
}

// hasHandler tells whether the containerd that runs knows our handler.
func (r *runtime) hasHandler(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///containerd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.dial(ctx) }))
	if err != nil {
		return false, err
	}
	defer conn.Close()
	status, err := cri.NewRuntimeServiceClient(conn).Status(ctx, &cri.StatusRequest{Verbose: true}, grpc.WaitForReady(true))
	if err != nil {
		return false, fmt.Errorf("failed to ask containerd at %s for its handlers: %w", r.socket, err)
	}
	return knows(status)
}

// knows tells whether our handler is in what containerd says. It lists handlers
// since 2.0; before, they are in its configuration.
func knows(s *cri.StatusResponse) (bool, error) {
	for _, h := range s.GetRuntimeHandlers() {
		if h.GetName() == handler {
			return true, nil
		}
	}
	if len(s.GetRuntimeHandlers()) > 0 {
		return false, nil
	}
	var config struct {
		Containerd struct {
			Runtimes map[string]json.RawMessage `json:"runtimes"`
		} `json:"containerd"`
	}
	if err := json.Unmarshal([]byte(s.GetInfo()["config"]), &config); err != nil {
		return false, fmt.Errorf("failed to read which handlers containerd has: %w", err)
	}
	_, ok := config.Containerd.Runtimes[handler]
	return ok, nil
}
