/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"
#include "observe.h"
#include "tls.h"

/* How long an answer may take: until vgpud counts as away, and the same for who
 * can be answered without it. vgpud makes those wait for up to a second who ask
 * too often. */
#define PATIENCE_MS 5000
#define HURRY_MS    2000
/* Who can be answered without a vgpud that stands still does not try again. */
#define STILL_NS    UINT64_C(5000000000)
/* Between two attempts to reach a vgpud that is away. */
#define RETRY_NS    50000000
/* A vgpud that is starting may not have opened its socket to all users yet. */
#define STARTING_NS UINT64_C(2000000000)
#define SAY_NS      UINT64_C(5000000000)
/* More processes than any machine has. */
#define PROCESSES_MAX (1u << 22)

/* What was told of one GPU. */
struct told {
	bool known;
	uint8_t uuid[16];
	struct vgpu_usage usage;
	struct vgpu_process *list;
};

/* lock guards all but pid, which is sequentially consistent: it is not hot. */
static struct {
	pthread_mutex_t lock;
	pid_t pid;                 /* whose connection it is; 0 before the first; atomic */
	int sock;                  /* -1: none */
	bool known;
	bool told_wait;            /* the user was told why it waits */
	uint64_t still_ns;         /* since when vgpud stands still; 0: it does not */
	struct vgpu_identity identity;
	struct told told[VGPU_UUIDS];
} observer = { .lock = PTHREAD_MUTEX_INITIALIZER, .sock = -1 };

/* This thread holds the lock: a signal handler on it must not wait for it. */
static VGPU_TLS bool inside;

enum reached { HERE, AWAY, REFUSED };

static int fail(struct vgpu_gate_error *err, uint32_t code, const char *what, const char *why)
{
	err->code = code;
	err->errnum = errno;
	snprintf(err->text, sizeof(err->text), "%s: %s", what, why);
	return -1;
}

static pid_t owner(void)
{
	return __atomic_load_n(&observer.pid, __ATOMIC_SEQ_CST);
}

static enum reached refused(const struct vgpu_msg *msg, struct vgpu_gate_error *err)
{
	errno = 0;
	fail(err, msg->code, "vgpud refused", msg->text);
	return REFUSED;
}

/* The number is given up first: the child of a fork meanwhile would close
 * whatever has it by then. */
static void hang_up(void)
{
	int sock = observer.sock;

	observer.sock = -1;
	if (sock >= 0)
		close(sock);
}

static void forget(void)
{
	for (unsigned i = 0; i < VGPU_UUIDS; i++)
		free(observer.told[i].list);
	memset(observer.told, 0, sizeof(observer.told));
	memset(&observer.identity, 0, sizeof(observer.identity));
	observer.known = false;
}

/* Another thread of the parent may have held the lock, and left half of what it
 * was told. The lists are not freed: one may have been, just then. */
static void in_child(void)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	if (owner() == 0)
		return;
	memcpy(&observer.lock, &fresh, sizeof(fresh));
	hang_up();
	memset(observer.told, 0, sizeof(observer.told));
	forget();
	observer.told_wait = false;
	inside = false;
	__atomic_store_n(&observer.pid, getpid(), __ATOMIC_SEQ_CST);
}

