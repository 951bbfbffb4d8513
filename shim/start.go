// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	cshim "github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/vgpu-shim/vgpu/shim/bundle"
)

// Start starts the server, or finds the one that serves the same pod. The
// working directory is the bundle. Nothing is done here for a container: not
// every container of a pod gets a Start of its own.
func (m shimManager) Start(ctx context.Context, params *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	if err := convertExtension(params, loadHandler); err != nil {
		return nil, err
	}
	if dir := params.GetSocketDir(); dir != "" {
		if err := linkSocketDir(dir); err != nil {
			return nil, err
		}
	}
	result, err := m.Shim.Start(ctx, params)
	if err != nil {
		return nil, err
	}
	// containerd 1.6 and 1.7 delete a shim at their restart that has no such
	// file; later ones fall back on it.
	if err := bundle.WriteAddress(".", result.GetAddress()); err != nil {
		return nil, errors.Join(err, stopServer(ctx, result.GetAddress()))
	}
	return result, nil
}

// convertExtension replaces generic runtime options among the extensions by
// runc's, so that a shim_cgroup in them is honoured.
func convertExtension(params *bootapi.BootstrapParams, load func(*anypb.Any) (handler, error)) error {
	for _, e := range params.GetExtensions() {
		switch messageName(e.GetValue()) {
		case genericOptionsName, oldGenericOptionsName:
		default:
			continue
		}
		h, err := load(e.GetValue())
		if err != nil {
			return err
		}
		if e.Value, err = marshalOptions(h.runcOptions("")); err != nil {
			return err
		}
	}
	return nil
}

// socketDirLink is where pkg/shim's server looks for the directory of its
// socket, in the bundle.
const socketDirLink = "s"

// linkSocketDir tells the server where its socket is to be removed from. In
// pkg/shim the handler of `start` does it, which ours replaces.
func linkSocketDir(dir string) error {
	if err := os.Remove(socketDirLink); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("failed to note the socket directory: %w", err)
	}
	if err := os.Symlink(dir, socketDirLink); err != nil {
		return fmt.Errorf("failed to note the socket directory: %w", err)
	}
	return nil
}

// stopServer ends a server that nobody will hear of. One that serves other
// containers too stays.
func stopServer(ctx context.Context, address string) error {
	conn, err := cshim.AnonDialer(address, time.Second)
	if err != nil {
		return err
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err = taskv3.NewTTRPCTaskClient(client).Shutdown(ctx, &taskv3.ShutdownRequest{})
	return err
}

// Start starts a process of a container, the first one or another.
func (s *service) Start(ctx context.Context, r *taskv3.StartRequest) (*taskv3.StartResponse, error) {
	defer s.started()
	return s.TTRPCTaskService.Start(ctx, r)
}
