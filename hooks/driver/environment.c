/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA_VISIBLE_DEVICES as the real cuInit shall read it. setenv may move the
 * environment under a thread that reads it; so the array is exchanged for a copy
 * that is never freed, and exchanged back. Whoever reads meanwhile finds one of
 * the two, each whole.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

#define VARIABLE "CUDA_VISIBLE_DEVICES"

/* Kept for ever: a thread may still read it. */
static struct vgpu_environment *kept;

const char *vgpu_environment_own(void)
{
	return getenv(VARIABLE);
}

struct vgpu_environment *vgpu_environment_show(const char *value)
{
	size_t n = 0, used = 0, size = sizeof(VARIABLE "=") + strlen(value);
	struct vgpu_environment *e;

	while (environ && environ[n])
		n++;
	e = malloc(sizeof(*e) + (n + 2) * sizeof(*e->array) + size);
	if (!e)
		return NULL;
	e->before = environ;
	e->next = kept;
	kept = e;
	for (size_t i = 0; i < n; i++)
		if (strncmp(e->before[i], VARIABLE "=", sizeof(VARIABLE)) != 0)
			e->array[used++] = e->before[i];
	e->array[used] = (char *)&e->array[n + 2];
	e->array[used + 1] = NULL;
	strcpy(strcpy(e->array[used], VARIABLE "=") + sizeof(VARIABLE), value);
	/* Release: a reader of the pointer finds the array written. */
	__atomic_store_n(&environ, e->array, __ATOMIC_RELEASE);
	return e;
}

void vgpu_environment_restore(struct vgpu_environment *e, const char *own)
{
	char **ours = e->array;

	if (__atomic_compare_exchange_n(&environ, &ours, e->before, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return;
	/* Another thread has set a variable meanwhile, into a copy of ours. */
	if (own)
		setenv(VARIABLE, own, 1);
	else
		unsetenv(VARIABLE);
}
