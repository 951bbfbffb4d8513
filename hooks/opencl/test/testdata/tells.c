/* SPDX-License-Identifier: Apache-2.0 */
/* A layer between ours and the implementation, which tells of each flush: PoCL begins
 * work without one. It waits for events in a queue, too: PoCL has no clEnqueueWaitForEvents. */
#include <CL/cl_layer.h>
#include <stdio.h>

static cl_icd_dispatch next, ours;

static cl_int CL_API_CALL tell_flush(cl_command_queue queue)
{
	fprintf(stderr, "flushed\n");
	return next.clFlush(queue);
}

static cl_int CL_API_CALL wait_for_events(cl_command_queue queue, cl_uint n, const cl_event *wait)
{
	return next.clEnqueueBarrierWithWaitList(queue, n, wait, NULL);
}

cl_int CL_API_CALL clGetLayerInfo(cl_layer_info info, size_t size, void *value, size_t *size_ret)
{
	if (info != CL_LAYER_API_VERSION || size < sizeof(cl_layer_api_version))
		return CL_INVALID_VALUE;
	*(cl_layer_api_version *)value = CL_LAYER_API_VERSION_100;
	(void)size_ret;
	return CL_SUCCESS;
}

cl_int CL_API_CALL clInitLayer(cl_uint entries, const cl_icd_dispatch *target, cl_uint *entries_ret, const cl_icd_dispatch **dispatch)
{
	if (entries < sizeof(next) / sizeof(void *))
		return CL_INVALID_VALUE;
	next = ours = *target;
	ours.clFlush = tell_flush;
	ours.clEnqueueWaitForEvents = wait_for_events;
	*entries_ret = sizeof(next) / sizeof(void *);
	*dispatch = &ours;
	return CL_SUCCESS;
}
