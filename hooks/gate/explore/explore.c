/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explore [-n STATES] [-p PREEMPTIONS] [-w WALKS -s SEED] [-r CHOICES] MODEL SCENARIO [FLAW]
 *
 * Explores a scenario: all of it, or WALKS random executions, or the one that
 * CHOICES lead to, which is printed. Exits 1 if a rule was broken.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../atomic.h"
#include "explore.h"

struct vgpu_page pages[PROCESSES];
struct bell bells;

static const struct process *const process[PROCESSES] = { &process_a, &process_b };

/* ---- scenarios --------------------------------------------------------- */

static const struct scenario {
	const char *name;
	int processes;
	int threads[PROCESSES];    /* of the application, in each */
	int submissions;           /* of each thread */
	bool synchronises;         /* ... and waits for each */
	uint8_t word;              /* at the beginning; CLOSED: the other vGPU holds */
	uint8_t others, quanta, resumes;
	int fresh;                 /* how many threads, the last ones, have no slot yet */
	bool ends;                 /* a thread gives its slot back when it has submitted */
	bool poor;                 /* there is no memory for more slots than the first */
	bool deaf;                 /* the library's thread does not run */
	bool accounts;             /* the page's number of submissions is read at each end of a turn */
} scenarios[] = {
	/* Counting in and loading the word, against CLOSING and loading the count. */
	{ "close", .processes = 1, .threads = { 1 }, .submissions = 2, .word = VGPU_OPEN, .others = 1 },
	/* Storing IDLE and loading wanted, against storing wanted and loading the word. */
	{ "idle", .processes = 1, .threads = { 1 }, .submissions = 1, .synchronises = true, .word = VGPU_OPEN, .others = 1, .deaf = true },
	/* The same, where the application and the library's thread both make it idle. */
	{ "closers", .processes = 1, .threads = { 1 }, .submissions = 2, .synchronises = true, .word = VGPU_OPEN, .others = 1, .accounts = true },
	/* Both, and a revoke. */
	{ "closers revoked", .processes = 1, .threads = { 1 }, .submissions = 2, .synchronises = true, .word = VGPU_OPEN, .others = 1, .quanta = 1 },
	/* A thread is late in making a turn idle that was revoked, and another one
	 * reclaims the next. */
	{ "late closer", .processes = 2, .threads = { 2, 1 }, .submissions = 1, .synchronises = true, .word = VGPU_OPEN, .others = 1, .quanta = 1 },
	/* A revoke while a thread submits; the library's thread drains. */
	{ "revoke", .processes = 1, .threads = { 1 }, .submissions = 2, .word = VGPU_OPEN, .others = 1, .quanta = 1 },
	/* Raising waiting and ringing, against a grant. */
	{ "grant", .processes = 1, .threads = { 2 }, .submissions = 1, .word = VGPU_CLOSED, .deaf = true },
	/* Two threads of one process. */
	{ "threads", .processes = 1, .threads = { 2 }, .submissions = 1, .word = VGPU_OPEN, .others = 1, .quanta = 1 },
	/* Two processes of one vGPU: a take that fails half way is undone. */
	{ "processes", .processes = 2, .threads = { 1, 1 }, .submissions = 1, .synchronises = true, .word = VGPU_IDLE, .others = 1, .deaf = true },
	/* A drain is resumed for a thread that waits, and revoked again. */
	{ "resume", .processes = 1, .threads = { 2 }, .submissions = 1, .word = VGPU_OPEN, .others = 1, .quanta = 2, .resumes = 1 },
	/* Taking a slot that nobody looks at yet, against CLOSING and looking. */
	{ "register", .processes = 1, .threads = { 1 }, .submissions = 1, .fresh = 1, .word = VGPU_OPEN, .others = 1 },
	/* The same in a chunk that is appended meanwhile, while another thread submits. */
	{ "append", .processes = 1, .threads = { 2 }, .submissions = 1, .fresh = 1, .word = VGPU_OPEN, .others = 1 },
	/* Two threads want the same slot. */
	{ "same slot", .processes = 1, .threads = { 2 }, .submissions = 1, .fresh = 2, .word = VGPU_OPEN, .others = 1 },
	/* Two threads append at once. */
	{ "both append", .processes = 1, .threads = { 3 }, .submissions = 1, .fresh = 2, .word = VGPU_OPEN, .others = 1 },
	/* A thread ends, and another one may get its slot. */
	{ "reuse", .processes = 1, .threads = { 2 }, .submissions = 1, .fresh = 1, .ends = true, .word = VGPU_OPEN, .others = 1 },
	/* One thread has a slot, another one finds no memory for it. */
	{ "shared", .processes = 1, .threads = { 2 }, .submissions = 1, .fresh = 1, .poor = true, .word = VGPU_OPEN, .others = 1 },
	/* More than can be explored: for random walks. */
	{ "large", .processes = 2, .threads = { 2, 2 }, .submissions = 3, .synchronises = true, .word = VGPU_OPEN, .others = 3, .quanta = 4, .resumes = 2 },
};

