/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver whose functions are chosen when they are looked up (as a C library
 * chooses memcpy), and whose choice overwrites every register that may hold an
 * argument. musl has no such functions.
 */
#include <features.h>

#include "arguments.h"

int cuInit(unsigned flags);

int cuInit(unsigned flags)
{
	(void)flags;
	return 0;
}

static double sum(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, double p, double q,
		  double r, double s, double t, double u, double v, double w, double x)
{
	long n = a + 2 * b + 4 * c + 8 * d + 16 * e + 32 * f + 64 * g + 128 * h + 256 * i + 512 * j + 1024 * k;

	return (double)n + p / 2 + q / 4 + r / 8 + s / 16 + t / 32 + u / 64 + v / 128 + w / 256 + x / 512;
}

static struct large fill(long a, double b)
{
	struct large l = { { a, (long)b, 3, 4, 5, 6, 7, 8, 9 } };

	return l;
}

#ifdef __GLIBC__
static void overwrite(void)
{
#if defined(__x86_64__)
	__asm__ volatile("mov $-1, %%rax; mov %%rax, %%rdi; mov %%rax, %%rsi; mov %%rax, %%rdx; mov %%rax, %%rcx;"
			 "mov %%rax, %%r8; mov %%rax, %%r9; mov %%rax, %%r10; mov %%rax, %%r11;"
			 "pcmpeqd %%xmm0, %%xmm0; pcmpeqd %%xmm1, %%xmm1; pcmpeqd %%xmm2, %%xmm2; pcmpeqd %%xmm3, %%xmm3;"
			 "pcmpeqd %%xmm4, %%xmm4; pcmpeqd %%xmm5, %%xmm5; pcmpeqd %%xmm6, %%xmm6; pcmpeqd %%xmm7, %%xmm7"
			 ::: "rax", "rdi", "rsi", "rdx", "rcx", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
			 "xmm5", "xmm6", "xmm7");
#elif defined(__aarch64__)
	__asm__ volatile("mov x0, #-1; mov x1, x0; mov x2, x0; mov x3, x0; mov x4, x0; mov x5, x0; mov x6, x0; mov x7, x0;"
			 "mov x8, x0; mov x16, x0; mov x17, x0;"
			 "movi v0.2d, #-1; movi v1.2d, #-1; movi v2.2d, #-1; movi v3.2d, #-1;"
			 "movi v4.2d, #-1; movi v5.2d, #-1; movi v6.2d, #-1; movi v7.2d, #-1"
			 ::: "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x16", "x17", "v0", "v1", "v2", "v3", "v4", "v5",
			 "v6", "v7");
#endif
}

static __typeof__(&sum) choose_sum(void)
{
	overwrite();
	return sum;
}

static __typeof__(&fill) choose_fill(void)
{
	overwrite();
	return fill;
}

__typeof__(sum) cuProfilerInitialize __attribute__((ifunc("choose_sum")));
__typeof__(fill) cuSurfRefSetArray __attribute__((ifunc("choose_fill")));
#else
__typeof__(sum) cuProfilerInitialize __attribute__((alias("sum")));
__typeof__(fill) cuSurfRefSetArray __attribute__((alias("fill")));
#endif
