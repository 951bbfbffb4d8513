/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate alone, stopped at chosen moments: linked with hooks/gate itself,
 * whose calls of sendmsg, connect, sched_yield and mmap come here first (--wrap).
 * The Go test plays vgpud.
 */
#include "test.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "../../../gate/atomic.h"
#include "../../../gate/internal.h"

ssize_t __real_sendmsg(int fd, const struct msghdr *msg, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags);
int __real_connect(int fd, const struct sockaddr *addr, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t len);
int __real_sched_yield(void);
int __wrap_sched_yield(void);
void *__real_mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset);

static uint64_t flight, held;      /* work in flight; whether it stays there */
static uint64_t tries, yields, passed, handled, stopped, noted;
static uint64_t inside;            /* threads in stay_inside */
static bool poor;                  /* there is no more memory */
static bool may_not;               /* the driver forbids calls: nobody may wait */

/* What happens at a moment, once. */
static void (*at_bell)(void);      /* PENDING is about to be sent */
static void (*in_closing)(void);   /* a closer has asked what is in flight */
static void (*in_drain)(void);     /* so has the library's thread, in a drain */

static void at(void (**moment)(void), void (*what)(void))
{
	__atomic_store_n(moment, what, __ATOMIC_SEQ_CST);
}

static void once(void (**moment)(void))
{
	void (*what)(void) = __atomic_exchange_n(moment, NULL, __ATOMIC_SEQ_CST);

	if (what)
		what();
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags)
{
	if (((struct vgpu_msg *)msg->msg_iov->iov_base)->type == VGPU_PENDING)
		once(&at_bell);
	return __real_sendmsg(fd, msg, flags);
}

int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	int rc = __real_connect(fd, addr, len);
	int saved = errno;

	__atomic_add_fetch(&tries, 1, __ATOMIC_SEQ_CST);
	errno = saved;
	return rc;
}

int __wrap_sched_yield(void)
{
	__atomic_add_fetch(&yields, 1, __ATOMIC_SEQ_CST);
	return __real_sched_yield();
}

void *__wrap_mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
	return poor ? MAP_FAILED : __real_mmap(at, size, prot, flags, fd, offset);
}

static bool asked(void (**moment)(void))
{
	bool busy = word_load(&flight) != 0;

	once(moment);
	return busy; /* as it was: an answer can be late */
}

static bool in_flight(void *arg)
{
	(void)arg;
	return asked(&in_closing);
}

static bool poll_driver(void *arg)
{
	(void)arg;
	return asked(&in_drain);
}

static void wait_for(uint64_t *what, uint64_t n)
{
	while (word_load(what) < n)
		usleep(100);
}

/* A thread stands still until go. */
static void stop(void)
{
	__atomic_store_n(&stopped, 1, __ATOMIC_SEQ_CST);
	while (word_load(&stopped))
		usleep(100);
}

static void go(void)
{
	__atomic_store_n(&stopped, 0, __ATOMIC_SEQ_CST);
}

static void hold(uint64_t on)
{
	__atomic_store_n(&held, on, __ATOMIC_SEQ_CST);
	if (!on)
		__atomic_store_n(&flight, 0, __ATOMIC_SEQ_CST);
}

static void submit(void)
{
	vgpu_gate_enter();
	if (word_load(&held))
		__atomic_add_fetch(&flight, 1, __ATOMIC_SEQ_CST);
	vgpu_gate_leave();
	__atomic_add_fetch(&passed, 1, __ATOMIC_SEQ_CST);
}

static void *submitter(void *arg)
{
	submit();
	return arg;
}

static void *closer(void *arg)
{
	*(bool *)arg = vgpu_gate_try_idle();
	return NULL;
}

static pthread_t start_thread(void *(*run)(void *), void *arg)
{
	pthread_t t;

	CHECK(pthread_create(&t, NULL, run, arg) == 0);
	return t;
}

static void join(pthread_t t)
{
	CHECK(pthread_join(t, NULL) == 0);
}