static const struct scenario *scenario;

/* ---- flaws ------------------------------------------------------------- */

enum { SPLIT = -1 };           /* a relaxed load and a relaxed store instead of one operation */

static const struct flaw {
	const char *name;
	const char *function, *loc; /* whose order is another; loc NULL: any */
	int order;
	enum arbiter_flaw arbiter;
	bool records_late;         /* the layer counts what is in flight after it left the gate */
} flaws[] = {
	{ "slot_in release", "slot_in", .order = __ATOMIC_RELEASE },
	{ "slot_in relaxed", "slot_in", .order = __ATOMIC_RELAXED },
	{ "slot_empty acquire", "slot_empty", .order = __ATOMIC_ACQUIRE },
	{ "slot_empty relaxed", "slot_empty", .order = __ATOMIC_RELAXED },
	{ "slot_out relaxed", "slot_out", .order = __ATOMIC_RELAXED },
	{ "slot_take split", "slot_take", .order = SPLIT },
	{ "slot_free relaxed", "slot_free", .order = __ATOMIC_RELAXED },
	{ "slots_reach split", "slots_reach", .order = SPLIT },
	{ "slots_reach acq_rel", "slots_reach", .order = __ATOMIC_ACQ_REL },
	{ "slots_used acquire", "slots_used", .order = __ATOMIC_ACQUIRE },
	{ "slots_used relaxed", "slots_used", .order = __ATOMIC_RELAXED },
	{ "chunk_append split", "chunk_append", .order = SPLIT },
	{ "count_in split", "count_in", .order = SPLIT },
	{ "count_in release", "count_in", .order = __ATOMIC_RELEASE },
	{ "count_in relaxed", "count_in", .order = __ATOMIC_RELAXED },
	{ "word_load acquire", "word_load", .order = __ATOMIC_ACQUIRE },
	{ "word_load relaxed", "word_load", .order = __ATOMIC_RELAXED },
	{ "word_cas split", "word_cas", .order = SPLIT },
	{ "word_cas acq_rel", "word_cas", .order = __ATOMIC_ACQ_REL },
	{ "word_cas relaxed", "word_cas", .order = __ATOMIC_RELAXED },
	{ "count_empty acquire", "count_empty", .order = __ATOMIC_ACQUIRE },
	{ "count_empty relaxed", "count_empty", .order = __ATOMIC_RELAXED },
	{ "count_out split", "count_out", .order = SPLIT },
	{ "count_out relaxed", "count_out", .order = __ATOMIC_RELAXED },
	{ "count_back split", "count_back", .order = SPLIT },
	{ "wanted acquire", "flag_load", "wanted", .order = __ATOMIC_ACQUIRE },
	{ "wanted relaxed", "flag_load", "wanted", .order = __ATOMIC_RELAXED },
	{ "waiting_raise split", "waiting_raise", .order = SPLIT },
	{ "record late", .records_late = true },
	{ "arbiter reads before wanted", .arbiter = READ_BEFORE_WANTED },
	{ "arbiter does not wake", .arbiter = NO_WAKE },
	{ "arbiter resumes in the same epoch", .arbiter = RESUME_SAME_EPOCH },
	{ "arbiter believes the bell", .arbiter = BELIEVE_BELL },
	{ "arbiter does not nudge", .arbiter = NO_NUDGE },
};

