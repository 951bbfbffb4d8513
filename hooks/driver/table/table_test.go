// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func rows(t *testing.T) map[string]Row {
	t.Helper()
	list, err := readTable("../cuda.tsv")
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]Row{}
	for _, r := range list {
		m[r.Name] = r
	}
	return m
}

func TestCommittedFilesFollowFromTheTable(t *testing.T) {
	dir := t.TempDir()
	exports := filepath.Join(dir, "exports")
	if err := os.MkdirAll(filepath.Join(exports, "driver"), 0o755); err != nil {
		t.Fatal(err)
	}
	docs := filepath.Join(dir, "docs")
	if err := os.Mkdir(docs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := hooks("../cuda.tsv", filepath.Join(dir, "gen"), exports, filepath.Join(docs, "cuda-coverage.md")); err != nil {
		t.Fatal(err)
	}
	for made, committed := range map[string]string{
		"gen": "../gen", "exports": "../../../integration/simgpu", "exports/driver": "../../../integration/simgpu/driver", "docs": "../../../docs",
	} {
		entries, err := os.ReadDir(filepath.Join(dir, made))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() {
				continue
			}
			want, err := os.ReadFile(filepath.Join(dir, made, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(committed, e.Name()))
			if err != nil || string(got) != string(want) {
				t.Errorf("%s/%s is not current: run make generate (%v)", committed, e.Name(), err)
			}
		}
	}
}

func TestClassesOfTheTableFollowFromTheRules(t *testing.T) {
	for name, r := range rows(t) {
		if got := classify(r); got != r.Class {
			t.Errorf("%s is %s in the table, %s by the rules", name, r.Class, got)
		}
	}
}

func TestClass(t *testing.T) {
	all := rows(t)
	for name, want := range map[string]string{
		"cuLaunchKernel": "work", "cuLaunchKernelEx_ptsz": "work", "cuLaunchCooperativeKernelMultiDevice": "work",
		"cuLaunch": "work", "cuLaunchGridAsync": "work", "cuGraphLaunch_ptsz": "work", "cuGraphUpload": "work",
		"cuMemcpyHtoD": "work", "cuMemcpyHtoD_v2_ptds": "work", "cuMemcpy3DBatchAsync_v2_ptsz": "work",
		"cuMemcpyPeerAsync": "work", "cuMemsetD2D32_v2": "work", "cuMemPrefetchAsync_v2": "work",
		"cuMemPrefetchBatchAsync": "work", "cuMemBatchDecompressAsync": "work",
		"cuLaunchHostFunc": "order", "cuStreamAddCallback": "order", "cuEventRecord_ptsz": "order", "cuStreamWaitEvent": "order",
		"cuStreamWaitValue32_v2": "order", "cuMemAllocAsync": "order", "cuMemFreeAsync_ptsz": "order",
		"cuStreamQuery": "sync", "cuCtxSynchronize_v2": "sync", "cuStreamBeginCapture_v2": "capture", "cuStreamIsCapturing": "capture",
		"cuInit": "identity", "cuDeviceGetUuid_v2": "identity", "cuGetProcAddress_v2": "identity",
		"cuMemAlloc_v2": "memory", "cuMemCreate": "memory", "cuArrayCreate_v2": "memory", "cuIpcOpenMemHandle_v2": "memory",
		"cuCtxCreate_v4": "setup", "cuModuleLoadData": "setup", "cuStreamCreate": "setup", "cuGraphAddKernelNode_v2": "setup",
		"cuGraphAddMemcpyNode": "setup", "cuDevicePrimaryCtxRetain": "setup",
		"cuGetErrorString": "other", "cuPointerGetAttribute": "other",
	} {
		if got := all[name].Class; got != want {
			t.Errorf("%s is %q, want %s", name, got, want)
		}
	}
}

// Whatever takes a stream and is work must pass it to the gate, and no work is
// without a hook.
func TestAllWorkIsHooked(t *testing.T) {
	for name, r := range rows(t) {
		if r.Class != "work" {
			continue
		}
		h := hookOf(r)
		if h == nil {
			t.Errorf("%s has no hook", name)
			continue
		}
		text := h.expand(h.before, r) + h.expand(h.after, r)
		if strings.Contains(text, "$") {
			t.Errorf("%s: %q is not fully expanded", name, text)
		}
		if r.Stream >= 0 && !strings.Contains(text, r.argNames()[r.Stream]) {
			t.Errorf("%s: the hook does not see its stream: %q", name, text)
		}
		if (r.Flavour != "") != strings.Contains(text, "VGPU_PER_THREAD") && name != "cuLaunchCooperativeKernelMultiDevice" {
			t.Errorf("%s: wrong default stream in %q", name, text)
		}
	}
}

func TestOnlyPlainCopiesOfSomethingProve(t *testing.T) {
	rows, err := readTable("../cuda.tsv")
	if err != nil {
		t.Fatal(err)
	}
	proving := 0
	for _, r := range rows {
		h := hookOf(r)
		if h == nil || !strings.Contains(h.before, "vgpu_copy_begin") {
			continue
		}
		proving++
		if r.Base != "cuMemcpyDtoH" && r.Base != "cuMemcpyAtoH" {
			t.Errorf("%s proves something, and need not wait", r.Name)
		}
		// The size is the last parameter.
		if args := r.argNames(); args[len(args)-1] != "ByteCount" || !strings.Contains(h.expand(h.before, r), ", ByteCount)") {
			t.Errorf("%s proves something whatever its size: %v", r.Name, args)
		}
	}
	if proving < 4 {
		t.Errorf("only %d names prove something", proving)
	}
}

func TestFetchReadsAHeader(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	h := write("cuda.h", `
#include <stdint.h>
#define CUDA_VERSION 99010
typedef uint64_t cuuint64_t;
typedef enum cudaError_enum { CUDA_SUCCESS = 0, CUDA_ERROR_A = (1 << 4) | 2, CUDA_ERROR_B } CUresult;
typedef enum CUdriverProcAddressQueryResult_enum { CU_OK } CUdriverProcAddressQueryResult;
enum { CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2 };
typedef struct CUstream_st *CUstream; /* a comment; with a semicolon */
typedef struct CUthing_st { int a; union { char b[3]; struct { long c; } d; }; void (*f)(int x, void *y); } CUthing;
#ifdef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_PTSZ(x) x ## _ptsz
#else
#define __CUDA_API_PTSZ(x) x
#endif
#define cuLaunchThing __CUDA_API_PTSZ(cuLaunchThing_v2)
CUresult cuLaunchThing(CUthing *t, const char *const *names, CUstream hStream);
CUresult __attribute__((deprecated)) cuInit(unsigned int Flags);
CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags, CUdriverProcAddressQueryResult *symbolStatus);
`)
	typedefs := write("cudaTypedefs.h", `
typedef CUresult (CUDAAPI *PFN_cuLaunchThing_v2000)(CUthing_v1 *t);
typedef CUresult (CUDAAPI *PFN_cuLaunchThing_v12030)(CUthing *t, const char *const *names, CUstream hStream);
typedef CUresult (CUDAAPI *PFN_cuLaunchThing_v12040_ptsz)(CUthing *t, const char *const *names, CUstream hStream);
`)
	names := write("names.txt", "cuInit\ncuOnlyListed_v3\n")
	tsv, abi := filepath.Join(dir, "cuda.tsv"), filepath.Join(dir, "abi.h")
	if err := fetch(fetchConfig{cc: "cc", header: h, typedefs: typedefs, names: names, tsv: tsv, abi: abi}); err != nil {
		t.Fatal(err)
	}
	list, err := readTable(tsv)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, r := range list {
		got += strings.Join([]string{r.Name, r.Base, r.Class, r.Flavour, strconv.Itoa(r.Since), r.Ret, r.cParams()}, "|") + "\n"
	}
	want := `cuGetProcAddress_v2|cuGetProcAddress|identity||0|CUresult|const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags, CUdriverProcAddressQueryResult *symbolStatus
cuGetProcAddress_v2_ptsz|cuGetProcAddress|identity|ptsz|0|CUresult|const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags, CUdriverProcAddressQueryResult *symbolStatus
cuInit|cuInit|identity||0|CUresult|unsigned int Flags
cuLaunchThing_v2|cuLaunchThing|work||12030|CUresult|CUthing *t, const char * const *names, CUstream hStream
cuLaunchThing_v2_ptsz|cuLaunchThing|work|ptsz|12040|CUresult|CUthing *t, const char * const *names, CUstream hStream
cuOnlyListed_v3|cuOnlyListed|other||0|?|void
`
	if got != want {
		t.Errorf("the table says\n%s\nwant\n%s", got, want)
	}
	text, err := os.ReadFile(abi)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CUDA_ERROR_A = 18,", "CUDA_ERROR_B = 19,", "_Static_assert(sizeof(CUthing) == 24", "#define cuLaunchThing cuLaunchThing_v2"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the header lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "a comment") {
		t.Error("a comment was copied")
	}
}

func TestEveryHookIsExplainedInTheDocument(t *testing.T) {
	counted := 0
	for name, r := range rows(t) {
		if handled(r) == "" {
			t.Errorf("%s: its hook has no words in handling", name)
		}
		for _, c := range classes {
			if c.name == r.Class {
				counted++
			}
		}
		if r.Class == "work" && handled(r) == passes && r.known() {
			t.Errorf("%s is work and passes", name)
		}
	}
	if want := len(rows(t)); counted != want {
		t.Errorf("the document has %d names, the table %d", counted, want)
	}
}
