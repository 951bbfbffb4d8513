// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"slices"
	"strings"
)

// Overrun is what becomes of a vGPU whose turn does not drain in time. Under each of
// them others are granted at once. A later one is stricter: the stricter of a
// container's and the node's is in force.
type Overrun uint8

// The policies, from the mildest on.
const (
	NodeOverrun Overrun = iota // the node's
	Corun                      // it goes on beside the others; the hardware slices
	Freeze                     // its processes stand still but in its own turns
	Kill                       // its processes are killed
)

var overruns = [...]string{"", "corun", "freeze", "kill"}

// String is the policy's name; empty: the node's.
func (o Overrun) String() string {
	if int(o) < len(overruns) {
		return overruns[o]
	}
	return fmt.Sprintf("Overrun(%d)", uint8(o))
}

// Overruns is the names of all policies.
func Overruns() []string { return slices.Clone(overruns[Corun:]) }

// ParseOverrun finds a policy by its name.
func ParseOverrun(name string) (Overrun, error) {
	if i := slices.Index(overruns[:], name); i >= int(Corun) {
		return Overrun(i), nil
	}
	return NodeOverrun, fmt.Errorf("unknown overrun policy %q, known are %s", name, strings.Join(Overruns(), ", "))
}
