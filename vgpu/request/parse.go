// SPDX-License-Identifier: Apache-2.0

package request

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ContainerName is the annotation in which a CRI tells a container its name
// inside the pod (containerd, internal/cri/annotations).
const ContainerName = "io.kubernetes.cri.container-name"

// MaxCount is the largest number of GPUs of one container: what one message of
// the client protocol can carry.
const MaxCount = 16

// Fault is one annotation that can not be used.
type Fault struct {
	Key     string // the whole key
	Value   string
	Allowed string // what would be right
}

func (f Fault) String() string {
	return fmt.Sprintf("annotation %s=%s: %s", clip(f.Key), quote(f.Value), f.Allowed)
}

// Error has every fault of a set of annotations, sorted by key.
type Error struct {
	Faults []Fault
}

func (e *Error) Error() string { return Some(e.Faults, Fault.String, "; ") }

// most is how many of a kind an error lists: whoever may write annotations may write
// very many, and a message has a limit.
const most = 8

// Some lists all, or the first few and how many more there are.
func Some[T any](all []T, text func(T) string, separator string) string {
	var s []string
	for _, one := range all[:min(len(all), most)] {
		s = append(s, text(one))
	}
	if more := len(all) - most; more > 0 {
		s = append(s, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(s, separator)
}

// InvalidParameter makes errdefs.IsInvalidArgument true for an Error, without
// this package importing errdefs.
func (e *Error) InvalidParameter() {}

// Parse reads the annotations under Prefix; others are ignored. container is
// the container's name inside its pod, or "" where there is none: a key
// "<prefix><container>.<key>" speaks of that container alone and wins over the
// plain key. Keys that speak of other containers must be correct too.
// defaultCount is the count where no annotation names one; but in a pod whose
// annotations give another container a vGPU by name, one that is not named gets
// none by default.
//
// The error, if any, is an *Error with all faults.
func Parse(annotations map[string]string, container string, defaultCount int) (Request, error) {
	return Limits(nil).Parse(annotations, container, defaultCount)
}

// Parse is the function Parse, for containers that may ask for so much and no
// more. Check must have passed the limits.
func (l Limits) Parse(annotations map[string]string, container string, defaultCount int) (Request, error) {
	var (
		faults        []Fault
		plain, scoped = newDraft(), newDraft()
		other         = newDraft()
		named         bool // another container was singled out to have a vGPU
	)
	plain.req.Count = defaultCount

	for _, full := range slices.Sorted(maps.Keys(annotations)) {
		rest, ours := strings.CutPrefix(full, Prefix)
		if !ours {
			continue
		}
		value := annotations[full]
		into, name := plain, rest
		if dot := strings.LastIndexByte(rest, '.'); dot >= 0 {
			name = rest[dot+1:]
			switch scope := rest[:dot]; {
			case scope == "":
				faults = append(faults, Fault{full, value, "there is no container name before the dot"})
				continue
			case scope == container:
				into = scoped
			default:
				into = other
			}
		}
		k, ok := keys[name]
		if !ok {
			faults = append(faults, Fault{full, value, "unknown key; known are " + strings.Join(Keys(), ", ")})
			continue
		}
		if !k.set(&into.req, value) {
			faults = append(faults, Fault{full, value, "must be " + k.allowed})
			continue
		}
		into.from[name] = full
		named = named || into == other && (name != "gpus" || other.req.Count > 0)
	}

	r := plain.req
	if named && len(scoped.from) == 0 && plain.from["gpus"] == "" {
		r.Count = 0
	}
	for name, full := range scoped.from {
		keys[name].copy(&r, &scoped.req)
		plain.from[name] = full
	}
	if r.Count > 0 {
		faults = append(faults, l.hold(&r, plain.from, annotations)...)
	}
	if r.MaxShare != 0 && r.MinShare > r.MaxShare {
		full := plain.from["min-share"]
		faults = append(faults, Fault{full, annotations[full], fmt.Sprintf("must not be above max-share (%s)", formatShare(r.MaxShare))})
	}
	if len(faults) > 0 {
		slices.SortStableFunc(faults, func(a, b Fault) int { return strings.Compare(a.Key, b.Key) })
		return Request{}, &Error{Faults: faults}
	}
	return r, nil
}

// Change reads annotations as Parse does for a container that runs, with
// changes made to them: an empty value takes a key back to its default. Only
// live keys can be changed, and each key must be under Prefix.
//
// The error, if any, is an *Error with all faults.
func Change(annotations, changes map[string]string) (Request, error) {
	var faults []Fault
	merged := maps.Clone(annotations)
	if merged == nil {
		merged = map[string]string{}
	}
	for full, value := range changes {
		name, ours := strings.CutPrefix(full, Prefix)
		switch {
		case !ours || !keys[name].live:
			faults = append(faults, Fault{full, value, "can not be changed while the container runs; what can is " +
				Prefix + strings.Join(LiveKeys(), ", "+Prefix)})
		case value == "":
			delete(merged, full)
		default:
			merged[full] = value
		}
	}
	r, err := Parse(merged, "", 0)
	var wrong *Error
	if errors.As(err, &wrong) {
		faults = append(faults, wrong.Faults...)
	}
	if len(faults) > 0 {
		slices.SortStableFunc(faults, func(a, b Fault) int { return strings.Compare(a.Key, b.Key) })
		return Request{}, &Error{Faults: faults}
	}
	return r, nil
}

// LiveKeys returns the keys that Change can change, sorted, without the prefix.
func LiveKeys() []string {
	return slices.DeleteFunc(Keys(), func(name string) bool { return !keys[name].live })
}

// draft is a request in the making, with the key that set each field.
type draft struct {
	req  Request
	from map[string]string // key -> annotation
}

func newDraft() *draft { return &draft{from: map[string]string{}} }

// Annotations returns the annotations that Parse turns into r. Fields that the
// container did not set are left out; the count is always there.
func (r Request) Annotations() map[string]string {
	out := map[string]string{}
	for name, k := range keys {
		if v := k.format(&r); v != "" {
			out[Prefix+name] = v
		}
	}
	return out
}

// Keys returns the known keys, sorted, without the prefix.
func Keys() []string { return slices.Sorted(maps.Keys(keys)) }

const clipAt = 80

// clip keeps what a stranger wrote to a length that fits an error message.
func clip(s string) string {
	if len(s) <= clipAt {
		return s
	}
	return strings.ToValidUTF8(s[:clipAt], "") + "..."
}

func quote(s string) string { return fmt.Sprintf("%q", clip(s)) }
