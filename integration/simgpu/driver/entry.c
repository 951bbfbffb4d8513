/* SPDX-License-Identifier: Apache-2.0 */
/* How a call begins: cuInit, the process's state, what is visible to it. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc.h"
#include "sim.h"

struct sim sim = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.done = PTHREAD_COND_INITIALIZER,
	.init_result = CUDA_ERROR_NOT_INITIALIZED,
};

_Thread_local struct thread_state self;

uint64_t thread_id(void)
{
	static _Atomic uint64_t next;

	if (!self.id)
		self.id = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed) + 1;
	return self.id;
}

void debug(const char *format, ...)
{
	va_list ap;

	if (!sim.debug)
		return;
	va_start(ap, format);
	fputs("simgpu: ", stderr);
	vfprintf(stderr, format, ap);
	fputc('\n', stderr);
	va_end(ap);
}

/* As the real one: after a fork the child has no driver. */
static void after_fork_in_child(void)
{
	atomic_store(&sim.ready, false);
	/* Else our lock would live on in the child and hide the parent's death. */
	if (sim.mc.fd >= 0)
		close(sim.mc.fd);
	sim.mc.fd = -1;
	ipc_after_fork();
	/* Another thread may have held it at the fork. */
	pthread_mutex_init(&sim.lock, NULL);
	sim.init_result = CUDA_ERROR_NOT_INITIALIZED;
}

static void all_devices(void)
{
	sim.n_devices = (int)sim.mc.m->gpus;
	for (int i = 0; i < sim.n_devices; i++)
		sim.device[i] = (uint32_t)i;
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Whether "GPU-xxxx..." names this GPU; a prefix is enough, as for the real one. */
static bool uuid_matches(const char *s, size_t n, const uint8_t uuid[16])
{
	size_t digits = 0;

	if (n < 5 || strncmp(s, "GPU-", 4) != 0)
		return false;
	for (size_t i = 4; i < n; i++) {
		int d;

		if (s[i] == '-')
			continue;
		d = hex(s[i]);
		if (d < 0 || digits >= 32)
			return false;
		if (d != ((uuid[digits / 2] >> (digits % 2 ? 0 : 4)) & 0xf))
			return false;
		digits++;
	}
	return digits > 0;
}

/* The GPU that one element of the list names, or -1. */
static int visible_one(const char *s, size_t n)
{
	int found = -1;

	if (n > 0 && s[0] >= '0' && s[0] <= '9') {
		unsigned long v = strtoul(s, NULL, 10);

		return v < sim.mc.m->gpus ? (int)v : -1;
	}
	for (uint32_t g = 0; g < sim.mc.m->gpus; g++)
		if (uuid_matches(s, n, sim.mc.m->gpu[g].uuid)) {
			if (found >= 0)
				return -1; /* a prefix of two */
			found = (int)g;
		}
	return found;
}

/* CUDA_VISIBLE_DEVICES: read up to the first element that is wrong or double. */
static void visible_devices(void)
{
	const char *s = getenv("CUDA_VISIBLE_DEVICES");

	if (!s) {
		all_devices();
		return;
	}
	sim.n_devices = 0;
	while (*s) {
		while (*s == ' ')
			s++;
		size_t n = strcspn(s, ",");
		size_t len = n;

		while (len && s[len - 1] == ' ')
			len--;
		int g = visible_one(s, len);
		if (g < 0)
			return;
		for (int i = 0; i < sim.n_devices; i++)
			if (sim.device[i] == (uint32_t)g) {
				sim.n_devices = 0; /* a GPU twice: none at all */
				return;
			}
		sim.device[sim.n_devices++] = (uint32_t)g;
		s += n;
		if (*s == ',')
			s++;
	}
}

static CUresult init_locked(void)
{
	static bool hooked;
	int err;

	sim.debug = getenv("SIMGPU_DEBUG") != NULL;
	sim.mc.fd = -1;
	err = machine_open(&sim.mc, machine_dir());
	if (err) {
		debug("no machine in %s: %s", machine_dir(), strerror(-err));
		return CUDA_ERROR_NO_DEVICE;
	}
	visible_devices();
	if (sim.n_devices == 0) {
		machine_close(&sim.mc);
		return CUDA_ERROR_NO_DEVICE;
	}
	err = machine_join(&sim.mc);
	if (err) {
		debug("can not join the machine: %s", strerror(-err));
		machine_close(&sim.mc);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	for (int g = 0; g < SIM_MAX_GPUS; g++)
		pthread_cond_init(&sim.gpu[g].kick, NULL);
	if (!hooked)
		pthread_atfork(NULL, NULL, after_fork_in_child);
	hooked = true;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuInit(unsigned int Flags)
{
	uint64_t from = clock_ns();

	if (Flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (self.in_host_function)
		return CUDA_ERROR_NOT_PERMITTED;
	lock();
	if (!atomic_load(&sim.ready)) {
		if (sim.mc.m)
			return leave(CUDA_ERROR_NOT_INITIALIZED); /* a fork's child */
		sim.init_result = init_locked();
		if (sim.init_result == CUDA_SUCCESS) {
			/* release: who sees ready sees the machine */
			atomic_store_explicit(&sim.ready, true, memory_order_release);
			log_setup("cuInit", NULL, NULL, from);
		}
	}
	return leave(sim.init_result);
}

CUresult enter(void)
{
	if (self.in_host_function)
		return CUDA_ERROR_NOT_PERMITTED;
	if (!atomic_load_explicit(&sim.ready, memory_order_acquire))
		return sim.init_result == CUDA_ERROR_NO_DEVICE ? CUDA_ERROR_NO_DEVICE : CUDA_ERROR_NOT_INITIALIZED;
	return CUDA_SUCCESS;
}

CUresult enter_context(struct context **ctx)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	if (self.depth == 0 || !self.stack[self.depth - 1])
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	*ctx = handle_get_locked(self.stack[self.depth - 1], KIND_CONTEXT);
	if (!*ctx)
		return leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
	context_look_locked(*ctx);
	if ((*ctx)->error)
		return leave((*ctx)->error);
	return CUDA_SUCCESS;
}

void log_setup(const char *name, const char *detail, const struct context *ctx, uint64_t from_ns)
{
	slow_locked(name, ctx ? ctx->gpu : 0);
	uint64_t r = record_submit(&sim.mc, &(struct submission){
		.gpu = ctx ? ctx->gpu : SIM_NO_GPU, .class = SIM_SETUP, .context = ctx ? ctx->id : 0,
		.name = name, .detail = detail }, from_ns);

	record_start(&sim.mc, r, from_ns);
	record_end(&sim.mc, r, clock_ns());
}
