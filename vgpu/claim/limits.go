// SPDX-License-Identifier: Apache-2.0

package claim

import "strings"

// The mount that the device plugin gives to a container is no pointer yet: kubelet does
// not say for which pod and container it asks. It says only that kubelet has given the
// container something; which, is under the pod's UID and the container's name, as CRI
// says them to the shim.
//
// containerd makes the source of a mount if it is not there, so this one is there. What
// keeps the container from starting under another runtime is the destination: runc mounts
// nothing below /proc, and says so with the path in it.
const (
	LimitsSource      = "/dev/null"
	LimitsDestination = "/proc/this-pod-needs-runtimeClassName-vgpu"
)

// limitsPrefix is how the UIDs begin that are no claim's: a claim's has no dot.
const limitsPrefix = "pod."

// LimitsRequest is the one request of what the device plugin gave.
const LimitsRequest = "limits"

// OfLimits is the pointer to what the device plugin gave to a container of a pod. Each
// container has one of its own.
func OfLimits(podUID, container string) Pointer {
	return Pointer{UID: limitsPrefix + podUID + "." + container, Request: LimitsRequest}
}

// IsOfLimits says whether a UID is that of what the device plugin gave to a container.
func IsOfLimits(uid string) bool { return strings.HasPrefix(uid, limitsPrefix) }
