// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"strconv"
	"strings"
)

// What NVIDIA's images ask of the driver, and what turns that off, in the words of
// its toolkit. A requirement can only keep a container from being created: who gets
// which GPU is no matter of the environment.
const (
	requirePrefix   = "NVIDIA_REQUIRE_"
	jetpackPrefix   = "NVIDIA_REQUIRE_JETPACK" // of the operating system of Tegra
	disableVariable = "NVIDIA_DISABLE_REQUIRE"
)

// requirements are those of a container's environment, where the last of several
// variables of one name counts, as it does in the container.
func requirements(h handler, env []string) map[string]string {
	if h.DisableRequire {
		return nil
	}
	all, disabled := map[string]string{}, false
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		switch {
		case name == disableVariable:
			disabled, _ = strconv.ParseBool(value)
		case strings.HasPrefix(name, jetpackPrefix):
		case strings.HasPrefix(name, requirePrefix):
			all[name] = value
		}
	}
	if disabled {
		return nil
	}
	return all
}