static const struct flaw *flaw;

struct weak_op flaw_of(const char *function, uint32_t loc, int order)
{
	struct weak_op f = { .order = order };

	if (!flaw || !flaw->function || strcmp(flaw->function, function) != 0)
		return f;
	if (flaw->loc && (loc == LOCS || strcmp(flaw->loc, memory_name(loc)) != 0))
		return f;
	f.split = flaw->order == SPLIT;
	f.order = f.split ? __ATOMIC_RELAXED : flaw->order;
	return f;
}

/* Whether no other thread could notice when this load happens: of what never
 * changes, or of what only this thread writes. */
bool unnoticed(const char *function, uint32_t loc, int order)
{
	const char *name = memory_name(loc);

	if (strcmp(name, "ended") == 0 || (strcmp(function, "count_submitted") == 0 && !scenario->accounts))
		return true;
	if (strcmp(name, "shared") == 0)
		return !scenario->poor;
	if (strcmp(name, "next") == 0 || strcmp(name, "used") == 0)
		return !scenario->fresh;
	/* A slot that another thread had is read as that one left it. */
	return order == __ATOMIC_RELAXED && (strcmp(name, "own") == 0 || (strcmp(name, "inside") == 0 && !scenario->ends));
}

/* ---- slots ------------------------------------------------------------- */

/* The chunks beyond the first one, of all processes. */
#define CHUNKS 2
static struct pool {
	struct vgpu_chunk chunk[CHUNKS];
	bool used[CHUNKS];
} pools[PROCESSES];

void *ex_map(void)
{
	struct pool *pool = &pools[self->process];

	for (int i = 0; i < CHUNKS && !scenario->poor; i++) {
		if (pool->used[i])
			continue;
		pool->used[i] = true;
		return &pool->chunk[i];
	}
	return MAP_FAILED;
}

void ex_unmap(void *chunk)
{
	struct pool *pool = &pools[self->process];

	pool->used[(struct vgpu_chunk *)chunk - pool->chunk] = false;
}

static struct vgpu_chunk *chunk(int p, int i)
{
	return i == 0 ? &process[p]->gate->slots : &pools[p].chunk[i - 1];
}

/* The slots that threads have from the beginning. */
static void place_slots(int p)
{
	int n = scenario->threads[p] - scenario->fresh;

	for (int i = 0; i < n; i++) {
		chunk(p, i)->slot[0].taken = 1;
		if (i == 0)
			continue;
		chunk(p, i - 1)->next = chunk(p, i);
		pools[p].used[i - 1] = true;
	}
	process[p]->gate->slots_used = (uint32_t)n;
	process[p]->gate->has_slot_key = true;
}

static void name_slots(int p)
{
	for (int i = 0; i < scenario->threads[p]; i++) {
		struct vgpu_chunk *c = chunk(p, i);

		memory_loc("inside", &c->slot[0].inside, sizeof(c->slot[0].inside), (uint8_t)p);
		memory_loc("taken", &c->slot[0].taken, sizeof(c->slot[0].taken), (uint8_t)p);
		memory_loc("next", &c->next, sizeof(c->next), (uint8_t)p);
		if (scenario->accounts)
			memory_loc("submitted", &c->slot[0].submitted, sizeof(c->slot[0].submitted), (uint8_t)p);
	}
}

