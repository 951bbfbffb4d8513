// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// API is the daemon's own API, for what ctr is in the way of: calls that are timed,
// given up in the middle, or made by hundreds. Its calls take Context. Safe for
// concurrent use.
type API struct {
	Containers containers.ContainersClient
	Tasks      tasks.TasksClient

	daemon *Containerd
	conn   *grpc.ClientConn
}

// API connects to the daemon. The connection survives its restart.
func (c *Containerd) API() (*API, error) {
	conn, err := grpc.NewClient("unix://"+c.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("failed to connect to containerd: %w", err)
	}
	return &API{containers.NewContainersClient(conn), tasks.NewTasksClient(conn), c, conn}, nil
}

// Close ends the connection.
func (a *API) Close() error { return a.conn.Close() }

// Context is ctx for calls of the API, in the daemon's namespace.
func (c *Containerd) Context(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, c.Namespace)
}

// Define makes a container without a task.
func (c *Containerd) Define(ctx context.Context, s Spec) (*Container, error) {
	container := c.note(s)
	_, err := container.daemon.ctr(ctx, append([]string{"container", "create"}, c.specArgs(s)...)...)
	return container, err
}

// Copy makes a container without a task that is like another one, with a cgroup of
// its own.
func (a *API) Copy(ctx context.Context, from *Container, id string) (*Container, error) {
	ctx = a.daemon.Context(ctx)
	got, err := a.Containers.Get(ctx, &containers.GetContainerRequest{ID: from.ID})
	if err != nil {
		return nil, fmt.Errorf("failed to copy container %s: %w", from.ID, err)
	}
	c := got.GetContainer()
	c.ID = id
	spec := strings.ReplaceAll(string(c.GetSpec().GetValue()), "/"+from.ID+`"`, "/"+id+`"`)
	c.Spec.Value = []byte(spec)
	container := a.daemon.note(Spec{ID: id})
	if _, err := a.Containers.Create(ctx, &containers.CreateContainerRequest{Container: c}); err != nil {
		return nil, fmt.Errorf("failed to copy container %s: %w", from.ID, err)
	}
	return container, nil
}

// Remove removes a container that has no task.
func (a *API) Remove(ctx context.Context, c *Container) error {
	if _, err := a.Containers.Delete(a.daemon.Context(ctx), &containers.DeleteContainerRequest{ID: c.ID}); err != nil {
		return fmt.Errorf("failed to remove container %s: %w", c.ID, err)
	}
	c.removed = true
	return nil
}

// note notes a container that is about to be made.
func (c *Containerd) note(s Spec) *Container {
	container := &Container{ID: s.ID, daemon: c.in(s.Namespace), pidfd: -1}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.containers = append(c.containers, container)
	return container
}
