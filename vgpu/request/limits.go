// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Limits are the most that containers may ask for under one handler, by key and
// as the annotation would say it. A key that has none is not bounded.
type Limits map[string]string

// Check says what is wrong with the limits.
func (l Limits) Check() error {
	var most Request
	for _, name := range slices.Sorted(maps.Keys(l)) {
		k, ok := keys[name]
		if !ok || k.over == nil {
			return fmt.Errorf("limits has %q, which can not be bounded; what can is %s", clip(name), strings.Join(LimitKeys(), ", "))
		}
		if !k.set(&most, l[name]) {
			return fmt.Errorf("limits has %s = %s, which must be %s", name, quote(l[name]), k.allowed)
		}
	}
	return nil
}

// LimitKeys returns the keys that can have a limit, sorted, without the prefix.
func LimitKeys() []string {
	return slices.DeleteFunc(Keys(), func(name string) bool { return keys[name].over == nil })
}

// hold holds the request against the limits. What was asked for by an annotation
// and is too much is a fault; what nobody asked for, and would be too much as it
// is by default, becomes the most that is allowed: a limit that leaving out an
// annotation evades would be none. from names the annotation that set each key.
func (l Limits) hold(r *Request, from, annotations map[string]string) (faults []Fault) {
	var ofTime []string
	for _, name := range slices.Sorted(maps.Keys(l)) {
		k, most := keys[name], Request{}
		k.set(&most, l[name])
		if k.ofTime {
			ofTime = append(ofTime, name)
		}
		switch full := from[name]; {
		case !k.over(r, &most):
		case full == "":
			k.copy(r, &most)
		default:
			faults = append(faults, Fault{full, annotations[full], "must be at most " + l[name] + " under this runtime"})
		}
	}
	// A policy reads the keys of time as it likes.
	if full := from["policy"]; full != "" && ofTime != nil {
		faults = append(faults, Fault{full, annotations[full], "must be left out under this runtime, which bounds " + strings.Join(ofTime, ", ")})
	}
	return faults
}
