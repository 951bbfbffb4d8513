/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to and from vgpud. None of these functions raises SIGPIPE. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "internal.h"

#define HIGH_FD 1024

/* Above the numbers that programs close by habit when they become daemons: all
 * up to 1023, or up to their limit if that is lower. Where it is in the way, the
 * limit is raised for a moment: a descriptor outlives that. */
int vgpu_sock_high(int fd)
{
	struct rlimit own, more;
	int high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);

	if (high < 0 && getrlimit(RLIMIT_NOFILE, &own) == 0) {
		more = own;
		more.rlim_cur = own.rlim_max < HIGH_FD + 64 ? own.rlim_max : HIGH_FD + 64;
		if (setrlimit(RLIMIT_NOFILE, &more) == 0) {
			high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);
			setrlimit(RLIMIT_NOFILE, &own);
		}
	}
	if (high < 0)
		return fd;
	close(fd);
	return high;
}

int vgpu_sock_connect(const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int sock, saved;

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	/* Not blocking, for connect alone: a vgpud that is stopped would hold
	 * this thread for as long as its queue is full. */
	sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (sock < 0)
		return -1;
	if (connect(sock, (struct sockaddr *)&addr, sizeof(addr)) != 0 || fcntl(sock, F_SETFL, 0) != 0) {
		saved = errno;
		close(sock);
		errno = saved;
		return -1;
	}
	return sock;
}

static int send_flags(int sock, struct vgpu_msg *msg, int fd, int flags)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { .iov_base = msg, .iov_len = sizeof(*msg) };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *cmsg;
	ssize_t n;

	msg->protocol = VGPU_PROTOCOL;
	msg->size = VGPU_MSG_SIZE;
	if (fd >= 0) {
		hdr.msg_control = control;
		hdr.msg_controllen = sizeof(control);
		cmsg = CMSG_FIRSTHDR(&hdr);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cmsg), &fd, sizeof(int));
	}
	do {
		n = sendmsg(sock, &hdr, MSG_NOSIGNAL | flags);
	} while (n < 0 && errno == EINTR);
	return n == (ssize_t)sizeof(*msg) ? 0 : -1;
}

int vgpu_sock_send(int sock, struct vgpu_msg *msg, int fd)
{
	return send_flags(sock, msg, fd, 0);
}

int vgpu_sock_try_send(int sock, struct vgpu_msg *msg)
{
	return send_flags(sock, msg, -1, MSG_DONTWAIT);
}

/* Rings a doorbell. If the connection is gone the bell is lost, and nothing
 * with it: the library's thread says HELLO again and vgpud reads the page. If
 * the socket is full there are bells enough in it to make vgpud look. A
 * cancellation of the thread, which sendmsg would act on, must not take it away:
 * the word was changed already. */
void vgpu_sock_ring(enum vgpu_msg_type type)
{
	struct vgpu_msg msg = { .type = (uint16_t)type };
	int cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	send_flags(vgpu_gate.sock, &msg, -1, type == VGPU_BIND ? 0 : MSG_DONTWAIT);
	pthread_setcancelstate(cancel, &cancel);
}

void vgpu_sock_stats(void)
{
	struct vgpu_msg msg = { .type = VGPU_STATS };

	msg.a[0] = __atomic_load_n(&vgpu_gate.stats[0], __ATOMIC_RELAXED);
	msg.a[1] = __atomic_load_n(&vgpu_gate.stats[1], __ATOMIC_RELAXED);
	if (msg.a[0] || msg.a[1])
		vgpu_sock_send(vgpu_gate.sock, &msg, -1);
}

bool vgpu_sock_alive(void)
{
	struct pollfd p = { .fd = vgpu_gate.sock };

	return poll(&p, 1, 0) >= 0 && !(p.revents & (POLLHUP | POLLERR | POLLNVAL));
}

int vgpu_sock_recv(int sock, struct vgpu_msg *msg, int *fd)
{
	char control[CMSG_SPACE(4 * sizeof(int))];
	struct iovec iov = { .iov_base = msg, .iov_len = sizeof(*msg) };
	struct msghdr hdr = {
		.msg_iov = &iov, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof(control),
	};
	struct cmsghdr *cmsg;
	int got;
	ssize_t n;

	do {
		n = recvmsg(sock, &hdr, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return 0;
	if (n <= 0)
		return -1;
	for (cmsg = CMSG_FIRSTHDR(&hdr); cmsg; cmsg = CMSG_NXTHDR(&hdr, cmsg)) {
		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= cmsg->cmsg_len; at += sizeof(int)) {
			memcpy(&got, CMSG_DATA(cmsg) + at, sizeof(int));
			if (fd && *fd < 0)
				*fd = got;
			else
				close(got);
		}
	}
	if (n != (ssize_t)sizeof(*msg) || msg->size != VGPU_MSG_SIZE || (hdr.msg_flags & MSG_TRUNC))
		return -1; /* not our vgpud */
	msg->text[VGPU_TEXT - 1] = 0;
	if (msg->count > VGPU_UUIDS)
		return -1;
	return 1;
}

/* Says HELLO and waits for the answer. 0 with *answer, and in *fd what came
 * along; -1 if the connection broke or stayed silent. */
int vgpu_sock_hello(int sock, int page_fd, struct vgpu_msg *answer, int *fd)
{
	struct vgpu_msg hello = { .type = VGPU_HELLO };
	struct pollfd p[2] = {
		{ .fd = sock, .events = POLLIN },
		{ .fd = vgpu_gate.stop_fd, .events = POLLIN }, /* -1 at the first: ignored */
	};
	int n;

	hello.count = vgpu_gate.bound_count;
	memcpy(hello.uuid, vgpu_gate.bound, sizeof(hello.uuid));
	if (vgpu_sock_send(sock, &hello, page_fd) != 0)
		return -1;
	for (;;) {
		n = poll(p, 2, 5000);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0 || p[1].revents)
			return -1;
		n = vgpu_sock_recv(sock, answer, fd);
		if (n < 0)
			return -1;
		if (n == 0 || (answer->type != VGPU_WELCOME && answer->type != VGPU_REFUSED))
			continue; /* a doorbell may come first */
		return 0;
	}
}
