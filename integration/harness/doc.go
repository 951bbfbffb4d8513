// SPDX-License-Identifier: Apache-2.0

// Package harness runs the whole product on one machine beside whatever runs
// there already: a private containerd of a given version, a private vgpud, a
// machine of simulated GPUs, root file systems, and containers started by ctr.
//
// A Node is one such set. Everything of it lives under one temporary directory,
// which is named in the command line of each process that it starts; that is
// how Close ends what is left, and how Leaks finds what should not be there.
// Nothing is ever ended by a program's name, and no other containerd is touched.
//
// The package needs root, and knows nothing of package testing: the demo uses
// it too; tests use it through harnesstest. Methods of one value are not safe for
// concurrent use unless they say so; several Nodes may exist at once.
package harness
