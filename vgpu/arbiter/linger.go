// SPDX-License-Identifier: Apache-2.0

package arbiter

// Gaps counts idle gaps by length: bucket i those of 2^i to 2^(i+1) nanoseconds,
// the last one all that are longer.
type Gaps [32]uint32
