/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory ledger of this process: what it may allocate is leased by vgpud,
 * through the page. Taking from a lease and giving back to it is one
 * compare-and-swap. What the lease does not cover is asked for, one question at
 * a time; the answer comes through the library's thread, which also asks again
 * after a reconnection.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "atomic.h"
#include "internal.h"

/* How often vgpud may lease what is needed and somebody be quicker to take it:
 * a thread of this process, or vgpud for another one. */
#define TRIES 1000

/* Where a question stands. */
enum { NONE, ASKED, ANSWERED };

/* Whether vgpud is to look at what the driver uses on a GPU. */
enum { QUIET, TOLD, TOLD_AND_CHANGED, UNTOLD };

static struct {
	pthread_mutex_t turn;      /* one question at a time */
	uint32_t ended;            /* the library's thread: nobody answers any more; written once */
	pthread_mutex_t lock;      /* guards what follows */
	pthread_cond_t done;
	int state;
	uint64_t number;           /* of the newest question, from 1; 0 stands for what is only told */
	struct vgpu_msg question, answer;
	int driver[VGPU_UUIDS];
	uint32_t untold;           /* one of them is UNTOLD; written with the lock held */
	/* What vgpud said last: for when it is away. beside is what the other
	 * processes of the vGPU use, others what other vGPUs do of the limit. */
	bool told[VGPU_UUIDS];
	uint64_t limit[VGPU_UUIDS], beside[VGPU_UUIDS], others[VGPU_UUIDS];
} ledger = {
	.turn = PTHREAD_MUTEX_INITIALIZER,
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.done = PTHREAD_COND_INITIALIZER,
};

