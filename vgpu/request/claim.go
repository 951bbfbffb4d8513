// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Claimed returns the annotations of a container with what its Kubernetes claims say
// added, as they would say it. An annotation of this container that says the same is
// fine; one that says otherwise is a fault: the scheduler placed the pod by the claim.
// Keys that the claims leave open are the annotations'. container is the container's
// name, as in Parse.
//
// The error, if any, is an *Error with all faults.
func Claimed(annotations, claims map[string]string, container string) (map[string]string, error) {
	out := maps.Clone(annotations)
	if out == nil {
		out = map[string]string{}
	}
	var faults []Fault
	for _, full := range slices.Sorted(maps.Keys(claims)) {
		name := strings.TrimPrefix(full, Prefix)
		own := Prefix + container + "." + name
		said, ok := out[own]
		if container == "" || !ok {
			own = full
			said, ok = out[own]
		}
		// What can not be read is Parse's to tell.
		if ok && readable(name, said) && !same(name, said, claims[full]) {
			faults = append(faults, Fault{own, said, fmt.Sprintf("contradicts the claim, which gives %s: remove the annotation, or ask for the same in the claim", quote(claims[full]))})
		}
		if ok && readable(name, said) {
			delete(out, own)
			out[full] = claims[full]
		} else if !ok {
			out[full] = claims[full]
		}
	}
	if len(faults) > 0 {
		return nil, &Error{Faults: faults}
	}
	return out, nil
}

func readable(name, value string) bool {
	k, ok := keys[name]
	return ok && k.set(new(Request), value)
}

// same says whether two values that can be read mean the same.
func same(name, a, b string) bool {
	var x, y Request
	k := keys[name]
	k.set(&x, a)
	k.set(&y, b)
	return x == y
}

// Both returns what two requests of claims give together to one container, as
// annotations: their GPUs are added up. All GPUs of a container get the same of
// everything else, so the two must agree.
func Both(a, b map[string]string) (map[string]string, error) {
	x, err := Parse(a, "", 0)
	if err != nil {
		return nil, err
	}
	y, err := Parse(b, "", 0)
	if err != nil {
		return nil, err
	}
	sum, uuids := x.Count+y.Count, union(x.UUIDs, y.UUIDs)
	x.Count, x.UUIDs, y.Count, y.UUIDs = 0, "", 0, ""
	for _, name := range Keys() {
		if l, r := keys[name].format(&x), keys[name].format(&y); l != r {
			return nil, fmt.Errorf("they differ in %s (%s and %s), and all GPUs of a container get the same: "+
				"ask for the GPUs in one request with a count, or give the container one of them", name, or(l, "none"), or(r, "none"))
		}
	}
	x.Count, x.UUIDs = sum, uuids
	return x.Annotations(), nil
}

// union of two lists of UUIDs, of which an empty one has all.
func union(a, b string) string {
	if a == "" || b == "" {
		return ""
	}
	all := strings.Split(a, ",")
	for u := range strings.SplitSeq(b, ",") {
		if !slices.Contains(all, u) {
			all = append(all, u)
		}
	}
	return strings.Join(all, ",")
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
