// SPDX-License-Identifier: Apache-2.0

// Package claim has the one thing that the Kubernetes driver, or the device plugin, and
// the shim say to each other: the pointer to a claim in a container's config.json.
//
// The CDI edits of a claim are a bind mount, and nothing else. Its source does not
// exist: it names the claim and the request. The shim takes the mount away and asks
// vgpud what the claim gives. Under any other runtime the container does not start,
// and the runtime's error has the source in it, which says what is missing. An image
// can not make such a mount, unlike an environment variable.
package claim

import (
	"path"
	"strings"
)

// dir is where the sources of pointers would be. Nobody makes it.
const dir = "/run/vgpu/claims/this-pod-needs-runtimeClassName-vgpu"

// destinations is where the mounts would appear in the container.
const destinations = "/.vgpu-claims"

// Pointer names one request of a claim. Subrequests of a prioritized list are
// part of it: request/subrequest.
type Pointer struct {
	UID     string // of the ResourceClaim
	Request string
}

// Source is the host's path that stands for the pointer.
func (p Pointer) Source() string { return path.Join(dir, p.UID, p.Request) }

// Destination is a path in the container that no other pointer has.
func (p Pointer) Destination() string { return path.Join(destinations, p.UID, p.Request) }

// Parse reads the source of a mount; false: it is no pointer.
func Parse(source string) (Pointer, bool) {
	rest, ok := strings.CutPrefix(source, dir+"/")
	if !ok {
		return Pointer{}, false
	}
	uid, request, _ := strings.Cut(rest, "/")
	return Pointer{UID: uid, Request: request}, true
}
