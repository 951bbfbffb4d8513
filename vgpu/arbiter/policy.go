// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"fmt"
	"slices"
	"strings"
)

// Policy is a named setting of shares, as users of other products know them.
// The zero value leaves everything as each vGPU asks for it.
type Policy struct {
	Preset Preset
	// Slots is how many parts of a GPU the average policy makes; 0 stands for
	// DefaultSlots.
	Slots int
}

// DefaultSlots is the number of parts of a GPU where none is named.
const DefaultSlots = 20

// Preset names a policy.
type Preset uint8

// The presets.
const (
	Default       Preset = iota // as each vGPU asks for it
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
func (p Preset) String() string { return presets[p] }

// Presets is the names of all presets.
func Presets() []string { return slices.Clone(presets[:]) }

// ParsePreset finds a preset by its name.
func ParsePreset(name string) (Preset, error) {
	if i := slices.Index(presets[:], name); i >= 0 {
		return Preset(i), nil
	}
	return 0, fmt.Errorf("unknown policy %q, known are %s", name, strings.Join(presets[:], ", "))
}
