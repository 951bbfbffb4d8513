/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adds vectors by the driver API and checks every element. What the programs of
 * this folder share, whatever language they are in and however they come to the
 * driver. They know nothing of vgpu.
 */
#ifndef VGPU_CLIENTS_ADDER_H
#define VGPU_CLIENTS_ADDER_H

/*
 * Opens the driver and device 0; once in a process. library is for dlopen with
 * the further flags; a program that is linked with the driver gives NULL.
 * 0, or the error that stands on stderr.
 */
int adder_open(const char *library, int flags);

/* A place for one sum at a time, which any thread may work at; NULL as above. */
struct adder *adder_new(void);

/* Submits a sum, and waits for it and checks it: 0, or as above. These may be two
 * threads. */
int adder_submit(struct adder *a, unsigned seed);
int adder_collect(struct adder *a);

/*
 * Each process or thread that computes does ADDER_SUMS sums: the first, then the
 * others when all have come here that are to compute at the same time. It leaves a
 * file of its own in ADDER_MEETING, and waits for the file "now".
 */
int adder_meet(void);
#define ADDER_SUMS 40
#define ADDER_MEETING "/meeting"

/* ADDER_SUMS sums with that meeting, of one thread: 0, or as above. */
int adder_run(struct adder *a);

#endif
