// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is VgpuConfig: what a ResourceClaim, or its DeviceClass, says of
// the vGPUs that it gives beyond their memory and share, as opaque parameters of our
// DRA driver.
package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	kjson "sigs.k8s.io/json"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// What a VgpuConfig says that it is.
const (
	APIVersion = "vgpu-shim.dev/v1alpha1"
	Kind       = "VgpuConfig"
)

// Where the vGPUs of a claim may live.
const (
	// PlacementIdentical is any GPU of the node that is as the allocated one: vgpud
	// chooses the one with the least wait. The default.
	PlacementIdentical = "identical"
	// PlacementAllocated is the allocated GPU alone.
	PlacementAllocated = "allocated"
)

// VgpuConfig is the parameters. A nil field was not set. But for Placement, each
// says what the annotation of the same name does (docs/annotations.md).
type VgpuConfig struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Weight    *Value `json:"weight,omitempty"`
	Priority  *Value `json:"priority,omitempty"`
	Quantum   *Value `json:"quantum,omitempty"`
	MaxShare  *Value `json:"maxShare,omitempty"`
	Gang      *Value `json:"gang,omitempty"`
	Overrun   *Value `json:"overrun,omitempty"`
	Placement *Value `json:"placement,omitempty"`
}

// Value is a text, or a number: 200, 2e2 and 200.0 are one.
type Value string

// UnmarshalJSON reads a string or a number.
func (v *Value) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, (*string)(v))
	}
	var n json.Number
	if err := json.Unmarshal(data, &n); err != nil {
		return fmt.Errorf("%.80s is neither a text nor a number", data)
	}
	if strings.ContainsAny(string(n), ".eE") {
		f, err := n.Float64()
		if err != nil {
			return fmt.Errorf("%.80s is no number: %w", data, err)
		}
		n = json.Number(strconv.FormatFloat(f, 'f', -1, 64))
	}
	*v = Value(n)
	return nil
}

// numbers are the fields that may be numbers. All others are texts.
var numbers = []string{"maxShare", "weight"}

// notTexts is which fields of a VgpuConfig should be texts, and are numbers.
func notTexts(raw []byte) (faults []string) {
	var all map[string]json.RawMessage
	if json.Unmarshal(raw, &all) != nil {
		return nil
	}
	for _, field := range Fields() {
		if v := all[field]; len(v) > 0 && !slices.Contains(numbers, field) && strings.Contains("-0123456789", string(v[0])) {
			faults = append(faults, fmt.Sprintf("%s: %s must be a text: write \"%s\"", field, v, v))
		}
	}
	return faults
}

// fields are those that stand for an annotation, by its key without the prefix.
func (c *VgpuConfig) fields() map[string]**Value {
	return map[string]**Value{
		"weight": &c.Weight, "priority": &c.Priority, "quantum": &c.Quantum, "max-share": &c.MaxShare, "gang": &c.Gang,
		"overrun": &c.Overrun,
	}
}

// names are those fields as they are written, where that differs from the key.
var names = map[string]string{"max-share": "maxShare"}

func name(key string) string {
	if n, ok := names[key]; ok {
		return n
	}
	return key
}

// Fields returns the names of all fields, sorted.
func Fields() []string {
	all := []string{"placement"}
	for key := range new(VgpuConfig).fields() {
		all = append(all, name(key))
	}
	slices.Sort(all)
	return all
}

// Decode reads one VgpuConfig. What it does not know, or what stands there twice, is
// an error, and so is a value that is not allowed; the error names all that is wrong
// and what would be right.
func Decode(raw []byte) (*VgpuConfig, error) {
	c := new(VgpuConfig)
	strict, err := kjson.UnmarshalStrict(raw, c)
	if err != nil {
		return nil, fmt.Errorf("it can not be read as a %s: %w", Kind, err)
	}
	// What it is comes first: the fields of something else say nothing.
	if c.APIVersion != APIVersion || c.Kind != Kind {
		return nil, fmt.Errorf("it is %s %s, want apiVersion: %s and kind: %s", quote(c.APIVersion), quote(c.Kind), APIVersion, Kind)
	}
	var faults []string
	for _, e := range strict {
		faults = append(faults, e.Error())
	}
	if len(strict) > 0 {
		faults[len(faults)-1] += "; the fields are " + strings.Join(Fields(), ", ")
	}
	faults = append(faults, notTexts(raw)...)
	if err := errors.Join(c.check()...); err != nil {
		faults = append(faults, strings.Split(err.Error(), "\n")...)
	}
	if len(faults) > 0 {
		return nil, errors.New(strings.Join(faults, "; "))
	}
	return c, nil
}

// check is what is wrong with the values.
func (c *VgpuConfig) check() (faults []error) {
	_, err := request.Parse(c.Annotations(), "", 1)
	if wrong, ok := errors.AsType[*request.Error](err); ok {
		for _, f := range wrong.Faults {
			faults = append(faults, fmt.Errorf("%s: %s %s", name(strings.TrimPrefix(f.Key, request.Prefix)), quote(f.Value), f.Allowed))
		}
	}
	if p := c.Placement; p != nil && *p != PlacementIdentical && *p != PlacementAllocated {
		faults = append(faults, fmt.Errorf("placement: %s must be %s or %s", quote(string(*p)), PlacementIdentical, PlacementAllocated))
	}
	return faults
}

// Merge sets the fields of c that over has set.
func (c *VgpuConfig) Merge(over *VgpuConfig) {
	from := over.fields()
	for key, field := range c.fields() {
		if v := *from[key]; v != nil {
			*field = v
		}
	}
	if over.Placement != nil {
		c.Placement = over.Placement
	}
}

// Annotations are what the fields say, as request.Parse reads it.
func (c *VgpuConfig) Annotations() map[string]string {
	out := map[string]string{}
	for key, field := range c.fields() {
		if v := *field; v != nil {
			out[request.Prefix+key] = string(*v)
		}
	}
	return out
}

// Pinned says whether the vGPUs must live on the allocated GPUs.
func (c *VgpuConfig) Pinned() bool { return c.Placement != nil && *c.Placement == PlacementAllocated }

func quote(s string) string {
	const most = 80
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return fmt.Sprintf("%q", s)
}
