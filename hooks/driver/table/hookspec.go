// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strings"
)

// A hook is what stands around the call of the real function. In before and
// after, $0, $1 ... are the parameters, $s the stream (or NULL), $d what a NULL
// stream means for this name, and r the result.
type hook struct {
	// names that it applies to: base names, or a full name where versions differ.
	pattern       *regexp.Regexp
	before, after string
	// whole replaces the generated body: a C function that gets the real
	// function, the caller's address and the parameters.
	whole string
}

func around(pattern, before, after string) hook {
	return hook{pattern: regexp.MustCompile("^(?:" + pattern + ")$"), before: before, after: after}
}

func whole(pattern, function string) hook {
	return hook{pattern: regexp.MustCompile("^(?:" + pattern + ")$"), whole: function}
}

const workEnd = "vgpu_work_end(&call, r);"

// special hooks, first match wins; a row of class work that none of them takes
// gets workHook.
var special = []hook{
	whole("cuInit", "vgpu_init"),
	whole("cuGetProcAddress(?:_v2|_v2_ptsz)?", ""), // the name itself picks the function

	// Memory: what is charged (memory.h). Whole functions, since an allocation
	// may end before the driver is asked, and after it.
	whole("cuMemAlloc_v2", "vgpu_mem_alloc"),
	whole("cuMemAlloc", "vgpu_mem_alloc_v1"),
	whole("cuMemAllocManaged", "vgpu_mem_alloc_managed"),
	whole("cuMemAllocPitch_v2", "vgpu_mem_alloc_pitch"),
	whole("cuMemAllocPitch", "vgpu_mem_alloc_pitch_v1"),
	whole("cuMemFree_v2", "vgpu_mem_free"),
	whole("cuMemFree", "vgpu_mem_free_v1"),
	whole("cuMemAllocAsync_ptsz", "vgpu_mem_alloc_async_ptsz"),
	whole("cuMemAllocAsync", "vgpu_mem_alloc_async"),
	whole("cuMemAllocFromPoolAsync_ptsz", "vgpu_mem_alloc_from_pool_ptsz"),
	whole("cuMemAllocFromPoolAsync", "vgpu_mem_alloc_from_pool"),
	whole("cuMemFreeAsync_ptsz", "vgpu_mem_free_async_ptsz"),
	whole("cuMemFreeAsync", "vgpu_mem_free_async"),
	whole("cuMemPoolCreate", "vgpu_mem_pool_create"),
	whole("cuMemPoolDestroy", "vgpu_mem_pool_destroy"),
	around("cuMemGetDefaultMemPool|cuMemGetMemPool", "vgpu_nested_begin(&call);", "vgpu_pool_told(&call, r, $1, $2);"),
	around("cuMemPoolTrimTo|cuDeviceGraphMemTrim", "vgpu_nested_begin(&call);", "vgpu_pool_trimmed(&call);"),
	whole("cuMemCreate", "vgpu_mem_create"),
	whole("cuMemRelease", "vgpu_mem_release"),
	whole("cuMemMap", "vgpu_mem_map"),
	whole("cuMemUnmap", "vgpu_mem_unmap"),
	whole("cuMemRetainAllocationHandle", "vgpu_mem_retain"),
	whole("cuMemImportFromShareableHandle", "vgpu_mem_import"),
	whole("cuArrayCreate_v2", "vgpu_array_create"),
	whole("cuArrayCreate", "vgpu_array_create_v1"),
	whole("cuArray3DCreate_v2", "vgpu_array3d_create"),
	whole("cuArray3DCreate", "vgpu_array3d_create_v1"),
	whole("cuArrayDestroy", "vgpu_array_destroy"),
	whole("cuMipmappedArrayCreate", "vgpu_mipmap_create"),
	whole("cuMipmappedArrayDestroy", "vgpu_mipmap_destroy"),
	whole("cuMemGetInfo_v2", "vgpu_mem_get_info"),
	whole("cuMemGetInfo", "vgpu_mem_get_info_v1"),
	whole("cuDeviceTotalMem_v2", "vgpu_total_mem"),
	whole("cuDeviceTotalMem", "vgpu_total_mem_v1"),
	whole("cuDeviceGetName", "vgpu_device_name"),
	around("cuGraphAddMemAllocNode", "vgpu_nested_begin(&call);", "vgpu_graph_alloc_end(&call, r, $4);"),
	around("cuGraphLaunch|cuGraphUpload", "if (vgpu_graph_memory_full())\n\t\treturn CUDA_ERROR_OUT_OF_MEMORY;\n\tvgpu_work_begin(&call, $s, $d);",
		workEnd+"\n\tvgpu_graph_memory_launched();"),
	// ... and what makes the driver itself use more, or less.
	around("cuCtxCreate", "vgpu_nested_begin(&call);", "vgpu_context_made(&call, r, $last);"),
	around("cuGreenCtxCreate", "vgpu_nested_begin(&call);", "vgpu_green_made(&call, r, $2);"),
	around("cuModuleLoad|cuModuleLoadData|cuModuleLoadDataEx|cuModuleLoadFatBinary|cuModuleUnload",
		"vgpu_nested_begin(&call);", "vgpu_module_changed(&call, r);"),
	around("cuLibraryLoadData|cuLibraryLoadFromFile|cuLibraryUnload", "vgpu_nested_begin(&call);", "vgpu_library_changed(&call, r);"),

	// Work whose stream is not a parameter.
	around("cuLaunchKernelEx", "vgpu_launch_ex_begin(&call, $0, $d);", workEnd),
	around("cuLaunchCooperativeKernelMultiDevice", "vgpu_launch_multi_begin(&call);", "vgpu_launch_multi_end(&call, r, $0, $1);"),
	around("cuGraphInstantiateWithParams", "vgpu_instantiate_begin(&call, $2, $d);", workEnd+"\n\tvgpu_graph_memory_launched();"),
	// Copies to the host that have happened once the call returns. Without a
	// byte the driver need not wait; nor for what 2D and 3D copies may mean
	// (host to host, unified memory): those prove nothing.
	around("cuMemcpyDtoH|cuMemcpyAtoH", "vgpu_copy_begin(&call, $d, $last);", "vgpu_copy_end(&call, r);"),

	// Calls that, once they returned, prove something complete.
	around("cuStreamSynchronize|cuStreamQuery", "vgpu_sync_stream_begin(&call, $0, $d);", "vgpu_sync_end(&call, r);"),
	around("cuEventSynchronize|cuEventQuery", "vgpu_sync_event_begin(&call, $0);", "vgpu_sync_event_end(&call, r, $0);"),
	around("cuCtxSynchronize", "vgpu_sync_context_begin(&call, NULL);", "vgpu_sync_context_end(&call, r);"),
	around("cuCtxSynchronize_v2", "vgpu_sync_context_begin(&call, $0);", "vgpu_sync_context_end(&call, r);"),

	// Events: what a stream had submitted when one was recorded.
	around("cuEventRecord|cuEventRecordWithFlags", "vgpu_event_record_begin(&call, $0, $1, $d);", "vgpu_event_record_end(&call, r, $0);"),
	around("cuCtxRecordEvent|cuGreenCtxRecordEvent", "vgpu_event_elsewhere_begin(&call, $1);", "vgpu_event_record_end(&call, r, $1);"),
	around("cuEventDestroy", "vgpu_event_destroy_begin(&call, $0);", "vgpu_event_other_end(&call);"),
	// ... and events that may be recorded where no hook sees it.
	around("cuIpcGetEventHandle", "vgpu_event_shared_begin(&call, $1);", "vgpu_event_other_end(&call);"),
	around("cuIpcOpenEventHandle", "vgpu_nested_begin(&call);", "vgpu_event_opened_end(&call, r, $0);"),
	around("cuGraphAddEventRecordNode", "vgpu_event_shared_begin(&call, $4);", "vgpu_event_other_end(&call);"),
	around("cuGraphEventRecordNodeSetEvent", "vgpu_event_shared_begin(&call, $1);", "vgpu_event_other_end(&call);"),
	around("cuGraphExecEventRecordNodeSetEvent", "vgpu_event_shared_begin(&call, $2);", "vgpu_event_other_end(&call);"),
	around("cuGraphAddNode(?:_v[0-9]+)?", "vgpu_event_in_node_begin(&call, $last);", "vgpu_graph_node_end(r, $last);\n\tvgpu_event_other_end(&call);"),
	around("cuGraphNodeSetParams(?:_v[0-9]+)?|cuGraphExecNodeSetParams(?:_v[0-9]+)?",
		"vgpu_event_in_node_begin(&call, $last);", "vgpu_event_other_end(&call);"),

	// Streams, captures and contexts: what the library's thread must not touch.
	around("cuStreamDestroy", "vgpu_stream_destroy_begin(&call, $0);", "vgpu_stream_destroy_end(&call, r);"),
	around("cuStreamWaitEvent", "vgpu_stream_wait_begin(&call, $0, $d);", "vgpu_stream_wait_end(&call);"),
	around("cuStreamBeginCapture.*|cuStreamBeginRecapture.*", "vgpu_capture_begin_begin(&call, $0, $d);", "vgpu_capture_begin_end(&call, r);"),
	around("cuStreamEndCapture.*", "vgpu_capture_end_begin(&call, $0, $d);", "vgpu_capture_end_end(&call, r);"),
	around("cuCtxDestroy", "vgpu_context_destroy_begin(&call, $0);", "vgpu_context_destroy_end(&call, r);"),
	around("cuGreenCtxDestroy", "vgpu_green_destroy_begin(&call, $0);", "vgpu_green_destroy_end(&call, r);"),
	around("cuCtxAttach", "vgpu_context_attach_begin(&call);", "vgpu_context_attach_end(&call, r, $0);"),
	around("cuCtxDetach", "vgpu_context_detach_begin(&call, $0);", "vgpu_context_detach_end(&call, r, $0);"),
	around("cuDevicePrimaryCtxRetain", "vgpu_primary_retain_begin(&call, $1);", "vgpu_primary_retain_end(&call, r, $0, $1);"),
	around("cuDevicePrimaryCtxRelease", "vgpu_primary_release_begin(&call, $0);", "vgpu_primary_release_end(&call, r, $0);"),
	around("cuDevicePrimaryCtxReset", "vgpu_primary_reset_begin(&call, $0);", "vgpu_primary_reset_end(&call, r);"),
}

