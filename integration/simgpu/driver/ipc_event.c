/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events in several processes: a page that they share counts the records and says
 * up to which one all is done.
 */
#define _GNU_SOURCE
#include <linux/memfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc.h"
#include "shared_event.h"

#define PAGE 4096
#define LOOK_NS 100000000 /* a wait that nobody wakes looks again */

struct shared_event {
	struct {
		_Atomic uint32_t recorded;
		_Atomic uint32_t done; /* a futex */
	} *page;
	int fd;
	uint64_t id;
	struct shared_event *next;
};

static struct shared_event *events;

static struct shared_event *adopt(int fd)
{
	struct shared_event *s = calloc(1, sizeof(*s));
	void *page = fd < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (!s || page == MAP_FAILED) {
		if (page != MAP_FAILED)
			munmap(page, PAGE);
		if (fd >= 0)
			close(fd);
		free(s);
		return NULL;
	}
	s->page = page;
	s->fd = fd;
	s->id = ++sim.next_id;
	s->next = events;
	events = s;
	return s;
}

struct shared_event *shared_event_new_locked(void)
{
	int fd = (int)syscall(SYS_memfd_create, "simgpu-event", MFD_CLOEXEC);

	if (fd >= 0 && ftruncate(fd, PAGE) < 0) {
		close(fd);
		return NULL;
	}
	return adopt(fd);
}

void shared_event_free_locked(struct shared_event *s)
{
	struct shared_event **p = &events;

	while (*p != s)
		p = &(*p)->next;
	*p = s->next;
	munmap(s->page, PAGE);
	close(s->fd);
	free(s);
}

uint32_t shared_event_record(struct shared_event *s)
{
	return atomic_fetch_add(&s->page->recorded, 1) + 1;
}

/* Numbers go round; a later one may be done before. */
static bool reached(uint32_t done, uint32_t number)
{
	return (int32_t)(done - number) >= 0;
}

void shared_event_done(struct shared_event *s, uint32_t number)
{
	uint32_t seen = atomic_load(&s->page->done);

	while (!reached(seen, number) && !atomic_compare_exchange_weak(&s->page->done, &seen, number))
		;
	sim_futex_wake(&s->page->done, UINT32_MAX);
}

uint32_t shared_event_last(const struct shared_event *s)
{
	return atomic_load(&s->page->recorded);
}

bool shared_event_is_done(const struct shared_event *s, uint32_t number)
{
	return reached(atomic_load(&s->page->done), number);
}

void shared_event_wait_locked(struct shared_event *s)
{
	uint32_t number = shared_event_last(s);

	for (;;) {
		uint32_t seen = atomic_load(&s->page->done);

		if (reached(seen, number))
			return;
		unlock();
		sim_futex_wait(&s->page->done, seen, UINT32_MAX, clock_ns() + LOOK_NS);
		lock();
	}
}

bool ipc_event_locked(const struct ipc_handle *h, int *fd)
{
	for (const struct shared_event *s = events; s; s = s->next)
		if (s->id == h->id) {
			*fd = s->fd;
			return true;
		}
	return false;
}

EXPORT CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent h)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	const struct event *e = handle_get_locked(h, KIND_EVENT);
	if (!e)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (!out || !e->shared)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (!ipc_serve_locked())
		return leave(CUDA_ERROR_OPERATING_SYSTEM);
	ipc_handle_make(out, IPC_EVENT, e->shared->id, 0);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle)
{
	struct context *ctx;
	struct ipc_handle h;
	struct ipc_answer answer;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	if (!out || !ipc_handle_read(&handle, IPC_EVENT, &h))
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (h.proc == sim.mc.id)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	unlock();
	int fd = ipc_ask(&h, &answer);
	lock();
	if (fd < 0)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	struct shared_event *s = adopt(fd);
	if (!s)
		return leave(CUDA_ERROR_MAP_FAILED);
	struct event *e = event_new_locked(ctx, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, s);
	if (!e) {
		shared_event_free_locked(s);
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	}
	*out = (CUevent)e;
	return leave(CUDA_SUCCESS);
}
