/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: each test is named after what people complain about elsewhere. The Go
 * test plays vgpud, and reads the ledger in the page whenever we wait for it. */
#define VGPU_CUDA_ABI_EXPORTS /* the first versions too */
#include "test.h"

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>

#define MIB ((size_t)1 << 20)

#define FAKE_TOTAL(n)   ((void (*)(size_t))fake("fake_total"))(n)
#define FAKE_FAIL(r)    ((void (*)(int))fake("fake_fail"))(r)
#define FAKE_LATE(on)   ((void (*)(int))fake("fake_late"))(on)
#define FAKE_BLOCKS(n)  ((void (*)(int))fake("fake_blocks"))(n)
#define FAKE_PITCH(n)   ((void (*)(int))fake("fake_pitch"))(n)
#define FAKE_MANAGED()  ((int (*)(void))fake("fake_managed"))()
#define FAKE_USED(d)    ((size_t (*)(int))fake("fake_used"))(d)

#define NO_MEMORY(call) CHECK((call) == CUDA_ERROR_OUT_OF_MEMORY)

static CUcontext context;

static void start_on(CUdevice device)
{
	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, device));
	say("ready");
	await();
}

static void start(void)
{
	start_on(0);
}

/* The Go test looks at the ledger now. */
static void shown(const char *what)
{
	say("%s", what);
	await();
}

static CUdeviceptr alloc(size_t bytes)
{
	CUdeviceptr p;

	OK(cuMemAlloc_v2(&p, bytes));
	return p;
}

/* #30: "out of memory" after many allocations that were all freed again. */
static void cycles(void)
{
	CUdeviceptr p[3];

	start();
	for (int i = 0; i < 2000; i++) {
		for (int j = 0; j < 3; j++)
			p[j] = alloc((size_t)(10 + i % 7) * MIB);
		for (int j = 0; j < 3; j++)
			OK(cuMemFree_v2(p[j]));
	}
	shown("freed");
	p[0] = alloc(64 * MIB);
	NO_MEMORY(cuMemAlloc_v2(&p[1], 1));
	shown("full");
}

/* #32: the same with stream-ordered memory, of which the driver keeps some. */
static void async_cycles(int late)
{
	CUdeviceptr p;
	cuuint64_t keep = UINT64_MAX;
	CUmemoryPool pool;

	start();
	FAKE_LATE(late);
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	for (int i = 0; i < 500; i++) {
		OK(cuMemAllocAsync(&p, 40 * MIB, NULL));
		OK(cuMemFreeAsync(p, NULL));
		if (i % 50 == 49)
			OK(cuCtxSynchronize());
	}
	OK(cuCtxSynchronize());
	shown("kept");
	p = alloc(60 * MIB); /* what the pool keeps is in the way, and not in use */
	shown("reclaimed");
	OK(cuMemFree_v2(p));
}

static void pool_cycles(void) { async_cycles(0); }
static void late_pool_cycles(void) { async_cycles(1); }