static uint32_t state(void)
{
	return VGPU_STATE(word_load(&vgpu_gate.page->word));
}

static bool may_wait_here(void *arg)
{
	(void)arg;
	return !may_not;
}

static void start(void)
{
	static const struct vgpu_gate_ops ops = { .in_flight = in_flight, .poll = poll_driver, .may_wait = may_wait_here };
	struct vgpu_gate_error err;
	uint8_t uuid[16][16];

	CHECK(vgpu_gate_start("/.vgpu", &ops, &err) == 0);
	CHECK(vgpu_gate_bind(uuid, 16, &err) == 1);
	say("ready");
	await();
}

static void on_signal(int sig)
{
	(void)sig;
	submit();
	__atomic_add_fetch(&handled, 1, __ATOMIC_SEQ_CST);
}

static void raise_here(void)
{
	CHECK(pthread_kill(pthread_self(), SIGUSR1) == 0);
}

/* A handler that submits, between the count and the bell: it would wait for a
 * grant of which nobody was told. */
static void bell_signal(void)
{
	signal(SIGUSR1, on_signal);
	start();
	at(&at_bell, raise_here);
	submit();
	CHECK(word_load(&handled) == 1 && word_load(&passed) == 2);
	say("passed");
	await();
}

static void cancel_here(void)
{
	CHECK(pthread_cancel(pthread_self()) == 0);
}

static void *cancelled(void *arg)
{
	submit();
	pthread_testcancel();
	return arg;
}

static void *complete_cancelled(void *arg)
{
	cancel_here();
	vgpu_gate_complete();
	pthread_testcancel();
	return arg;
}

/* A thread is cancelled when it has made the word IDLE, under wanted. */
static void bell_idle(void)
{
	start();
	submit();
	say("passed");
	await();
	join(start_thread(complete_cancelled, NULL));
	say("cancelled");
	await();
}

/* A thread that ends there leaves the count raised: nobody would ring again. */
static void bell_cancel(void)
{
	pthread_t t;
	void *result;

	start();
	at(&at_bell, cancel_here);
	t = start_thread(cancelled, NULL);
	CHECK(pthread_join(t, &result) == 0);
	CHECK(result == PTHREAD_CANCELED && word_load(&passed) == 1);
	say("passed");
	await();
}

static void *idler(void *arg)
{
	wait_for(&handled, 1);
	return arg;
}

/* A handler on another thread finds the word CLOSING. If it undid that, the
 * closer could still make the word IDLE, after a later CLOSING of this turn. */
static void closing_other(void)
{
	pthread_t c, t;
	bool idle;

	signal(SIGUSR1, on_signal);
	start();
	submit();
	at(&in_closing, stop);
	c = start_thread(closer, &idle);
	wait_for(&stopped, 1);
	t = start_thread(idler, NULL);
	CHECK(pthread_kill(t, SIGUSR1) == 0);
	while (word_load(&yields) < 3 && word_load(&handled) == 0)
		usleep(100);
	CHECK(word_load(&handled) == 0 && state() == VGPU_CLOSING);
	go();
	join(c);
	join(t);
	CHECK(idle && word_load(&passed) == 2 && state() == VGPU_OPEN);
	say("passed");
	await();
}

/* On the closing thread itself it must: the thread would wait for itself. */
static void closing_own(void)
{
	bool idle;

	signal(SIGUSR1, on_signal);
	start();
	submit();
	hold(1);
	at(&in_closing, raise_here);
	closer(&idle);
	CHECK(!idle && word_load(&handled) == 1 && state() == VGPU_OPEN);
	say("passed");
	await();
}

/* A closer of a turn that was revoked and resumed meanwhile. */
static void stale_closer(void)
{
	pthread_t c;
	bool idle;

	start();
	submit();
	at(&in_closing, stop);
	c = start_thread(closer, &idle);
	wait_for(&stopped, 1);
	/* So that the library's thread does not close the word. */
	__atomic_store_n(&flight, 1, __ATOMIC_SEQ_CST);
	say("closing");
	await();
	go();
	join(c);
	CHECK(!idle);
	say("closed");
	await();
}

