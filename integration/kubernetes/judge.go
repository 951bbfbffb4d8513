// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Overcommitted adds up what claims take of each device, and says where that is more
// than there is. capacity is that of each device, by its name.
func Overcommitted(claims []resourceapi.ResourceClaim, capacity map[string]map[resourceapi.QualifiedName]resource.Quantity) (wrong []error) {
	type key struct {
		device string
		name   resourceapi.QualifiedName
	}
	taken := map[key]resource.Quantity{}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if len(r.ConsumedCapacity) != 2 || r.ShareID == nil {
				wrong = append(wrong, fmt.Errorf("claim %s takes %v", claim.Name, r))
			}
			for name, q := range r.ConsumedCapacity {
				sum := taken[key{r.Device, name}]
				sum.Add(q)
				taken[key{r.Device, name}] = sum
			}
		}
	}
	for k, sum := range taken {
		if most := capacity[k.device][k.name]; sum.Cmp(most) > 0 {
			wrong = append(wrong, fmt.Errorf("of device %s is taken %s %s, and it has %s", k.device, sum.String(), k.name, most.String()))
		}
	}
	return wrong
}
