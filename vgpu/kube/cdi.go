// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/specs-go"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/claim"
)

// cdiKind is the kind of our CDI devices.
const cdiKind = DriverName + "/claim"

// cdiVersion is the first in which a name may begin with a digit.
const cdiVersion = "0.5.0"

// cdiName names the device of one request. A claim's UID is never used again, and
// runtimes cache.
func cdiName(uid, request string) string {
	return uid + "-" + strings.ReplaceAll(request, "/", ".")
}

func cdiPath(dir string, uid types.UID) string {
	return filepath.Join(dir, cdiPrefix+string(uid)+recordSuffix)
}

const cdiPrefix = DriverName + "-claim-"

// writeCDI writes the spec of a claim: for each request a pointer, and nothing else.
func writeCDI(dir string, c *v1.Claim) error {
	spec := specs.Spec{Version: cdiVersion, Kind: cdiKind}
	for _, r := range c.GetRequests() {
		p := claim.Pointer{UID: c.GetUid(), Request: r.GetName()}
		spec.Devices = append(spec.Devices, specs.Device{
			Name: cdiName(p.UID, p.Request),
			ContainerEdits: specs.ContainerEdits{Mounts: []*specs.Mount{{
				HostPath: p.Source(), ContainerPath: p.Destination(), Type: "bind", Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"},
			}}},
		})
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("failed to encode the CDI spec: %w", err)
	}
	return writeFile(cdiPath(dir, types.UID(c.GetUid())), data, 0o644)
}