static bool somebody_inside(int p)
{
	bool inside = process[p]->gate->shared & COUNT_INSIDE;

	for (int i = 0; i < scenario->threads[p]; i++)
		inside = inside || chunk(p, i)->slot[0].inside;
	return inside;
}

/* ---- the layer above the gate ------------------------------------------ */

/* One stream, as hooks/driver keeps it (vgpu_stream_count, _busy, _done): the
 * thread that owns it counts in one number, all others in another. */
static struct stream {
	uint64_t own, others, completed;
} streams[PROCESSES];

/* The device's own truth; not seen through any memory model. Work may go on for
 * as long as it likes, and ends at the latest when somebody sees that it did. */
static struct { uint8_t taken[PROCESSES], done[PROCESSES]; } device;

#define LAYER "layer"

static uint64_t submitted(int p)
{
	uint64_t n = ex_load(&streams[p].own, __ATOMIC_ACQUIRE, LAYER);

	if (scenario->threads[p] > 1)
		n += ex_load(&streams[p].others, __ATOMIC_ACQUIRE, LAYER);
	return n;
}

static bool in_flight(void *arg)
{
	int p = (int)(intptr_t)arg;
	uint64_t completed = ex_load(&streams[p].completed, __ATOMIC_ACQUIRE, LAYER);

	return submitted(p) != completed;
}

static void record(int p, bool owner)
{
	if (owner)
		ex_store(&streams[p].own, ex_load(&streams[p].own, __ATOMIC_RELAXED, LAYER) + 1, __ATOMIC_RELEASE, LAYER);
	else
		ex_add(&streams[p].others, 1, __ATOMIC_RELEASE, LAYER);
}

static void stream_done(int p, uint64_t number)
{
	uint64_t old = ex_load(&streams[p].completed, __ATOMIC_RELAXED, LAYER);

	while (old < number &&
	       !ex_cas(&streams[p].completed, &old, number, __ATOMIC_RELEASE, __ATOMIC_RELAXED, LAYER))
		;
}

static unsigned answers(const struct op *op)
{
	return device.taken[op->arg] == device.done[op->arg] ? 1 : 2;
}

static uint64_t completed(void *arg)
{
	return ex_load(&streams[(intptr_t)arg].completed, __ATOMIC_ACQUIRE, LAYER);
}

static void query(struct thread *t, unsigned option)
{
	if (option)
		t->changed = true; /* not yet, but it will be: worth another look */
	else
		device.done[t->op.arg] = device.taken[t->op.arg];
	t->result = !option;
}

static bool poll_stream(void *arg)
{
	int p = (int)(intptr_t)arg;
	uint64_t number;

	if (!in_flight(arg))
		return false;
	number = submitted(p);
	step("query the stream", answers, query, p);
	if (self->result)
		stream_done(p, number);
	return in_flight(arg);
}

static void submit(struct thread *t, unsigned option)
{
	uint32_t state = VGPU_STATE(pages[t->process].word);

	(void)option;
	if (state == VGPU_CLOSED || state == VGPU_IDLE)
		violation("%s submits while its word is %s", thread_name(t), state == VGPU_IDLE ? "IDLE" : "CLOSED");
	if (arbiter.other == GRANTED)
		violation("%s submits while another vGPU is granted", thread_name(t));
	t->passed = false;
	device.taken[t->process]++;
}

static void synchronise(struct thread *t, unsigned option)
{
	int p = t->process;

	(void)option;
	if (device.done[p] < t->op.arg)
		device.done[p] = (uint8_t)t->op.arg;
}

