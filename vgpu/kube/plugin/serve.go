// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/vgpu-shim/vgpu/vgpu/claim"
	"github.com/vgpu-shim/vgpu/vgpu/kube"
)

// service is what kubelet calls for one resource.
type service struct {
	pluginapi.UnimplementedDevicePluginServer
	plugin   *Plugin
	resource string
}

var _ pluginapi.DevicePluginServer = (*service)(nil)

func options() *pluginapi.DevicePluginOptions {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}

func (s *service) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return options(), nil
}

// ListAndWatch tells of the units at once, and when they change.
func (s *service) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	var said []offer
	for first := true; ; first = false {
		now, changed := s.plugin.state()
		if offers := s.plugin.offers(s.resource, now); first || !slices.Equal(offers, said) {
			if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: devices(offers)}); err != nil {
				return err
			}
			said = offers
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		case <-s.plugin.ctx.Done():
			return nil
		}
	}
}

func (s *service) GetPreferredAllocation(_ context.Context, r *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	resp := &pluginapi.PreferredAllocationResponse{}
	for _, c := range r.GetContainerRequests() {
		units := prefer(c.GetAvailableDeviceIDs(), c.GetMustIncludeDeviceIDs(), int(c.GetAllocationSize()), s.resource == GPUs)
		resp.ContainerResponses = append(resp.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: units})
	}
	return resp, nil
}

// Allocate answers everybody the same: what a container was given stands in kubelet's
// checkpoint, with those of the other resources. An error would fail the pod for good.
func (s *service) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	resp := &pluginapi.AllocateResponse{}
	for range r.GetContainerRequests() {
		resp.ContainerResponses = append(resp.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Mounts: []*pluginapi.Mount{{HostPath: claim.LimitsSource, ContainerPath: claim.LimitsDestination, ReadOnly: true}},
		})
	}
	return resp, nil
}

// serving is what kubelet was told of.
type serving struct {
	kubelet os.FileInfo // its socket: another one is another kubelet
	servers []*grpc.Server
}

func (s *serving) stop() {
	for _, server := range s.servers {
		server.Stop()
	}
}

// registerTimeout is for kubelet's answer, which asks back before it.
const registerTimeout = 10 * time.Second

// register serves the resources, each on a socket of its own, and tells kubelet of them.
func (p *Plugin) register(kubelet os.FileInfo) (_ *serving, err error) {
	s := &serving{kubelet: kubelet}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	ctx, cancel := context.WithTimeout(p.ctx, registerTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+p.kubeletSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("failed to reach kubelet: %w", err)
	}
	defer conn.Close()
	for _, resource := range Resources() {
		// Another one each time: kubelet may not have missed the last one yet.
		_, kind, _ := strings.Cut(resource, "/")
		endpoint := socketPrefix + kind + "-" + strings.ToLower(rand.Text()[:8]) + ".sock"
		l, err := net.Listen("unix", filepath.Join(p.cfg.Dir, endpoint))
		if err != nil {
			return nil, fmt.Errorf("failed to serve kubelet: %w", err)
		}
		server := grpc.NewServer()
		pluginapi.RegisterDevicePluginServer(server, &service{plugin: p, resource: resource})
		s.servers = append(s.servers, server)
		p.wg.Go(func() { _ = server.Serve(l) })
		_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
			Version: pluginapi.Version, Endpoint: endpoint, ResourceName: resource, Options: options(),
		})
		if err != nil {
			return nil, fmt.Errorf("kubelet did not take the resource %s: %w", resource, err)
		}
	}
	return s, nil
}

const socketPrefix = kube.DriverName + "-"

func (p *Plugin) kubeletSocket() string { return filepath.Join(p.cfg.Dir, "kubelet.sock") }

// sweep removes sockets of plugins that were killed.
func (p *Plugin) sweep() {
	left, _ := filepath.Glob(filepath.Join(p.cfg.Dir, socketPrefix+"*.sock"))
	for _, path := range left {
		conn, err := net.Dial("unix", path)
		if err == nil {
			conn.Close()
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			_ = os.Remove(path)
		}
	}
}