static void pool_growth(void)
{
	CUdeviceptr p = 0x77, q;
	CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, { 0 } } };
	CUmemoryPool pool, host;
	size_t free, total;

	start();
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemAllocFromPoolAsync(&q, 5 * MIB, pool, NULL)); /* two blocks of 4 MiB */
	shown("two blocks");
	OK(cuMemFreeAsync(q, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemPoolTrimTo(pool, 0));
	shown("trimmed");
	FAKE_BLOCKS(32); /* it reserves more than is asked for, and more than there is */
	NO_MEMORY(cuMemAllocFromPoolAsync(&p, 5 * MIB, pool, NULL));
	CHECK(p == 0x77);
	CHECK(FAKE_USED(0) == 0);
	shown("too much");
	FAKE_BLOCKS(1);
	NO_MEMORY(cuMemAllocFromPoolAsync(&p, 65 * MIB, pool, NULL));
	NO_MEMORY(cuMemAllocFromPoolAsync(&p, SIZE_MAX - 10, pool, NULL));
	OK(cuMemAllocFromPoolAsync(&q, 30 * MIB, pool, NULL));
	OK(cuMemFreeAsync(q, NULL));
	OK(cuMemGetInfo_v2(&free, &total));
	CHECK(free == 32 * MIB && total == 64 * MIB);
	FAKE_FAIL(CUDA_ERROR_NOT_PERMITTED);
	CHECK(cuMemPoolDestroy(pool) == CUDA_ERROR_NOT_PERMITTED);
	FAKE_FAIL(0);
	shown("kept");
	OK(cuMemPoolDestroy(pool));
	shown("destroyed");
	props.location.type = CU_MEM_LOCATION_TYPE_HOST;
	OK(cuMemPoolCreate(&host, &props));
	OK(cuMemAllocFromPoolAsync(&q, 100 * MIB, host, NULL));
	shown("of the host");
}

/* #34: memory of the host, and no context. */
static void host_location(void)
{
	CUmemAllocationProp device = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, { 0 } } };
	CUmemAllocationProp host = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_HOST_NUMA, { 12345 } } };
	CUmemGenericAllocationHandle a, b = 0x77;

	OK(cuInit(0));
	shown("ready");
	OK(cuMemCreate(&a, 500 * MIB, &host, 0));
	shown("of the host");
	OK(cuMemRelease(a));
	OK(cuMemCreate(&a, 40 * MIB, &device, 0));
	shown("of the device");
	NO_MEMORY(cuMemCreate(&b, 40 * MIB, &device, 0));
	CHECK(b == 0x77);
	OK(cuMemRelease(a));
	CHECK(cuMemRelease(a) == CUDA_ERROR_INVALID_VALUE);
	shown("released");
}

static void vmm(void)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, { 0 } } };
	CUmemGenericAllocationHandle a, b, again;
	CUdeviceptr at = (CUdeviceptr)1 << 40;

	start();
	OK(cuMemCreate(&a, 10 * MIB, &prop, 0));
	OK(cuMemCreate(&b, 20 * MIB, &prop, 0));
	OK(cuMemMap(at, 10 * MIB, 0, a, 0));
	OK(cuMemMap(at + 10 * MIB, 20 * MIB, 0, b, 0));
	FAKE_FAIL(CUDA_ERROR_NOT_PERMITTED);
	CHECK(cuMemRelease(a) && cuMemUnmap(at, 30 * MIB) && cuMemMap(at, 10 * MIB, 0, a, 0));
	FAKE_FAIL(0);
	OK(cuMemRelease(a));
	OK(cuMemRelease(b));
	shown("mapped: 30");
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + 10 * MIB + 1)));
	OK(cuMemUnmap(at, 30 * MIB));
	shown("retained: 20");
	OK(cuMemRelease(again));
	shown("gone: 0");
	OK(cuMemCreate(&a, 10 * MIB, &prop, 0));
	OK(cuMemMap(at, 10 * MIB, 0, a, 0));
	OK(cuMemUnmap(at, 10 * MIB));
	shown("a handle: 10");
	OK(cuCtxDestroy_v2(context));
	shown("no context: 10");
	OK(cuMemRelease(a));
	shown("gone: 0");
}