static void application(int arg)
{
	int p = arg >> 8;
	int i_am = arg & 0xff;
	bool owner = i_am == 0;
	uint64_t number;

	if (i_am < scenario->threads[p] - scenario->fresh)
		process[p]->adopt(&chunk(p, i_am)->slot[0]);
	for (int i = 0; i < scenario->submissions; i++) {
		process[p]->enter();
		self->passed = true;
		step("submit", NULL, submit, 0);
		if (!flaw || !flaw->records_late)
			record(p, owner);
		process[p]->leave();
		if (flaw && flaw->records_late)
			record(p, owner);
		if (!scenario->synchronises)
			continue;
		number = submitted(p);
		step("synchronise", NULL, synchronise, device.taken[p]);
		stream_done(p, number);
		process[p]->complete();
	}
	if (scenario->ends)
		process[p]->end();
}

/* ---- the gate's other half --------------------------------------------- */

static void library_thread(int p)
{
	process[p]->thread(NULL);
}

static void ring(struct thread *t, unsigned option)
{
	(void)option;
	memory_send(t, BELL);
	bells.bell = true;
}

void vgpu_sock_ring(enum vgpu_msg_type type)
{
	step(type == VGPU_PENDING ? "ring PENDING" : type == VGPU_IDLE_MSG ? "ring IDLE" : "ring DRAINED", NULL, ring, 0);
}

/* That there was a nudge is all that ppoll had to say. */
int vgpu_sock_recv(int sock, struct vgpu_msg *msg, int *fd)
{
	(void)sock;
	(void)msg;
	(void)fd;
	return 0;
}

/* Never reached: no scenario starts a gate or loses its connection. */
static _Noreturn void unreached(void)
{
	fprintf(stderr, "the explorer does not know sockets\n");
	abort();
}

int vgpu_sock_high(int fd)
{
	(void)fd;
	unreached();
}

int vgpu_sock_connect(const char *path)
{
	(void)path;
	unreached();
}

int vgpu_sock_hello(int sock, int page_fd, struct vgpu_msg *answer, int *fd)
{
	(void)sock;
	(void)page_fd;
	(void)answer;
	(void)fd;
	unreached();
}

int vgpu_sock_send(int sock, struct vgpu_msg *msg, int fd)
{
	(void)sock;
	(void)msg;
	(void)fd;
	unreached();
}

void vgpu_sock_stats(void)
{
	unreached();
}

/* Memory has nothing to do with the grant word. */
void vgpu_memory_answer(const struct vgpu_msg *msg)
{
	(void)msg;
	unreached();
}

bool vgpu_memory_untold(void)
{
	return false;
}

void vgpu_memory_tell(void)
{
}

void vgpu_memory_again(void)
{
	unreached();
}

void vgpu_memory_stand_in(uint64_t away_ns, bool listens)
{
	(void)away_ns, (void)listens;
	unreached();
}

void vgpu_memory_end(void)
{
	unreached();
}

bool vgpu_sock_alive(void)
{
	unreached();
}

/* What of a gate stays as it was. The rest of it belongs to the state. */
static struct gate started[PROCESSES];

static bool constant_changed(int p)
{
	const char *now = (const char *)process[p]->gate, *then = (const char *)&started[p];
	size_t end = offsetof(struct gate, socket_path);

	return memcmp(now, then, offsetof(struct gate, shared)) != 0 || memcmp(now + end, then + end, sizeof(struct gate) - end) != 0;
}

/* ---- what must hold ---------------------------------------------------- */

static void nothing_left(int p, const char *what)
{
	if (device.taken[p] != device.done[p])
		violation("%s: work is in flight", what);
	for (int i = 0; i < THREADS; i++)
		if (threads[i].used && threads[i].process == p && threads[i].passed)
			violation("%s: %s has passed the gate and not submitted", what, thread_name(&threads[i]));
}

void watch(const struct thread *by, uint32_t loc, uint64_t old, uint64_t new)
{
	char what[64];

	(void)old;
	for (int p = 0; p < scenario->processes; p++) {
		if (loc != memory_find(&pages[p].word))
			continue;
		if (VGPU_STATE(new) != VGPU_IDLE && VGPU_STATE(new) != VGPU_CLOSED)
			continue;
		snprintf(what, sizeof(what), "%s makes the word %s", thread_name(by), VGPU_STATE(new) == VGPU_IDLE ? "IDLE" : "CLOSED");
		nothing_left(p, what);
	}
}

