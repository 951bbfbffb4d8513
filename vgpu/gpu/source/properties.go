// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// What is read here is what images and claims may ask for (see gpu.Requirement). What
// NVML does not tell is empty.

// cudaVersion is the newest version of CUDA that the driver serves.
func (i *inventory) cudaVersion() string {
	if !i.has("nvmlSystemGetCudaDriverVersion") {
		return ""
	}
	v, ret := i.lib.SystemGetCudaDriverVersion()
	if ret != nvml.SUCCESS {
		return ""
	}
	// 1000 times the major version, 10 times the minor one (nvml.h).
	return fmt.Sprintf("%d.%d", v/1000, v%1000/10)
}

// properties reads a GPU's brand, architecture and compute capability.
func (i *inventory) properties(d nvml.Device, g *gpu.GPU) {
	if i.has("nvmlDeviceGetBrand") {
		if b, ret := d.GetBrand(); ret == nvml.SUCCESS {
			g.Brand = brands[b]
		}
	}
	if i.has("nvmlDeviceGetArchitecture") {
		if a, ret := d.GetArchitecture(); ret == nvml.SUCCESS {
			g.Architecture = architectures[a]
		}
	}
	if i.has("nvmlDeviceGetCudaComputeCapability") {
		if major, minor, ret := d.GetCudaComputeCapability(); ret == nvml.SUCCESS {
			g.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
		}
	}
}

// architectures are NVML's numbers by NVIDIA's names. One that is newer has none.
var architectures = map[nvml.DeviceArchitecture]string{
	nvml.DEVICE_ARCH_KEPLER: "Kepler", nvml.DEVICE_ARCH_MAXWELL: "Maxwell", nvml.DEVICE_ARCH_PASCAL: "Pascal",
	nvml.DEVICE_ARCH_VOLTA: "Volta", nvml.DEVICE_ARCH_TURING: "Turing", nvml.DEVICE_ARCH_AMPERE: "Ampere", nvml.DEVICE_ARCH_ADA: "Ada",
	nvml.DEVICE_ARCH_HOPPER: "Hopper", nvml.DEVICE_ARCH_BLACKWELL: "Blackwell", nvml.DEVICE_ARCH_RUBIN: "Rubin",
}

// brands are those of nvml.h as NVIDIA_REQUIRE_* has them.
var brands = map[nvml.BrandType]string{
	nvml.BRAND_UNKNOWN: "unknown", nvml.BRAND_QUADRO: "quadro", nvml.BRAND_TESLA: "tesla", nvml.BRAND_NVS: "nvs",
	nvml.BRAND_GRID: "grid", nvml.BRAND_GEFORCE: "geforce", nvml.BRAND_TITAN: "titan", nvml.BRAND_NVIDIA_VAPPS: "vapps",
	nvml.BRAND_NVIDIA_VPC: "vpc", nvml.BRAND_NVIDIA_VCS: "vcs", nvml.BRAND_NVIDIA_VWS: "vws",
	nvml.BRAND_NVIDIA_CLOUD_GAMING: "cloudgaming", nvml.BRAND_QUADRO_RTX: "quadrortx", nvml.BRAND_NVIDIA_RTX: "nvidiartx",
	nvml.BRAND_NVIDIA: "nvidia", nvml.BRAND_GEFORCE_RTX: "geforcertx", nvml.BRAND_TITAN_RTX: "titanrtx",
}
