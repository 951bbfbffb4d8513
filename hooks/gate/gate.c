/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The grant word, as the client changes it:
 *
 *   OPEN(e)    -> CLOSING(e)  somebody thinks that nothing is in flight
 *   CLOSING(e) -> IDLE(e)     gate, waiting, in flight were 0, read in this order
 *   CLOSING(e) -> OPEN(e)     they were not
 *   IDLE(e)    -> OPEN(e)     new work: reclaimed without a message
 *   DRAINING(e)-> CLOSED(e)   thread.c, after a revoke
 *
 * While vgpud is away thread.c also makes, for this process alone, some of the
 * changes that are vgpud's.
 *
 * Every change is a compare-and-swap of state and epoch; one that fails means
 * that vgpud was quicker, and its state stands.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "atomic.h"
#include "internal.h"
#include "tls.h"

struct gate vgpu_gate = {
	.sock = -1,
	.page_fd = -1,
	.stop_fd = -1,
	.look_fd = -1,
	.bind_turn = PTHREAD_MUTEX_INITIALIZER,
	.bind_lock = PTHREAD_MUTEX_INITIALIZER,
	.bind_done = PTHREAD_COND_INITIALIZER,
};

static void sleep_on(uint64_t *word, uint64_t seen)
{
	/* Shared, since vgpud wakes. Little-endian: the low half comes first,
	 * and it holds the state and the low bits of the epoch. */
	syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT, (uint32_t)seen, NULL, NULL, 0);
}

