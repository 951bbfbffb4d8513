// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"errors"
	"strings"

	"github.com/vgpu-shim/vgpu/shim/bundle"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// checkQuota refuses a quota to a container that may open every device: it reaches
// the GPUs past its vGPU, and nobody could keep the quota.
func checkQuota(req request.Request, s bundle.Summary) error {
	var quotas []string
	if req.MemoryBytes > 0 {
		quotas = append(quotas, request.Prefix+"memory="+request.FormatBytes(req.MemoryBytes))
	}
	if req.MaxShare > 0 {
		quotas = append(quotas, request.Prefix+"max-share")
	}
	if quotas == nil || !s.AllDevices() {
		return nil
	}
	return invalid(errors.New(strings.Join(quotas, " and ") + ": the container is privileged: it may open every device of the node, so it reaches " +
		"all GPUs past its vGPU and no quota can be kept; start it without --privileged (Kubernetes: privileged: false), or ask for no quota " +
		"(also not by limits in the runtime's configuration)"))
}
