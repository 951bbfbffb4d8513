// SPDX-License-Identifier: Apache-2.0

// Package mounts puts mounts into a container that its runtime has created and not
// started yet.
//
// A driver has some ninety names in each of two directories, and each is a mount. A
// runtime takes an eighth of a millisecond for one, most of it to make sure of the
// place; the kernel's newer calls make sure of it by themselves and take a seventh of
// that. So only what stands in config.json is the runtime's to mount, and the rest is
// put above it here, before anything of the container's own runs. The mounts come into
// being while the runtime is at work (Make), so that a place is all they need (Put).
//
// What a runtime promises holds here, too. A place is looked up within the container's
// root, where no link leads out of it (openat2(2), RESOLVE_IN_ROOT), and a mount goes
// to the very file that was found. What is missing is made, owned by the container's
// root. Nothing is mounted on the host: a mount comes into being without a place, and
// goes by itself if it is put nowhere.
package mounts
