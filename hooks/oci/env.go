// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"errors"
	"fmt"
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
