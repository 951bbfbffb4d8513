/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol between a client (a process that loaded a gated driver library)
 * and vgpud: one shared page and a socket of small fixed-size messages.
 *
 * vgpu/wire is the Go side. A test there compiles this header and compares
 * every constant, size and offset; neither side can change alone.
 *
 * Rules of change. The page and the messages are append-only: a field is never
 * moved or given another meaning; new fields come out of reserved space, which
 * is zero when unused. vgpud serves every protocol version that was ever
 * released. All integers are little-endian (both supported architectures are).
 */
#ifndef VGPU_WIRE_H
#define VGPU_WIRE_H

#include <stddef.h>
#include <stdint.h>

/* The newest protocol version that this header describes. 1 was not released yet:
 * all that stands here belongs to it, and no vgpud that serves it lacks any. */
#define VGPU_PROTOCOL 1

/* Inside the container: the mounted directory and what stands in it. */
#define VGPU_DIR        "/.vgpu"
#define VGPU_SOCKET     "sock"        /* SOCK_SEQPACKET, usable by every user of the container */
#define VGPU_GPUS       "gpus"        /* the GPUs that the vGPU may be given, one a line: UUID and PCI address; a line "cpu" where an OpenCL device that is a CPU stands for the first (simulated GPUs) */

/* ---- the grant word ---------------------------------------------------- */

/* Low 8 bits: the state. High 56 bits: the epoch, raised on leaving CLOSED. */
#define VGPU_CLOSED   0
#define VGPU_OPEN     1
#define VGPU_CLOSING  2
#define VGPU_IDLE     3
#define VGPU_DRAINING 4

#define VGPU_STATE(w)      ((uint32_t)((w) & 0xff))
#define VGPU_EPOCH(w)      ((w) >> 8)
#define VGPU_WORD(s, e)    (((uint64_t)(e) << 8) | (uint64_t)(s))

/* ---- the page ---------------------------------------------------------- */

#define VGPU_UUIDS        16         /* GPUs of one vGPU, at most */

#define VGPU_PAGE_SIZE    4096
#define VGPU_PAGE_MAGIC   0x55504756u /* "VGPU" */
#define VGPU_PAGE_VERSION 1
#define VGPU_GAPS         32         /* buckets of gaps */
#define VGPU_QUEUE_US     50000      /* what queue_us and drain_us mean when they are 0 */
#define VGPU_DRAIN_US     2000

/*
 * What a process may allocate on one GPU, in bytes. What it uses is leased less
 * credit. vgpud leases (raises leased, then credit) when it is asked by
 * VGPU_MEMORY, and takes back what is not used (exchanges credit with 0, then
 * lowers leased) without asking. The client allocates by lowering credit, never
 * below 0, before it asks the driver, and raises it after the driver has freed.
 * Both change credit by compare-and-swap or atomic addition only, sequentially
 * consistent; the client changes leased only while vgpud is away and the node's
 * policy is to go on without it (absence_ms).
 */
struct vgpu_page_memory {
	uint64_t leased;
	uint64_t credit;
};

struct vgpu_page {
	uint32_t magic;            /* written by vgpud before the page is handed out */
	uint32_t version;          /* VGPU_PAGE_VERSION */
	uint64_t client;           /* the client's id, for messages and logs */
	uint64_t reserved0[6];

	/* The grant word, on a cache line of its own. Waiters sleep (FUTEX_WAIT,
	 * shared) on its low 32 bits. */
	_Alignas(64) uint64_t word;
	uint64_t reserved1[7];

	/* Written by vgpud. */
	_Alignas(64) uint32_t wanted;  /* somebody else waits for this GPU */
	uint32_t absence_ms;       /* the gate opens if vgpud was away for so long and a thread waits; 0: never */
	uint32_t queue_us;         /* how much work may be in flight, in microseconds of it; 0: VGPU_QUEUE_US */
	uint32_t drain_us;         /* the same while wanted is set, or expected_ns is not over; 0: VGPU_DRAIN_US */
	uint32_t over;             /* bit i: more of bound GPU i is in use than may be, so credit is not taken there without asking */
	uint32_t reserved2;
	uint64_t expected_ns;      /* CLOCK_MONOTONIC: until then whoever waited for this GPU is expected to do so again */
	uint32_t reserved6[8];

	/* Written by the client. */
	_Alignas(64) uint32_t waiting; /* threads at the closed gate, until they have submitted */
	uint32_t reserved3;
	uint64_t completed_ns;     /* CLOCK_MONOTONIC: when the last work was seen complete */
	uint64_t idle_ns;          /* time spent in IDLE so far, closed intervals only; never reset */
	uint64_t submitted;        /* gated submissions so far, as of the last time that it was idle, drained or nudged */
	uint64_t progress;         /* looks of the library's thread at a drain that found more work complete than the look before */
	uint64_t gap_ns;           /* length of the newest gap: from IDLE to the reclaim that made the word OPEN */
	uint64_t completions;      /* rises with the work that was seen complete; as of the last look at a drain */
	uint64_t reserved4;

	/* Written by the client with gap_ns: such gaps so far. Bucket i counts
	 * 2^i <= gap_ns < 2^(i+1), the first also 0, the last all longer ones. */
	_Alignas(64) uint32_t gaps[VGPU_GAPS];

	/* The memory ledger of each bound GPU, in the order of VGPU_BOUND. */
	_Alignas(64) struct vgpu_page_memory memory[VGPU_UUIDS];

	/* vgpud's own note: how much of leased it charged for what the driver uses. */
	uint64_t overhead[VGPU_UUIDS];

