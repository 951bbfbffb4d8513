/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's own thread. It sleeps in poll until vgpud rings. Only while
 * somebody else wants the GPU, or a turn is being drained, does it look at what
 * is in flight; alone on the GPU a process never pays for it. It also says
 * HELLO again when vgpud was restarted, and opens the gate if vgpud stays away
 * for longer than the node's policy allows.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "atomic.h"
#include "internal.h"

/* How long to sleep between two looks at work that is not complete yet. */
#define LOOK_MIN_NS 20000
#define LOOK_MAX_NS 200000
/* Between two attempts to reach a vgpud that is away. */
#define RETRY_NS    20000000
#define REFUSED_NS  1000000000
/* How long a turn without vgpud may take to drain before vgpud is told; it waits
 * at least 2 s for a process that it knows (vgpu/node, recover.go). */
#define GIVE_BACK_NS 1000000000

/* Until the next look. In a drain somebody waits for the very end: it is seen late
 * by about a sixtieth of how long it takes. */
static long longer(long ns)
{
	bool drains = VGPU_STATE(word_load(&vgpu_gate.page->word)) == VGPU_DRAINING;
	long next = drains ? ns + ns / 64 : ns * 3 / 2;

	return next > LOOK_MAX_NS ? LOOK_MAX_NS : next;
}

static void answer_bind(const struct vgpu_msg *msg)
{
	pthread_mutex_lock(&vgpu_gate.bind_lock);
	if (vgpu_gate.bind_asked) {
		vgpu_gate.bind_answer = *msg;
		vgpu_gate.bind_asked = false;
		vgpu_gate.bind_answered = true;
		if (msg->type == VGPU_BOUND) {
			vgpu_gate.bound_count = msg->count;
			memcpy(vgpu_gate.bound, msg->uuid, sizeof(vgpu_gate.bound));
		}
		pthread_cond_broadcast(&vgpu_gate.bind_done);
	}
	pthread_mutex_unlock(&vgpu_gate.bind_lock);
}

/* May a line be written to stderr now, and by dprintf? Neither a full pipe nor
 * stdio's lock may stop this thread: either can hang on one that waits at the
 * gate. */
static bool may_say(void)
{
	struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };

	return poll(&p, 1, 0) > 0;
}

/* Says why a bind waits, once for each bind, unless it was answered since. */
static void tell_wait(const char *why)
{
	bool tell;

	pthread_mutex_lock(&vgpu_gate.bind_lock);
	tell = vgpu_gate.bind_asked && !vgpu_gate.bind_told;
	if (tell)
		vgpu_gate.bind_told = true;
	pthread_mutex_unlock(&vgpu_gate.bind_lock);
	if (tell && may_say())
		dprintf(STDERR_FILENO, "vgpu: waiting for a GPU: %s\n", why);
}

/* Reads what came. False: the connection is gone. */
static bool read_messages(void)
{
	struct vgpu_msg msg;
	char why[VGPU_TEXT] = "";
	int n, fd;

	for (;;) {
		fd = -1;
		n = vgpu_sock_recv(vgpu_gate.sock, &msg, &fd);
		if (fd >= 0)
			close(fd);
		if (n <= 0)
			break;
		if (msg.type == VGPU_BOUND || msg.type == VGPU_REFUSED)
			answer_bind(&msg);
		if (msg.type == VGPU_MEMORY_IS || msg.type == VGPU_REFUSED)
			vgpu_memory_answer(&msg);
		else if (msg.type == VGPU_WAIT)
			memcpy(why, msg.text, sizeof(why));
		/* A NUDGE says no more than: look. */
	}
	if (why[0])
		tell_wait(why);
	return n == 0;
}

/* Sleeps; true if the thread shall end. */
static bool pause_ns(long ns)
{
	struct timespec ts = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
	struct pollfd p = { .fd = vgpu_gate.stop_fd, .events = POLLIN };

	return ppoll(&p, 1, &ts, NULL) > 0;
}

bool vgpu_gate_drain(uint64_t w)
{
	struct vgpu_page *page = vgpu_gate.page;

	if (!vgpu_slots_empty())
		return false;
	if (vgpu_gate.ops.poll(vgpu_gate.ops.arg))
		return true;
	vgpu_gate_publish();
	stat_store(&page->completed_ns, now_ns());
	if (word_cas(&page->word, w, VGPU_WORD(VGPU_CLOSED, VGPU_EPOCH(w))))
		vgpu_sock_ring(VGPU_DRAINED);
	return true;
}

