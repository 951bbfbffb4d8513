/* SPDX-License-Identifier: Apache-2.0 */
/* Threads, one of them the owner, count on one record. */
#define _GNU_SOURCE
#include "../../driver.h"
#include "test.h"

#define THREADS 4
#define EACH    500000

VGPU_TLS struct vgpu_thread vgpu_thread;

static struct vgpu_stream record = { .owner = 2 };

static void *count(void *number)
{
	vgpu_thread.number = (uintptr_t)number;
	for (int i = 0; i < EACH; i++)
		vgpu_stream_count(&record);
	return NULL;
}

int main(void)
{
	pthread_t t[THREADS];

	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&t[i], NULL, count, (void *)(i + 1)) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	CHECK(atomic_load(&record.own) == EACH);
	CHECK(vgpu_stream_submitted(&record) == THREADS * (uint64_t)EACH);
	return 0;
}
