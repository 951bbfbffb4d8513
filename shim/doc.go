// SPDX-License-Identifier: Apache-2.0

// Package shim is the containerd shim: containerd's own runc task service, and
// around it what gives a container its vGPU.
//
// The runc task service is embedded and, but for the verbs that have a file
// here, answers by itself. Create asks vgpud for the vGPU and edits config.json
// before runc sees it. Delete, and the binary's `delete` action (Stop), give
// the vGPU back. What of a driver's files is mounted comes after runc, before the
// container starts (package mounts). Exec adds the variable that OpenCL loaders before
// ocl-icd 2.3.2 need: else the process that it starts sees the mounts and devices of its
// container, and nothing there depends on an environment variable. All work for a
// container happens in these four; Start serves the shim process, which may hold many
// containers of a pod.
//
// One binary serves containerd 1.6 to 2.4: package bootstrap owns `start`, and
// the server registers both versions of the task service on its socket. Imports
// from containerd's packages that carry no promise of stability (pkg/shim,
// cmd/containerd-shim-runc-v2) stay inside this directory.
//
// # Rules
//
// No RPC waits for vgpud without a short deadline: a shim that does not answer
// can keep containerd from starting. The server starts no process of its own:
// it reaps every child and would take the exit status away. No lock is held
// around a call of the inner service, and no task event is published here, so
// that containerd's order of events stays. Nothing is logged on a path that
// works: the log is a pipe to containerd, which may be down.
package shim
