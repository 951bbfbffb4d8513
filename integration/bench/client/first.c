// SPDX-License-Identifier: Apache-2.0
//
// The first process of a container of the benchmark: it notes when it began.
// With a second argument it stays, and asks for nothing more.
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (argc < 2) return 2;
    FILE *f = fopen(argv[1], "w");
    if (!f) return 1;
    fprintf(f, "%lld\n", (long long)now.tv_sec * 1000000000 + now.tv_nsec);
    if (fclose(f)) return 1;
    while (argc > 2) pause();
    return 0;
}
