// SPDX-License-Identifier: Apache-2.0

// Package version says which build this is. The linker stamps it:
//
//	go build -ldflags "-X github.com/vgpu-shim/vgpu/vgpu/version.Version=v0.1.0 -X .../version.Commit=abc123"
package version

var (
	// Version is the release, or "dev" where nothing was stamped.
	Version = "dev"
	// Commit is the git commit, with "+dirty" if the tree had changes.
	Commit = "unknown"
)
