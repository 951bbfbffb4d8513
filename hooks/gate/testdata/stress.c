/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stress DIR WITNESS TENANT THREADS SUBMISSIONS
 *
 * A client that submits nothing but counts: each thread passes the gate, puts
 * its tenant's number up in a file that all tenants map, and a "device" thread
 * takes it down again a little later. A tenant that finds another one's work in
 * flight while it submits has caught the arbiter or the gate. Prints the number
 * of violations and exits 1 if there are any.
 *
 * With -DABSENCE what it submits without a connection is nobody's violation, and
 * only counted: the policy is to compute while vgpud is away.
 *
 * With -DCROWD it is one of many that come and go: it does not look at the work
 * of others, since who is killed leaves its numbers behind, and forks now and then:
 * children that live on for a moment with what they inherited, or become another
 * program.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../internal.h"

#define TENANTS 64

/* Between two looks at what is in flight: while something is, and while nothing
 * is. A crowd that looks often while it waits has all of the CPU. */
#define BUSY_NS 20000
#ifdef CROWD
#define IDLE_NS 500000
#else
#define IDLE_NS BUSY_NS
#endif

struct witness {
	_Alignas(64) uint64_t in_flight[TENANTS];
	_Alignas(64) uint64_t alone; /* submissions without vgpud so far */
	uint64_t stop;             /* by the test: it is enough */
};

#ifdef LARGE_TLS
/* glibc takes it out of each thread's stack. */
static _Thread_local volatile char large[4 << 20];
#endif

static struct witness *witness;
static int tenant;
static long submissions;
static uint64_t flight[2], done, violations; /* in flight: what vgpud granted, and what not */

static bool in_flight(void *arg)
{
	(void)arg;
	return __atomic_load_n(&flight[0], __ATOMIC_SEQ_CST) != 0 || __atomic_load_n(&flight[1], __ATOMIC_SEQ_CST) != 0;
}

static void *device(void *arg)
{
	struct timespec pause = { 0 };

	(void)arg;
	for (;;) {
		/* done first: nothing is submitted after it. */
		uint64_t last = __atomic_load_n(&done, __ATOMIC_SEQ_CST);
		uint64_t n = __atomic_load_n(&flight[0], __ATOMIC_SEQ_CST);
		uint64_t alone = __atomic_load_n(&flight[1], __ATOMIC_SEQ_CST);

		pause.tv_nsec = n + alone ? BUSY_NS : IDLE_NS;
		nanosleep(&pause, NULL);
		/* Complete on the device first, then for the library. */
		__atomic_sub_fetch(&witness->in_flight[tenant], n, __ATOMIC_SEQ_CST);
		__atomic_sub_fetch(&flight[0], n, __ATOMIC_SEQ_CST);
		__atomic_sub_fetch(&flight[1], alone, __ATOMIC_SEQ_CST);
		if (last && n + alone == 0)
			return NULL;
	}
}

/* Inside the gate. */
static bool granted_by_vgpud(void)
{
#ifdef ABSENCE
	return vgpu_sock_alive();
#else
	return true;
#endif
}

static void submit_one(void)
{
	if (!granted_by_vgpud()) {
		__atomic_add_fetch(&witness->alone, 1, __ATOMIC_SEQ_CST);
		__atomic_add_fetch(&flight[1], 1, __ATOMIC_SEQ_CST);
		return;
	}
	__atomic_add_fetch(&witness->in_flight[tenant], 1, __ATOMIC_SEQ_CST);
#ifndef CROWD
	for (int other = 0; other < TENANTS; other++)
		if (other != tenant && __atomic_load_n(&witness->in_flight[other], __ATOMIC_SEQ_CST))
			__atomic_add_fetch(&violations, 1, __ATOMIC_SEQ_CST);
#endif
	__atomic_add_fetch(&flight[0], 1, __ATOMIC_SEQ_CST);
}

static void fork_now_and_then(unsigned *seed)
{
#ifdef CROWD
	struct timespec moment = { .tv_nsec = rand_r(seed) % 20000000 };
	bool exec = rand_r(seed) % 2;

	if (rand_r(seed) % 16 || fork() != 0)
		return;
	nanosleep(&moment, NULL);
	if (exec)
		execl("/bin/true", "true", (char *)NULL);
	_exit(0);
#else
	(void)seed;
#endif
}

static void *submit(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg * 2654435761u + (unsigned)getpid();

	for (long i = 0; i < submissions && !__atomic_load_n(&witness->stop, __ATOMIC_SEQ_CST); i++) {
		vgpu_gate_enter();
		submit_one();
		vgpu_gate_leave();
		fork_now_and_then(&seed);
		if (rand_r(&seed) % 4 == 0) { /* "synchronise" */
			while (in_flight(NULL) && rand_r(&seed) % 64)
				sched_yield();
			vgpu_gate_complete();
		}
		if (rand_r(&seed) % 16 == 0) {
			struct timespec cpu = { .tv_nsec = rand_r(&seed) % 100000 };

			nanosleep(&cpu, NULL);
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct vgpu_gate_ops ops = { .in_flight = in_flight, .poll = in_flight };
	struct vgpu_gate_error err;
	uint8_t uuid[16][16];
	pthread_t thread[16], dev;
	int fd, threads;

	if (argc != 6)
		return 2;
	signal(SIGCHLD, SIG_IGN);
#ifdef LARGE_TLS
	large[0] = argv[0][0];
#endif
	fd = open(argv[2], O_RDWR);
	witness = mmap(NULL, sizeof(*witness), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	tenant = atoi(argv[3]) % TENANTS;
	threads = atoi(argv[4]) > 16 ? 16 : atoi(argv[4]);
	submissions = atol(argv[5]);
	if (fd < 0 || witness == MAP_FAILED)
		return 2;
	if (vgpu_gate_start(argv[1], &ops, &err) != 0 || vgpu_gate_bind(uuid, 16, &err) < 1) {
		fprintf(stderr, "%s\n", err.text);
		return 2;
	}
	pthread_create(&dev, NULL, device, NULL);
	for (long i = 0; i < threads; i++)
		pthread_create(&thread[i], NULL, submit, (void *)(uintptr_t)(i + 1));
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	__atomic_store_n(&done, 1, __ATOMIC_SEQ_CST);
	pthread_join(dev, NULL);
	vgpu_gate_stop();
	printf("%d %llu\n", tenant, (unsigned long long)violations);
	return violations ? 1 : 0;
}
