/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence KERNELS SEED OPERATIONS THREADS [KIND ...]: a random sequence of driver
 * calls. Each call's result, and what it left in memory, is a line of the output,
 * so that two drivers can be compared. Many calls are wrong on purpose: errors
 * must be the same, too. KINDs: only these (names in the table below); a real
 * driver may crash with "stale", the others it is documented to bear.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <unistd.h>

#include "sequence.h"

CUdevice device;

static const char *kernels;
static char **only;

unsigned pick(struct thread *t, unsigned n)
{
	t->random ^= t->random << 13;
	t->random ^= t->random >> 7;
	t->random ^= t->random << 17;
	return (unsigned)(t->random >> 20) % n;
}

bool chance(struct thread *t, unsigned percent)
{
	return pick(t, 100) < percent;
}

CUresult note(struct thread *t, CUresult r, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(t->out, format, args);
	va_end(args);
	fprintf(t->out, " = %d\n", (int)(r == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : r));
	return r;
}

void show_words(struct thread *t, const void *words, size_t n)
{
	const unsigned *w = words;
	uint64_t sum = 14695981039346656037u;

	for (size_t i = 0; i < n; i++)
		sum = (sum ^ w[i]) * 1099511628211u;
	fprintf(t->out, "  holds %016llx\n", (unsigned long long)sum);
}

void show(struct thread *t, unsigned words)
{
	show_words(t, t->host, words);
}

void *state_of(size_t size)
{
	void *p = calloc(1, size);

	if (!p) {
		fprintf(stderr, "no memory\n");
		exit(1);
	}
	return p;
}

static void *look_up(struct thread *t, const char *symbol, const char *base, const char *suffix, bool per_thread)
{
	CUdriverProcAddressQueryResult found;
	char name[96];
	void *p = NULL;

	snprintf(name, sizeof(name), "%s%s", symbol, per_thread ? suffix : "");
	if (chance(t, 50))
		cuGetProcAddress_v2(base, &p, 13000, per_thread ? 2 : 1, &found);
	if (!p)
		p = dlsym(RTLD_DEFAULT, name);
	if (!p) {
		fprintf(stderr, "no %s\n", name);
		exit(1);
	}
	return p;
}

const char *kernel_text(const char *name)
{
	static _Thread_local char text[65536];
	char path[4096];
	FILE *in;

	snprintf(path, sizeof(path), "%s/%s.ptx", kernels, name);
	in = fopen(path, "r");
	if (!in) {
		fprintf(stderr, "no kernel %s\n", path);
		exit(1);
	}
	text[fread(text, 1, sizeof(text) - 1, in)] = 0;
	fclose(in);
	return text;
}

CUfunction kernel(const char *name)
{
	CUfunction f;
	CUmodule m;

	if (cuModuleLoadData(&m, kernel_text(name)) != CUDA_SUCCESS || cuModuleGetFunction(&f, m, name) != CUDA_SUCCESS) {
		fprintf(stderr, "no kernel %s\n", name);
		exit(1);
	}
	return f;
}

/* So that what another thread does about this one falls between two calls. */
static void pause_here(struct thread *t)
{
	usleep(pick(t, 600));
}