/* #36, and the device's name. */
static void info(void)
{
	char name[64];
	size_t free, total;
	unsigned int small, small_free;

	OK(cuInit(0));
	FAKE_TOTAL(300 * MIB);
	OK(cuDeviceTotalMem_v2(&total, 0));
	say("without a context %zu", total / MIB);
	OK(cuCtxCreate_v2(&context, 0, 0));
	alloc(10 * MIB);
	for (int i = 0; i < 3; i++) {
		await(); /* the limit is another now */
		OK(cuMemGetInfo_v2(&free, &total));
		OK(cuMemGetInfo(&small_free, &small));
		CHECK(small == total && small_free == free);
		OK(cuDeviceTotalMem(&small, 0));
		CHECK(small == total);
		say("free %zu of %zu", free / MIB, total / MIB);
		OK(cuDeviceTotalMem_v2(&total, 0));
		say("total %zu", total / MIB);
	}
	CHECK(cuMemGetInfo_v2(NULL, &total) == CUDA_ERROR_INVALID_VALUE && cuDeviceTotalMem_v2(NULL, 0) == CUDA_ERROR_INVALID_VALUE);
	OK(cuDeviceGetName(name, sizeof(name), 0));
	say("%s", name);
	memset(name, 'x', sizeof(name));
	OK(cuDeviceGetName(name, 12, 0));
	CHECK(name[12] == 'x');
	say("%s", name);
	OK(cuDeviceGetName(name, 5, 0));
	CHECK(name[12] == 'x');
	say("%s", name);
	CHECK(cuDeviceGetName(name, 0, 0) == CUDA_ERROR_INVALID_VALUE && cuDeviceGetName(NULL, 5, 0) == CUDA_ERROR_INVALID_VALUE);
}

/* #40, #44: beside another process of the container. */
static void beside(void)
{
	size_t free, total;
	CUdeviceptr p = 0x77;

	start();
	for (int i = 0; i < 3; i++) {
		OK(cuMemGetInfo_v2(&free, &total));
		say("free %zu", free / MIB);
		await();
		say("%d", (int)cuMemAlloc_v2(&p, 40 * MIB));
		await();
	}
}

/* The limit is lowered below what is in use. */
static void lowered(void)
{
	CUdeviceptr p[3], none = 0x77;

	start();
	for (int i = 0; i < 3; i++)
		OK(cuMemAlloc_v2(&p[i], i == 2 ? 40 * MIB : 20 * MIB));
	shown("allocated");
	shown("lower it");
	OK(cuMemFree_v2(p[0]));
	NO_MEMORY(cuMemAlloc_v2(&none, MIB));
	shown("freed and refused");
	OK(cuMemFree_v2(p[1]));
	OK(cuMemAlloc_v2(&p[0], 10 * MIB));
	NO_MEMORY(cuMemAlloc_v2(&none, MIB));
	shown("up to the limit");
}

/* #42: out of memory is said, and no other memory given instead. */
static void managed(void)
{
	CUdeviceptr p = 0x77;
	size_t pitch = 0x78;
	CUdeviceptr_v1 small = 0x79;

	start();
	NO_MEMORY(cuMemAlloc_v2(&p, 65 * MIB));
	NO_MEMORY(cuMemAlloc(&small, 65 * MIB));
	NO_MEMORY(cuMemAllocAsync(&p, 65 * MIB, NULL));
	NO_MEMORY(cuMemAllocPitch_v2(&p, &pitch, 1 << 20, 65, 4));
	CHECK(FAKE_MANAGED() == 0);
	NO_MEMORY(cuMemAllocManaged(&p, 65 * MIB, CU_MEM_ATTACH_GLOBAL));
	CHECK(p == 0x77 && pitch == 0x78 && small == 0x79);
	shown("refused: 0");
	OK(cuMemAllocManaged(&p, 10 * MIB, CU_MEM_ATTACH_GLOBAL));
	shown("asked for: 10");
	OK(cuMemFree_v2(p));
	shown("freed: 0");
}

