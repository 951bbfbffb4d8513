/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between processes: whoever has given out a handle answers at a socket in the
 * machine's directory, where containers meet, and passes the file that the
 * handle stands for.
 */
#ifndef SIMGPU_IPC_H
#define SIMGPU_IPC_H

#include <stdbool.h>
#include <stdint.h>

enum ipc_kind { IPC_MEMORY = 1, IPC_EVENT };

/* What a handle that a program passes on consists of. */
struct ipc_handle {
	uint64_t magic;
	uint32_t kind; /* enum ipc_kind */
	uint32_t proc; /* sim_proc.id of who answers */
	uint64_t id, address;
};

struct ipc_answer {
	uint32_t ok;
	uint32_t gpu; /* index in the machine */
	uint64_t offset, size;
};

/* From now on this process answers. False: it can not. */
bool ipc_serve_locked(void);
void ipc_handle_make(void *to, uint32_t kind, uint64_t id, uint64_t address);
/* False: it is no handle of that kind. */
bool ipc_handle_read(const void *from, uint32_t kind, struct ipc_handle *h);
/* The file, or -1: who made the handle is gone, or what it stands for. Without the mutex. */
int ipc_ask(const struct ipc_handle *h, struct ipc_answer *answer);
/* In the child of a fork: the parent alone answers. */
void ipc_after_fork(void);

/* What a handle stands for: the file stays ours. False: it is gone. */
bool ipc_memory_locked(const struct ipc_handle *h, struct ipc_answer *answer, int *fd);
bool ipc_event_locked(const struct ipc_handle *h, int *fd);

#endif