/* ---- slots ---- */

#define MANY 200               /* more than two chunks hold */

static uint64_t all_submitted(void)
{
	vgpu_gate_publish();
	return word_load(&vgpu_gate.page->submitted);
}

/* Between its enter and its leave, until told to go on. */
static void *stay_inside(void *stays)
{
	vgpu_gate_enter();
	__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
	while (word_load(stays))
		usleep(1000);
	vgpu_gate_leave();
	return NULL;
}

/* Many at once: each has a place of its own, and the last of them counts. */
static void many_inside(void)
{
	uint64_t last = 1, others = 1;
	pthread_t t[MANY];

	for (int i = 0; i < MANY; i++) {
		t[i] = start_thread(stay_inside, i < MANY - 1 ? &others : &last);
		wait_for(&inside, (uint64_t)i + 1);
	}
	__atomic_store_n(&others, 0, __ATOMIC_SEQ_CST);
	for (int i = 0; i < MANY - 1; i++)
		join(t[i]);
	CHECK(!vgpu_gate_try_idle());
	__atomic_store_n(&last, 0, __ATOMIC_SEQ_CST);
	join(t[MANY - 1]);
	CHECK(all_submitted() == MANY);
	CHECK(vgpu_gate_try_idle());
}

static void slots_many(void)
{
	start();
	many_inside();
	CHECK(vgpu_gate.slots_used == MANY && vgpu_gate.shared == 0);
	say("passed");
	await();
}

static void slots_poor(void)
{
	start();
	poor = true;
	many_inside();
	poor = false;
	CHECK(vgpu_gate.slots_used == VGPU_SLOTS);
	CHECK(count_submitted(&vgpu_gate.shared) == MANY - VGPU_SLOTS);
	say("passed");
	await();
}

/* Threads that come and go, one after the other, need one slot. */
static void slots_reused(void)
{
	start();
	for (int i = 0; i < MANY; i++)
		join(start_thread(submitter, NULL));
	CHECK(vgpu_gate.slots_used == 1 && all_submitted() == MANY);
	CHECK(vgpu_gate_try_idle());
	say("passed");
	await();
}

/* A handler that submits while its thread is inside leaves it inside. */
static void slots_nested(void)
{
	signal(SIGUSR1, on_signal);
	start();
	vgpu_gate_enter();
	raise_here();
	CHECK(word_load(&handled) == 1 && !vgpu_gate_try_idle());
	vgpu_gate_leave();
	CHECK(all_submitted() == 2 && vgpu_gate_try_idle());
	say("passed");
	await();
}

static void *ends_inside(void *arg)
{
	vgpu_gate_enter();
	return arg;
}

/* Nobody knows what it submitted: the turn must not end as if it was nothing, and
 * nobody gets the slot. */
static void slots_ended_inside(void)
{
	start();
	join(start_thread(ends_inside, NULL));
	join(start_thread(submitter, NULL));
	CHECK(vgpu_gate.slots_used == 2 && !vgpu_gate_try_idle());
	say("passed");
	await();
}

static void submit_late(void *unused)
{
	(void)unused;
	CHECK(!vgpu_gate_thread.slot);
	submit();
}

static void *submits_late(void *key)
{
	CHECK(pthread_setspecific(*(pthread_key_t *)key, key) == 0);
	submit();
	return NULL;
}

/* A destructor that runs after the gate's own, and submits. */
static void slots_destructor(void)
{
	pthread_key_t key;

	start();
	CHECK(pthread_key_create(&key, submit_late) == 0);
	join(start_thread(submits_late, &key));
	CHECK(word_load(&passed) == 2 && all_submitted() == 2 && vgpu_gate.slots_used == 1);
	CHECK(count_submitted(&vgpu_gate.shared) == 1 && vgpu_gate_try_idle());
	say("passed");
	await();
}

/* The child has no page: the thread that forked may neither look at the word
 * nor count. */
