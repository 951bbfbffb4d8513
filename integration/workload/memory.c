/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory: allocates, frees and tells what it is told, as it is told.
 *
 *   memory --talk PATH [--kernels DIR]
 *
 * Reads commands from the FIFO PATH.do, a line each, and writes one line for
 * each to the FIFO PATH.says. It does not touch CUDA before a command needs it.
 *
 *   devices            names all devices, which takes cuInit alone
 *   use DEVICE         takes the device's primary context; what follows is there
 *   alloc KIND BYTES   a number for what follows, or the driver's error
 *   fill KIND BYTES    pieces of so much until there is no more: bytes and error
 *   churn KIND BYTES   allocates and frees pieces of so much, for ever
 *   free NUMBER
 *   set NUMBER VALUE   puts a 32-bit number into the first word
 *   get NUMBER         reads it
 *   info               free and total of the context, total of the device
 *   visible            CUDA_VISIBLE_DEVICES as it is here, and in a child
 *   pid
 *   end
 */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE    4096
#define PIECES  4096
#define ROW     16384u /* bytes, of arrays and pitched memory */
#define PHYSICAL (2u << 20) /* physical memory comes in multiples of this */

struct piece {
	const struct kind *kind; /* NULL: not there */
	CUdeviceptr address;
	CUarray array;
	CUmemGenericAllocationHandle handle;
	size_t bytes;
};

struct kind {
	const char *name;
	CUresult (*make)(struct piece *p);
	CUresult (*end)(struct piece *p);
};

static CUdevice device;
static struct piece pieces[PIECES];

static CUresult make_plain(struct piece *p)
{
	return cuMemAlloc(&p->address, p->bytes);
}

static CUresult end_plain(struct piece *p)
{
	return cuMemFree(p->address);
}

static CUresult make_pitch(struct piece *p)
{
	size_t pitch;

	return cuMemAllocPitch(&p->address, &pitch, ROW, p->bytes / ROW, 4);
}

static CUresult make_managed(struct piece *p)
{
	return cuMemAllocManaged(&p->address, p->bytes, CU_MEM_ATTACH_GLOBAL);
}

static CUresult make_async(struct piece *p)
{
	return cuMemAllocAsync(&p->address, p->bytes, NULL);
}

/* Waits, since unused memory of a pool goes back to the GPU only then. */
static CUresult end_async(struct piece *p)
{
	CUresult r = cuMemFreeAsync(p->address, NULL);

	return r == CUDA_SUCCESS ? cuStreamSynchronize(NULL) : r;
}

static CUresult make_physical(struct piece *p)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
	};
	CUmemAccessDesc access = { .location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUresult r;

	p->bytes = (p->bytes + PHYSICAL - 1) / PHYSICAL * PHYSICAL;
	r = cuMemCreate(&p->handle, p->bytes, &prop, 0);
	if (r != CUDA_SUCCESS)
		return r;
	CU(cuMemAddressReserve(&p->address, p->bytes, 0, 0, 0));
	CU(cuMemMap(p->address, p->bytes, 0, p->handle, 0));
	CU(cuMemSetAccess(p->address, p->bytes, &access, 1));
	return CUDA_SUCCESS;
}

static CUresult end_physical(struct piece *p)
{
	CU(cuMemUnmap(p->address, p->bytes));
	CU(cuMemAddressFree(p->address, p->bytes));
	return cuMemRelease(p->handle);
}

static CUresult make_array(struct piece *p)
{
	CUDA_ARRAY_DESCRIPTOR d = {
		.Width = ROW / 4, .Height = p->bytes / ROW, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1,
	};

	return cuArrayCreate(&p->array, &d);
}

static CUresult end_array(struct piece *p)
{
	return cuArrayDestroy(p->array);
}

static const struct kind kinds[] = {
	{ "plain", make_plain, end_plain },
	{ "pitch", make_pitch, end_plain },
	{ "managed", make_managed, end_plain },
	{ "async", make_async, end_async },
	{ "physical", make_physical, end_physical },
	{ "array", make_array, end_array },
};

static const struct kind *kind_of(const char *name)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (!strcmp(kinds[i].name, name))
			return &kinds[i];
	fail("there is no kind \"%s\"", name);
}

static const char *error_name(CUresult r)
{
	const char *name = NULL;

	(void)cuGetErrorName(r, &name);
	return name ? name : "unknown";
}

/* *number is where it went. */
static CUresult allocate(const struct kind *kind, size_t bytes, int *number)
{
	CUresult r;
	int i = 0;

	while (i < PIECES && pieces[i].kind)
		i++;
	if (i == PIECES)
		fail("more than %d pieces", PIECES);
	pieces[i] = (struct piece){ .bytes = bytes };
	r = kind->make(&pieces[i]);
	if (r == CUDA_SUCCESS)
		pieces[i].kind = kind;
	*number = i;
	return r;
}

static struct piece *piece_of(const char *text)
{
	int i = atoi(text);

	if (i < 0 || i >= PIECES || !pieces[i].kind)
		fail("there is no piece %s", text);
	return &pieces[i];
}

static void say_result(FILE *out, CUresult r)
{
	fprintf(out, r == CUDA_SUCCESS ? "ok\n" : "error %s\n", error_name(r));
}

