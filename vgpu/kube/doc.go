// SPDX-License-Identifier: Apache-2.0

// Package kube is the DRA driver: it publishes the GPUs of a node to Kubernetes as
// devices that claims may share, and prepares claims that were allocated to it.
//
// It holds no GPU and decides nothing about one. What it publishes is vgpud's list; what
// a claim gives becomes a record of vgpud's, and a pointer to that in the containers'
// CDI edits, which the shim follows (package claim). What it must remember itself is one
// file per claim, written before anything else is done for the claim and removed last,
// so that it may be killed at any moment.
package kube