/* Shows vgpud whether the drain w gets on. What its first look finds complete
 * may have been so for long: that only sets the mark. */
static void show_progress(uint64_t w, bool looked)
{
	uint64_t n;

	if (!vgpu_gate.ops.completed || (!looked && vgpu_gate.drain_word != w))
		return;
	n = vgpu_gate.ops.completed(vgpu_gate.ops.arg);
	if (vgpu_gate.drain_word == w && n > vgpu_gate.drain_completed)
		stat_raise(&vgpu_gate.page->progress, 1);
	vgpu_gate.drain_word = w;
	vgpu_gate.drain_completed = n;
	stat_store(&vgpu_gate.page->completions, n);
}

/* Does what the word and wanted ask for. True: there is more to do soon. */
static bool look(void)
{
	struct vgpu_page *page = vgpu_gate.page;
	uint64_t w = word_load(&page->word);
	uint32_t state = VGPU_STATE(w);

	if (state == VGPU_DRAINING) {
		show_progress(w, vgpu_gate_drain(w));
	} else if (state == VGPU_OPEN && flag_load(&page->wanted)) {
		if (vgpu_slots_empty() && flag_load(&page->waiting) == 0 &&
		    !vgpu_gate.ops.poll(vgpu_gate.ops.arg) && !vgpu_gate_work_comes())
			vgpu_gate_try_idle();
	}
	w = word_load(&page->word);
	state = VGPU_STATE(w);
	return state == VGPU_DRAINING ||
	       ((state == VGPU_OPEN || state == VGPU_CLOSING) && flag_load(&page->wanted));
}

/* While nobody listens this thread makes the changes of the word that are
 * vgpud's: a grant or resume here, and a revoke in give_back. Only if a thread
 * waits, the policy is to open, and its time is over. True if it did. */
static bool stand_in(uint64_t away_ns)
{
	struct vgpu_page *page = vgpu_gate.page;
	uint32_t absence_ms = flag_load(&page->absence_ms);
	uint64_t w = word_load(&page->word);

	if (absence_ms == 0 || away_ns / 1000000 < absence_ms || flag_load(&page->waiting) == 0)
		return false;
	if (VGPU_STATE(w) != VGPU_CLOSED && VGPU_STATE(w) != VGPU_DRAINING)
		return false;
	if (!word_cas(&page->word, w, VGPU_WORD(VGPU_OPEN, VGPU_EPOCH(w) + 1)))
		return false;
	vgpu_gate_wake();
	return true;
}

/* vgpud is back: the turn that stand_in granted ends before it is told anything.
 * What does not end in time it sees as a drain, and resumes it or gives it up:
 * what is in flight may need a thread that stands at the gate. False if the
 * thread shall end. */
static bool give_back(void)
{
	struct vgpu_page *page = vgpu_gate.page;
	uint64_t began = now_ns(), w;
	long ns = LOOK_MIN_NS;
	uint32_t to;

	do {
		w = word_load(&page->word);
		if (VGPU_STATE(w) == VGPU_CLOSED || VGPU_STATE(w) == VGPU_DRAINING)
			break;
		to = VGPU_STATE(w) == VGPU_IDLE ? VGPU_CLOSED : VGPU_DRAINING;
	} while (!word_cas(&page->word, w, VGPU_WORD(to, VGPU_EPOCH(w))));
	while (look() && now_ns() - began < GIVE_BACK_NS) {
		if (pause_ns(ns))
			return false;
		ns = longer(ns);
	}
	return true;
}

