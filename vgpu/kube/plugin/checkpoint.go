// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// checkpointFile is where kubelet keeps which units it gave to which container, in the
// directory of device plugins. It has had this form since Kubernetes 1.20, and is replaced
// as a whole. kubelet's API for the same, podresources, knows neither the UIDs of pods
// nor their init containers.
const checkpointFile = "kubelet_internal_checkpoint"

// container is one of a pod on this node.
type container struct{ podUID, name string }

// checkpoint is what kubelet knows.
type checkpoint struct {
	given      map[container]map[string][]string // units of each resource, ours and others'
	registered map[string][]string               // units of each resource, given or not
}

// readCheckpoint reads kubelet's. One that is not there is empty: it comes with the first
// pod or plugin.
func readCheckpoint(dir string) (*checkpoint, error) {
	path := filepath.Join(dir, checkpointFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &checkpoint{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to read kubelet's checkpoint: %w", err)
	}
	var file struct {
		Data *struct {
			PodDeviceEntries []struct {
				PodUID, ContainerName, ResourceName string
				DeviceIDs                           map[string][]string // by NUMA node
			}
			RegisteredDevices map[string][]string
		}
	}
	err = json.Unmarshal(text, &file)
	if err == nil && file.Data == nil {
		err = errors.New("it has no Data")
	}
	if err != nil {
		return nil, fmt.Errorf("kubelet's checkpoint %s has not the form that it has since Kubernetes 1.20: %w", path, err)
	}
	c := &checkpoint{given: map[container]map[string][]string{}, registered: file.Data.RegisteredDevices}
	for _, e := range file.Data.PodDeviceEntries {
		k := container{e.PodUID, e.ContainerName}
		if c.given[k] == nil {
			c.given[k] = map[string][]string{}
		}
		// A unit of several NUMA nodes is there for each.
		units := slices.Sorted(maps.Keys(set(e.DeviceIDs)))
		c.given[k][e.ResourceName] = append(c.given[k][e.ResourceName], units...)
	}
	return c, nil
}

func set(byNode map[string][]string) map[string]bool {
	out := map[string]bool{}
	for _, units := range byNode {
		for _, u := range units {
			out[u] = true
		}
	}
	return out
}

// others says which resource of another plugin has units that are named by one of these
// GPUs, as those of NVIDIA's plugin and of those that are made after it are; empty: none.
func (c *checkpoint) others(gpus []*v1.GPU) (resource, unit string) {
	for _, resource := range slices.Sorted(maps.Keys(c.registered)) {
		if slices.Contains(Resources(), resource) {
			continue
		}
		for _, unit := range c.registered[resource] {
			if slices.ContainsFunc(gpus, func(g *v1.GPU) bool {
				return strings.Contains(strings.ToLower(unit), strings.ToLower(g.GetUuid()))
			}) {
				return resource, unit
			}
		}
	}
	return "", ""
}
