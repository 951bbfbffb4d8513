// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Env sets an environment variable of the container's first process, given as
// NAME=value. A value that the spec already has under NAME is replaced.
type Env string

var _ Edit = Env("")

// Apply implements Edit.
func (e Env) Apply(s *Spec) error {
	name, _, ok := strings.Cut(string(e), "=")
	if !ok || name == "" || strings.ContainsRune(string(e), 0) {
		return fmt.Errorf("invalid environment variable %q: want NAME=value", string(e))
	}
	if s.process == nil {
		return errors.New("failed to set an environment variable: the spec has no process")
	}
	return s.env.set(string(e), func(o string) bool { return o == name || strings.HasPrefix(o, name+"=") })
}

// EnvList puts an entry first in an environment variable of the container's first
// process that is a list with colons, and keeps what the list has.
type EnvList struct{ Name, First string }

var _ Edit = EnvList{}

// Apply implements Edit.
func (e EnvList) Apply(s *Spec) error {
	if e.First == "" || strings.ContainsRune(e.First, ':') {
		return fmt.Errorf("invalid entry %q of the environment variable %s: want one of a list with colons", e.First, e.Name)
	}
	list := []string{e.First}
	for _, v := range s.env.elements {
		// The first one counts, as it does for a program that looks for it.
		if own, ok := strings.CutPrefix(v.value, e.Name+"="); ok {
			list = append(list, slices.DeleteFunc(strings.Split(own, ":"), func(o string) bool { return o == e.First || o == "" })...)
			break
		}
	}
	return Env(e.Name + "=" + strings.Join(list, ":")).Apply(s)
}
