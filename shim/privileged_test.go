// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

func TestCreateRefusesAQuotaToWhoMayOpenEveryDevice(t *testing.T) {
	const (
		deny    = `{"allow": false, "access": "rwm"}`
		mknod   = `{"allow": true, "type": "c", "access": "m"}, {"allow": true, "type": "b", "access": "m"}`
		null    = `{"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rwm"}`
		all     = `{"allow": true, "access": "rwm"}`
		allByA  = `{"allow": true, "type": "a", "major": -1, "minor": -1, "access": "rwm"}`
		chars   = `{"allow": true, "type": "c", "access": "rw"}`
		blocks  = `{"allow": true, "type": "b", "access": "rwm"}`
		nvidia  = `{"allow": true, "type": "c", "major": 195, "access": "rwm"}`
		memory  = `"vgpu-shim.dev/memory": "8Gi"`
		share   = `"vgpu-shim.dev/max-share": "0.5"`
		weight  = `"vgpu-shim.dev/weight": "200"`
		noGPU   = `"vgpu-shim.dev/gpus": "0"`
		refused = true
	)
	for _, c := range []struct {
		description, rules, annotations string
		refused                         bool
	}{
		{"an ordinary container", deny + "," + mknod + "," + null, memory, !refused},
		{"no rules", "", memory, !refused},
		{"ctr's and CRI's privileged containers", deny + "," + all, memory, refused},
		{"the same in other words", deny + "," + allByA, memory, refused},
		{"all character devices", deny + "," + chars, memory, refused},
		{"all block devices", deny + "," + blocks, memory, !refused},
		{"one driver's devices", deny + "," + nvidia, memory, !refused},
		{"privileged without the host's devices", all + "," + deny + "," + null, memory, !refused},
		{"a share", deny + "," + all, share, refused},
		{"both", deny + "," + all, memory + "," + share, refused},
		{"no quota", deny + "," + all, weight, !refused},
		{"no vGPU", deny + "," + all, noGPU, !refused},
	} {
		t.Run(c.description, func(t *testing.T) {
			f := newFixture(t, `{"process": {}, "annotations": {`+c.annotations+`}, "linux": {"resources": {"devices": [`+c.rules+`]}}}`)
			err := errgrpc.ToNative(f.create())
			if !c.refused {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errdefs.IsInvalidArgument(err) {
				t.Fatalf("error is %v", err)
			}
			for _, s := range []string{"privileged", "--privileged", "no quota"} {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
			for quota, key := range map[string]string{memory: "vgpu-shim.dev/memory=8Gi", share: "vgpu-shim.dev/max-share"} {
				if strings.Contains(err.Error(), key) != strings.Contains(c.annotations, quota) {
					t.Errorf("%q, asked for %s", err, c.annotations)
				}
			}
			f.untouched()
			f.called()
		})
	}
}

// What the handler bounds is a quota, too.
func TestCreateRefusesAPrivilegedContainerUnderAHandlerWithAQuota(t *testing.T) {
	f := newFixture(t, `{"process": {}, "linux": {"resources": {"devices": [{"allow": true, "access": "rwm"}]}}}`)
	f.config.Limits = request.Limits{"memory": "4Gi"}
	if err := errgrpc.ToNative(f.create()); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "memory=4Gi") {
		t.Fatalf("error is %v", err)
	}
	f.untouched()
}