void other_granted(void)
{
	for (int p = 0; p < scenario->processes; p++) {
		if (VGPU_STATE(pages[p].word) != VGPU_CLOSED)
			violation("another vGPU is granted while a word is not CLOSED");
		nothing_left(p, "another vGPU is granted");
	}
}

void turn_ended(void)
{
	uint64_t n;

	for (int p = 0; scenario->accounts && p < scenario->processes; p++) {
		n = ex_load(&pages[p].submitted, __ATOMIC_SEQ_CST, "arbiter");
		if (n != device.taken[p])
			violation("the page says %llu submissions, there were %u", (unsigned long long)n, device.taken[p]);
	}
}

void at_rest(void)
{
	for (int i = 0; i < THREADS; i++) {
		struct thread *t = &threads[i];

		if (t->asleep)
			violation("%s sleeps for ever at the gate", thread_name(t));
	}
	if (arbiter.other != ABSENT || arbiter.others)
		violation("another vGPU waits for ever");
	for (int p = 0; p < scenario->processes; p++)
		if (device.taken[p] != scenario->threads[p] * scenario->submissions)
			violation("a thread of the application hangs");
	for (int p = 0; p < scenario->processes; p++) {
		if (pages[p].waiting || somebody_inside(p))
			violation("a count of threads does not go back to 0");
		if (constant_changed(p))
			violation("the explorer does not know of a variable of the gate that changed");
	}
}

/* ---- the world --------------------------------------------------------- */

static void start_process(int p)
{
	struct gate *g = process[p]->gate;

	g->page = &pages[p];
	g->ops.in_flight = in_flight;
	g->ops.poll = poll_stream;
	g->ops.completed = completed;
	g->ops.arg = (void *)(intptr_t)p;
	pages[p].word = VGPU_WORD(scenario->word, 1);
	place_slots(p);
	started[p] = *g;
	state_region(&g->shared, offsetof(struct gate, socket_path) - offsetof(struct gate, shared));
	state_region(&pages[p].word, offsetof(struct vgpu_page, reserved5) - offsetof(struct vgpu_page, word));
	for (int i = 0; i < scenario->threads[p]; i++)
		thread_new((uint8_t)p, application, p << 8 | i, "thread %c%d", 'a' + p, i);
	if (!scenario->deaf)
		thread_new((uint8_t)p, library_thread, p, "library %c", 'a' + p);
}

static void name_memory(int p)
{
	struct gate *g = process[p]->gate;

	memory_loc("word", &pages[p].word, sizeof(pages[p].word), NOBODY);
	memory_loc("wanted", &pages[p].wanted, sizeof(pages[p].wanted), NOBODY);
	memory_loc("waiting", &pages[p].waiting, sizeof(pages[p].waiting), NOBODY);
	if (scenario->accounts)
		memory_loc("submitted", &pages[p].submitted, sizeof(pages[p].submitted), NOBODY);
	name_slots(p);
	memory_loc("used", &g->slots_used, sizeof(g->slots_used), (uint8_t)p);
	memory_loc("shared", &g->shared, sizeof(g->shared), (uint8_t)p);
	memory_loc("closing", &g->closing, sizeof(g->closing), (uint8_t)p);
	memory_loc("ended", &g->ended, sizeof(g->ended), (uint8_t)p);
	memory_loc("own", &streams[p].own, sizeof(streams[p].own), (uint8_t)p);
	memory_loc("others", &streams[p].others, sizeof(streams[p].others), (uint8_t)p);
	memory_loc("completed", &streams[p].completed, sizeof(streams[p].completed), (uint8_t)p);
	memory_plain("drain_word", &g->drain_word, (uint8_t)p);
	memory_plain("drain_completed", &g->drain_completed, (uint8_t)p);
}

