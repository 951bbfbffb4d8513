// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// healthInterval is how often kubelet is told how the GPUs are when nothing changes. It
// takes what is older than three of them for unknown.
const healthInterval = 10 * time.Second

// WatchHealthStatus tells kubelet how the GPUs are, which shows it in the status of pods.
func (d *Driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	again := time.NewTicker(healthInterval)
	defer again.Stop()
	for {
		now, changed := d.snapshot()
		select {
		case reports <- d.health(now):
		case <-ctx.Done():
			return nil
		case <-d.ctx.Done():
			return nil
		}
		select {
		case <-changed:
		case <-again.C:
		case <-ctx.Done():
			return nil
		case <-d.ctx.Done():
			return nil
		}
	}
}

func (d *Driver) health(now snapshot) (report kubeletplugin.DeviceHealthReport) {
	for _, g := range now.gpus {
		h := kubeletplugin.DeviceHealth{
			PoolName: d.cfg.NodeName, DeviceName: deviceName(g), LastUpdated: now.at, HealthCheckTimeout: 3 * healthInterval,
			Health: kubeletplugin.HealthStatusHealthy, Message: g.GetReason(),
		}
		switch {
		case !now.there:
			h.Health, h.Message = kubeletplugin.HealthStatusUnknown, "vgpud does not run on this node"
		case g.GetState() == "UNHEALTHY":
			h.Health = kubeletplugin.HealthStatusUnhealthy
		}
		report.Devices = append(report.Devices, h)
	}
	return report
}
