// SPDX-License-Identifier: Apache-2.0

package request

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func prefixed(keys map[string]string) map[string]string {
	all := map[string]string{}
	for k, v := range keys {
		all[Prefix+k] = v
	}
	return all
}

func TestLimits(t *testing.T) {
	all := Limits{
		"gpus": "2", "memory": "8Gi", "weight": "200", "min-share": "0.5", "max-share": "0.75",
		"priority": "normal", "quantum": "20ms",
	}
	most := Request{Count: 2, MemoryBytes: 8 << 30, Weight: 200, MinShare: 0.5, MaxShare: 0.75, Quantum: 20 * time.Millisecond}
	for _, tc := range []struct {
		description string
		limits      Limits
		annotations map[string]string
		count       int
		want        Request
	}{
		{"the most of everything", all, map[string]string{
			"gpus": "2", "memory": "8Gi", "weight": "200", "min-share": "0.5", "max-share": "0.75", "priority": "normal", "quantum": "20ms",
		}, 1, most},
		{"what nobody asks for is no more than what may be asked for", all, nil, 1, Request{Count: 1, MemoryBytes: 8 << 30, MaxShare: 0.75}},
		{"defaults above a limit", Limits{"gpus": "1", "weight": "50", "priority": "low"}, nil, 2, Request{Count: 1, Weight: 50, Priority: Low}},
		{"without a vGPU there is nothing to bound", all, map[string]string{"gpus": "0", "memory": "1Ti"}, 1, Request{MemoryBytes: 1 << 40}},
		{"a policy where no time is bounded", Limits{"memory": "8Gi"}, map[string]string{"policy": "native"}, 1, Request{Count: 1, MemoryBytes: 8 << 30, Policy: Native}},
	} {
		t.Run(tc.description, func(t *testing.T) {
			if err := tc.limits.Check(); err != nil {
				t.Fatal(err)
			}
			got, err := tc.limits.Parse(prefixed(tc.annotations), "", tc.count)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestLimitsRefuse(t *testing.T) {
	for _, tc := range []struct {
		description string
		limits      Limits
		annotations map[string]string
		says        string
	}{
		{"more GPUs", Limits{"gpus": "2"}, map[string]string{"gpus": "3"}, `vgpu-shim.dev/gpus="3": must be at most 2`},
		{"more memory", Limits{"memory": "8Gi"}, map[string]string{"memory": "8589934593"}, "at most 8Gi"},
		{"more weight", Limits{"weight": "200"}, map[string]string{"weight": "201"}, "at most 200"},
		{"a larger guarantee", Limits{"min-share": "10%"}, map[string]string{"min-share": "0.2"}, "at most 10%"},
		{"a larger cap", Limits{"max-share": "0.5"}, map[string]string{"max-share": "0.6"}, "at most 0.5"},
		{"a guarantee above the cap that holds for all", Limits{"max-share": "0.5"}, map[string]string{"min-share": "0.6"}, "above max-share (0.5)"},
		{"a higher class", Limits{"priority": "normal"}, map[string]string{"priority": "high"}, "at most normal"},
		{"the default class by name", Limits{"priority": "low"}, map[string]string{"priority": "normal"}, "at most low"},
		{"a longer quantum", Limits{"quantum": "20ms"}, map[string]string{"quantum": "21ms"}, "at most 20ms"},
		{"for one container of a pod", Limits{"weight": "200"}, map[string]string{"weight": "5", "app.weight": "500"}, `vgpu-shim.dev/app.weight="500"`},
		{"a policy that would read a cap otherwise", Limits{"max-share": "0.5"}, map[string]string{"policy": "native"}, "left out under this runtime, which bounds max-share"},
	} {
		t.Run(tc.description, func(t *testing.T) {
			if err := tc.limits.Check(); err != nil {
				t.Fatal(err)
			}
			_, err := tc.limits.Parse(prefixed(tc.annotations), "app", 1)
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v does not say %q", err, tc.says)
			}
		})
	}
}

func TestLimitsAreChecked(t *testing.T) {
	for _, tc := range []struct {
		description string
		limits      Limits
		says        string
	}{
		{"an unknown key", Limits{"memry": "8Gi"}, `"memry", which can not be bounded; what can is gpus, max-share, memory`},
		{"a key without an order", Limits{"gang": "a"}, `"gang"`},
		{"a value that is none", Limits{"memory": "[8]"}, `limits has memory = "[8]", which must be a quantity`},
	} {
		t.Run(tc.description, func(t *testing.T) {
			if err := tc.limits.Check(); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v does not say %q", err, tc.says)
			}
		})
	}
}
