// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/claim"
)

// What the device plugin gave is asked for by what CRI says of the container, whatever
// the mount is from; other mounts of that source stay.
func TestLimitsMakeTheRequest(t *testing.T) {
	spec := fmt.Sprintf(`{"process": {}, "annotations": {%s}, "linux": {}, "mounts": [
		{"destination": %q, "type": "bind", "source": %q, "options": ["rbind", "rprivate", "ro"]},
		{"destination": "/etc/hidden", "type": "bind", "source": "/dev/null"}]}`, inPod, claim.LimitsDestination, claim.LimitsSource)
	f := newFixture(t, spec)
	asked := f.grant(ours("gpus", "1", "memory", "8Gi"))
	if err := f.create(); err != nil {
		t.Fatal(err)
	}
	want := []*v1.ResolveClaimsRequest{{
		Pod:      &v1.Pod{Namespace: "ml", Name: "train-0", Uid: "1-2-3", Container: "main"},
		Pointers: []*v1.ClaimPointer{{Claim: "pod.1-2-3.main", Request: "limits"}},
	}}
	if diff := cmp.Diff(want, *asked, protocmp.Transform()); diff != "" {
		t.Errorf("vgpud was asked (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(ours("gpus", "1", "memory", "8Gi"), f.vgpud.created[0].GetAnnotations()); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if strings.Contains(f.inner.spec, claim.LimitsDestination) || !strings.Contains(f.inner.spec, `"/etc/hidden"`) {
		t.Errorf("the mount is left, or more than it is gone: %s", f.inner.spec)
	}
}
