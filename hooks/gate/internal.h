/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the gate share. Nothing here is seen outside. */
#ifndef VGPU_GATE_INTERNAL_H
#define VGPU_GATE_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "gate.h"
#include "wire.h"

/* A page of memory with what leads on from it. */
#ifndef VGPU_SLOTS
#define VGPU_SLOTS 63
#endif
struct vgpu_chunk {
	struct vgpu_slot slot[VGPU_SLOTS];
	_Alignas(64) struct vgpu_chunk *next;
};

/* The one state of the gate in this process. Written by vgpu_gate_start; after
 * that each field says who writes it. */
struct gate {
	/* NULL before vgpu_gate_start and in a forked child: the gate is open. */
	struct vgpu_page *page;
	struct vgpu_gate_ops ops;

	/* Threads between a gate that they found open and the end of their
	 * submission, and submissions so far: in the slot of each thread, and in
	 * one count of those that have none (see atomic.h). */
	_Alignas(64) uint64_t shared;
	_Alignas(64) uint32_t slots_used; /* none beyond was ever taken */
	struct vgpu_chunk slots;   /* the first of them */

	_Alignas(64) uint32_t closing; /* try-lock of who makes the word CLOSING */
	uint32_t ended;            /* the library's thread has ended; written once */
	uint64_t idle_since_ns;    /* written in CLOSING, by who made it so */
	uint64_t idle_epoch;

	/* The drain that the library's thread is looking at, and what was known
	 * complete when it looked last: its own. */
	uint64_t drain_word;
	uint64_t drain_completed;

	char socket_path[108];
	int sock;                  /* constant: a new connection is dup'ed onto it */
	int page_fd;
	int stop_fd;               /* eventfd: the library's thread shall end */
	int look_fd;               /* eventfd: it shall look whether there is something to tell */
	pthread_key_t slot_key;    /* gives a thread's slot back when it ends */
	bool has_slot_key;         /* else all threads share the one count */
	pthread_t thread;
	bool thread_runs;
	bool forked;               /* written by the child of a fork, once */

	uint64_t stats[2];         /* told last; written by vgpu_gate_stats, relaxed */

	/* BIND: one at a time, answered through the library's thread. */
	pthread_mutex_t bind_turn;
	pthread_mutex_t bind_lock; /* guards what follows */
	pthread_cond_t bind_done;
	bool bind_asked;
	bool bind_answered;
	bool bind_told;            /* the application was told why it waits */
	struct vgpu_msg bind_answer;
	uint32_t bound_count;      /* what HELLO tells after a reconnection */
	uint8_t bound[VGPU_UUIDS][16];
};

extern struct gate vgpu_gate;

static inline uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* gate.c */
/* Lets the turn become idle if nothing is in flight. True if it did. */
bool vgpu_gate_try_idle(void);
/* Wakes the threads that sleep at the closed gate. */
void vgpu_gate_wake(void);
/* Writes the number of submissions into the page; not after each of them, but
 * when a turn becomes idle or drained, when vgpud rings, and at exit. */
void vgpu_gate_publish(void);

/* bound.c */
/* Is a thread about to submit that waits for the bound? */
bool vgpu_gate_work_comes(void);

/* slots.c */
void vgpu_slots_start(void);
/* Gives this thread a slot, once; without memory it uses the shared count. */
void vgpu_slot_get(void);
/* Is no thread inside the gate? To be asked after the word was made CLOSING, or
 * seen DRAINING, if something hangs on it. */
bool vgpu_slots_empty(void);
/* Submissions so far. Those made meanwhile may be missing. */
uint64_t vgpu_slots_submitted(void);

/* sock.c */
int vgpu_sock_high(int fd);
int vgpu_sock_connect(const char *path);
int vgpu_sock_hello(int sock, int page_fd, struct vgpu_msg *answer, int *fd);
void vgpu_sock_ring(enum vgpu_msg_type type);
int vgpu_sock_send(int sock, struct vgpu_msg *msg, int fd);
/* As send, but never waits: -1 if the socket is full. */
int vgpu_sock_try_send(int sock, struct vgpu_msg *msg);
/* 1: a message; 0: none now; -1: the connection is gone. */
int vgpu_sock_recv(int sock, struct vgpu_msg *msg, int *fd);

/* Sends the counts that were told last, if there are any. */
void vgpu_sock_stats(void);
/* Whether the connection still stands. */
bool vgpu_sock_alive(void);

/* memory.c; called by the library's thread */
/* What came: a MEMORY_IS, or a REFUSED that is no answer to a BIND. */
void vgpu_memory_answer(const struct vgpu_msg *msg);
/* Is there something that the full socket had no room for, and try again. */
bool vgpu_memory_untold(void);
void vgpu_memory_tell(void);
/* vgpud is back: asks again what was not answered. */
void vgpu_memory_again(void);
/* vgpud can not be reached: answers itself what it can. If nobody has listened for
 * so long, and the policy is to go on, that is everything. */
void vgpu_memory_stand_in(uint64_t away_ns, bool listens);
/* The thread has ended: nobody waits for an answer any more. */
void vgpu_memory_end(void);

/* thread.c */
/* Ends a revoked turn, whose word was read as w, if nothing of it is left. False
 * if that was not looked at: a thread is still inside the gate. */
bool vgpu_gate_drain(uint64_t w);
int vgpu_thread_start(void);
/* Wakes the thread. Neither waits nor is lost. */
void vgpu_thread_look(void);
void vgpu_thread_stop(void);

#endif
