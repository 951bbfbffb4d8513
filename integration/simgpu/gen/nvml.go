// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// nvmlFunctions are those whose prototypes the simulated NVML and its tests
// need. Every other exported name gets a stub, which needs no prototype.
var nvmlFunctions = strings.Fields(`
	nvmlInit nvmlInit_v2 nvmlInitWithFlags nvmlShutdown nvmlErrorString
	nvmlSystemGetDriverVersion nvmlSystemGetNVMLVersion nvmlSystemGetCudaDriverVersion
	nvmlSystemGetCudaDriverVersion_v2 nvmlSystemGetProcessName
	nvmlDeviceGetCount nvmlDeviceGetCount_v2 nvmlDeviceGetHandleByIndex nvmlDeviceGetHandleByIndex_v2
	nvmlDeviceGetHandleByUUID nvmlDeviceGetHandleByPciBusId nvmlDeviceGetHandleByPciBusId_v2
	nvmlDeviceGetName nvmlDeviceGetUUID nvmlDeviceGetIndex nvmlDeviceGetMinorNumber nvmlDeviceGetSerial
	nvmlDeviceGetPciInfo nvmlDeviceGetPciInfo_v2 nvmlDeviceGetPciInfo_v3
	nvmlDeviceGetMemoryInfo nvmlDeviceGetMemoryInfo_v2 nvmlDeviceGetCudaComputeCapability
	nvmlDeviceGetComputeMode nvmlDeviceGetMigMode nvmlDeviceGetMaxMigDeviceCount nvmlDeviceIsMigDeviceHandle
	nvmlDeviceGetUtilizationRates nvmlDeviceGetBrand nvmlDeviceGetArchitecture nvmlDeviceGetPersistenceMode
	nvmlDeviceGetVirtualizationMode
	nvmlDeviceGetComputeRunningProcesses nvmlDeviceGetComputeRunningProcesses_v2 nvmlDeviceGetComputeRunningProcesses_v3
	nvmlDeviceGetGraphicsRunningProcesses nvmlDeviceGetGraphicsRunningProcesses_v2 nvmlDeviceGetGraphicsRunningProcesses_v3
	nvmlDeviceGetMPSComputeRunningProcesses nvmlDeviceGetMPSComputeRunningProcesses_v2 nvmlDeviceGetMPSComputeRunningProcesses_v3
	nvmlDeviceGetEccMode nvmlDeviceGetTotalEccErrors nvmlDeviceGetRemappedRows nvmlDeviceGetRetiredPagesPendingStatus
	nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetFieldValues
	nvmlEventSetCreate nvmlEventSetFree nvmlEventSetWait nvmlEventSetWait_v2
	nvmlDeviceRegisterEvents nvmlDeviceGetSupportedEventTypes
	nvmlDeviceGetTemperature nvmlDeviceGetTemperatureV nvmlDeviceGetTemperatureThreshold
	nvmlDeviceGetClock nvmlDeviceGetClockInfo nvmlDeviceGetMaxClockInfo nvmlDeviceGetApplicationsClock
	nvmlDeviceGetDefaultApplicationsClock nvmlDeviceGetSupportedMemoryClocks nvmlDeviceGetSupportedGraphicsClocks
	nvmlDeviceGetPerformanceState nvmlDeviceGetPowerState nvmlDeviceGetPowerUsage nvmlDeviceGetPowerManagementMode
	nvmlDeviceGetPowerManagementLimit nvmlDeviceGetPowerManagementDefaultLimit nvmlDeviceGetPowerManagementLimitConstraints
	nvmlDeviceGetEnforcedPowerLimit nvmlDeviceGetTotalEnergyConsumption nvmlDeviceGetNumFans
	nvmlDeviceGetPcieThroughput nvmlDeviceGetPcieReplayCounter nvmlDeviceGetCurrPcieLinkGeneration
	nvmlDeviceGetCurrPcieLinkWidth nvmlDeviceGetMaxPcieLinkGeneration nvmlDeviceGetMaxPcieLinkWidth
	nvmlDeviceGetGpuMaxPcieLinkGeneration nvmlDeviceGetPcieLinkMaxSpeed nvmlDeviceGetPcieSpeed
	nvmlDeviceGetEncoderUtilization nvmlDeviceGetDecoderUtilization nvmlDeviceGetJpgUtilization nvmlDeviceGetOfaUtilization
	nvmlDeviceGetSupportedClocksEventReasons nvmlDeviceGetSupportedClocksThrottleReasons
	nvmlDeviceGetVbiosVersion nvmlDeviceGetBoardPartNumber nvmlDeviceGetBoardId nvmlDeviceGetMultiGpuBoard
	nvmlDeviceGetInforomImageVersion nvmlDeviceGetInforomVersion nvmlDeviceGetBusType nvmlDeviceGetMemoryBusWidth
	nvmlDeviceGetNumGpuCores nvmlDeviceGetDisplayActive nvmlDeviceGetDisplayMode nvmlDeviceGetBAR1MemoryInfo
	nvmlDeviceGetAccountingMode nvmlDeviceGetAccountingBufferSize nvmlDeviceGetAccountingPids nvmlDeviceGetDefaultEccMode
	nvmlDeviceGetHandleBySerial nvmlDeviceGetMigDeviceHandleByIndex nvmlDeviceGetMemoryErrorCounter
	nvmlDeviceGetDetailedEccErrors nvmlDeviceGetRetiredPages nvmlDeviceGetRetiredPages_v2 nvmlDeviceGetRowRemapperHistogram
	nvmlDeviceGetProcessUtilization nvmlDeviceGetPciInfoExt nvmlDeviceGetAddressingMode
	nvmlDeviceGetTopologyCommonAncestor nvmlDeviceGetTopologyNearestGpus nvmlDeviceGetP2PStatus
	nvmlDeviceGetCpuAffinity nvmlDeviceGetCpuAffinityWithinScope nvmlDeviceGetMemoryAffinity nvmlDeviceOnSameBoard
	nvmlSystemGetTopologyGpuSet nvmlSystemGetHicVersion nvmlSystemGetDriverBranch nvmlUnitGetCount`)