static void sizes(void)
{
	CUdeviceptr p = 0x77;
	size_t pitch = 0x78;
	CUdeviceptr_v1 small;
	CUDA_ARRAY3D_DESCRIPTOR huge = { SIZE_MAX, SIZE_MAX, SIZE_MAX, CU_AD_FORMAT_FLOAT, 4, 0 };
	CUarray array;

	start();
	NO_MEMORY(cuMemAlloc_v2(&p, SIZE_MAX));
	NO_MEMORY(cuMemAlloc_v2(&p, SIZE_MAX - 64 * MIB));
	NO_MEMORY(cuMemAlloc_v2(&p, (size_t)1 << 63));
	CHECK(cuMemAlloc_v2(&p, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemAlloc_v2(NULL, 1) == CUDA_ERROR_INVALID_VALUE);
	/* What no size_t holds is for the driver to refuse. */
	CHECK(cuMemAllocPitch_v2(&p, &pitch, SIZE_MAX - 5, SIZE_MAX, 4) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuArray3DCreate_v2(&array, &huge) == CUDA_ERROR_OUT_OF_MEMORY);
	shown("odd: 0");
	p = alloc(10 * MIB);
	CHECK(cuMemFree_v2(p + 1) == CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree_v2(0));
	shown("one: 10");
	FAKE_FAIL(CUDA_ERROR_UNKNOWN);
	CHECK(cuMemAlloc_v2(&p, 5 * MIB) == CUDA_ERROR_UNKNOWN && cuMemFree_v2(p) == CUDA_ERROR_UNKNOWN);
	CHECK(cuMemAllocAsync(&p, 5 * MIB, NULL) == CUDA_ERROR_UNKNOWN);
	FAKE_FAIL(0);
	shown("the driver fails: 10");
	OK(cuMemFree_v2(p));
	CHECK(cuMemFree_v2(p) == CUDA_ERROR_INVALID_VALUE);
	shown("twice: 0");
	OK(cuMemAlloc(&small, 7 * MIB));
	shown("32 bits: 7");
	OK(cuMemFree(small));
	OK(cuMemAllocPitch_v2(&p, &pitch, MIB - 5, 3, 4));
	shown("rows: 3");
	OK(cuMemFree_v2(p));
	FAKE_PITCH(2 << 20);
	OK(cuMemAllocPitch_v2(&p, &pitch, MIB - 5, 3, 4));
	shown("wide rows: 6");
	OK(cuMemFreeAsync(p, NULL));
	FAKE_PITCH(32 << 20);
	p = 0x77;
	pitch = 0x78;
	NO_MEMORY(cuMemAllocPitch_v2(&p, &pitch, MIB - 5, 3, 4));
	CHECK(p == 0x77 && pitch == 0x78 && FAKE_USED(0) == 0);
	shown("too wide: 0");
}

static void arrays(void)
{
	CUDA_ARRAY_DESCRIPTOR plane = { 1024, 1024, CU_AD_FORMAT_FLOAT, 4 };
	CUDA_ARRAY3D_DESCRIPTOR box = { 1024, 1024, 4, CU_AD_FORMAT_HALF, 2, 0 };
	CUDA_ARRAY3D_DESCRIPTOR line = { 1 << 20, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0 };
	CUDA_ARRAY3D_DESCRIPTOR packed = { 2048, 2048, 0, CU_AD_FORMAT_BC1_UNORM, 4, 0 };
	CUarray a, b, c, d;
	CUmipmappedArray m;

	start();
	OK(cuArrayCreate_v2(&a, &plane));
	shown("a plane: 16");
	OK(cuArray3DCreate_v2(&b, &box));
	shown("a box: 32");
	OK(cuArray3DCreate_v2(&c, &line));
	shown("a line: 33");
	OK(cuArray3DCreate_v2(&d, &packed));
	shown("packed: 35");
	box.Flags = CUDA_ARRAY3D_SPARSE;
	OK(cuArray3DCreate_v2(&c, &box));
	OK(cuArrayDestroy(c));
	shown("sparse: 35");
	box.Flags = 0;
	box.Width = box.Height = box.Depth = 256;
	box.NumChannels = 1;
	NO_MEMORY(cuMipmappedArrayCreate(&m, &box, 2)); /* 32 + 4 */
	OK(cuArrayDestroy(b));
	OK(cuMipmappedArrayCreate(&m, &box, 2));
	shown("levels: 55");
	OK(cuMipmappedArrayDestroy(m));
	shown("without them: 19");
	CHECK(cuArrayDestroy((CUarray)(uintptr_t)0x1230000) == CUDA_ERROR_INVALID_VALUE);
	OK(cuCtxDestroy_v2(context));
	shown("without a context: 0");
}

static void contexts(void)
{
	CUcontext primary;
	CUdeviceptr p;

	start();
	alloc(10 * MIB);
	OK(cuMemAllocAsync(&p, 4 * MIB, NULL));
	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	OK(cuCtxSetCurrent(primary));
	alloc(20 * MIB);
	shown("both: 34");
	OK(cuCtxDestroy_v2(context));
	shown("the primary one: 24");
	OK(cuDevicePrimaryCtxReset_v2(0));
	shown("reset: 4");
	alloc(30 * MIB);
	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	shown("retained: 34");
	OK(cuDevicePrimaryCtxRelease_v2(0));
	shown("released: 4");
}

/* An address is free, and given out to another thread, before the call that
 * freed it has returned. */
static void *other_alloc(void *bytes)
{
	OK(cuCtxSetCurrent(context));
	return (void *)(uintptr_t)alloc((size_t)bytes);
}

static void *other_free(void *p)
{
	OK(cuCtxSetCurrent(context));
	OK(cuMemFree_v2((CUdeviceptr)(uintptr_t)p));
	return NULL;
}

static void given_out_again(void)
{
	pthread_t thread;
	CUdeviceptr p, q = 0;

	start();
	p = alloc(10 * MIB);
	((void (*)(int))fake("fake_stop_free"))(1);
	CHECK(pthread_create(&thread, NULL, other_free, (void *)(uintptr_t)p) == 0);
	while (!((int (*)(void))fake("fake_free_stopped"))())
		usleep(100);
	/* The fake driver lets its lock go while it stands there. */
	q = (CUdeviceptr)(uintptr_t)other_alloc((void *)(20 * MIB));
	CHECK(q == p);
	((void (*)(void))fake("fake_free_go"))();
	CHECK(pthread_join(thread, NULL) == 0);
	shown("one of two: 20");
	OK(cuMemFree_v2(q));
	shown("none: 0");
}

#define THREADS 4
static void *churn(void *seed)
{
	unsigned random = (unsigned)(uintptr_t)seed;
	CUdeviceptr p[8] = { 0 };

	OK(cuCtxSetCurrent(context));
	for (int i = 0; i < 4000; i++) {
		int j = rand_r(&random) % 8;

		if (p[j]) {
			OK(cuMemFree_v2(p[j]));
			p[j] = 0;
		} else {
			p[j] = alloc(1 + rand_r(&random) % (2 * MIB));
		}
	}
	for (int j = 0; j < 8; j++)
		if (p[j])
			OK(cuMemFree_v2(p[j]));
	return NULL;
}

/* What is not used is taken back all the time. */
static void recalled(void)
{
	pthread_t threads[THREADS];

	start();
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	shown("exact");
}

static void *churn_pool(void *seed)
{
	unsigned random = (unsigned)(uintptr_t)seed;
	CUdeviceptr p[8] = { 0 };

	OK(cuCtxSetCurrent(context));
	for (int i = 0; i < 2000; i++) {
		int j = rand_r(&random) % 8;

		if (p[j]) {
			OK(cuMemFreeAsync(p[j], NULL));
			p[j] = 0;
		} else {
			OK(cuMemAllocAsync(&p[j], 1 + rand_r(&random) % MIB, NULL));
		}
	}
	for (int j = 0; j < 8; j++)
		if (p[j])
			OK(cuMemFreeAsync(p[j], NULL));
	return NULL;
}

static void pool_threads(void)
{
	pthread_t threads[THREADS];
	size_t free, total;

	start();
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, churn_pool, (void *)(i + 1)) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	OK(cuCtxSynchronize());
	OK(cuMemGetInfo_v2(&free, &total));
	CHECK(FAKE_USED(0) == 0 && free == total);
	shown("all freed: 0");
}

