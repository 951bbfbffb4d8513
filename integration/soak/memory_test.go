// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// A container has no more of any GPU than it may.
func TestBeyond(t *testing.T) {
	asked := profile{annotations: map[string]string{request.Prefix + "memory": limitText}}
	cases := []struct {
		description string
		box         box
		first       uint64 // bytes that it has of the first GPU
		second      uint64
		wrong       string
	}{
		{"up to its limit on each", box{tenant: 1, profile: asked}, limit, limit, ""},
		{"beyond on one", box{tenant: 1, profile: asked}, limit, limit + 1, "of GPU second"},
		{"no limit", box{tenant: 1}, limit + 1, 0, ""},
		{"gone, its number is another's", box{tenant: 1, removed: 5, profile: asked}, limit + 1, 0, ""},
		{"not known yet", box{profile: asked}, limit + 1, 0, ""},
	}
	for _, c := range cases {
		t.Run(c.description, func(t *testing.T) {
			s := &soak{order: []*box{&c.box}}
			got := strings.Join(s.beyond([]harness.DeviceMemory{
				{UUID: "first", Tenants: map[harness.Tenant]uint64{1: c.first}},
				{UUID: "second", Tenants: map[harness.Tenant]uint64{1: c.second}},
			}), "; ")
			if (got == "") != (c.wrong == "") || !strings.Contains(got, c.wrong) {
				t.Errorf("got %q, want what contains %q", got, c.wrong)
			}
		})
	}
}
