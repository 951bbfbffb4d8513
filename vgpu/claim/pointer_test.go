// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"strings"
	"testing"
)

func TestPointersComeBack(t *testing.T) {
	for _, p := range []Pointer{{"5a1f-1", "gpu"}, {"5a1f-1", "gpu/large"}} {
		if got, ok := Parse(p.Source()); !ok || got != p {
			t.Errorf("%v became %v, %v", p, got, ok)
		}
		if !strings.Contains(p.Source(), "runtimeClassName") {
			t.Errorf("who reads %s in the error of another runtime does not know what to do", p.Source())
		}
	}
	for _, s := range []string{"", "/", "/run/vgpu/claims", "/run/vgpu/claims/x/gpu", "/data"} {
		if p, ok := Parse(s); ok {
			t.Errorf("%q is %v", s, p)
		}
	}
}
