// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "strings"

// StatusKind is what a VgpuStatus says that it is.
const StatusKind = "VgpuStatus"

// VgpuStatus is what the driver tells of an allocated GPU in the status of its claim,
// in data of status.devices: which containers have a vGPU by it, and what they had of
// the GPU. Times are those of vGPUs that are there, in whole seconds.
type VgpuStatus struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Request    string `json:"request"` // of the claim

	HeldSeconds   int64  `json:"heldSeconds"`   // GPU time of all of them
	WaitedSeconds int64  `json:"waitedSeconds"` // how long they waited for their turns
	Vgpus         []Vgpu `json:"vgpus,omitempty"`
	More          int    `json:"more,omitempty"` // that are not in Vgpus: a status has little room
}

// Vgpu is the vGPU of one container.
type Vgpu struct {
	Pod           string   `json:"pod"`
	Container     string   `json:"container"`
	GPUs          []string `json:"gpus,omitempty"` // UUIDs of those that it uses; none yet: it did not use CUDA
	HeldSeconds   int64    `json:"heldSeconds"`
	WaitedSeconds int64    `json:"waitedSeconds"`
	Waits         string   `json:"waits,omitempty"` // for whose memory, which was promised to it
}

// maxVgpus is how many fit into the 10 KiB that Kubernetes allows, with the longest
// names.
const maxVgpus = 8

// NewVgpuStatus is one without vGPUs.
func NewVgpuStatus(request string) *VgpuStatus {
	return &VgpuStatus{APIVersion: APIVersion, Kind: StatusKind, Request: request}
}

// maxWaits is how many bytes of Waits are told.
const maxWaits = 256

// Add counts a vGPU in.
func (s *VgpuStatus) Add(v Vgpu) {
	v.Waits = strings.ToValidUTF8(v.Waits[:min(len(v.Waits), maxWaits)], "")
	s.HeldSeconds += v.HeldSeconds
	s.WaitedSeconds += v.WaitedSeconds
	if len(s.Vgpus) == maxVgpus {
		s.More++
		return
	}
	s.Vgpus = append(s.Vgpus, v)
}