static void *alloc_async(void *bytes)
{
	CUdeviceptr p;

	OK(cuCtxSetCurrent(context));
	OK(cuMemAllocAsync(&p, (size_t)(uintptr_t)bytes, NULL));
	return NULL;
}

/* By this much a wait that ends at a time of day is longer. */
static int longer_s;
int clock_gettime(clockid_t clock, struct timespec *now)
{
	int rc = (int)syscall(SYS_clock_gettime, clock, now);

	if (rc == 0 && clock == CLOCK_REALTIME)
		now->tv_sec += __atomic_load_n(&longer_s, __ATOMIC_RELAXED);
	return rc;
}

/* What one thread has on its way is not counted against another one twice. */
static void pool_at_once(void)
{
	pthread_t one, other;
	int before;

	start();
	__atomic_store_n(&longer_s, 60, __ATOMIC_RELAXED); /* or the other gives up in a second */
	((void (*)(int))fake("fake_stop_async"))(1);
	CHECK(pthread_create(&one, NULL, alloc_async, (void *)(24 * MIB)) == 0);
	while (!((int (*)(void))fake("fake_free_stopped"))())
		usleep(100);
	before = ((int (*)(void))fake("fake_pool_asked"))();
	CHECK(pthread_create(&other, NULL, alloc_async, (void *)(24 * MIB)) == 0);
	while (((int (*)(void))fake("fake_pool_asked"))() < before + 8) /* it has tried all */
		usleep(100);
	((void (*)(void))fake("fake_free_go"))();
	CHECK(pthread_join(one, NULL) == 0);
	CHECK(pthread_join(other, NULL) == 0);
	shown("both: 48");
}

