// SPDX-License-Identifier: Apache-2.0

// Package kubernetes runs a real Kubernetes on one machine: etcd, an API server,
// a scheduler and a controller manager, and nodes that each have a kubelet, a
// containerd, a vgpud with simulated GPUs, the DRA driver, and a directory, an address, a network
// and cgroups of their own. What runs on a node was placed there by vgpu install.
//
// All of it lives in a box (integration/box): programs write to fixed places, and
// kubelet even to the kernel's settings. Furnish prepares the box. When that ends,
// nothing is left.
//
// make setup-kubernetes brings in the programs. The package knows nothing of
// package testing.
package kubernetes
