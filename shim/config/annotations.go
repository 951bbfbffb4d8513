// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// Annotations returns those of the annotations that are ours. One that the
// handler does not allow is an error which names it: annotations come from
// whoever may create a pod, and what they may ask for is the administrator's
// choice.
//
// A pattern is matched against the key without the prefix, and against its
// last part, so that "memory" also allows "app.memory", which asks the same
// for one container of a pod.
func (c Config) Annotations(all map[string]string) (map[string]string, error) {
	ours := make(map[string]string)
	var denied []string
	for key, value := range all {
		name, ok := strings.CutPrefix(key, request.Prefix)
		if !ok {
			continue
		}
		if !c.allows(name) {
			denied = append(denied, fmt.Sprintf("%.80s=%.80q", key, value))
			continue
		}
		ours[key] = value
	}
	if len(denied) > 0 {
		slices.Sort(denied)
		some := request.Some(denied, func(s string) string { return s }, ", ")
		return nil, fmt.Errorf("annotation %s is not allowed by the configuration of this runtime; allowed under %s: %s",
			some, request.Prefix, c.allowed())
	}
	return ours, nil
}

func (c Config) allows(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	return slices.ContainsFunc(c.AllowAnnotations, func(pattern string) bool {
		pattern = strings.TrimPrefix(pattern, request.Prefix)
		// Load has checked the pattern.
		whole, _ := path.Match(pattern, name)
		part, _ := path.Match(pattern, last)
		return whole || part
	})
}

func (c Config) allowed() string {
	if len(c.AllowAnnotations) == 0 {
		return "none"
	}
	return strings.Join(c.AllowAnnotations, ", ")
}
