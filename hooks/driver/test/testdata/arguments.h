/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two names of the driver that have no hook, with parameters of our own: more
 * than there are registers for, of both kinds, and a result that is too large
 * for registers.
 */
#ifndef VGPU_TEST_ARGUMENTS_H
#define VGPU_TEST_ARGUMENTS_H

struct large {
	long value[9];
};

double cuProfilerInitialize(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k,
			    double p, double q, double r, double s, double t, double u, double v, double w, double x);
struct large cuSurfRefSetArray(long a, double b);

#endif