static const struct kind {
	const char *name;
	void (*act)(struct thread *t);
	unsigned often;            /* without being what the seed is about; 0: only then */
	bool alone;                /* in a process of one thread */
} kinds[] = {
	{ "allocate", allocate, 4, false },
	{ "release", release, 2, false },
	{ "impossible", impossible, 1, false },
	{ "set", set, 4, false },
	{ "launch", launch, 6, false },
	{ "copy", copy, 6, false },
	{ "streams", streams, 4, false },
	{ "events", events, 4, false },
	{ "captures", captures, 4, false },
	{ "host", host_functions, 2, false },
	{ "contexts", contexts, 2, false },
	{ "pause", pause_here, 4, false },
	{ "values", values, 0, false },
	{ "graphs", graphs, 0, false },
	{ "vmm", vmm, 0, false },
	{ "pools", pools, 0, false },
	{ "managed", managed, 0, false },
	{ "pinned", pinned, 0, false },
	{ "arrays", arrays, 0, false },
	{ "batches", batches, 0, false },
	{ "pointers", pointers, 0, false },
	{ "functions", functions, 0, false },
	{ "modules", modules, 0, false },
	{ "primary", primary, 0, true },
	{ "old", old_calls, 0, false },
	{ "wrong", wrong, 0, false },
	{ "stale", stale, 0, true },
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static bool wanted(const struct kind *k)
{
	for (char **name = only; *name; name++)
		if (strcmp(*name, k->name) == 0)
			return true;
	return false;
}

/* What a sequence may be about: mostly what does not come otherwise. */
static unsigned subject(struct thread *t)
{
	unsigned i = pick(t, KINDS);

	while (kinds[i].often > 0 && chance(t, 75))
		i = pick(t, KINDS);
	return i;
}

/* How often each kind comes: a few much more often than the others. */
static unsigned weigh(struct thread *t, unsigned weight[KINDS])
{
	unsigned sum = 0, about = 1 + pick(t, 4);

	for (unsigned i = 0; i < KINDS; i++)
		weight[i] = kinds[i].often;
	while (about-- > 0)
		weight[subject(t)] += 30;
	for (unsigned i = 0; i < KINDS; i++) {
		if (kinds[i].alone && t->threads > 1)
			weight[i] = 0;
		if (only[0])
			weight[i] = wanted(&kinds[i]);
		sum += weight[i];
	}
	return sum;
}

static void act(struct thread *t, const unsigned weight[KINDS], unsigned sum)
{
	unsigned n = pick(t, sum), i = 0;

	while (n >= weight[i])
		n -= weight[i++];
	kinds[i].act(t);
}

static void show_at_last(struct thread *t)
{
	for (int i = 0; i < BUFFERS; i++) {
		if (t->buffer[i].home < 0)
			continue;
		memset(t->host, 0, CHUNK);
		note(t, cuMemcpyDtoH(t->host, t->buffer[i].at, CHUNK), "at last %d", i);
		show(t, WORDS);
	}
}

static void begin(struct thread *t)
{
	bool per_thread = chance(t, 40);

	t->out = open_memstream(&t->text, &t->size);
	if (!t->out || cuCtxCreate(&t->context, NULL, 0, device) != CUDA_SUCCESS) {
		fprintf(stderr, "no context\n");
		exit(1);
	}
#define RESOLVE(name, base, suffix) t->name##_ = (__typeof__(&name))look_up(t, #name, base, suffix, per_thread);
	CALLS(RESOLVE)
	t->fill = kernel("fill_u32");
	t->spin = kernel("spin_us");
	t->capturing = -1;
	t->stream[0] = NULL;
	t->stream[1] = chance(t, 50) ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD;
	t->alive[0] = t->alive[1] = true;
	for (int i = 0; i < BUFFERS; i++)
		t->buffer[i].home = -1;
}

static void *run(void *arg)
{
	struct thread *t = arg;
	unsigned weight[KINDS], sum;

	begin(t);
	sum = weigh(t, weight);
	for (int i = 0; i < t->operations && sum > 0; i++)
		act(t, weight, sum);
	if (t->capturing >= 0)
		end_capture(t);
	if (chance(t, 70)) {
		note(t, cuCtxSynchronize(), "cuCtxSynchronize");
		show_at_last(t);
	}
	/* Else with work in flight. */
	note(t, cuCtxDestroy(t->context), "cuCtxDestroy");
	fclose(t->out);
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned long long seed;
	int n;
	static struct thread *t; /* what the threads keep is found from here at the end */

	if (argc < 5)
		return 2;
	kernels = argv[1];
	seed = strtoull(argv[2], NULL, 10);
	n = atoi(argv[4]);
	only = &argv[5];
	if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS) {
		fprintf(stderr, "no device\n");
		return 1;
	}
	t = calloc((size_t)n, sizeof(*t));
	for (int i = 0; i < n; i++) {
		t[i].number = i;
		t[i].threads = n;
		t[i].operations = atoi(argv[3]);
		t[i].random = (seed + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xc2b2ae3d27d4eb4fu;
		pthread_create(&t[i].id, NULL, run, &t[i]);
	}
	for (int i = 0; i < n; i++) {
		pthread_join(t[i].id, NULL);
		printf("thread %d\n%s", i, t[i].text);
		free(t[i].text);
	}
	/* What the kinds keep goes with the process. */
	return fflush(stdout) == 0 ? 0 : 1;
}
