/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host functions: the driver runs them between pieces of a stream's work, and
 * what stands behind them waits. They are the application's, not wrapped, and must
 * not call CUDA. One that does all the same gets the driver's refusal, not a wait
 * at a gate that may be closed until its own stream has drained.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>

#include "driver.h"

bool vgpu_may_wait(void *arg)
{
	CUstreamCaptureStatus status;
	sigset_t all, old;
	CUresult r;
	int cancel;

	(void)arg;
	/* A handler that submits would find its thread nested, and pass; a
	 * cancellation would leave it so. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	vgpu_thread.nested++;
	/* It changes nothing, and may be asked beside any capture. */
	r = VGPU_REAL(cuStreamIsCapturing)(CU_STREAM_LEGACY, &status);
	vgpu_thread.nested--;
	pthread_setcancelstate(cancel, &cancel);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return r != CUDA_ERROR_NOT_PERMITTED;
}