static void slots_fork(void)
{
	pid_t child;
	int status;

	start();
	submit();
	vgpu_gate_enter();
	child = fork();
	CHECK(child >= 0);
	vgpu_gate_leave();
	if (child == 0) {
		submit();
		_exit(vgpu_gate_forked() ? 0 : 1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(all_submitted() == 2 && vgpu_gate_try_idle());
	say("passed");
	await();
}

static void end_thread(int sig)
{
	(void)sig;
	pthread_exit(NULL);
}

static void *ends(void *arg)
{
	(void)arg;
	pthread_exit(NULL);
}

/* A thread that ends in its wait waits no more: vgpud must not grant for it again
 * and again, nor is it inside. */
static void wait_ended(void)
{
	pthread_t t;

	join(start_thread(ends, NULL)); /* loads what the handler needs for it */
	signal(SIGUSR1, end_thread);
	start();
	t = start_thread(submitter, NULL);
	await(); /* rung */
	CHECK(pthread_kill(t, SIGUSR1) == 0);
	join(t);
	CHECK(word_load(&passed) == 0);
	CHECK(vgpu_gate.slots_used == 1 && vgpu_gate.slots.slot[0].taken == 0 && vgpu_slots_empty());
	say("ended");
	await();
}

static void note(void)
{
	__atomic_add_fetch(&noted, 1, __ATOMIC_SEQ_CST);
}

/* The library's thread has seen a drain complete, which is resumed before it can
 * say so. */
static void stale_drain(void)
{
	start();
	submit();
	at(&in_drain, stop);
	say("submitted");
	wait_for(&stopped, 1);
	say("drained");
	await(); /* resumed */
	hold(1);
	submit();
	at(&in_drain, note);
	go();
	say("submitted again");
	await(); /* somebody wants the GPU */
	wait_for(&noted, 1);
	say("looked");
	await();
}

static void print_gap(uint32_t *before)
{
	struct vgpu_page *page = vgpu_gate.page;

	for (int i = 0; i < VGPU_GAPS; i++) {
		if (page->gaps[i] != before[i])
			say("bucket %d +%u", i, page->gaps[i] - before[i]);
		before[i] = page->gaps[i];
	}
}

/* As wire.h says: 2^i <= ns < 2^(i+1), the last all longer ones. */
static int bucket_of(uint64_t ns)
{
	int i = 0;

	while (i < VGPU_GAPS - 1 && ns >= UINT64_C(2) << i)
		i++;
	return i;
}

static void gap(uint64_t ns)
{
	submit();
	CHECK(vgpu_gate_try_idle());
	vgpu_gate.idle_since_ns -= ns; /* as if it was so much longer ago */
	submit();
}

static void gaps(void)
{
	struct vgpu_page *page;
	uint32_t before[VGPU_GAPS] = { 0 };
	uint64_t idle_ns;

	start();
	page = vgpu_gate.page;
	submit(); /* waits for the grant: no gap */
	print_gap(before);
	for (int i = 0; i < 3; i++) {
		idle_ns = page->idle_ns;
		gap(UINT64_C(1) << 40); /* long after the last bucket's lower bound */
		CHECK(page->gap_ns >= UINT64_C(1) << 40 && page->idle_ns - idle_ns == page->gap_ns);
	}
	print_gap(before);
	/* Between 2^30 and 2^31 ns, or longer if this thread was held up. */
	gap(UINT64_C(3) << 29);
	CHECK(page->gap_ns >= UINT64_C(3) << 29);
	before[bucket_of(page->gap_ns)]++;
	print_gap(before);
	say("one more in its bucket");
	CHECK(vgpu_gate_try_idle());
	say("idle");
	await(); /* taken, and granted again */
	submit();
	print_gap(before);
	say("counted");
	await();
}

/* A thread waits when vgpud goes away; what it submits stays in flight. */
static void absent(void)
{
	pthread_t t;

	start();
	hold(1);
	submit();
	say("passed");
	await();
	submit();
	say("passed again");
	await();
	hold(0);
	say("complete");
	await();
	hold(1);
	t = start_thread(submitter, NULL);
	await();
	hold(0);
	join(t);
	say("passed at last");
	await();
}

/* What is in flight when vgpud is back stays so. */
static void absent_busy(void)
{
	pthread_t t;

	start();
	hold(1);
	submit();
	say("passed");
	await(); /* vgpud is back */
	t = start_thread(submitter, NULL);
	await();
	hold(0);
	join(t);
	say("passed again");
	await();
}

/* As many attempts to connect must have failed. */
static void wait_tried(uint64_t n)
{
	wait_for(&tries, word_load(&tries) + n);
	say("tried");
	await();
}

static void absent_waits(void)
{
	pthread_t t;

	start();
	t = start_thread(submitter, NULL);
	await(); /* vgpud is away */
	wait_tried(5);
	join(t);
	say("passed");
	await();
}

/* The turn was granted before vgpud went away. A thread that waited for it is
 * still submitting, and counts as waiting until it has. */
static void absent_holder(void)
{
	start();
	hold(1);
	vgpu_gate_enter();
	say("inside");
	await(); /* vgpud is away */
	wait_tried(5);
	vgpu_gate_leave();
	submit();
	say("passed");
	await();
	hold(0);
	CHECK(vgpu_gate_try_idle());
	say("idle");
	await();
}

/* The turn was revoked, and what is in flight needs the thread that waits. */
static void absent_draining(void)
{
	start();
	hold(1);
	submit();
	say("passed");
	await(); /* revoked */
	submit();
	hold(0);
	say("passed again");
	await();
}

/* A thread that may not wait passes the closed gate, and rings no bell. */
static void may_not_wait(void)
{
	start();
	may_not = true;
	submit();
	may_not = false;
	CHECK(state() == VGPU_CLOSED && flag_load(&vgpu_gate.page->waiting) == 0 && vgpu_slots_empty());
	say("passed");
	await();
	submit();
	say("passed again");
	await();
}

static void looked(void)
{
	__atomic_add_fetch(&noted, 1, __ATOMIC_SEQ_CST);
}

/* A thread that waits for the bound is about to submit: nobody makes the turn idle. */
static void work_comes(void)
{
	start();
	submit();
	vgpu_gate_comes(UINT64_MAX);
	vgpu_gate_complete();
	CHECK(state() == VGPU_OPEN);
	say("passed");
	await(); /* somebody else waits */
	for (uint64_t i = 1; i <= 3; i++) { /* of the looks two are over */
		at(&in_drain, looked);
		wait_for(&noted, i);
	}
	CHECK(state() == VGPU_OPEN);
	vgpu_gate_comes(0);
	say("comes no more");
	await();
}

static void absent_drained(void)
{
	start();
	hold(1);
	submit();
	say("passed");
	await(); /* revoked, and vgpud is away */
	wait_tried(5);
	hold(0);
	say("complete");
	await();
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{ "bell-signal", bell_signal },
		{ "bell-cancel", bell_cancel },
		{ "bell-idle", bell_idle },
		{ "closing-other", closing_other },
		{ "closing-own", closing_own },
		{ "stale-closer", stale_closer },
		{ "stale-drain", stale_drain },
		{ "gaps", gaps },
		{ "absent", absent },
		{ "absent-busy", absent_busy },
		{ "absent-waits", absent_waits },
		{ "absent-holder", absent_holder },
		{ "absent-draining", absent_draining },
		{ "absent-drained", absent_drained },
		{ "slots-many", slots_many },
		{ "slots-poor", slots_poor },
		{ "slots-reused", slots_reused },
		{ "slots-nested", slots_nested },
		{ "slots-ended-inside", slots_ended_inside },
		{ "slots-destructor", slots_destructor },
		{ "slots-fork", slots_fork },
		{ "wait-ended", wait_ended },
		{ "may-not-wait", may_not_wait },
		{ "work-comes", work_comes },
		{ "bind", start },
		{ NULL, NULL },
	};

	return run_test(tests, argc, argv);
}