static bool enter(int *cancel, struct vgpu_gate_error *err)
{
	pid_t nobody = 0, me = getpid();

	memset(err, 0, sizeof(*err));
	if (inside) {
		errno = EDEADLK;
		fail(err, 0, "failed to ask vgpud", "asked by a signal handler in the middle of a question");
		return false;
	}
	if (__atomic_compare_exchange_n(&observer.pid, &nobody, me, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		pthread_atfork(NULL, NULL, in_child); /* without it the child finds out below */
	else if (nobody != me)
		in_child(); /* of a clone, which calls no handler */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, cancel);
	pthread_mutex_lock(&observer.lock);
	inside = true;
	return true;
}

static void leave(int cancel)
{
	inside = false;
	pthread_mutex_unlock(&observer.lock);
	pthread_setcancelstate(cancel, NULL);
}

static void tell_wait(const char *why)
{
	if (observer.told_wait)
		return;
	observer.told_wait = true;
	fprintf(stderr, "vgpu: waiting for a GPU: %s\n", why);
}

/* The next message of this type, or REFUSED; false if the connection broke or
 * stayed silent, and it is gone then. */
static bool hear(enum vgpu_msg_type type, struct vgpu_msg *msg, int patience_ms)
{
	uint64_t until = now_ns() + (uint64_t)patience_ms * 1000000;
	struct pollfd p = { .fd = observer.sock, .events = POLLIN };
	bool waits = false;
	uint64_t now;
	int n;

	for (;;) {
		n = vgpu_sock_recv(observer.sock, msg, NULL);
		if (n < 0)
			break;
		if (n == 0) {
			now = now_ns();
			if (!waits && now >= until) {
				observer.still_ns = now;
				break;
			}
			poll(&p, 1, waits ? -1 : (int)((until - now) / 1000000 + 1));
			continue;
		}
		observer.still_ns = 0;
		if (msg->type == type || msg->type == VGPU_REFUSED)
			return true;
		if (msg->type == VGPU_WAIT) {
			waits = true;
			tell_wait(msg->text);
		}
	}
	hang_up();
	return false;
}

static bool hung_up(void)
{
	struct pollfd p = { .fd = observer.sock };

	return poll(&p, 1, 0) > 0;
}

/* May vgpud be reached later, after connect failed so? */
static bool may_come(int errnum, uint64_t since)
{
	return errnum == ECONNREFUSED || errnum == ENOENT || errnum == EAGAIN || errnum == EINTR ||
	       (errnum == EACCES && now_ns() - since < STARTING_NS);
}

/* Makes sure of a connection by which vgpud said who this vGPU is. */
static enum reached reach(const char *path, bool bind, uint64_t since, struct vgpu_gate_error *err)
{
	bool answerable = observer.known && (!bind || observer.identity.count > 0);
	struct vgpu_msg msg = { .type = VGPU_IDENTITY };
	int sock;

	if (observer.sock >= 0 && hung_up())
		hang_up();
	if (observer.sock >= 0 && (!bind || observer.identity.count > 0))
		return HERE;
	hang_up(); /* IDENTITY is the first message of a connection */
	if (answerable && observer.still_ns && now_ns() - observer.still_ns < STILL_NS)
		return AWAY;
	sock = vgpu_sock_connect(path);
	if (sock < 0) {
		if (may_come(errno, since))
			return AWAY;
		fail(err, 0, path, strerror(errno));
		return REFUSED;
	}
	observer.sock = vgpu_sock_high(sock);
	/* What was told once is to stay so. */
	msg.a[0] = bind || observer.identity.count > 0;
	if (vgpu_sock_send(observer.sock, &msg, -1) != 0) {
		hang_up();
		return AWAY;
	}
	if (!hear(VGPU_IDENTITY_IS, &msg, answerable ? HURRY_MS : PATIENCE_MS))
		return AWAY;
	if (msg.type == VGPU_REFUSED) {
		hang_up();
		return refused(&msg, err);
	}
	observer.known = true;
	observer.identity.gpus = msg.a[0] < VGPU_UUIDS ? (uint32_t)msg.a[0] : VGPU_UUIDS;
	observer.identity.count = msg.count;
	memcpy(observer.identity.uuid, msg.uuid, sizeof(msg.uuid));
	return HERE;
}

static int socket_path(const char *dir, char *path, size_t size, struct vgpu_gate_error *err)
{
	if (snprintf(path, size, "%s/" VGPU_SOCKET, dir) >= (int)size) {
		errno = ENAMETOOLONG;
		return fail(err, 0, dir, strerror(errno));
	}
	if (access(dir, X_OK) != 0)
		return fail(err, 0, dir, strerror(errno));
	return 0;
}

/* Between two attempts; says once that it waits. */
static void pause_for(const char *path, uint64_t since, bool *said)
{
	struct timespec pause = { .tv_nsec = RETRY_NS };

	if (!*said && now_ns() - since > SAY_NS) {
		*said = true;
		fprintf(stderr, "vgpu: vgpud does not answer at %s; waiting for it\n", path);
	}
	nanosleep(&pause, NULL);
}

static int identity(const char *dir, bool bind, struct vgpu_identity *out, struct vgpu_gate_error *err)
{
	uint64_t since = now_ns();
	bool said = false;
	char path[108];

	if (socket_path(dir, path, sizeof(path), err) != 0)
		return -1;
	for (;;) {
		switch (reach(path, bind, since, err)) {
		case REFUSED:
			return -1;
		case AWAY:
			if (!observer.known || (bind && observer.identity.count == 0)) {
				pause_for(path, since, &said);
				continue;
			}
			break;
		case HERE:
			if (bind && observer.identity.count == 0) {
				errno = 0;
				return fail(err, VGPU_ERR_INTERNAL, "no GPU", "vgpud named none");
			}
			break;
		}
		*out = observer.identity;
		return 0;
	}
}

int vgpu_observe_identity(const char *dir, bool bind, struct vgpu_identity *out, struct vgpu_gate_error *err)
{
	int cancel, rc;

	if (!enter(&cancel, err))
		return -1;
	rc = identity(dir, bind, out, err);
	leave(cancel);
	return rc;
}

/* The place for what is told of a GPU: its own, a free one, or that of a GPU
 * that is not bound any more. */
static struct told *place_of(const uint8_t uuid[16])
{
	struct told *t, *other = NULL;

	for (unsigned i = 0; i < VGPU_UUIDS; i++) {
		t = &observer.told[i];
		if (t->known && memcmp(t->uuid, uuid, 16) == 0)
			return t;
		if (!other && !t->known)
			other = t;
	}
	if (!other) {
		other = &observer.told[0];
		free(other->list);
		memset(other, 0, sizeof(*other));
	}
	return other;
}

/* The processes that were announced. NULL if they did not come. */
static struct vgpu_process *hear_processes(uint32_t *n, int patience_ms)
{
	struct vgpu_process *list = calloc(*n ? *n : 1, sizeof(*list));
	struct vgpu_msg msg = { 0 };
	uint32_t got = 0, more;

	while (list && got < *n && !msg.a[0]) {
		if (!hear(VGPU_PROCESSES, &msg, patience_ms) || msg.type == VGPU_REFUSED) {
			free(list);
			return NULL;
		}
		more = msg.count < *n - got ? msg.count : *n - got;
		memcpy(list + got, msg.uuid, more * sizeof(*list));
		got += more;
	}
	*n = got;
	return list;
}

static enum reached hear_usage(struct told *t, const uint8_t uuid[16], struct vgpu_gate_error *err)
{
	int patience_ms = t->known ? HURRY_MS : PATIENCE_MS;
	struct vgpu_msg msg = { .type = VGPU_USAGE, .count = 1 };
	struct vgpu_process *list;
	uint32_t n;

	memcpy(msg.uuid[0], uuid, 16);
	if (vgpu_sock_send(observer.sock, &msg, -1) != 0) {
		hang_up();
		return AWAY;
	}
	do {
		if (!hear(VGPU_USAGE_IS, &msg, patience_ms))
			return AWAY;
		if (msg.type == VGPU_REFUSED) {
			hang_up();
			return refused(&msg, err);
		}
	} while (memcmp(msg.uuid[0], uuid, 16) != 0);
	if (msg.code != VGPU_OK)
		return refused(&msg, err); /* it is not on this GPU any more */
	n = msg.a[3] < PROCESSES_MAX ? (uint32_t)msg.a[3] : PROCESSES_MAX;
	list = hear_processes(&n, patience_ms);
	if (!list) {
		hang_up();
		return AWAY;
	}
	free(t->list);
	t->known = true;
	memcpy(t->uuid, uuid, 16);
	t->list = list;
	t->usage = (struct vgpu_usage){ msg.a[0], msg.a[1], msg.others, msg.a[2], n };
	return HERE;
}

static int usage(const char *dir, const uint8_t uuid[16], struct vgpu_usage *out, struct vgpu_process **list,
		 struct vgpu_gate_error *err)
{
	uint64_t since = now_ns();
	bool said = false;
	struct told *t;
	enum reached how;
	char path[108];

	if (socket_path(dir, path, sizeof(path), err) != 0)
		return -1;
	t = place_of(uuid);
	for (;;) {
		how = reach(path, true, since, err);
		if (how == HERE)
			how = hear_usage(t, uuid, err);
		if (how == REFUSED)
			return -1;
		if (t->known)
			break;
		pause_for(path, since, &said);
	}
	*out = t->usage;
	if (!list)
		return 0;
	*list = malloc((t->usage.processes + 1) * sizeof(**list));
	if (!*list)
		return fail(err, 0, "failed to list processes", strerror(errno));
	memcpy(*list, t->list, t->usage.processes * sizeof(**list));
	return 0;
}

int vgpu_observe_usage(const char *dir, const uint8_t uuid[16], struct vgpu_usage *out, struct vgpu_process **list,
		       struct vgpu_gate_error *err)
{
	int cancel, rc;

	if (!enter(&cancel, err))
		return -1;
	rc = usage(dir, uuid, out, list, err);
	leave(cancel);
	return rc;
}

void vgpu_observe_end(void)
{
	struct vgpu_gate_error err;
	int cancel;

	if (owner() == 0 || !enter(&cancel, &err))
		return;
	hang_up();
	forget();
	leave(cancel);
}
