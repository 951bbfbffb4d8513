// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"slices"
	"strings"
)

// Preset names a policy: a setting of shares and class that users of other
// products know.
type Preset uint8

// The presets. What each makes of a request is in vgpu/arbiter's policy.go.
const (
	Default       Preset = iota // whatever is in force one level up: of the GPU, the node; there: as each vGPU asks for it
	Native                      // no turns: the hardware slices, we only account
	Average                     // each has one slot of the GPU, whether others use theirs or not
	Fair                        // equal parts of what is there
	Weighted                    // parts by weight of what is there
	Fixed                       // each has the share that it asks for, no more and no less; one slot without
	Hybrid                      // those that ask for a share have that, the others share the rest by weight
	OnlineOffline               // high priority goes first, all others use what it leaves
)

var presets = [...]string{"default", "native", "average", "fair", "weighted", "fixed", "hybrid", "online-offline"}

// String is the preset's name.
func (p Preset) String() string {
	if int(p) < len(presets) {
		return presets[p]
	}
	return fmt.Sprintf("Preset(%d)", uint8(p))
}

// Presets is the names of all presets.
func Presets() []string { return slices.Clone(presets[:]) }

// ParsePreset finds a preset by its name.
func ParsePreset(name string) (Preset, error) {
	if i := slices.Index(presets[:], name); i >= 0 {
		return Preset(i), nil
	}
	return Default, fmt.Errorf("unknown policy %q, known are %s", name, strings.Join(presets[:], ", "))
}