// nvmlDefines are the constants that are preprocessor symbols in nvml.h.
var nvmlDefines = regexp.MustCompile(`(?m)^\s*#define\s+(NVML_DEVICE_ARCH_AMPERE|NVML_BUS_TYPE_PCIE|nvmlEventTypeXidCriticalError|nvmlEventTypeAll|nvmlEventTypeNone|nvmlEventTypeSingleBitEccError|nvmlEventTypeDoubleBitEccError|NVML_FI_DEV_(?:GET_GPU_RECOVERY_ACTION|ECC_CURRENT|ECC_PENDING|TOTAL_ENERGY_CONSUMPTION|NVLINK_LINK_COUNT|PCIE_REPLAY_COUNTER|POWER_INSTANT|POWER_CURRENT_LIMIT|ENERGY))\s+([0-9a-fx]+L*)`)

var identifier = regexp.MustCompile(`\bnvml\w+`)

// genNVML writes nvml_abi.h (the types, values and prototypes that the listed
// functions need) and names.inc (every exported name) into the folder out.
func genNVML(header, names, out string) error {
	raw, err := os.ReadFile(header)
	if err != nil {
		return err
	}
	// The preprocessor drops comments and resolves array sizes.
	cmd := exec.Command("cc", "-E", "-P", "-DNVML_NO_UNVERSIONED_FUNC_DEFS", "-D__attribute__(x)=", "-x", "c", header)
	cmd.Stderr = os.Stderr
	src, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("failed to preprocess %s: %w", header, err)
	}
	decls := topLevel(string(src))
	byName := map[string]int{}
	for i, d := range decls {
		for _, name := range declares(d) {
			if _, ok := byName[name]; !ok {
				byName[name] = i
			}
		}
	}
	need := map[int]bool{}
	var want func(name string)
	want = func(name string) {
		i, ok := byName[name]
		if !ok || need[i] {
			return
		}
		need[i] = true
		for _, id := range identifier.FindAllString(decls[i], -1) {
			want(id)
		}
	}
	for _, f := range nvmlFunctions {
		if _, ok := byName[f]; !ok {
			return fmt.Errorf("%s: no prototype of %s", header, f)
		}
		want(f)
	}
	var b strings.Builder
	b.WriteString(generated + "#ifndef SIMGPU_NVML_ABI_H\n#define SIMGPU_NVML_ABI_H\n\n")
	seen := map[string]bool{}
	for _, m := range nvmlDefines.FindAllStringSubmatch(string(raw), -1) {
		if !seen[m[1]] {
			fmt.Fprintf(&b, "#define %s %s\n", m[1], m[2])
		}
		seen[m[1]] = true
	}
	b.WriteString("\n")
	for i, d := range decls {
		if need[i] {
			b.WriteString(layout(d) + "\n")
		}
	}
	b.WriteString("\n#endif\n")
	if err := os.WriteFile(filepath.Join(out, "nvml_abi.h"), []byte(b.String()), 0o644); err != nil {
		return err
	}
	return writeNames(names, filepath.Join(out, "names.inc"))
}

func writeNames(names, out string) error {
	list, err := os.ReadFile(names)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(generated + "/* X(name) */\n")
	// A plain list, or what this wrote before.
	for _, name := range regexp.MustCompile(`(?m)^(?:X\()?(nvml\w+)\)?$`).FindAllStringSubmatch(string(list), -1) {
		fmt.Fprintf(&b, "X(%s)\n", name[1])
	}
	return os.WriteFile(out, []byte(b.String()), 0o644)
}

// topLevel splits preprocessed C into its declarations.
func topLevel(src string) []string {
	var decls []string
	depth, start := 0, 0
	for i, c := range src {
		switch c {
		case '{':
			depth++
		case '}':
			depth--
		case ';':
			if depth == 0 {
				decls = append(decls, strings.Join(strings.Fields(src[start:i+1]), " "))
				start = i + 1
			}
		}
	}
	return decls
}

var (
	prototype = regexp.MustCompile(`^(?:const char\s*\*|nvmlReturn_t)\s*(\w+)\s*\(`)
	typedefed = regexp.MustCompile(`(\w+);$`)
	tagged    = regexp.MustCompile(`^(?:typedef )?(?:struct|union|enum) (\w+)`)
)

// declares returns the names that a declaration brings.
func declares(d string) []string {
	if m := prototype.FindStringSubmatch(d); m != nil {
		return []string{m[1]}
	}
	var names []string
	if m := tagged.FindStringSubmatch(d); m != nil && strings.Contains(d, "{") {
		names = append(names, m[1])
	}
	if m := typedefed.FindStringSubmatch(d); m != nil && strings.HasPrefix(d, "typedef") {
		names = append(names, m[1])
	}
	return names
}

// layout puts the members of a declaration on lines of their own.
func layout(d string) string {
	open, end := strings.Index(d, "{"), strings.LastIndex(d, "}")
	if open < 0 {
		return strings.ReplaceAll(d, "()", "(void)")
	}
	sep := ";"
	if strings.Contains(d[:open], "enum") {
		sep = ","
	}
	var b strings.Builder
	b.WriteString(d[:open] + "{\n")
	for _, m := range strings.Split(d[open+1:end], sep) {
		if m = strings.TrimSpace(m); m != "" {
			b.WriteString("\t" + m + sep + "\n")
		}
	}
	return b.String() + "}" + d[end+1:]
}