/* Both sides change credit at any time, so every change is one atomic step. */
static bool take(uint64_t *credit, uint64_t bytes)
{
	uint64_t old = __atomic_load_n(credit, __ATOMIC_SEQ_CST);

	while (old >= bytes) {
		if (__atomic_compare_exchange_n(credit, &old, old - bytes, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return true;
	}
	return false;
}

static void give(uint64_t *to, uint64_t bytes)
{
	__atomic_add_fetch(to, bytes, __ATOMIC_SEQ_CST);
}

static uint64_t sum(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t own_use(const struct vgpu_page_memory *m)
{
	/* Leased first: what is freed meanwhile must not make it negative. */
	uint64_t leased = __atomic_load_n(&m->leased, __ATOMIC_SEQ_CST);
	uint64_t credit = __atomic_load_n(&m->credit, __ATOMIC_SEQ_CST);

	return leased > credit ? leased - credit : 0;
}

/* Never waits. False if it was not sent. */
static bool tell(const struct vgpu_msg *msg)
{
	struct vgpu_msg copy = *msg;

	return vgpu_sock_try_send(vgpu_gate.sock, &copy) == 0;
}

/* Asks and waits. False: nobody answers any more, as the process is exiting. */
static bool ask(unsigned gpu, uint64_t need, uint64_t flags, struct vgpu_msg *answer)
{
	struct vgpu_msg msg = { .type = VGPU_MEMORY, .a = { gpu, need, flags } };
	bool answered;
	int cancel;

	/* The wait is a point of cancellation, and the locks are held there. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(&ledger.turn);
	pthread_mutex_lock(&ledger.lock);
	msg.a[3] = ++ledger.number;
	ledger.question = msg;
	ledger.state = ASKED;
	pthread_mutex_unlock(&ledger.lock);
	/* Without the lock: this waits while the socket is full. If it is lost,
	 * or comes before the HELLO of a reconnection, it is asked again. */
	vgpu_sock_send(vgpu_gate.sock, &msg, -1);
	pthread_mutex_lock(&ledger.lock);
	while (ledger.state != ANSWERED && !flag_load(&ledger.ended))
		pthread_cond_wait(&ledger.done, &ledger.lock);
	answered = ledger.state == ANSWERED;
	*answer = ledger.answer;
	ledger.state = NONE;
	pthread_mutex_unlock(&ledger.lock);
	pthread_mutex_unlock(&ledger.turn);
	pthread_setcancelstate(cancel, &cancel);
	return answered;
}

/* Whether vgpud may not have seen yet what the driver uses now. */
static bool driver_changed(unsigned gpu)
{
	bool changed;

	pthread_mutex_lock(&ledger.lock);
	changed = ledger.driver[gpu] != QUIET;
	pthread_mutex_unlock(&ledger.lock);
	return changed;
}

/* ask, for credit. Nothing is refused for the sake of a context or module that has
 * ended: vgpud looks first. */
static bool ask_credit(unsigned gpu, uint64_t bytes, struct vgpu_msg *answer)
{
	bool changed = driver_changed(gpu);

	if (!ask(gpu, bytes, 0, answer))
		return false;
	if (!changed || answer->type != VGPU_MEMORY_IS || answer->code != VGPU_ERR_MEMORY)
		return true;
	return ask(gpu, bytes, VGPU_MEMORY_DRIVER, answer);
}

int vgpu_gate_charge(unsigned gpu, uint64_t bytes)
{
	struct vgpu_page *page = vgpu_gate.page;
	struct vgpu_msg answer;
	bool asks;

	if (!page || gpu >= VGPU_UUIDS)
		return 0;
	/* What is freed while the container is over its limit becomes credit, and
	 * vgpud takes that back before it answers. */
	asks = flag_load(&page->over) >> gpu & 1;
	for (int i = 0; i < TRIES; i++) {
		if (!(asks && i == 0) && take(&page->memory[gpu].credit, bytes))
			return 0;
		if (!ask_credit(gpu, bytes, &answer))
			return 0; /* the driver is about to go down, and the ledger with it */
		if (answer.type != VGPU_MEMORY_IS || answer.code != VGPU_OK)
			return -1;
	}
	return -1;
}

void vgpu_gate_refund(unsigned gpu, uint64_t bytes)
{
	struct vgpu_page *page = vgpu_gate.page;

	/* At the end of the process some was allocated without a charge. */
	if (page && gpu < VGPU_UUIDS && !flag_load(&ledger.ended))
		give(&page->memory[gpu].credit, bytes);
}

int vgpu_gate_memory(unsigned gpu, uint64_t *limit, uint64_t *used)
{
	struct vgpu_msg answer;
	uint64_t flags;

	if (!vgpu_gate.page || gpu >= VGPU_UUIDS)
		return -1;
	flags = used && driver_changed(gpu) ? VGPU_MEMORY_DRIVER : 0;
	if (!ask(gpu, 0, flags, &answer) || answer.type != VGPU_MEMORY_IS || answer.code != VGPU_OK)
		return -1;
	*limit = answer.a[1];
	if (used)
		*used = sum(answer.a[2], answer.others);
	return 0;
}

/* With the lock held. To a vgpud that is away it is told when it is back, and by the
 * library's thread when there is room in the socket, which may be full of bells. */
static void tell_driver(unsigned gpu)
{
	struct vgpu_msg msg = { .type = VGPU_MEMORY, .a = { gpu, 0, VGPU_MEMORY_DRIVER, 0 } };

	ledger.driver[gpu] = tell(&msg) || errno != EAGAIN ? TOLD : UNTOLD;
	if (ledger.driver[gpu] == UNTOLD && !flag_swap(&ledger.untold, 1))
		vgpu_thread_look();
}

void vgpu_gate_memory_changed(unsigned gpu)
{
	if (!vgpu_gate.page || gpu >= VGPU_UUIDS)
		return;
	pthread_mutex_lock(&ledger.lock);
	/* A program that loads a thousand modules is looked at as often as vgpud
	 * can, and once more after the last. */
	if (ledger.driver[gpu] == QUIET)
		tell_driver(gpu);
	else if (ledger.driver[gpu] == TOLD)
		ledger.driver[gpu] = TOLD_AND_CHANGED;
	pthread_mutex_unlock(&ledger.lock);
}

/* With the lock held. */
static void answer_with(const struct vgpu_msg *msg)
{
	ledger.answer = *msg;
	ledger.state = ANSWERED;
	pthread_cond_signal(&ledger.done);
}

/* With the lock held. */
static void note(const struct vgpu_msg *msg)
{
	uint64_t gpu = msg->a[0], own;
	bool changed;

	if (gpu >= VGPU_UUIDS)
		return;
	if (msg->code == VGPU_OK || msg->code == VGPU_ERR_MEMORY) {
		own = own_use(&vgpu_gate.page->memory[gpu]);
		ledger.told[gpu] = true;
		ledger.limit[gpu] = msg->a[1];
		ledger.beside[gpu] = msg->a[2] > own ? msg->a[2] - own : 0;
		ledger.others[gpu] = msg->others;
	}
	if (msg->a[3] == 0) {
		changed = ledger.driver[gpu] == TOLD_AND_CHANGED || ledger.driver[gpu] == UNTOLD;
		ledger.driver[gpu] = QUIET;
		if (changed)
			tell_driver((unsigned)gpu);
	}
}

void vgpu_memory_answer(const struct vgpu_msg *msg)
{
	pthread_mutex_lock(&ledger.lock);
	if (msg->type == VGPU_MEMORY_IS)
		note(msg);
	/* An answer to a question that was asked before a reconnection has the
	 * number of the one asked again: either will do. */
	if (ledger.state == ASKED && (msg->type == VGPU_REFUSED || msg->a[3] == ledger.number))
		answer_with(msg);
	pthread_mutex_unlock(&ledger.lock);
}

bool vgpu_memory_untold(void)
{
	return flag_load(&ledger.untold);
}

void vgpu_memory_tell(void)
{
	pthread_mutex_lock(&ledger.lock);
	flag_swap(&ledger.untold, 0);
	for (unsigned i = 0; i < VGPU_UUIDS; i++)
		if (ledger.driver[i] == UNTOLD)
			tell_driver(i);
	pthread_mutex_unlock(&ledger.lock);
}

void vgpu_memory_again(void)
{
	pthread_mutex_lock(&ledger.lock);
	flag_swap(&ledger.untold, 0);
	for (unsigned i = 0; i < VGPU_UUIDS; i++)
		if (ledger.driver[i] != QUIET)
			tell_driver(i);
	if (ledger.state == ASKED)
		tell(&ledger.question);
	pthread_mutex_unlock(&ledger.lock);
}

/* With the lock held: what vgpud would say, as far as it can be known here. The
 * limit is the one told last, and others use what they used then. */
static void answer_alone(void)
{
	struct vgpu_msg answer = ledger.question;
	uint64_t gpu = answer.a[0], need = answer.a[1], used;
	struct vgpu_page_memory *m = &vgpu_gate.page->memory[gpu];

	used = sum(own_use(m), ledger.beside[gpu]);
	answer.type = ledger.told[gpu] || need > 0 ? VGPU_MEMORY_IS : VGPU_REFUSED;
	if (need > 0 && sum(sum(used, ledger.others[gpu]), need) > (ledger.told[gpu] ? ledger.limit[gpu] : UINT64_MAX - 1)) {
		answer.code = VGPU_ERR_MEMORY;
	} else {
		/* Leased first, as vgpud does: credit never is the larger. */
		give(&m->leased, need);
		give(&m->credit, need);
	}
	answer.a[1] = ledger.limit[gpu];
	answer.a[2] = used;
	answer.others = ledger.others[gpu];
	answer_with(&answer);
}

void vgpu_memory_stand_in(uint64_t away_ns, bool listens)
{
	uint32_t absence_ms = flag_load(&vgpu_gate.page->absence_ms);
	bool may = !listens && absence_ms > 0 && away_ns / 1000000 >= absence_ms;

	pthread_mutex_lock(&ledger.lock);
	/* Who only asks how it stands need not wait for a vgpud that said it. */
	if (ledger.state == ASKED && (may || (ledger.question.a[1] == 0 && ledger.told[ledger.question.a[0]])))
		answer_alone();
	pthread_mutex_unlock(&ledger.lock);
}

void vgpu_memory_end(void)
{
	pthread_mutex_lock(&ledger.lock);
	flag_swap(&ledger.ended, 1);
	pthread_cond_broadcast(&ledger.done);
	pthread_mutex_unlock(&ledger.lock);
}
