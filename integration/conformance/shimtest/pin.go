// SPDX-License-Identifier: Apache-2.0

// Package pin pins shimtest for integration/setup, which builds it.
package pin

import _ "github.com/containerd/shimtest"
