/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The container's own CUDA_VISIBLE_DEVICES, applied to the GPUs that are bound
 * to it. As in the driver: a list of indexes and of UUIDs (or unambiguous
 * beginnings of one), and the first entry that fits nothing ends it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "driver.h"

#define UUID_TEXT 41           /* "GPU-" and 36 characters, and the end */

static void format(const uint8_t uuid[16], char out[UUID_TEXT])
{
	char *p = out + sprintf(out, "GPU-");

	for (int i = 0; i < 16; i++)
		p += sprintf(p, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}

/* The index of the GPU that an entry means, or -1. */
static int which(const char *entry, size_t length, char (*name)[UUID_TEXT], int n)
{
	char *end;
	long index;
	int found = -1;

	if (length > 4 && strncasecmp(entry, "GPU-", 4) == 0) {
		for (int i = 0; i < n; i++) {
			if (length >= UUID_TEXT || strncasecmp(entry, name[i], length) != 0)
				continue;
			if (found >= 0)
				return -1;
			found = i;
		}
		return found;
	}
	index = strtol(entry, &end, 10);
	if (end == entry || end != entry + length || index < 0 || index >= n)
		return -1;
	return (int)index;
}

void vgpu_visible(const char *own, const uint8_t (*uuid)[16], int n, char *out, size_t size)
{
	char name[VGPU_UUIDS][UUID_TEXT];
	bool taken[VGPU_UUIDS] = { false };
	size_t used = 0, length;
	int i;

	if (n > VGPU_UUIDS)
		n = VGPU_UUIDS;
	for (i = 0; i < n; i++)
		format(uuid[i], name[i]);
	out[0] = 0;
	for (int at = 0; own ? *own != 0 : at < n; at++) {
		i = at;
		if (own) {
			own += strspn(own, " \t");
			length = strcspn(own, ", \t");
			i = which(own, length, name, n);
			if (i < 0)
				return;
			own += length;
			own += strspn(own, " \t");
			own += *own == ',';
		}
		if (taken[i] || used + UUID_TEXT + 1 > size) {
			if (taken[i])
				out[0] = 0; /* one GPU twice: the driver shows none */
			return;
		}
		taken[i] = true;
		used += (size_t)snprintf(out + used, size - used, "%s%s", used ? "," : "", name[i]);
	}
}
