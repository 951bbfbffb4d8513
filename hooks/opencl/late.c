/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A callback never waits: what stands behind it may be what the turn's end waits for.
 * So what it may not let run before there is a grant is made to wait for a user event,
 * which a thread of ours sets once it is through the gate. The thread is started by
 * the first such callback, and sleeps afterwards.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "opencl.h"

struct late {
	struct vgpu_held *user;
	cl_int status;
	struct late *next;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t more;
	bool runs;
	struct late *first, **last;
} late = { .lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER, .last = &late.first };

static void *run(void *unused)
{
	struct late *l;

	(void)unused;
	prctl(PR_SET_NAME, "vgpu-late");
	for (;;) {
		pthread_mutex_lock(&late.lock);
		while (!late.first)
			pthread_cond_wait(&late.more, &late.lock);
		l = late.first;
		late.first = l->next;
		if (!late.first)
			late.last = &late.first;
		pthread_mutex_unlock(&late.lock);
		vgpu_gate_enter();
		vgpu_cl_thread.nested++;
		vgpu_next.clSetUserEventStatus(l->user->event, l->status);
		vgpu_held_resolve(l->user);
		vgpu_cl_thread.nested--;
		vgpu_gate_leave();
		/* Who waits for it may have looked before it was counted. */
		vgpu_notify();
		free(l);
	}
	return NULL;
}

/* With the lock. */
static bool start(void)
{
	sigset_t all, old;
	pthread_t thread;

	if (late.runs)
		return true;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	late.runs = pthread_create(&thread, NULL, run, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return late.runs;
}

bool vgpu_late_set(struct vgpu_held *user, cl_int status)
{
	struct late *l = malloc(sizeof(*l));
	bool ok;

	if (!l)
		return false;
	*l = (struct late){ .user = user, .status = status };
	pthread_mutex_lock(&late.lock);
	ok = start();
	if (ok) {
		*late.last = l;
		late.last = &l->next;
		pthread_cond_signal(&late.more);
	}
	pthread_mutex_unlock(&late.lock);
	if (!ok)
		free(l);
	return ok;
}
