/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated machine: a directory with two files that every process maps, and
 * a third one that tells pids.
 *
 *   machine   the GPUs and a table of the processes that use them
 *   log       what was submitted and when it ran (LOG.md)
 *   pids      empty: each process locks the byte of its row (pid.c)
 *   ipc-N     socket of process N, if it shares memory or events (../driver/ipc.c)
 *
 * No lock lives in shared memory. Fields that several processes write are
 * atomics; everything else is written by the one process that owns it. A
 * process owns its row of the table as long as it holds an OFD lock on one byte
 * of the machine file: the kernel drops that lock when the process dies, however
 * it dies, and the lock is meaningful across pid namespaces, which a pid is not.
 */
#ifndef SIMGPU_MACHINE_H
#define SIMGPU_MACHINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_MACHINE_MAGIC 0x5547504d4953ull /* "SIMPGU" */
#define SIM_MACHINE_VERSION 4
#define SIM_MAX_GPUS 16
#define SIM_MAX_PROCS 1024
#define SIM_PROC_WORDS (SIM_MAX_PROCS / 64)
#define SIM_EVENTS 64
#define SIM_DRIVER_VERSION "999.10"
#define SIM_CUDA_VERSION 13000

/* Kinds of events, as NVML numbers them. */
enum { SIM_EVENT_DOUBLE_BIT = 2, SIM_EVENT_XID = 8 };

/* One event of a GPU, for who waits at NVML. number is written last: 0 means not there (yet). */
struct sim_event {
	_Atomic uint32_t number; /* of the GPU's events, from 1 */
	_Atomic uint32_t type;   /* as NVML numbers them */
	_Atomic uint64_t data;   /* the Xid */
};

/* Which signs of MPS a GPU shows. */
enum sim_mps { SIM_MPS_NONE, SIM_MPS_CLIENT, SIM_MPS_SERVER };

/* What is wrong with a GPU, or unusual: `simgpu inject` writes it. All 0: nothing. */
struct sim_condition {
	_Atomic uint32_t lost;
	_Atomic uint32_t losses;       /* how often it was lost: contexts of before are dead */
	_Atomic uint32_t compute_mode; /* this and recovery as NVML numbers them */
	_Atomic uint32_t recovery;
	_Atomic uint32_t mig;
	_Atomic uint32_t mps; /* enum sim_mps */
	_Atomic uint32_t remap_pending, remap_failed, retirement_pending;
	_Atomic uint32_t no_events; /* like a driver that can not tell events */
	_Atomic uint32_t hang;      /* NVML calls on it do not return */
	_Atomic uint32_t oom_at;    /* so many allocations from now one fails, once; 0: none */
	_Atomic uint64_t uncorrected; /* ECC errors */
	_Atomic uint64_t clocks;      /* reasons, bits of NVML's */
	_Atomic uint64_t foreign;     /* bytes of memory that others have */
	_Atomic uint64_t slow_ns;     /* each call of the name below takes that much longer; written last */
	char slow[56];
};

struct sim_gpu {
	uint8_t uuid[16];
	uint32_t pci_bus;
	uint32_t reserved;
	/* Who has the GPU: epoch << 12 | (row + 1), 0 for nobody. A futex. */
	_Atomic uint32_t turn;
	/* The row + 1 of the process that ran last: another one pays the switch. */
	_Atomic uint32_t last;
	/* When the present turn began, CLOCK_MONOTONIC ns. */
	_Atomic uint64_t since_ns;
	_Atomic uint64_t busy_ns;
	/* One bit a row: wants a turn; has submissions in flight. */
	_Atomic uint64_t wanting[SIM_PROC_WORDS];
	_Atomic uint64_t working[SIM_PROC_WORDS];
	/* Events: so many so far, the newest SIM_EVENTS are kept. */
	_Atomic uint32_t events;
	uint32_t reserved2;
	struct sim_event event[SIM_EVENTS];
	struct sim_condition is;
};

struct sim_proc {
	/* Unique number of the process; 0: the row is free. */
	_Atomic uint32_t id;
	uint32_t pid;    /* in its own pid namespace */
	uint64_t tenant; /* inode of its mount namespace */
	_Atomic uint64_t used[SIM_MAX_GPUS]; /* bytes of device memory that stay there */
	/* Managed memory that moves (swap.c), what of it is on the GPU, and when it was used there last. */
	_Atomic uint64_t managed[SIM_MAX_GPUS];
	_Atomic uint64_t resident[SIM_MAX_GPUS];
	_Atomic uint64_t ran_ns[SIM_MAX_GPUS];
	_Atomic uint32_t contexts[SIM_MAX_GPUS];
	char name[16];
};

struct sim_machine {
	_Atomic uint64_t magic; /* written last */
	uint32_t version;
	uint32_t gpus;
	uint64_t memory;  /* bytes of each GPU */
	uint64_t context; /* bytes that each context costs */
	uint64_t slice_ns;
	uint64_t switch_ns;
	uint64_t swap_rate; /* bytes of managed memory that move in a second; 0: it stays on the GPU */
	char model[64];
	_Atomic uint32_t next_proc;
	_Atomic uint32_t rows; /* rows of procs ever used */
	_Atomic uint32_t changes; /* counts events and changed conditions. A futex */
	uint32_t reserved;
	struct sim_gpu gpu[SIM_MAX_GPUS];
	struct sim_proc proc[SIM_MAX_PROCS];
};

enum sim_class { SIM_WORK = 0, SIM_ORDER = 1, SIM_SETUP = 2 };

#define SIM_LOG_MAGIC 0x474f4c4d4953ull /* "SIMLOG" */
#define SIM_LOG_VERSION 1
#define SIM_LOG_NAME 56
#define SIM_NO_RECORD UINT64_MAX
#define SIM_NO_GPU UINT32_MAX

