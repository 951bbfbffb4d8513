// SPDX-License-Identifier: Apache-2.0

// Package plugin is the device plugin, for clusters in which package kube can not run: it
// gives GPUs to containers by what their limits ask of three resources.
//
// kubelet allocates units of each resource on its own, and does not say to which pod. So
// Allocate answers the same to everybody: the mount by which the shim knows that the
// container was given something (package claim). Which units those are is in kubelet's
// own checkpoint, under the pod's UID and the container's name, and is written before the
// pod's first container is made. The plugin reads it there, puts the units of the three
// resources together, and tells vgpud, of which the shim asks.
//
// The units are the node's: which GPU a container computes on is vgpud's choice, when it
// first uses CUDA. A unit is named by a GPU only so that it is unhealthy with it, and for
// kubelet's topology manager.
//
// The plugin remembers nothing: all it knows is kubelet's and vgpud's. Of the API server
// it asks, where it can, who else offers the GPUs.
package plugin