/* vgpud is away, or goes away: allocations within what was leased go on. */
static void away(void)
{
	CUdeviceptr p, q = 0x77;
	int r;

	start();
	p = alloc(10 * MIB);
	OK(cuMemFree_v2(p));
	shown("leased"); /* 20; now it goes away */
	p = alloc(20 * MIB);
	shown("within");
	say("asks");
	r = cuMemAlloc_v2(&q, 5 * MIB);
	say("%d", r);
	await();
	OK(cuMemFree_v2(p));
	shown("freed");
}

/* What vgpud said last stands for what it would say. */
static void asks_away(void)
{
	size_t free, total;
	CUdeviceptr p;
	CUcontext other;

	start();
	p = alloc(20 * MIB);
	OK(cuMemGetInfo_v2(&free, &total));
	say("free %zu of %zu", free / MIB, total / MIB);
	await();
	OK(cuMemFree_v2(p));
	OK(cuMemGetInfo_v2(&free, &total));
	say("free %zu of %zu", free / MIB, total / MIB);
	OK(cuCtxCreate_v2(&other, 0, 0));
	await();
	say("%d", cuMemAlloc_v2(&p, 50 * MIB));
	await();
	say("%d", cuMemAlloc_v2(&p, 30 * MIB));
	await();
}

/* A handler that allocates interrupts a thread that waits for vgpud. */
static CUdeviceptr in_handler;
static void handler(int signo)
{
	(void)signo;
	OK(cuMemAlloc_v2(&in_handler, 5 * MIB));
	say("handled");
}

static void *asks(void *unused)
{
	(void)unused;
	return other_alloc((void *)(5 * MIB));
}

static void interrupted(void)
{
	struct sigaction act = { .sa_handler = handler };
	pthread_t thread;
	void *p;

	start();
	sigaction(SIGUSR1, &act, NULL);
	CHECK(pthread_create(&thread, NULL, asks, NULL) == 0);
	await(); /* it was heard, and gets no answer yet */
	pthread_kill(thread, SIGUSR1);
	CHECK(pthread_join(thread, &p) == 0);
	shown("answered");
	OK(cuMemFree_v2((CUdeviceptr)(uintptr_t)p));
	OK(cuMemFree_v2(in_handler)); /* it was never charged */
	shown("freed");
}