var workHook = around(".*", "vgpu_work_begin(&call, $s, $d);", workEnd)

// hookOf returns the hook of a row, or nil when the row passes straight through.
// The name without its flavour is tried before the base name, so that versions
// with other parameters can have hooks of their own.
func hookOf(r Row) *hook {
	if !r.known() {
		return nil
	}
	full := flavourSuffix.ReplaceAllString(r.Name, "")
	for _, name := range []string{r.Name, full, r.Base} {
		for i := range special {
			if special[i].pattern.MatchString(name) && (name != r.Base || name == full || !hasOwn(full)) {
				return &special[i]
			}
		}
	}
	if r.Class == "work" {
		return &workHook
	}
	return nil
}

func hasOwn(full string) bool {
	for i := range special {
		if special[i].pattern.MatchString(full) {
			return true
		}
	}
	return false
}

func (h *hook) expand(text string, r Row) string {
	args := r.argNames()
	var pairs []string
	for i := len(args) - 1; i >= 0; i-- {
		pairs = append(pairs, fmt.Sprintf("$%d", i), args[i])
	}
	stream := "NULL"
	if r.Stream >= 0 {
		stream = args[r.Stream]
	}
	d := "VGPU_LEGACY"
	if r.Flavour != "" {
		d = "VGPU_PER_THREAD"
	}
	if len(args) > 0 {
		pairs = append(pairs, "$last", args[len(args)-1])
	}
	pairs = append(pairs, "$s", stream, "$d", d)
	return strings.NewReplacer(pairs...).Replace(text)
}