static void say_alloc(FILE *out, const char *kind, const char *bytes)
{
	int number;
	CUresult r = allocate(kind_of(kind), strtoull(bytes, NULL, 10), &number);

	if (r == CUDA_SUCCESS)
		fprintf(out, "%d\n", number);
	else
		say_result(out, r);
}

static void say_fill(FILE *out, const char *kind, const char *bytes)
{
	unsigned long long sum = 0;
	CUresult r;
	int number;

	while ((r = allocate(kind_of(kind), strtoull(bytes, NULL, 10), &number)) == CUDA_SUCCESS)
		sum += pieces[number].bytes;
	fprintf(out, "%llu %s\n", sum, error_name(r));
}

/* Says that it begins, and comes to no end. */
static void churn(FILE *out, const char *kind, const char *bytes)
{
	int number;

	fprintf(out, "ok\n");
	fflush(out);
	for (;;) {
		CU(allocate(kind_of(kind), strtoull(bytes, NULL, 10), &number));
		CU(pieces[number].kind->end(&pieces[number]));
		pieces[number].kind = NULL;
	}
}

static void say_free(FILE *out, const char *number)
{
	struct piece *p = piece_of(number);
	CUresult r = p->kind->end(p);

	if (r == CUDA_SUCCESS)
		p->kind = NULL;
	say_result(out, r);
}

static void say_get(FILE *out, const char *number)
{
	uint32_t value;

	CU(cuMemcpyDtoH(&value, piece_of(number)->address, sizeof(value)));
	fprintf(out, "%u\n", value);
}

static void say_info(FILE *out)
{
	size_t free, total, whole;

	CU(cuMemGetInfo(&free, &total));
	CU(cuDeviceTotalMem(&whole, device));
	fprintf(out, "%zu %zu %zu\n", free, total, whole);
}

static void say_devices(FILE *out)
{
	CUuuid uuid;
	CUdevice d;
	int n = 0;
	CUresult r = cuInit(0);

	if (r == CUDA_SUCCESS)
		r = cuDeviceGetCount(&n);
	if (r != CUDA_SUCCESS && r != CUDA_ERROR_NO_DEVICE)
		fail("failed to list devices: %s", error_name(r));
	fprintf(out, "%d", n);
	for (int i = 0; i < n; i++) {
		CU(cuDeviceGet(&d, i));
		CU(cuDeviceGetUuid(&uuid, d));
		fprintf(out, " GPU-");
		for (int b = 0; b < 16; b++)
			fprintf(out, b == 4 || b == 6 || b == 8 || b == 10 ? "-%02x" : "%02x", (unsigned char)uuid.bytes[b]);
	}
	fprintf(out, "\n");
}

static void use(const char *number)
{
	CUcontext context;

	CU(cuInit(0));
	CU(cuDeviceGet(&device, atoi(number)));
	CU(cuDevicePrimaryCtxRetain(&context, device));
	CU(cuCtxSetCurrent(context));
}

static void say_visible(FILE *out)
{
	const char *own = getenv("CUDA_VISIBLE_DEVICES");
	FILE *child = popen("echo \"[${CUDA_VISIBLE_DEVICES-unset}]\"", "r");
	char text[LINE] = "";

	if (!child || !fgets(text, sizeof(text), child))
		fail("failed to ask a child");
	pclose(child);
	if (own)
		fprintf(out, "[%s] %s", own, text);
	else
		fprintf(out, "[unset] %s", text);
}

static void obey(FILE *out, const char *verb, const char *first, const char *second)
{
	if (!strcmp(verb, "devices"))
		say_devices(out);
	else if (!strcmp(verb, "use"))
		use(first), fprintf(out, "ok\n");
	else if (!strcmp(verb, "alloc"))
		say_alloc(out, first, second);
	else if (!strcmp(verb, "fill"))
		say_fill(out, first, second);
	else if (!strcmp(verb, "churn"))
		churn(out, first, second);
	else if (!strcmp(verb, "free"))
		say_free(out, first);
	else if (!strcmp(verb, "set"))
		say_result(out, cuMemsetD32(piece_of(first)->address, (unsigned)strtoul(second, NULL, 10), 1));
	else if (!strcmp(verb, "get"))
		say_get(out, first);
	else if (!strcmp(verb, "info"))
		say_info(out);
	else if (!strcmp(verb, "visible"))
		say_visible(out);
	else if (!strcmp(verb, "pid"))
		fprintf(out, "%d\n", (int)getpid());
	else
		fail("there is no command \"%s\"", verb);
	fflush(out);
}

static FILE *open_end(const char *path, const char *end, const char *mode)
{
	char name[LINE];
	FILE *f;

	snprintf(name, sizeof(name), "%s.%s", path, end);
	f = fopen(name, mode);
	if (!f)
		fail("failed to open %s", name);
	return f;
}

int main(int argc, char **argv)
{
	const char *talk = option_text(argc, argv, "--talk", "/talk/memory");
	FILE *in = open_end(talk, "do", "r"), *out = open_end(talk, "says", "w");
	char line[LINE], verb[LINE], first[LINE], second[LINE];

	while (fgets(line, sizeof(line), in)) {
		verb[0] = first[0] = second[0] = 0;
		sscanf(line, "%s %s %s", verb, first, second);
		if (!strcmp(verb, "end"))
			break;
		obey(out, verb, first, second);
	}
	return 0;
}
