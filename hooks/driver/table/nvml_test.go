// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// nvmlRowsOf reads the committed table.
func nvmlRowsOf(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile("../nvml/nvml.tsv")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if name, class, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok && !strings.HasPrefix(line, "#") {
			rows[name] = class
		}
	}
	return rows
}

func TestNVMLClassesOfTheTableFollowFromTheRules(t *testing.T) {
	for name, class := range nvmlRowsOf(t) {
		if got := nvmlClass(name); got != class {
			t.Errorf("%s is %s in the table, %s by the rules", name, class, got)
		}
	}
}

func TestNVMLClass(t *testing.T) {
	for name, want := range map[string]string{
		"nvmlInit_v2":                      nvmlOurs,
		"nvmlDeviceGetMemoryInfo_v2":       nvmlOurs,
		"nvmlDeviceGetUUID":                nvmlPass,
		"nvmlDeviceGetPciInfo_v3":          nvmlPass,
		"nvmlDeviceGetTotalEccErrors":      nvmlPass,
		"nvmlInternalGetExportTable":       nvmlPass,
		"nvmlDeviceSetCpuAffinity":         nvmlPass, // of the calling thread
		"nvmlDeviceClearCpuAffinity":       nvmlPass,
		"nvmlDeviceResetGpuLockedClocks":   nvmlChange,
		"nvmlDeviceSetSomethingNew_v7":     nvmlChange,
		"nvmlVgpuInstanceSetLicense":       nvmlChange,
		"nvmlSettingsGet":                  nvmlPass, // no such verb
		"nvmlDeviceGetSettings":            nvmlPass,
		"nvmlDeviceGetAccountingPids":      nvmlHidden,
		"nvmlDeviceGetProcessUtilization":  nvmlHidden,
		"nvmlGpmMigSampleGet":              nvmlHidden,
		"nvmlGpmSampleAlloc":               nvmlPass,
		"nvmlDeviceGetTopologyNearestGpus": nvmlOurs,
		// Virtual machines of NVIDIA's vGPU, by a number that names no device.
		"nvmlVgpuInstanceGetFbUsage":                  nvmlHidden,
		"nvmlVgpuInstanceGetAccountingStats":          nvmlHidden,
		"nvmlDeviceGetActiveVgpus":                    nvmlHidden,
		"nvmlGpuInstanceGetActiveVgpus":               nvmlHidden,
		"nvmlDeviceGetVgpuSchedulerLog_v2":            nvmlHidden,
		"nvmlGpuInstanceGetVgpuSchedulerLog":          nvmlHidden,
		"nvmlVgpuTypeGetName":                         nvmlPass,
		"nvmlDeviceGetEncoderStats":                   nvmlHidden, // as its sessions
		"nvmlDeviceGetFBCStats":                       nvmlHidden,
		"nvmlDeviceGetMemoryLimits_v1":                nvmlHidden, // and use, of any cgroup
		"nvmlSystemGetCPER_v1":                        nvmlHidden, // of all GPUs
		"nvmlSystemRegisterEvents":                    nvmlHidden,
		"nvmlSystemEventSetWait":                      nvmlHidden,
		"nvmlEventSetWait_v2":                         nvmlPass,
		"nvmlGetExcludedDeviceInfoByIndex":            nvmlHidden,
		"nvmlEventSetRegisterGpuOperationalEvents_v1": nvmlHidden, // by any UUID
	} {
		if got := nvmlClass(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// A name with a verb that nobody has judged is not to pass unseen.
func TestWhatPassesOnlyLooks(t *testing.T) {
	looks := regexp.MustCompile(`Get|Is|OnSameBoard|Query|Validate|Register|ReadPRMCounters|EventSet|GpmSample(Alloc|Free)|ErrorString|CpuAffinity`)
	for name, class := range nvmlRowsOf(t) {
		if class == nvmlPass && !looks.MatchString(name) {
			t.Errorf("%s passes", name)
		}
	}
}

func TestNVMLReadsAHeader(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	header := write("nvml.h", `
typedef struct { struct nvmlDevice_st *handle; } nvmlDevice_t;
typedef enum nvmlReturn_enum { NVML_SUCCESS = 0, NVML_ERROR = 1 } nvmlReturn_t;
typedef struct { int x; } nvmlUnused_t;
typedef enum { NVML_PROCESS_MODE_COMPUTE = 0 } nvmlProcessMode_t;
__attribute__((deprecated)) nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index);
nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, nvmlUnused_t *speed);
`)
	names := write("names", "nvmlShutdown\nnvmlOld\n")
	if err := nvml("cc", header, names, dir); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if tsv := read("nvml.tsv"); !strings.HasSuffix(tsv, "# name\tclass\nnvmlDeviceGetFanSpeed\tpass\nnvmlDeviceGetIndex\tours\nnvmlOld\tpass\nnvmlShutdown\tours\n") {
		t.Errorf("table:\n%s", tsv)
	}
	abi := read("nvml_abi.h")
	for say, want := range map[string]bool{
		"nvmlReturn_t nvmlShutdown(void);": true, "} nvmlDevice_t;": true, "NVML_ERROR = 1": true,
		"nvmlUnused_t": false, "GetFanSpeed": false, // nothing of ours needs them
	} {
		if strings.Contains(abi, say) != want {
			t.Errorf("%q in the header is %v:\n%s", say, !want, abi)
		}
	}
	if s := read("gen/trampolines.inc"); !strings.Contains(s, "VGPU_ENTRY nvmlOld, 2\n") || strings.Contains(s, "VGPU_ENTRY nvmlShutdown") {
		t.Errorf("trampolines:\n%s", s)
	}
	if err := nvml("cc", header, write("names", "nvmlDeviceGetName\n"), dir); err == nil || !strings.Contains(err.Error(), "no prototype of nvmlDeviceGetName") {
		t.Errorf("a function of ours without a prototype: %v", err)
	}
	if err := nvml("cc", header, write("names", "printf\n"), dir); err == nil || !strings.Contains(err.Error(), "printf") {
		t.Errorf("a strange name: %v", err)
	}
}
