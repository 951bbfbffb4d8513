// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
)

// taskV2 is the name of the task service as containerd 1.6 to 2.2 call it,
// those with the plain answer to `start`.
const taskV2 = "containerd.task.v2.Task"

// RegisterTTRPC serves both versions of the task service. Their messages and
// methods have the same form on the wire (the two shim.proto differ in the
// package's name alone), so one implementation serves both.
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	taskv3.RegisterTTRPCTaskService(server, s)
	server.RegisterService(taskV2, &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"State":      method(s.State),
		"Create":     method(s.Create),
		"Start":      method(s.Start),
		"Delete":     method(s.Delete),
		"Pids":       method(s.Pids),
		"Pause":      method(s.Pause),
		"Resume":     method(s.Resume),
		"Checkpoint": method(s.Checkpoint),
		"Kill":       method(s.Kill),
		"Exec":       method(s.Exec),
		"ResizePty":  method(s.ResizePty),
		"CloseIO":    method(s.CloseIO),
		"Update":     method(s.Update),
		"Wait":       method(s.Wait),
		"Stats":      method(s.Stats),
		"Connect":    method(s.Connect),
		"Shutdown":   method(s.Shutdown),
	}})
	return nil
}

// method makes a ttrpc method of one of the service's.
func method[Req, Resp any](call func(context.Context, *Req) (*Resp, error)) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		req := new(Req)
		if err := unmarshal(req); err != nil {
			return nil, err
		}
		return call(ctx, req)
	}
}
