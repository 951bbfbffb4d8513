/* SPDX-License-Identifier: Apache-2.0 */
/* Host functions: one thread for all, so they come one after another. */
#define _GNU_SOURCE
#include <sys/prctl.h>

#include "sim.h"

static struct op *first, *last; /* linked by host_next */
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;

void host_run_locked(struct op *op)
{
	op->running = true;
	op->host_next = NULL;
	if (last)
		last->host_next = op;
	else
		first = op;
	last = op;
	pthread_cond_signal(&more);
}

void *host_thread(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "simgpu-host");
	self.in_host_function = true;
	lock();
	for (;;) {
		struct op *op = first;

		if (!op) {
			pthread_cond_wait(&more, &sim.lock);
			continue;
		}
		first = op->host_next;
		if (!first)
			last = NULL;
		struct host h = op->steps[op->at].host;
		CUresult status = op->stream->ctx->error;
		unlock();
		if (h.callback)
			h.callback(h.handle, status, h.data);
		else
			h.fn(h.data);
		lock();
		step_done_locked(op);
		advance_locked();
	}
	return NULL;
}
