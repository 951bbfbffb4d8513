/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "ipc.h"
#include "sim.h"

#define MAGIC 0x4350494d4953ull /* "SIMIPC" */
#define PATIENCE_S 10 /* with a process that is stopped */

_Static_assert(sizeof(struct ipc_handle) <= sizeof(CUipcMemHandle), "it fits into what the program passes on");

static int server = -1;

/* Through the directory's descriptor: a socket's path may not be long. */
static struct sockaddr_un address_of(uint32_t proc)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	snprintf(a.sun_path, sizeof(a.sun_path), "/proc/self/fd/%d/ipc-%u", sim.mc.dir, proc);
	return a;
}

static void answer_one(int s)
{
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct ipc_handle h;
	struct ipc_answer answer = { 0 };
	struct iovec io = { &answer, sizeof(answer) };
	struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1 };
	int fd = -1;

	if (recv(s, &h, sizeof(h), 0) != sizeof(h))
		return;
	lock();
	answer.ok = h.kind == IPC_MEMORY ? ipc_memory_locked(&h, &answer, &fd) : ipc_event_locked(&h, &fd);
	/* With the mutex: the file is there until it has been sent. */
	if (answer.ok) {
		m.msg_control = control.room;
		m.msg_controllen = sizeof(control.room);
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	}
	sendmsg(s, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
	unlock();
}

static void be_patient(int s)
{
	struct timeval t = { .tv_sec = PATIENCE_S };

	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
}

static void *serve(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "simgpu-ipc");
	for (;;) {
		int s = accept4(server, NULL, NULL, SOCK_CLOEXEC);

		if (s < 0)
			continue;
		be_patient(s);
		answer_one(s);
		close(s);
	}
	return NULL;
}

bool ipc_serve_locked(void)
{
	struct sockaddr_un a = address_of(sim.mc.id);
	pthread_t t;

	if (server >= 0)
		return true;
	server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (server < 0)
		return false;
	/* Any user of any container may ask. */
	if (bind(server, (struct sockaddr *)&a, sizeof(a)) < 0 || chmod(a.sun_path, 0666) < 0 || listen(server, 64) < 0 ||
	    thread_start(&t, serve, NULL) != CUDA_SUCCESS) {
		debug("can not answer at %s: %m", a.sun_path);
		close(server);
		server = -1;
		return false;
	}
	return true;
}

void ipc_after_fork(void)
{
	if (server >= 0)
		close(server);
	server = -1;
}

void ipc_handle_make(void *to, uint32_t kind, uint64_t id, uint64_t address)
{
	struct ipc_handle h = { MAGIC, kind, sim.mc.id, id, address };

	memset(to, 0, sizeof(CUipcMemHandle));
	memcpy(to, &h, sizeof(h));
}

bool ipc_handle_read(const void *from, uint32_t kind, struct ipc_handle *h)
{
	memcpy(h, from, sizeof(*h));
	return h->magic == MAGIC && h->kind == kind;
}

static int receive(int s, struct ipc_answer *answer)
{
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec io = { answer, sizeof(*answer) };
	struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control.room) };
	int fd = -1;

	if (recvmsg(s, &m, MSG_CMSG_CLOEXEC) != sizeof(*answer) || !answer->ok)
		return -1;
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

int ipc_ask(const struct ipc_handle *h, struct ipc_answer *answer)
{
	struct sockaddr_un a = address_of(h->proc);
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), fd = -1;

	if (s < 0)
		return -1;
	be_patient(s);
	if (connect(s, (struct sockaddr *)&a, sizeof(a)) == 0 && send(s, h, sizeof(*h), MSG_NOSIGNAL) == sizeof(*h))
		fd = receive(s, answer);
	close(s);
	return fd;
}
