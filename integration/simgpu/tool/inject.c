/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU is made to suffer: conditions that last until they are cleared, and events. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "tool.h"

struct word {
	const char *name;
	uint32_t value;
};

static const struct word off_on[] = { { "off", 0 }, { "on", 1 }, { NULL, 0 } };
/* The numbers of nvmlComputeMode_t and nvmlDeviceGpuRecoveryAction_t. */
static const struct word modes[] = { { "default", 0 }, { "prohibited", 2 }, { "exclusive", 3 }, { NULL, 0 } };
static const struct word recoveries[] = {
	{ "none", 0 }, { "reset", 1 }, { "reboot", 2 }, { "drain-p2p", 3 }, { "drain-reset", 4 }, { NULL, 0 },
};
static const struct word signs[] = { { "off", SIM_MPS_NONE }, { "client", SIM_MPS_CLIENT }, { "server", SIM_MPS_SERVER }, { NULL, 0 } };

/* Conditions that are one of some words. */
static const struct choice {
	const char *option;
	const struct word *words;
	size_t at; /* in struct sim_condition */
} choices[] = {
	{ "--lost", off_on, offsetof(struct sim_condition, lost) },
	{ "--compute-mode", modes, offsetof(struct sim_condition, compute_mode) },
	{ "--recovery", recoveries, offsetof(struct sim_condition, recovery) },
	{ "--mig", off_on, offsetof(struct sim_condition, mig) },
	{ "--mps", signs, offsetof(struct sim_condition, mps) },
	{ "--remap-pending", off_on, offsetof(struct sim_condition, remap_pending) },
	{ "--remap-failed", off_on, offsetof(struct sim_condition, remap_failed) },
	{ "--retirement-pending", off_on, offsetof(struct sim_condition, retirement_pending) },
	{ "--no-events", off_on, offsetof(struct sim_condition, no_events) },
	{ "--hang", off_on, offsetof(struct sim_condition, hang) },
};
#define CHOICES (sizeof(choices) / sizeof(choices[0]))

struct wish {
	const char *dir;
	uint64_t gpu, xid;
	bool clear, double_bit;
	bool given[CHOICES], clocks_given, foreign_given, oom_given;
	uint32_t value[CHOICES];
	uint64_t clocks, foreign, oom_at, slow_us;
	const char *slow;
};

static bool parse_word(const struct word *w, const char *s, uint32_t *value)
{
	while (w->name && strcmp(w->name, s) != 0)
		w++;
	*value = w->value;
	return w->name != NULL;
}

/* "cuMemAlloc:500": a call and microseconds. */
static bool parse_slow(struct wish *w, const char *v)
{
	const char *colon = strchr(v, ':');

	w->slow = v;
	return colon && colon > v && (size_t)(colon - v) < sizeof(((struct sim_condition *)0)->slow) &&
	       parse_number(colon + 1, 60000000, &w->slow_us);
}

/* An option with a value. */
static bool parse_option(struct wish *w, const char *option, const char *v)
{
	for (size_t i = 0; i < CHOICES; i++)
		if (strcmp(option, choices[i].option) == 0)
			return w->given[i] = parse_word(choices[i].words, v, &w->value[i]);
	if (strcmp(option, "--gpu") == 0)
		return parse_number(v, SIM_MAX_GPUS - 1, &w->gpu);
	if (strcmp(option, "--xid") == 0)
		return parse_number(v, 100000, &w->xid) && w->xid > 0;
	if (strcmp(option, "--clocks") == 0)
		return w->clocks_given = parse_number(v, UINT32_MAX, &w->clocks);
	if (strcmp(option, "--foreign") == 0)
		return w->foreign_given = parse_size(v, &w->foreign);
	if (strcmp(option, "--oom-at") == 0)
		return w->oom_given = parse_number(v, UINT32_MAX, &w->oom_at);
	if (strcmp(option, "--slow") == 0)
		return parse_slow(w, v);
	return false;
}

static bool parse(struct wish *w, int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		if (strcmp(argv[i], "--clear") == 0)
			w->clear = true;
		else if (strcmp(argv[i], "--double-bit") == 0)
			w->double_bit = true;
		else if (argv[i][0] != '-' && !w->dir)
			w->dir = argv[i];
		else if (i + 1 == argc || !parse_option(w, argv[i], argv[i + 1]))
			return false;
		else
			i++;
	}
	return w->dir != NULL;
}

static void set(struct sim_condition *is, size_t at, uint32_t value)
{
	_Atomic uint32_t *field = (_Atomic uint32_t *)((char *)is + at);

	/* Contexts of before do not survive a loss. */
	if (field == &is->lost && value && !atomic_load(field))
		atomic_fetch_add(&is->losses, 1);
	atomic_store(field, value);
}

/* The name first: who sees the time sees it. One call of before may still be slow. */
static void set_slow(struct sim_condition *is, const struct wish *w)
{
	atomic_store(&is->slow_ns, 0);
	memset(is->slow, 0, sizeof(is->slow));
	if (!w->slow)
		return;
	memcpy(is->slow, w->slow, strcspn(w->slow, ":"));
	atomic_store(&is->slow_ns, w->slow_us * 1000);
}

/* Conditions first: who is woken by an event finds them. */
static void apply(struct machine *mc, const struct wish *w)
{
	struct sim_condition *is = &mc->m->gpu[w->gpu].is;

	for (size_t i = 0; i < CHOICES; i++)
		if (w->clear || w->given[i])
			set(is, choices[i].at, w->value[i]);
	if (w->clear || w->clocks_given)
		atomic_store(&is->clocks, w->clocks);
	if (w->clear || w->foreign_given)
		atomic_store(&is->foreign, w->foreign);
	if (w->clear || w->oom_given)
		atomic_store(&is->oom_at, (uint32_t)w->oom_at);
	if (w->clear || w->slow)
		set_slow(is, w);
	if (w->clear)
		atomic_store(&is->uncorrected, 0);
	if (w->double_bit) {
		atomic_fetch_add(&is->uncorrected, 1);
		machine_event(mc, (uint32_t)w->gpu, SIM_EVENT_DOUBLE_BIT, 0);
	}
	if (w->xid)
		machine_event(mc, (uint32_t)w->gpu, SIM_EVENT_XID, w->xid);
	machine_changed(mc);
}

int cmd_inject(int argc, char **argv)
{
	struct wish w = { 0 };
	struct machine mc;

	if (!parse(&w, argc, argv))
		return usage("inject: a directory and options with their values are needed");
	if (open_machine(&mc, w.dir))
		return EXIT_FAIL;
	if (w.gpu >= mc.m->gpus)
		return usage("inject: no such GPU");
	apply(&mc, &w);
	machine_close(&mc);
	return EXIT_OK;
}
