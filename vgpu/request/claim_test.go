// SPDX-License-Identifier: Apache-2.0

package request

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func keyed(kv ...string) map[string]string {
	out := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		out[Prefix+kv[i]] = kv[i+1]
	}
	return out
}

func TestClaimed(t *testing.T) {
	claim := keyed("gpus", "2", "memory", "4Gi", "weight", "50")
	for _, tc := range []struct {
		description string
		annotations map[string]string
		want        Request
		says        []string
	}{
		{"no annotations", nil, Request{Count: 2, MemoryBytes: 4 << 30, Weight: 50}, nil},
		{"the same in other words", keyed("memory", "4096Mi", "main.gpus", "2"), Request{Count: 2, MemoryBytes: 4 << 30, Weight: 50}, nil},
		{"what the claim leaves open", keyed("bind", "early", "main.min-share", "10%"), Request{Count: 2, MemoryBytes: 4 << 30, Weight: 50, Bind: BindEarly, MinShare: .1}, nil},
		{"another container's", keyed("web.memory", "1Gi"), Request{Count: 2, MemoryBytes: 4 << 30, Weight: 50}, nil},
		{"otherwise", keyed("memory", "8Gi"), Request{}, []string{`vgpu-shim.dev/memory="8Gi"`, `the claim, which gives "4Gi"`}},
		{"otherwise, for this container", keyed("main.memory", "8Gi", "memory", "4Gi"), Request{}, []string{`vgpu-shim.dev/main.memory="8Gi"`}},
		{"rightly for this container, and otherwise for the others", keyed("main.memory", "4Gi", "memory", "1Gi"), Request{Count: 2, MemoryBytes: 4 << 30, Weight: 50}, nil},
		{"what can not be read", keyed("memory", "lots"), Request{}, []string{`"lots": must be a quantity`}},
	} {
		t.Run(tc.description, func(t *testing.T) {
			all, err := Claimed(tc.annotations, claim, "main")
			var got Request
			if err == nil {
				got, err = Parse(all, "main", 1)
			}
			if (err != nil) != (tc.says != nil) {
				t.Fatal(err)
			}
			for _, s := range tc.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestBoth(t *testing.T) {
	a := "GPU-00000000-0000-0000-0000-000000000001"
	b := "GPU-00000000-0000-0000-0000-000000000002"
	got, err := Both(keyed("gpus", "1", "memory", "4Gi", "uuid", a), keyed("gpus", "2", "memory", "4096Mi", "uuid", a+","+b))
	if diff := cmp.Diff(keyed("gpus", "3", "memory", "4Gi", "uuid", a+","+b), got); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	_, err = Both(keyed("gpus", "1", "memory", "4Gi"), keyed("gpus", "1"))
	if err == nil || !strings.Contains(err.Error(), "differ in memory (4Gi and none)") || !strings.Contains(err.Error(), "one request with a count") {
		t.Error(err)
	}
}