static pthread_t asking;
static void join(void)
{
	CHECK(pthread_join(asking, NULL) == 0);
}

/* A handler of the program's own waits for a thread that waits for vgpud. */
static void exits(void)
{
	alarm(20); /* or never */
	CHECK(atexit(join) == 0); /* before the library's: it runs after that */
	start();
	CHECK(pthread_create(&asking, NULL, asks, NULL) == 0);
	await();
	say("done");
	exit(0);
}

static void device_order(void)
{
	start_on(0);
	alloc(10 * MIB);
	shown("on the second GPU");
	OK(cuCtxCreate_v2(&context, 0, 1));
	alloc(20 * MIB);
	shown("on the first GPU");
}

static void graphs(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS node = { .poolProps.location = { CU_MEM_LOCATION_TYPE_DEVICE, { 0 } }, .bytesize = 40 * MIB };
	CUgraphNode n;

	start();
	OK(cuGraphLaunch(NULL, NULL));
	OK(cuGraphAddMemAllocNode(&n, NULL, NULL, 0, &node));
	shown("a node: 0");
	OK(cuGraphLaunch(NULL, NULL));
	OK(cuGraphLaunch(NULL, NULL));
	shown("launched: 40");
	OK(cuDeviceGraphMemTrim(0));
	shown("trimmed: 0");
	alloc(50 * MIB);
	OK(cuGraphLaunch(NULL, NULL)); /* its memory is given up at once */
	CHECK(FAKE_USED(0) == 50 * MIB);
	shown("too much: 50");
}

/* A launch has taken memory, of which vgpud is told after the gate. */
static void asks_after_launch(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS node = { .poolProps.location = { CU_MEM_LOCATION_TYPE_DEVICE, { 0 } }, .bytesize = 40 * MIB };
	CUgraphNode n;

	start();
	OK(cuGraphAddMemAllocNode(&n, NULL, NULL, 0, &node));
	OK(cuGraphLaunch(NULL, NULL));
	shown("launched");
}

/* More than there is, in a launch that can not be taken back: the next fails. */
static void graph_debt(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS node = { .poolProps.location = { CU_MEM_LOCATION_TYPE_DEVICE, { 0 } }, .bytesize = 40 * MIB };
	CUgraphNode n;
	CUdeviceptr p;

	start();
	p = alloc(50 * MIB);
	((void (*)(int))fake("fake_pin_graphs"))(1);
	OK(cuGraphAddMemAllocNode(&n, NULL, NULL, 0, &node));
	OK(cuGraphLaunch(NULL, NULL));
	CHECK(FAKE_LAUNCHES() == 1);
	NO_MEMORY(cuGraphLaunch(NULL, NULL));
	CHECK(FAKE_LAUNCHES() == 1);
	shown("too much: 50");
	OK(cuMemFree_v2(p));
	OK(cuGraphLaunch(NULL, NULL));
	shown("there is room: 40");
}

static void captured_alloc(void)
{
	CUdeviceptr p;
	CUgraph graph;
	CUstream s;

	start();
	OK(cuStreamCreate(&s, 0));
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuMemAllocAsync(&p, 40 * MIB, s));
	OK(cuStreamEndCapture(s, &graph));
	shown("captured: 0");
	OK(cuGraphLaunch(NULL, NULL));
	shown("launched: 40");
}

