// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

const head = `{"apiVersion":"vgpu-shim.dev/v1alpha1","kind":"VgpuConfig"`

func TestDecode(t *testing.T) {
	for _, tc := range []struct {
		description, fields string
		want                map[string]string
		pinned              bool
	}{
		{"nothing set", ``, map[string]string{}, false},
		{
			"all fields", `,"weight":200,"priority":"high","quantum":"5ms","maxShare":0.5,"gang":"train","placement":"allocated","overrun":"kill"`,
			map[string]string{"weight": "200", "priority": "high", "quantum": "5ms", "max-share": "0.5", "gang": "train", "overrun": "kill"},
			true,
		},
		{"a number as a text, and a percentage", `,"weight":"7","maxShare":"25%"`, map[string]string{"weight": "7", "max-share": "25%"}, false},
		{"the default placement by its name", `,"placement":"identical"`, map[string]string{}, false},
	} {
		t.Run(tc.description, func(t *testing.T) {
			c, err := Decode([]byte(head + tc.fields + "}"))
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{}
			for key, value := range tc.want {
				want[request.Prefix+key] = value
			}
			if diff := cmp.Diff(want, c.Annotations()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if c.Pinned() != tc.pinned {
				t.Errorf("pinned is %v", c.Pinned())
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, tc := range []struct {
		description, raw string
		says             []string
	}{
		{"an unknown field", head + `,"wieght":5}`, []string{`unknown field "wieght"`, "the fields are gang, maxShare, overrun, placement, priority, quantum, weight"}},
		{"a field in other letters", head + `,"Weight":5}`, []string{`unknown field "Weight"`}},
		{"a field that stands there twice", head + `,"weight":5,"weight":6}`, []string{`duplicate field "weight"`}},
		{"a value that is not allowed", head + `,"weight":-5}`, []string{`weight: "-5" must be a whole number from 1 to 10000`}},
		{"two of them, and an unknown field", head + `,"quantum":"1us","maxShare":2,"x":1}`, []string{`quantum: "1us" must be a duration from 1ms`, `maxShare: "2" must be a part`, `unknown field "x"`}},
		{"an empty value", head + `,"gang":""}`, []string{`gang: "" must be a name`}},
		{"another word for an overrun", head + `,"overrun":"wait"}`, []string{`overrun: "wait" must be corun, freeze, kill`}},
		{"another placement", head + `,"placement":"here"}`, []string{`placement: "here" must be identical or allocated`}},
		{"a value of another type", head + `,"weight":[1]}`, []string{"[1] is neither a text nor a number"}},
		{"another version", `{"apiVersion":"vgpu-shim.dev/v1","kind":"VgpuConfig","later":1}`, []string{`"vgpu-shim.dev/v1"`, "want apiVersion: vgpu-shim.dev/v1alpha1"}},
		{"another kind", `{"apiVersion":"vgpu-shim.dev/v1alpha1","kind":"GpuConfig"}`, []string{`"GpuConfig"`, "kind: VgpuConfig"}},
		{"neither", `{}`, []string{"want apiVersion: vgpu-shim.dev/v1alpha1 and kind: VgpuConfig"}},
		{"no object", `5`, []string{"can not be read as a VgpuConfig"}},
		{"nothing", ``, []string{"can not be read as a VgpuConfig"}},
	} {
		t.Run(tc.description, func(t *testing.T) {
			_, err := Decode([]byte(tc.raw))
			if err == nil {
				t.Fatal("it was accepted")
			}
			for _, s := range tc.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
			if strings.Contains(err.Error(), "annotation") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is not in the claim's own words, on one line", err)
			}
		})
	}
}

// A claim says what its class left open, or says otherwise; what it does not
// mention stays.
func TestMergeGoesFieldByField(t *testing.T) {
	class, err := Decode([]byte(head + `,"weight":50,"priority":"low","placement":"allocated"}`))
	if err != nil {
		t.Fatal(err)
	}
	claim, err := Decode([]byte(head + `,"weight":70,"gang":"g"}`))
	if err != nil {
		t.Fatal(err)
	}
	class.Merge(claim)
	want := map[string]string{"vgpu-shim.dev/weight": "70", "vgpu-shim.dev/priority": "low", "vgpu-shim.dev/gang": "g"}
	if diff := cmp.Diff(want, class.Annotations()); diff != "" || !class.Pinned() {
		t.Errorf("pinned %v, (-want +got)\n%s", class.Pinned(), diff)
	}
}
