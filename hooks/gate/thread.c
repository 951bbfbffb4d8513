/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's own thread. It sleeps in poll until vgpud rings. Only while
 * somebody else wants the GPU, or a turn is being drained, does it look at what
 * is in flight; alone on the GPU a process never pays for it. It also says
 * HELLO again when vgpud was restarted.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
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

/* Reads what came. False: the connection is gone. */
static bool read_messages(void)
{
	struct vgpu_msg msg;
	int n, fd;

	for (;;) {
		fd = -1;
		n = vgpu_sock_recv(vgpu_gate.sock, &msg, &fd);
		if (fd >= 0)
			close(fd);
		if (n <= 0)
			return n == 0;
		if (msg.type == VGPU_BOUND || msg.type == VGPU_REFUSED)
			answer_bind(&msg);
		/* A NUDGE says no more than: look. */
	}
}

/* Sleeps; true if the thread shall end. */
static bool pause_ns(long ns)
{
	struct timespec ts = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
	struct pollfd p = { .fd = vgpu_gate.stop_fd, .events = POLLIN };

	return ppoll(&p, 1, &ts, NULL) > 0;
}

/* Until vgpud knows this process again; false if the thread shall end. */
static bool reconnect(void)
{
	struct vgpu_msg answer;
	int sock, fd, rc;
	long ns;

	for (;;) {
		ns = RETRY_NS;
		sock = vgpu_sock_connect(vgpu_gate.socket_path);
		if (sock >= 0) {
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
				ns = REFUSED_NS;
			}
		}
		if (pause_ns(ns))
			return false;
	}
	vgpu_sock_stats();
	pthread_mutex_lock(&vgpu_gate.bind_lock);
	if (vgpu_gate.bind_asked)
		vgpu_sock_ring(VGPU_BIND);
	pthread_mutex_unlock(&vgpu_gate.bind_lock);
	return true;
}

void vgpu_gate_drain(uint64_t w)
{
	struct vgpu_page *page = vgpu_gate.page;

	if (!count_empty(&vgpu_gate.inside))
		return;
	if (vgpu_gate.ops.poll(vgpu_gate.ops.arg))
		return;
	vgpu_gate_publish();
	stat_store(&page->completed_ns, now_ns());
	if (word_cas(&page->word, w, VGPU_WORD(VGPU_CLOSED, VGPU_EPOCH(w))))
		vgpu_sock_ring(VGPU_DRAINED);
}

/* Does what the word and wanted ask for. True: there is more to do soon. */
static bool look(void)
{
	struct vgpu_page *page = vgpu_gate.page;
	uint64_t w = word_load(&page->word);
	uint32_t state = VGPU_STATE(w);

	if (state == VGPU_DRAINING) {
		vgpu_gate_drain(w);
	} else if (state == VGPU_OPEN && flag_load(&page->wanted)) {
		if (count_empty(&vgpu_gate.inside) && flag_load(&page->waiting) == 0 &&
		    !vgpu_gate.ops.poll(vgpu_gate.ops.arg))
			vgpu_gate_try_idle();
	}
	w = word_load(&page->word);
	state = VGPU_STATE(w);
	return state == VGPU_DRAINING ||
	       ((state == VGPU_OPEN || state == VGPU_CLOSING) && flag_load(&page->wanted));
}

static void *run(void *unused)
{
	struct pollfd fds[2] = {
		{ .fd = vgpu_gate.stop_fd, .events = POLLIN },
		{ .fd = vgpu_gate.sock, .events = POLLIN },
	};
	struct timespec wait = { 0 };
	long ns = LOOK_MIN_NS;
	bool soon = false;
	int n;

	(void)unused;
	prctl(PR_SET_NAME, "vgpu");
	prctl(PR_SET_TIMERSLACK, 1);
	if (vgpu_gate.ops.thread_start)
		vgpu_gate.ops.thread_start(vgpu_gate.ops.arg);
	for (;;) {
		wait.tv_nsec = ns;
		n = ppoll(fds, 2, soon ? &wait : NULL, NULL);
		if (n > 0 && fds[0].revents)
			return NULL;
		if (n > 0 && fds[1].revents) {
			if (!read_messages() && !reconnect())
				return NULL;
			vgpu_gate_publish();
			ns = LOOK_MIN_NS;
		} else {
			ns = ns * 3 / 2 > LOOK_MAX_NS ? LOOK_MAX_NS : ns * 3 / 2;
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

void vgpu_thread_stop(void)
{
	uint64_t one = 1;

	if (!vgpu_gate.thread_runs)
		return;
	vgpu_gate.thread_runs = false;
	if (write(vgpu_gate.stop_fd, &one, sizeof(one)) == (ssize_t)sizeof(one))
		pthread_join(vgpu_gate.thread, NULL);
}