/* One submission. seq is written last: 0 means not there (yet). */
struct sim_record {
	_Atomic uint64_t seq; /* index + 1 */
	uint32_t gpu;
	uint32_t class;
	uint32_t pid;
	uint32_t proc; /* sim_proc.id */
	uint64_t tenant;
	uint64_t context;
	uint64_t stream;
	_Atomic uint64_t submit_ns;
	_Atomic uint64_t start_ns;
	_Atomic uint64_t end_ns;
	char name[SIM_LOG_NAME];
};
_Static_assert(sizeof(struct sim_record) == 128, "the log's record is 128 bytes");

struct sim_log {
	uint64_t magic;
	uint32_t version;
	uint32_t record_size;
	uint64_t capacity; /* records */
	_Atomic uint64_t next;
	_Atomic uint64_t lost;
	uint8_t reserved[4096 - 40];
	struct sim_record record[];
};
_Static_assert(offsetof(struct sim_log, record) == 4096, "records begin on a page");

/* One process's view of the machine. */
struct machine {
	struct sim_machine *m;
	struct sim_log *log;
	size_t log_size; /* bytes mapped */
	int fd; /* of the machine file: its open description owns the OFD locks */
	int dir; /* the directory, as a path */
	int row; /* own row, or -1 */
	uint32_t id;
	uint32_t pid;
	uint64_t tenant;
};

/* The machine's directory: $SIMGPU_MACHINE, else /dev/simgpu. */
const char *machine_dir(void);
/* Maps the machine in dir. 0, or -errno (EPROTO: not one of ours). */
int machine_open(struct machine *mc, const char *dir);
void machine_close(struct machine *mc);

/* Who the caller is in the log: its container. 0 without /proc. */
uint64_t machine_tenant(void);
/* Takes a row for this process. 0, or -errno (EAGAIN: all rows taken). */
int machine_join(struct machine *mc);
/* Whether the process of a row lives. True for the caller's own row. */
bool machine_alive(const struct machine *mc, int row);
/*
 * Clears the row of a dead process: writes its death into the log, frees its
 * memory, its turn. Does nothing if it lives or the row is free.
 */
void machine_bury(struct machine *mc, int row);
void machine_bury_all(struct machine *mc);
/* Buries dead processes that seem to have work in flight on the GPU. */
void machine_bury_workers(struct machine *mc, uint32_t gpu);
void machine_working(struct machine *mc, uint32_t gpu, bool working);

/* Says which pid the row's process has. Once in a process; harmless without the file. */
void pid_join(struct machine *mc);
/*
 * The pid of a row's process, as the caller's pid namespace numbers it; 0: it is not
 * visible there. Of a row that is left to a child of its process, which is dead, it
 * is the pid that the process had, if it was of the caller's container: what number
 * it had elsewhere, nobody knows any more.
 */
uint32_t pid_of(const struct machine *mc, int row);

/* Memory in use on a GPU by the processes that live and by others, in bytes. */
uint64_t machine_used(const struct machine *mc, uint32_t gpu);
/* Charges bytes to this process if they fit, else returns false. */
bool machine_charge(struct machine *mc, uint32_t gpu, uint64_t bytes);
void machine_uncharge(struct machine *mc, uint32_t gpu, uint64_t bytes);
/* What a process has on a GPU now. */
uint64_t machine_has(const struct sim_proc *p, uint32_t gpu);

/* Managed memory that moves (swap.c). More of it may be there than the GPU has. */
void machine_manage(struct machine *mc, uint32_t gpu, uint64_t bytes);
void machine_unmanage(struct machine *mc, uint32_t gpu, uint64_t bytes);
/* Moves bytes of those who used the GPU least recently, but not of row `spare`, to the host. How many there were. */
uint64_t machine_evict(struct machine *mc, uint32_t gpu, uint64_t bytes, int spare);
/* What is managed of this process comes to the GPU, as far as there is room. How many bytes moved, in and out. */
uint64_t machine_swap(struct machine *mc, uint32_t gpu);

/* Turns: who runs on the GPU now (turn.c). One caller a process and GPU. */
bool turn_take(struct machine *mc, uint32_t gpu); /* true: another process ran before */
void turn_pass(struct machine *mc, uint32_t gpu);
bool turn_held(const struct machine *mc, uint32_t gpu);
bool turn_wanted(const struct machine *mc, uint32_t gpu);

/* The log (record.c). */
struct submission {
	uint32_t gpu;
	enum sim_class class;
	uint64_t context;
	uint64_t stream;
	const char *name;
	const char *detail; /* or NULL; appended as "name:detail" */
};
uint64_t record_submit(struct machine *mc, const struct submission *s, uint64_t submit_ns);
void record_start(struct machine *mc, uint64_t record, uint64_t ns);
void record_end(struct machine *mc, uint64_t record, uint64_t ns);

/* An event of a GPU: those who wait for it at NVML see it at once. */
void machine_event(struct machine *mc, uint32_t gpu, uint32_t type, uint64_t data);
/* A condition has changed: wakes those who wait for that. */
void machine_changed(struct machine *mc);

/* CLOCK_MONOTONIC in ns; comparable between processes and containers. */
uint64_t clock_ns(void);
/* Sleeps until then. Precise: to a few microseconds, at a small cost in CPU. */
void clock_sleep_until(uint64_t ns, bool precise);

void sim_futex_wait(_Atomic uint32_t *word, uint32_t value, uint32_t bits, uint64_t until_ns);
void sim_futex_wake(_Atomic uint32_t *word, uint32_t bits);

#endif
