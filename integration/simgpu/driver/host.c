/* SPDX-License-Identifier: Apache-2.0 */
/* Host functions: one thread for all, so they come one after another. */
#define _GNU_SOURCE
#include <stdlib.h>
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

/* Calls that no stream waits for. */
struct call {
	CUhostFn fn;
	void *data;
	struct call *next;
};

static struct call *calls, **calls_end = &calls;

void host_call_locked(CUhostFn fn, void *data)
{
	struct call *c = malloc(sizeof(*c));

	if (!c)
		abort();
	*c = (struct call){ .fn = fn, .data = data };
	*calls_end = c;
	calls_end = &c->next;
	pthread_cond_signal(&more);
}

/* The next of these calls. Lets the mutex go. False: there is none. */
static bool call_one(void)
{
	struct call *c = calls;

	if (!c)
		return false;
	calls = c->next;
	if (!calls)
		calls_end = &calls;
	unlock();
	c->fn(c->data);
	lock();
	free(c);
	return true;
}

void *host_thread(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "simgpu-host");
	self.in_host_function = true;
	lock();
	for (;;) {
		if (call_one())
			continue;
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