void vgpu_gate_wake(void)
{
	syscall(SYS_futex, (uint32_t *)&vgpu_gate.page->word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Once, until it has submitted, counts this thread among those that wait.
 * Neither a signal handler that submits nor a cancellation may come between the
 * count and the bell: the next one would find the count raised and not ring. */
static void announce(struct vgpu_page *page)
{
	sigset_t all, old;
	int cancel;

	if (vgpu_gate_thread.counted)
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	vgpu_gate_thread.counted = true;
	if (waiting_raise(&page->waiting) == 0)
		vgpu_sock_ring(VGPU_PENDING);
	pthread_setcancelstate(cancel, &cancel);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* A thread that has begun to wait was allowed to. */
static bool may_wait(void)
{
	return vgpu_gate_thread.counted || !vgpu_gate.ops.may_wait || vgpu_gate.ops.may_wait(vgpu_gate.ops.arg);
}

/* The process is exiting and the library's thread has ended: the waiting thread
 * drains for itself. True if nobody is left to grant anything; then the call
 * goes to the driver, which is about to go down too. */
static bool wait_at_exit(uint64_t w)
{
	struct timespec pause = { .tv_nsec = 1000000 };

	if (VGPU_STATE(w) == VGPU_DRAINING)
		vgpu_gate_drain(w);
	nanosleep(&pause, NULL);
	return !vgpu_sock_alive();
}

/* This thread made the word OPEN again. It alone writes these numbers until it
 * counts out: before, nobody else can make the word IDLE, let alone reclaim it.
 * Its counting out, the count of 0 that the next IDLE takes and the word order
 * its stores before the next reclaim's loads. So plain loads and stores will do;
 * vgpud reads each number by itself. */
static void gap_ended(struct vgpu_page *page, uint64_t ns)
{
	unsigned bucket = 63u - (unsigned)__builtin_clzll(ns | 1);

	stat_raise(&page->idle_ns, ns);
	stat_store(&page->gap_ns, ns);
	tally(&page->gaps[bucket < VGPU_GAPS ? bucket : VGPU_GAPS - 1]);
}

static void count_self_in(void)
{
	struct vgpu_slot *s = vgpu_gate_thread.slot;

	if (s)
		slot_in(&s->inside);
	else
		count_in(&vgpu_gate.shared);
}

/* Without having submitted: the gate was closed. */
static void count_self_back(void)
{
	struct vgpu_slot *s = vgpu_gate_thread.slot;

	if (s)
		slot_out(&s->inside);
	else
		count_back(&vgpu_gate.shared);
}

void vgpu_gate_enter_slow(struct vgpu_slot *in)
{
	struct vgpu_gate_thread *t = &vgpu_gate_thread;
	struct vgpu_page *page = vgpu_gate.page;
	unsigned spins = 0;
	uint64_t w;

	if (!page)
		return;
	if (!in) {
		if (!t->slot && !t->shared)
			vgpu_slot_get();
		count_self_in();
	}
	for (;;) {
		w = word_load(&page->word);
		switch (VGPU_STATE(w)) {
		case VGPU_OPEN:
			return;
		case VGPU_IDLE:
			if (!word_cas(&page->word, w, VGPU_WORD(VGPU_OPEN, VGPU_EPOCH(w))))
				continue;
			/* An older epoch: vgpud granted it as IDLE. */
			if (stat_load(&vgpu_gate.idle_epoch) == VGPU_EPOCH(w))
				gap_ended(page, now_ns() - stat_load(&vgpu_gate.idle_since_ns));
			return;
		case VGPU_CLOSING:
			if (t->closer) {
				/* A signal handler on the very thread that is
				 * closing: it would wait for itself. Only the
				 * holder of closing makes CLOSING, so it is ours. */
				t->interrupted = true;
				word_cas(&page->word, w, VGPU_WORD(VGPU_OPEN, VGPU_EPOCH(w)));
				continue;
			}
			/* A few loads of another thread, unless it was preempted. */
			if (++spins % 128)
				cpu_relax();
			else
				sched_yield();
			continue;
		}
		/* CLOSED, DRAINING. Whoever raises waiting from 0 rings; there is
		 * no "already said" flag that could go stale. */
		count_self_back();
		if (!may_wait()) {
			count_self_in();
			return;
		}
		announce(page);
		if (!flag_load(&vgpu_gate.ended)) {
			sleep_on(&page->word, w);
		} else if (wait_at_exit(w)) {
			count_self_in();
			return;
		}
		count_self_in();
	}
}

void vgpu_gate_leave_slow(void)
{
	struct vgpu_gate_thread *t = &vgpu_gate_thread;

	if (!vgpu_gate.page)
		return;
#ifdef VGPU_NO_GATE
	count_in(&vgpu_gate.shared);
#endif
	if (t->counted) {
		t->counted = false;
		waiting_lower(&vgpu_gate.page->waiting);
	}
	if (t->slot)
		vgpu_gate_leave();
	else
		count_out(&vgpu_gate.shared);
}

void vgpu_gate_publish(void)
{
	stat_at_least(&vgpu_gate.page->submitted, vgpu_slots_submitted());
}

/* With closing held: OPEN -> CLOSING -> IDLE, or back. */
static bool close_word(struct vgpu_page *page, uint64_t open)
{
	uint64_t closing = VGPU_WORD(VGPU_CLOSING, VGPU_EPOCH(open)), now;
	volatile bool *interrupted = &vgpu_gate_thread.interrupted;

	if (!word_cas(&page->word, open, closing))
		return false;
	/* The order matters: a thread that found the gate open is in its slot
	 * until it has recorded what it submitted. */
	if (vgpu_slots_empty() &&
	    flag_load(&page->waiting) == 0 &&
	    !vgpu_gate.ops.in_flight(vgpu_gate.ops.arg) && !*interrupted) {
		now = now_ns();
		vgpu_gate_publish();
		stat_store(&page->completed_ns, now);
		/* In a turn that was revoked meanwhile these are of no use, and
		 * who reclaims the next turn may be reading them. */
		stat_store(&vgpu_gate.idle_since_ns, now);
		stat_store(&vgpu_gate.idle_epoch, VGPU_EPOCH(open));
		return !*interrupted && word_cas(&page->word, closing, VGPU_WORD(VGPU_IDLE, VGPU_EPOCH(open)));
	}
	if (!*interrupted)
		word_cas(&page->word, closing, open);
	return false;
}

bool vgpu_gate_try_idle(void)
{
	struct vgpu_gate_thread *t = &vgpu_gate_thread;
	struct vgpu_page *page = vgpu_gate.page;
	uint64_t w = word_load(&page->word);
	bool idle;

	/* One closer at a time, so that CLOSING has one owner; whoever comes
	 * second may leave: the first looks at everything after it began, and
	 * the library's thread looks again under wanted. */
	if (VGPU_STATE(w) != VGPU_OPEN || t->closer || flag_swap(&vgpu_gate.closing, 1))
		return false;
	t->interrupted = false;
	t->closer = true;
	idle = close_word(page, w);
	t->closer = false;
	flag_swap(&vgpu_gate.closing, 0);
	/* Only now: vgpud sets wanted first and reads the word then. */
	if (idle && flag_load(&page->wanted))
		vgpu_sock_ring(VGPU_IDLE_MSG);
	return idle;
}

void vgpu_gate_complete(void)
{
#ifndef VGPU_NO_GATE
	if (vgpu_gate.page && !vgpu_gate.ops.in_flight(vgpu_gate.ops.arg) && !vgpu_gate_work_comes())
		vgpu_gate_try_idle();
#endif
}

bool vgpu_gate_forked(void)
{
	return vgpu_gate.forked;
}

static void in_forked_child(void)
{
	/* The page is not mapped here (MADV_DONTFORK) and the connection is the
	 * parent's: a child must neither submit in its name nor keep its socket
	 * open. */
	vgpu_gate.page = NULL;
	vgpu_gate.forked = true;
	vgpu_gate.thread_runs = false;
	vgpu_gate_thread.shared = true;
	vgpu_gate_thread.slot = NULL;
	close(vgpu_gate.sock);
	close(vgpu_gate.page_fd);
	close(vgpu_gate.stop_fd);
	close(vgpu_gate.look_fd);
	vgpu_gate.sock = vgpu_gate.page_fd = vgpu_gate.stop_fd = vgpu_gate.look_fd = -1;
}

static int fail(struct vgpu_gate_error *err, uint32_t code, const char *what, const char *why)
{
	err->code = code;
	err->errnum = errno;
	snprintf(err->text, sizeof(err->text), "%s: %s", what, why);
	return -1;
}

/* Connects and says the first HELLO; waits while vgpud is away. */
static int first_hello(const char *path, int *page_fd, struct vgpu_gate_error *err)
{
	uint64_t began = now_ns();
	bool said = false;
	struct vgpu_msg answer;
	struct timespec pause = { .tv_nsec = 50000000 };
	int sock;

	for (;;) {
		sock = vgpu_sock_connect(path);
		if (sock >= 0) {
			if (vgpu_sock_hello(sock, -1, &answer, page_fd) == 0) {
				if (answer.type == VGPU_WELCOME && *page_fd >= 0)
					return sock;
				close(sock);
				if (*page_fd >= 0)
					close(*page_fd);
				errno = 0;
				return fail(err, answer.code, "vgpud refused this process", answer.text);
			}
			close(sock);
		} else if (errno != ECONNREFUSED && errno != ENOENT && errno != EAGAIN &&
			   /* a vgpud that is starting may not have opened it to all users yet */
			   !(errno == EACCES && now_ns() - began < 2000000000u)) {
			return fail(err, 0, path, strerror(errno));
		}
		if (!said && now_ns() - began > 5000000000u) {
			said = true;
			fprintf(stderr, "vgpu: vgpud does not answer at %s; waiting for it\n", path);
		}
		nanosleep(&pause, NULL);
	}
}

int vgpu_gate_start(const char *dir, const struct vgpu_gate_ops *ops, struct vgpu_gate_error *err)
{
	struct vgpu_page *page;
	int sock, page_fd = -1;

	memset(err, 0, sizeof(*err));
	if (snprintf(vgpu_gate.socket_path, sizeof(vgpu_gate.socket_path), "%s/" VGPU_SOCKET, dir) >=
	    (int)sizeof(vgpu_gate.socket_path)) {
		errno = ENAMETOOLONG;
		return fail(err, 0, dir, strerror(errno));
	}
	if (access(dir, X_OK) != 0)
		return fail(err, 0, dir, strerror(errno));
	sock = first_hello(vgpu_gate.socket_path, &page_fd, err);
	if (sock < 0)
		return -1;
	page = mmap(NULL, VGPU_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
	if (page == MAP_FAILED) {
		fail(err, 0, "failed to map the page", strerror(errno));
		goto undo;
	}
	if (page->magic != VGPU_PAGE_MAGIC || page->version < 1) {
		errno = 0;
		fail(err, VGPU_ERR_PAGE, "failed to use the page", "not a page of this protocol");
		munmap(page, VGPU_PAGE_SIZE);
		goto undo;
	}
	madvise(page, VGPU_PAGE_SIZE, MADV_DONTFORK);
	vgpu_gate.ops = *ops;
	vgpu_slots_start();
	vgpu_gate.sock = vgpu_sock_high(sock);
	vgpu_gate.page_fd = vgpu_sock_high(page_fd);
	vgpu_gate.stop_fd = eventfd(0, EFD_CLOEXEC);
	vgpu_gate.look_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	vgpu_gate.page = page;
	if (vgpu_gate.stop_fd >= 0)
		vgpu_gate.stop_fd = vgpu_sock_high(vgpu_gate.stop_fd);
	if (vgpu_gate.look_fd >= 0)
		vgpu_gate.look_fd = vgpu_sock_high(vgpu_gate.look_fd);
	if (vgpu_gate.stop_fd < 0 || vgpu_gate.look_fd < 0 ||
	    pthread_atfork(NULL, NULL, in_forked_child) != 0 || vgpu_thread_start() != 0) {
		vgpu_gate.page = NULL;
		munmap(page, VGPU_PAGE_SIZE);
		sock = vgpu_gate.sock;
		page_fd = vgpu_gate.page_fd;
		fail(err, 0, "failed to start the library's thread", strerror(errno));
		goto undo;
	}
	return 0;
undo:
	close(sock);
	close(page_fd);
	return -1;
}

int vgpu_gate_bind(uint8_t (*uuid)[16], int max, struct vgpu_gate_error *err)
{
	struct vgpu_msg answer;
	int n = -1;

	memset(err, 0, sizeof(*err));
	if (!vgpu_gate.page)
		return fail(err, 0, "failed to bind", "the gate was not started");
	pthread_mutex_lock(&vgpu_gate.bind_turn);
	pthread_mutex_lock(&vgpu_gate.bind_lock);
	vgpu_gate.bind_asked = true;
	vgpu_gate.bind_answered = false;
	vgpu_gate.bind_told = false;
	vgpu_sock_ring(VGPU_BIND); /* asked again by the library's thread after a reconnection */
	while (!vgpu_gate.bind_answered)
		pthread_cond_wait(&vgpu_gate.bind_done, &vgpu_gate.bind_lock);
	answer = vgpu_gate.bind_answer;
	pthread_mutex_unlock(&vgpu_gate.bind_lock);
	pthread_mutex_unlock(&vgpu_gate.bind_turn);
	if (answer.type != VGPU_BOUND) {
		errno = 0;
		return fail(err, answer.code, "no GPU", answer.text);
	}
	n = (int)answer.count < max ? (int)answer.count : max;
	memcpy(uuid, answer.uuid, (size_t)n * 16);
	return n;
}

void vgpu_gate_stop(void)
{
	if (!vgpu_gate.page)
		return;
	vgpu_thread_stop();
	vgpu_gate_publish();
	__atomic_store_n(&vgpu_gate.ended, 1, __ATOMIC_SEQ_CST);
	vgpu_gate_wake();
}

void vgpu_gate_stats(uint64_t unhooked, uint64_t unknown)
{
	if (!vgpu_gate.page)
		return;
	stat_store(&vgpu_gate.stats[0], unhooked);
	stat_store(&vgpu_gate.stats[1], unknown);
	vgpu_sock_stats();
}
