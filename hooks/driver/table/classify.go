// SPDX-License-Identifier: Apache-2.0

package main

import "regexp"

// A rule gives a class to the base names that match it; the first one wins.
type rule struct {
	class   string
	pattern *regexp.Regexp
}

func names(class, pattern string) rule {
	return rule{class, regexp.MustCompile("^(?:" + pattern + ")$")}
}

// The classes are those of docs/design.md, section 1. "work" is what the gate
// stands in front of; every other class passes through it.
var rules = []rule{
	// Told apart from look-alikes first.
	names("order", "cuLaunchHostFunc|cuStreamAddCallback"),
	names("order", "cuMemAllocAsync|cuMemAllocFromPoolAsync|cuMemFreeAsync"),
	names("other", "cuMemcpy.*GetAttribute.*"),

	names("work", "cuLaunch|cuLaunchGrid|cuLaunchGridAsync|cuLaunchKernel|cuLaunchKernelEx|cuLaunchCooperativeKernel|cuLaunchCooperativeKernelMultiDevice"),
	names("work", "cuLaunch.*"), // a launch that is not known yet is work until somebody decides
	names("work", "cuGraphLaunch|cuGraphUpload"),
	names("work", "cuMemcpy.*|cuMemset[D2].*"),
	names("work", "cuMemPrefetch.*|cuMemDiscard.*Async|cuMemBatchDecompressAsync|cuFabricCpyBatchAsync"),

	names("capture", "cuStreamBeginCapture.*|cuStreamEndCapture.*|cuStreamBeginRecapture.*|cuStreamIsCapturing|cuStreamGetCaptureInfo|cuStreamUpdateCaptureDependencies|cuThreadExchangeStreamCaptureMode"),
	names("sync", "cuCtxSynchronize|cuStreamSynchronize|cuEventSynchronize|cuStreamQuery|cuEventQuery"),
	names("order", "cuEventRecord.*|cuStreamWaitEvent|cuCtxRecordEvent|cuCtxWaitEvent|cuGreenCtxRecordEvent|cuGreenCtxWaitEvent"),
	names("order", "cuStreamWaitValue.*|cuStreamWriteValue.*|cuStreamBatchMemOp|cu(?:Signal|Wait)ExternalSemaphoresAsync"),
	names("order", "cuGraphicsMapResources|cuGraphicsUnmapResources|cuStreamAttachMemAsync|cuMemMapArrayAsync|cuEGLStream.*"),

	names("identity", "cuInit|cuDriverGetVersion|cuDeviceGet|cuDeviceGetCount|cuDeviceGetName|cuDeviceGetUuid|cuDeviceGetLuid|cuDeviceGetPCIBusId|cuDeviceGetByPCIBusId|cuDeviceTotalMem|cuDeviceGetAttribute|cuDeviceGetProperties|cuDeviceComputeCapability|cuDeviceGetP2P.*|cuDeviceCanAccessPeer|cuDeviceGetHostAtomicCapabilities"),
	names("identity", "cuGetProcAddress|cuGetExportTable"),

	names("memory", "cuMem(?:Alloc|Free|Host|Create|Release|Map|Unmap|Address|Pool|Import|Export|Retain|SetAccess|GetInfo).*|cuMulticast.*|cuIpc(?:Open|Close|Get)Mem.*|cuArray3?D?Create|cuArrayDestroy|cuMipmappedArray(?:Create|Destroy)|cuImportExternalMemory|cuExternalMemory.*|cuDestroyExternalMemory|cuGraphAddMem(?:Alloc|Free)Node|cuDevice(?:Get|Set).*MemPool|cuMem(?:Get|Set).*MemPool|cuDeviceGraphMemTrim"),
	names("setup", "cuCtx.*|cuDevicePrimaryCtx.*|cuGreenCtx.*|cuGLCtxCreate|cuVDPAUCtxCreate|cuModule.*|cuLibrary.*|cuKernel.*|cuFunc.*|cuLink.*|cuStreamCreate.*|cuStreamDestroy|cuEventCreate.*|cuEventDestroy|cuGraph.*|cuTexRef.*|cuSurfRef.*|cuTexObject.*|cuSurfObject.*|cuParam.*|cuImportExternalSemaphore|cuDestroyExternalSemaphore|cuUserObject.*|cuCheckpoint.*"),
}

func classify(r Row) string {
	for _, rule := range rules {
		if rule.pattern.MatchString(r.Base) {
			return rule.class
		}
	}
	return "other"
}