static void begin(void)
{
	arbiter.processes = (uint8_t)scenario->processes;
	arbiter.phase = scenario->word == VGPU_CLOSED ? FREE : HOLDING;
	arbiter.other = scenario->word == VGPU_CLOSED ? GRANTED : ABSENT;
	arbiter.others = scenario->others;
	arbiter.quanta = scenario->quanta;
	arbiter.resumes = scenario->resumes;
	arbiter.flaw = flaw ? flaw->arbiter : NO_FLAW;
	memory_init();
	state_region(&arbiter, sizeof(arbiter));
	state_region(&bells, sizeof(bells));
	state_region(&streams, sizeof(streams));
	state_region(&pools, sizeof(pools));
	state_region(&device, sizeof(device));
	for (int p = 0; p < scenario->processes; p++)
		start_process(p);
	thread_new(NOBODY, arbiter_main, 0, "arbiter");
	for (int p = 0; p < scenario->processes; p++)
		name_memory(p);
}

static int usage(void)
{
	fprintf(stderr, "usage: explore [-n STATES] [-p PREEMPTIONS] [-w WALKS -s SEED] [-r CHOICES] sc|tso|weak SCENARIO [FLAW]\nscenarios:\n");
	for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
		fprintf(stderr, "  %s\n", scenarios[i].name);
	fprintf(stderr, "flaws:\n");
	for (size_t i = 0; i < sizeof(flaws) / sizeof(flaws[0]); i++)
		fprintf(stderr, "  %s\n", flaws[i].name);
	return 2;
}

static bool parse_model(const char *name)
{
	static const char *const names[] = { "sc", "tso", "weak" };

	for (int i = 0; i < 3; i++) {
		if (strcmp(name, names[i]) == 0) {
			model = (enum model)i;
			return true;
		}
	}
	return false;
}

int main(int argc, char **argv)
{
	struct limits limits = { 0 };
	struct found found;
	int c;

	while ((c = getopt(argc, argv, "n:p:w:s:r:")) != -1) {
		switch (c) {
		case 'n':
			limits.states = strtoull(optarg, NULL, 10);
			break;
		case 'p':
			limits.preemptions = (unsigned)strtoul(optarg, NULL, 10);
			break;
		case 'w':
			limits.walks = strtoull(optarg, NULL, 10);
			break;
		case 's':
			limits.seed = strtoull(optarg, NULL, 10);
			break;
		case 'r':
			limits.replay = optarg;
			break;
		default:
			return usage();
		}
	}
	argc -= optind;
	argv += optind;
	if (argc < 2 || argc > 3 || !parse_model(argv[0]))
		return usage();
	for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
		if (strcmp(argv[1], scenarios[i].name) == 0)
			scenario = &scenarios[i];
	for (size_t i = 0; argc == 3 && i < sizeof(flaws) / sizeof(flaws[0]); i++)
		if (strcmp(argv[2], flaws[i].name) == 0)
			flaw = &flaws[i];
	if (!scenario || (argc == 3 && !flaw))
		return usage();
	begin();
	found = search(&limits);
	printf("%s %s%s%s: ", argv[1], argv[0], flaw ? ", " : "", flaw ? flaw->name : "");
	if (limits.walks)
		printf("%llu random walks from seed %llu, ", (unsigned long long)limits.walks, (unsigned long long)limits.seed);
	else if (limits.preemptions)
		printf("at most %u preemptions, %llu states, ", limits.preemptions, (unsigned long long)found.states);
	else if (!limits.replay)
		printf("no bound, %llu states, ", (unsigned long long)found.states);
	printf("%llu steps, %llu executions to their end, depth %u: %s\n", (unsigned long long)found.steps,
	       (unsigned long long)found.ends, found.depth,
	       found.violated ? "broken" : found.limited ? "nothing found within the limit" : limits.walks ? "nothing found" : "holds");
	return found.violated;
}
