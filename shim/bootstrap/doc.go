// SPDX-License-Identifier: Apache-2.0

// Package bootstrap is the front of the shim's `start` action: what the
// containerd versions write to it and how they want to be answered.
//
// containerd 1.6 to 2.2 write the runtime options (a protobuf Any) or nothing
// to standard input, give the rest in flags and environment, and all of them
// take the plain address as the answer; 1.6 takes nothing else. containerd 2.3
// and newer write BootstrapParams and want a BootstrapResult. containerd's own
// pkg/shim serves only its own generation (containerd#13763, #13910), so a
// shim that is installed apart from containerd has to tell them apart itself.
//
// Every version reads standard output and standard error of `start` as one:
// a single byte beside the answer makes it unusable. Nothing here logs.
package bootstrap
