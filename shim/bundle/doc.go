// SPDX-License-Identifier: Apache-2.0

// Package bundle reads and writes the two files of a container's bundle that
// the shim cares for: config.json, and vgpu.json, in which the shim remembers
// which vGPU it asked for.
//
// Both are replaced whole and atomically: whoever reads them, at whatever time
// the shim or the machine stops, finds the old or the new content.
package bundle
