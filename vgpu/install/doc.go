// SPDX-License-Identifier: Apache-2.0

// Package install places the product on a node, and takes it away again.
//
// It thinks in states and changes: what is at a path before, and what shall be
// there after. Install and Uninstall only look, and return a Plan: changes in
// their order, and what to say about them. Nothing is touched before
// Plan.Apply, which makes all changes or, if one fails, none. A change of a file
// is a rename; no file is ever written into.
//
// All that belongs to one version of the product lies in a directory whose name
// holds a hash over it, and never changes. What the rest of the system names are
// links that lead there through one link, current. So an upgrade is one rename,
// and containers keep the library that they have mounted: the directory of a
// version goes when no process has a part of it.
//
// What was placed stands in a manifest, with hashes. A file of which the
// manifest does not tell, or that was changed since, is somebody else's. While a
// run is under way the manifest also tells of what it places, so that whatever is
// run after a kill knows what is there. Options.Lock keeps others away meanwhile.
package install
