/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rubbish: speaks rubbish on the socket of the container's vGPU.
 *
 *   rubbish [--socket PATH]
 *
 * Tries several kinds, each on a connection of its own, and waits until the
 * other side hangs up. Prints one line of JSON; ends with status 1 if a
 * connection stayed open.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* How long the other side may take to hang up; generous, it is no measurement. */
#define PATIENCE_MS 60000

static int dial(const char *path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strncpy(to.sun_path, path, sizeof(to.sun_path) - 1);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to))) {
		fprintf(stderr, "failed to connect to %s: %s\n", path, strerror(errno));
		exit(1);
	}
	return fd;
}

/* 1 once the other side has hung up, 0 if it did not in time. */
static int hung_up(int fd)
{
	char answer[4096];

	for (;;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };

		if (poll(&p, 1, PATIENCE_MS) <= 0)
			return 0;
		if (recv(fd, answer, sizeof(answer), 0) <= 0)
			return 1; /* the end, or a reset */
	}
}

int main(int argc, char **argv)
{
	const char *path = argc == 3 && !strcmp(argv[1], "--socket") ? argv[2] : "/.vgpu/sock";
	static unsigned char bytes[65536];
	static const size_t sizes[] = { 1, 511, 512, 513, 4096, 65536 };
	int sent = 0, stayed = 0;

	srand(1);
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		/* All ones, all zeros, and bytes at random (the same ones always). */
		for (int kind = 0; kind < 3; kind++) {
			int fd = dial(path);

			for (size_t i = 0; i < sizes[s]; i++)
				bytes[i] = kind == 0 ? 0xff : kind == 1 ? 0 : (unsigned char)rand();
			/* It may hang up while we write. */
			(void)!send(fd, bytes, sizes[s], MSG_NOSIGNAL);
			sent++;
			if (!hung_up(fd))
				stayed++;
			close(fd);
		}
	}
	printf("{\"program\":\"rubbish\",\"sent\":%d,\"stayed_connected\":%d}\n", sent, stayed);
	return stayed ? 1 : 0;
}
