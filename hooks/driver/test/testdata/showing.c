/* SPDX-License-Identifier: Apache-2.0 */
/* showing N [VALUE]: CUDA_VISIBLE_DEVICES for N bound GPUs; GPU i is 16 bytes of i+1. */
#include "../../driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	uint8_t uuid[VGPU_UUIDS][16];
	char out[VGPU_UUIDS * 42 + 1];

	for (int i = 0; i < VGPU_UUIDS; i++)
		memset(uuid[i], i + 1, 16);
	vgpu_visible(argc > 2 ? argv[2] : NULL, uuid, atoi(argv[1]), out, sizeof(out));
	puts(out);
	return 0;
}