/* What the driver itself uses is vgpud's to find; it is told when to look. */
static void overhead(void)
{
	CUmodule m;
	CUcontext primary;

	OK(cuInit(0));
	shown("ready");
	OK(cuCtxCreate_v2(&context, 0, 0));
	shown("a context");
	OK(cuModuleLoadData(&m, "x"));
	shown("a module");
	OK(cuModuleUnload(m));
	shown("no module");
	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	shown("the primary context");
	OK(cuDevicePrimaryCtxRelease_v2(0));
	shown("no primary context");
	OK(cuCtxDestroy_v2(context));
	shown("no context");
	OK(cuCtxCreate_v2(&context, 0, 0));
	shown("many modules"); /* nobody answers now */
	for (int i = 0; i < 1000; i++)
		OK(cuModuleLoadData(&m, "x"));
	shown("loaded");
}

/* The socket is full when a module is loaded. */
static void bells(void)
{
	CUmodule m;

	start();
	OK(launch(NULL));
	shown("ready for work");
	OK(cuCtxSynchronize());
	for (int i = 0; i < 1000; i++) {
		OK(launch(NULL));
		OK(cuCtxSynchronize());
	}
	shown("rung");
	OK(cuModuleLoadData(&m, "x"));
	shown("a module");
}

/* What a module has is there again when it is unloaded. */
static void unloaded(void)
{
	size_t free, total;
	CUdeviceptr p;
	CUmodule m;

	start();
	OK(cuModuleLoadData(&m, "x"));
	shown("a module");
	OK(cuMemGetInfo_v2(&free, &total));
	CHECK(free == 24 * MIB);
	CHECK(cuMemAlloc_v2(&p, 40 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuModuleUnload(m));
	shown("no module");
	OK(cuMemGetInfo_v2(&free, &total));
	CHECK(free == 64 * MIB);
	OK(cuModuleLoadData(&m, "x"));
	shown("another module");
	OK(cuMemGetInfo_v2(&free, &total));
	CHECK(free == 24 * MIB);
	OK(cuModuleUnload(m));
	shown("it is gone");
	OK(cuMemAlloc_v2(&p, 40 * MIB));
}

/* Runs on the simulated GPU too. */
static void plain(void)
{
	size_t free0, free, total;
	CUdeviceptr p = 0, q = 0x77;

	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuMemGetInfo_v2(&free0, &total));
	CHECK(total == 64 * MIB && free0 <= total);
	OK(cuMemAlloc_v2(&p, 40 * MIB));
	NO_MEMORY(cuMemAlloc_v2(&q, 40 * MIB));
	CHECK(q == 0x77);
	OK(cuMemGetInfo_v2(&free, &total));
	CHECK(free0 - free == 40 * MIB);
	OK(cuMemcpyHtoD_v2(p, "x", 1)); /* no error stays behind */
	OK(cuCtxSynchronize());
	OK(cuMemFree_v2(p));
	OK(cuMemAlloc_v2(&q, 60 * MIB));
	OK(cuCtxDestroy_v2(context));
	shown("left");
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{ "cycles", cycles },
		{ "pool-cycles", pool_cycles },
		{ "late-pool-cycles", late_pool_cycles },
		{ "pool-growth", pool_growth },
		{ "host-location", host_location },
		{ "vmm", vmm },
		{ "info", info },
		{ "beside", beside },
		{ "managed", managed },
		{ "sizes", sizes },
		{ "arrays", arrays },
		{ "contexts", contexts },
		{ "given-out-again", given_out_again },
		{ "recalled", recalled },
		{ "pool-at-once", pool_at_once },
		{ "away", away },
		{ "lowered", lowered },
		{ "asks-away", asks_away },
		{ "interrupted", interrupted },
		{ "exits", exits },
		{ "device-order", device_order },
		{ "graphs", graphs },
		{ "asks-after-launch", asks_after_launch },
		{ "graph-debt", graph_debt },
		{ "captured-alloc", captured_alloc },
		{ "pool-threads", pool_threads },
		{ "overhead", overhead },
		{ "bells", bells },
		{ "unloaded", unloaded },
		{ "plain", plain },
		{ NULL, NULL },
	};

	return run_test(tests, argc, argv);
}
