// SPDX-License-Identifier: Apache-2.0

package main

import "regexp"

// How the take-over of NVML handles a name.
const (
	nvmlOurs   = "ours"   // a function of ours answers it
	nvmlPass   = "pass"   // the real library's
	nvmlChange = "change" // it changes what others share: NO_PERMISSION
	nvmlHidden = "hidden" // it tells what others do: NOT_SUPPORTED
)

var (
	// What functions of ours answer. Each needs one in hooks/driver/nvml.
	nvmlOursPattern = regexp.MustCompile(`^nvml(` +
		`Init(_v2|WithFlags)?|Shutdown` +
		`|DeviceGetCount(_v2)?|DeviceGetHandleBy(Index|PciBusId)(_v2)?|DeviceGetHandleBy(UUID|UUIDV|Serial)|DeviceGetIndex` +
		`|DeviceGetName|DeviceGetMemoryInfo(_v2)?|DeviceGetUtilizationRates|DeviceGetSamples` +
		`|DeviceGet(Compute|Graphics|MPSCompute)RunningProcesses(_v2|_v3)?|DeviceGetRunningProcessDetailList|SystemGetProcessName` +
		`|DeviceGetTopologyNearestGpus|SystemGetTopologyGpuSet|UnitGetDevices` +
		`)$`)
	// Use by process or over time that the real library can not tell apart by
	// container: accounting, profiling counters, encoder sessions, limits of any
	// cgroup; and what it tells of GPUs and virtual machines without a handle of a
	// GPU.
	nvmlHiddenPattern = regexp.MustCompile(`^nvml(` +
		`DeviceGetAccounting\w+|DeviceGetProcessUtilization|DeviceGetProcessesUtilizationInfo|DeviceGetDynamicPstatesInfo` +
		`|DeviceGet(Encoder|FBC)(Sessions|Stats)|DeviceGetConfComputeProtectedMemoryUsage|DeviceGetMemoryLimits\w*` +
		`|DeviceGetVgpu\w*Utilization\w*|DevicePerfMetricsGetSamples\w*` +
		`|GpmMetricsGet|Gpm(Mig)?SampleGet|GpmQueryDeviceSupport` +
		`|VgpuInstanceGet\w+|(Device|GpuInstance)Get(ActiveVgpus|VgpuSchedulerLog(_v2)?)` +
		`|System(RegisterEvents|EventSet\w+|GetCPER\w*)|EventSetRegisterGpuOperationalEvents\w*|GetExcludedDevice\w+` +
		`)$`)
	// A verb that changes the state of a GPU, a unit or the node.
	nvmlChangePattern = regexp.MustCompile(`^nvml(Device|System|Unit|GpuInstance|ComputeInstance|VgpuInstance|Gpm|PowerSmoothing|WorkloadPowerProfile|DevicePowerSmoothing|DeviceWorkloadPowerProfile)?` +
		`(Set|Clear|Reset|Create|Destroy|Freeze|Modify|Remove|Discover|Activate|Update|ReadWrite|VgpuForce)([A-Z]\w*|$)`)
	// The same verbs where they touch the caller alone.
	nvmlOwnPattern = regexp.MustCompile(`^nvml(Device(Set|Clear)CpuAffinity)$`)
)

func nvmlClass(name string) string {
	switch {
	case nvmlOursPattern.MatchString(name):
		return nvmlOurs
	case nvmlHiddenPattern.MatchString(name):
		return nvmlHidden
	case nvmlChangePattern.MatchString(name) && !nvmlOwnPattern.MatchString(name):
		return nvmlChange
	}
	return nvmlPass
}
