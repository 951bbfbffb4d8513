// SPDX-License-Identifier: Apache-2.0

package source

// xid is one of the driver's error messages.
type xid struct {
	name string
	// critical: the GPU is of no use until it is reset or the node is started
	// anew. Others come from an application, or the driver has dealt with them.
	critical bool
}

// xids are NVIDIA's Xids, from its catalogue for Ampere and newer
// (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html).
//
// Critical are those whose immediate action there is RESET_GPU or RESTART_BM
// (48, "WORKFLOW_XID_48": reset, also alone), and 74, of which it says that a
// reset or a restart is needed to clear it. Not critical are those with
// RESTART_APP or IGNORE, and those that the message's further numbers, which
// NVML does not tell, decide about (144 to 150).
//
// 109 is not critical though the catalogue says RESET_GPU: NVIDIA's device
// plugin (k8s-device-plugin, internal/rm/health.go) and its DRA driver count it,
// with 13, 31, 43, 45 and 68, among the application's errors, "the GPU should
// still be healthy". A driver from R565 on says itself when a GPU must be reset
// (Xid 154; see reading.recovery), and that is asked for after each Xid. For the
// same reason an Xid that is not in this table is told and takes nothing down.
var xids = map[uint64]xid{
	8:   {name: "GPU stopped processing"},
	11:  {name: "invalid or corrupted push buffer stream"},
	13:  {name: "graphics engine exception"},
	14:  {name: "injected error"},
	25:  {name: "invalid or illegal push buffer stream"},
	31:  {name: "GPU memory page fault"},
	32:  {name: "invalid or corrupted push buffer stream"},
	37:  {name: "driver firmware error"},
	38:  {name: "driver firmware error"},
	39:  {name: "copy engine exception"},
	40:  {name: "copy engine exception"},
	41:  {name: "copy engine exception"},
	43:  {name: "GPU stopped processing, the application has failed"},
	44:  {name: "graphics engine fault during context switch"},
	45:  {name: "preemptive cleanup of an application"},
	46:  {name: "GPU stopped processing", critical: true},
	48:  {name: "double bit ECC error", critical: true},
	60:  {name: "video processor exception"},
	62:  {name: "internal micro-controller halt", critical: true},
	63:  {name: "memory row remapped or page retired"},
	64:  {name: "memory row could not be remapped or page not retired", critical: true},
	66:  {name: "illegal access by driver"},
	67:  {name: "illegal access by driver"},
	68:  {name: "video decoder exception"},
	69:  {name: "graphics engine class error"},
	74:  {name: "NVLink error", critical: true},
	79:  {name: "GPU has fallen off the bus", critical: true},
	80:  {name: "corrupted data sent to GPU"},
	92:  {name: "high single-bit ECC error rate"},
	93:  {name: "InfoROM erase limit exceeded"},
	94:  {name: "contained memory error"},
	95:  {name: "uncontained memory error", critical: true},
	109: {name: "context switch timeout"},
	110: {name: "security fault", critical: true},
	119: {name: "GSP RPC timeout", critical: true},
	120: {name: "GSP error", critical: true},
	121: {name: "corrected C2C link error"},
	136: {name: "link training failed", critical: true},
	137: {name: "NVLink privilege error"},
	140: {name: "unrecovered ECC error", critical: true},
	141: {name: "CUDA fast path error"},
	143: {name: "GPU initialization error", critical: true},
	144: {name: "NVLink SAW error"},
	145: {name: "NVLink RLW error"},
	146: {name: "NVLink TLW error"},
	147: {name: "NVLink TREX error"},
	148: {name: "NVLink NVLPW_CTRL error"},
	149: {name: "NVLink NETIR error"},
	150: {name: "NVLink MSE error"},
	154: {name: "GPU recovery action changed"},
	155: {name: "NVLink software-defined error", critical: true},
	156: {name: "resource retirement", critical: true},
	157: {name: "resource retirement failure"},
	158: {name: "GPU fatal timeout", critical: true},
	160: {name: "channel retirement"},
	161: {name: "channel retirement failure"},
	171: {name: "uncorrectable DRAM error"},
	172: {name: "uncorrectable SRAM error"},
}
