// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	cshim "github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/log"

	"github.com/vgpu-shim/vgpu/shim/bundle"
)

// Stop cleans up after a container whose server is gone or is going: after a
// kill, and after every ordinary Delete too. It runs in a process of its own
// with the bundle, or a sibling of it, as working directory, possibly of a
// newer binary than the one that made the bundle, and must be quick.
func (m shimManager) Stop(ctx context.Context, id string) (cshim.StopStatus, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return cshim.StopStatus{}, err
	}
	dir := filepath.Join(filepath.Dir(cwd), id)
	status, err := m.Shim.Stop(ctx, id)
	// The vGPU goes after the container's processes, which runc has killed by
	// now: the next one must not be granted while they still compute. vgpud
	// has noticed their end itself, so that nobody waited for this. A state that
	// can not be used, of a newer shim or damaged, stops nothing either.
	if err := release(ctx, dir, releaseTimeout); err != nil {
		log.G(ctx).WithError(err).WithField("id", id).Warn("the vGPU is left to vgpud, which removes it once the bundle is gone")
	}
	m.removeSockets(ctx, dir)
	return status, err
}

// groupLabels are the annotations by which the runc shim puts containers into
// one server, in its order.
var groupLabels = [...]string{"io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"}

// removeSockets removes the server's socket, and the one for debugging, if the
// server died without doing it. One that answers serves other containers, or is
// about to end by itself.
func (m shimManager) removeSockets(ctx context.Context, dir string) {
	address, err := cshim.ReadAddress(filepath.Join(dir, bundle.AddressFile))
	if err != nil || cshim.CanConnect(address) {
		return
	}
	addresses := []string{address}
	if debug, err := m.debugAddress(ctx, dir, address); err == nil {
		addresses = append(addresses, debug)
	}
	for _, a := range addresses {
		if err := cshim.RemoveSocket(a); err != nil && !errors.Is(err, fs.ErrNotExist) {
			log.G(ctx).WithError(err).WithField("address", a).Warn("failed to remove the shim's socket")
		}
	}
}

// debugAddress is where the server of the bundle dir listens for debugging, if
// it does. No file tells it; the runc shim makes it from the same things.
func (m shimManager) debugAddress(ctx context.Context, dir, address string) (string, error) {
	config, err := bundle.LoadConfig(dir)
	if err != nil {
		return "", err
	}
	summary, err := config.Summary()
	if err != nil {
		return "", err
	}
	group := filepath.Base(dir)
	for _, label := range groupLabels {
		if g, ok := summary.Annotations[label]; ok {
			group = g
			break
		}
	}
	sockets := filepath.Dir(strings.TrimPrefix(address, "unix://"))
	return cshim.CreateSocketAddress(ctx, sockets, m.containerd, group, true)
}
