// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"sync"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	cshim "github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
)

var _ cshim.TTRPCService = (*service)(nil)

// registerService makes the task service known to containerd's shim server,
// which looks for it in its registry of plugins. It closes used at the first Create.
func registerService(used chan<- struct{}) {
	registry.Register(&plugin.Registration{
		Type:     plugins.TTRPCPlugin,
		ID:       "task",
		Requires: []plugin.Type{plugins.EventPlugin, plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			publisher, err := ic.GetByID(plugins.EventPlugin, "publisher")
			if err != nil {
				return nil, err
			}
			sd, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			inner, err := task.NewTaskService(ic.Context, publisher.(cshim.Publisher), sd.(shutdown.Service))
			if err != nil {
				return nil, err
			}
			s := newService(inner, ic.Properties[plugins.PropertyGRPCAddress])
			s.use = sync.OnceFunc(func() { close(used) })
			s.started = collectLater() // containerd's code has set its own by now
			return s, nil
		},
	})
}