	uint8_t reserved5[VGPU_PAGE_SIZE - 768];
};

/* ---- messages ---------------------------------------------------------- */

/* Every message is one struct vgpu_msg, in one packet. */
#define VGPU_MSG_SIZE  512
#define VGPU_TEXT      192

enum vgpu_msg_type {
	/* client -> vgpud */
	VGPU_HELLO    = 1,  /* protocol = newest spoken; a page descriptor goes along on reconnection */
	VGPU_BIND     = 2,  /* choose the GPUs of this vGPU; answered by BOUND or REFUSED */
	VGPU_PENDING  = 3,  /* doorbell: waiting went from 0 to 1 */
	VGPU_IDLE_MSG = 4,  /* doorbell: the word is IDLE, and wanted was set */
	VGPU_DRAINED  = 5,  /* doorbell: the word went DRAINING -> CLOSED */
	VGPU_MEMORY   = 6,  /* a[0] = index of a bound GPU, a[1] = credit needed there in bytes (0: only ask), a[2] = enum vgpu_memory_flag, a[3] = any number; answered by MEMORY_IS */
	VGPU_IDENTITY = 7,  /* instead of HELLO: of a program that only looks. a[0] = 1: bind this vGPU if it is not; answered by IDENTITY_IS or REFUSED */
	VGPU_STATS    = 8,  /* counts so far: a[0] look-ups of submitting functions that got no hook, a[1] of unknown names; again after a reconnection */
	VGPU_USAGE    = 9,  /* after an IDENTITY: uuid[0] = a bound GPU; answered by USAGE_IS and PROCESSES */

	/* vgpud -> client */
	VGPU_WELCOME  = 64, /* protocol = the one to speak; a[0] = client id; the page descriptor goes along unless the client brought one */
	VGPU_REFUSED  = 65, /* code and text say why; after a HELLO the connection is closed */
	VGPU_BOUND    = 66, /* count and uuid */
	VGPU_NUDGE    = 67, /* doorbell: look at wanted and at the word */
	VGPU_WAIT     = 68, /* the BIND or IDENTITY waits, its answer comes later; text says why */
	VGPU_MEMORY_IS = 69, /* code: OK, ERR_MEMORY if there is no such credit, ERR_INTERNAL if there is no such GPU; a[0] as asked, a[1] = limit of the vGPU on this GPU, a[2] = bytes that all its processes use there, a[3] as asked */
	VGPU_IDENTITY_IS = 70, /* a[0] = GPUs of this vGPU; count and uuid as in BOUND, count = 0 if it is not bound */
	VGPU_USAGE_IS = 71, /* of uuid[0], code ERR_NO_GPU if the vGPU is not there: a[0] = limit and a[1] = use as in MEMORY_IS, a[2] = held time of late, in millionths of the time, a[3] = processes that follow */
	VGPU_PROCESSES = 72, /* count of them, as struct vgpu_process in the place of uuid; in its last message a[0] = 1 */
};

enum vgpu_memory_flag {
	VGPU_MEMORY_DRIVER = 1, /* the process made or ended a context or module: see what the driver says that it uses */
};

/* A process of the vGPU, as the asker's pid namespace numbers it. */
struct vgpu_process {
	uint32_t pid;
	uint32_t reserved;
	uint64_t bytes;            /* device memory that it uses */
};

enum vgpu_code {
	VGPU_OK              = 0,
	VGPU_ERR_PROTOCOL    = 1, /* the client is newer than vgpud, or spoke out of turn */
	VGPU_ERR_NO_GPU      = 2, /* no GPU fits the request */
	VGPU_ERR_REMOVED     = 3, /* the vGPU was removed */
	VGPU_ERR_PAGE        = 4, /* the page that came along can not be used */
	VGPU_ERR_INTERNAL    = 5,
	VGPU_ERR_MEMORY      = 6, /* the vGPU's memory is used up */
};

struct vgpu_msg {
	uint16_t type;             /* enum vgpu_msg_type */
	uint16_t protocol;
	uint32_t size;             /* VGPU_MSG_SIZE */
	uint32_t code;             /* enum vgpu_code */
	uint32_t count;            /* valid entries of uuid */
	uint64_t a[4];
	uint8_t  uuid[VGPU_UUIDS][16]; /* raw bytes, as in CUuuid */
	char     text[VGPU_TEXT];  /* NUL-terminated, for people */
	uint64_t others;           /* MEMORY_IS, USAGE_IS: bytes of the limit that are used by other vGPUs, which share it */
	uint8_t  reserved[VGPU_MSG_SIZE - 504];
};

_Static_assert(sizeof(struct vgpu_page) == VGPU_PAGE_SIZE, "page size");
_Static_assert(offsetof(struct vgpu_page, word) == 64, "grant word");
_Static_assert(offsetof(struct vgpu_page, wanted) == 128, "wanted");
_Static_assert(offsetof(struct vgpu_page, waiting) == 192, "waiting");
_Static_assert(offsetof(struct vgpu_page, gaps) == 256, "gaps");
_Static_assert(offsetof(struct vgpu_page, over) == 144, "over");
_Static_assert(offsetof(struct vgpu_page, expected_ns) == 152, "expected_ns");
_Static_assert(offsetof(struct vgpu_page, memory) == 384, "memory");
_Static_assert(offsetof(struct vgpu_page, overhead) == 640, "overhead");
_Static_assert(sizeof(struct vgpu_process) == 16, "a process fits into a UUID's place");
_Static_assert(sizeof(struct vgpu_msg) == VGPU_MSG_SIZE, "message size");

#endif