/* Until vgpud knows this process again; false if the thread shall end. */
static bool reconnect(void)
{
	uint64_t heard = now_ns(), away;
	struct vgpu_msg answer;
	bool mine = false, said = false, listens;
	int sock, fd, rc;
	long ns;

	for (;;) {
		ns = RETRY_NS;
		sock = vgpu_sock_connect(vgpu_gate.socket_path);
		if (sock >= 0) {
			if (mine && !give_back()) {
				close(sock);
				return false;
			}
			mine = false;
			/* First the socket, then HELLO: a PENDING that another
			 * thread rings from here on must not be lost. */
			rc = dup3(sock, vgpu_gate.sock, O_CLOEXEC);
			close(sock);
			fd = -1;
			if (rc >= 0 && vgpu_sock_hello(vgpu_gate.sock, vgpu_gate.page_fd, &answer, &fd) == 0) {
				if (fd >= 0)
					close(fd);
				if (answer.type == VGPU_WELCOME)
					break;
				if (answer.code == VGPU_ERR_REMOVED)
					vgpu_memory_answer(&answer);
				heard = now_ns();
				ns = REFUSED_NS;
			}
		} else {
			/* Nobody listens. Not so a vgpud that is stopped or too
			 * busy (EAGAIN): it may grant others again any time;
			 * nor one that removed this vGPU (ENOENT). */
			listens = errno != ECONNREFUSED;
			away = now_ns() - heard;
			vgpu_memory_stand_in(away, listens);
			if (!listens && stand_in(away)) {
				mine = true;
				if (!said && may_say())
					dprintf(STDERR_FILENO,
						"vgpu: vgpud has been away for %llu s; computing without it, as the node's policy says\n",
						(unsigned long long)(away / 1000000000));
				said = true;
			}
		}
		look(); /* a drain ends without vgpud too */
		if (pause_ns(ns))
			return false;
	}
	vgpu_sock_stats();
	pthread_mutex_lock(&vgpu_gate.bind_lock);
	if (vgpu_gate.bind_asked)
		vgpu_sock_ring(VGPU_BIND);
	pthread_mutex_unlock(&vgpu_gate.bind_lock);
	vgpu_memory_again();
	return true;
}

static void *run(void *unused)
{
	struct pollfd fds[3] = {
		{ .fd = vgpu_gate.stop_fd, .events = POLLIN },
		{ .fd = vgpu_gate.sock, .events = POLLIN },
		{ .fd = vgpu_gate.look_fd, .events = POLLIN },
	};
	struct timespec wait = { 0 };
	long ns = LOOK_MIN_NS;
	bool soon = false;
	uint64_t looks;
	int n;

	(void)unused;
	prctl(PR_SET_NAME, "vgpu");
	prctl(PR_SET_TIMERSLACK, 1);
	if (vgpu_gate.ops.thread_start)
		vgpu_gate.ops.thread_start(vgpu_gate.ops.arg);
	for (;;) {
		wait.tv_nsec = ns;
		fds[1].events = vgpu_memory_untold() ? POLLIN | POLLOUT : POLLIN;
		n = ppoll(fds, 3, soon ? &wait : NULL, NULL);
		if (n > 0 && fds[0].revents)
			return NULL;
		if (n > 0 && fds[2].revents && read(vgpu_gate.look_fd, &looks, sizeof(looks)) < 0)
			continue;
		if (n > 0 && fds[1].revents & POLLOUT)
			vgpu_memory_tell();
		if (n > 0 && fds[1].revents & ~POLLOUT) {
			if (!read_messages() && !reconnect())
				return NULL;
			vgpu_gate_publish();
			ns = LOOK_MIN_NS;
		} else {
			ns = longer(ns);
		}
		soon = look();
		if (!soon)
			ns = LOOK_MIN_NS;
	}
}

int vgpu_thread_start(void)
{
	sigset_t all, old;
	int rc;

	/* The application's signals are not ours to take. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	/* With the default stack: a program's static TLS comes out of it, and
	 * may be larger than anything that looks reasonable here. */
	rc = pthread_create(&vgpu_gate.thread, NULL, run, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	vgpu_gate.thread_runs = rc == 0;
	errno = rc;
	return rc == 0 ? 0 : -1;
}

void vgpu_thread_look(void)
{
	uint64_t one = 1;
	int cancel;
	ssize_t n;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	n = write(vgpu_gate.look_fd, &one, sizeof(one)); /* fails only if it was rung very often */
	(void)n;
	pthread_setcancelstate(cancel, &cancel);
}

void vgpu_thread_stop(void)
{
	uint64_t one = 1;

	if (!vgpu_gate.thread_runs)
		return;
	vgpu_gate.thread_runs = false;
	if (write(vgpu_gate.stop_fd, &one, sizeof(one)) == (ssize_t)sizeof(one))
		pthread_join(vgpu_gate.thread, NULL);
	vgpu_memory_end();
}
