/* SPDX-License-Identifier: Apache-2.0 */
/* 64 threads ask from the first moment on, some of them with an nvmlInit and
 * nvmlShutdown of their own. Nobody gets half of an answer. */
#include "test.h"

static pthread_barrier_t all;

static void *ask(void *arg)
{
	long me = (long)arg;

	pthread_barrier_wait(&all);
	for (int i = 0; i < 20; i++) {
		nvmlProcessInfo_t infos[64];
		unsigned n = 64, count;
		nvmlMemory_t m;

		if (me % 4 == 0)
			OK(nvmlInit_v2());
		OK(nvmlDeviceGetCount_v2(&count));
		CHECK(count == 1);
		OK(nvmlDeviceGetMemoryInfo(device(0), &m));
		CHECK(m.total == 1000000000 && m.used == 123000000);
		OK(nvmlDeviceGetComputeRunningProcesses_v3(device(0), &n, infos));
		CHECK(n == 40);
		for (unsigned j = 0; j < n; j++)
			CHECK(infos[j].pid == j + 1 && infos[j].usedGpuMemory == (j + 1) * 1000ull);
		if (me % 4 == 0)
			OK(nvmlShutdown());
	}
	return NULL;
}

int main(void)
{
	pthread_t t[64];

	pthread_barrier_init(&all, NULL, 64);
	OK(nvmlInit_v2());
	for (long i = 0; i < 64; i++)
		CHECK(pthread_create(&t[i], NULL, ask, (void *)i) == 0);
	for (int i = 0; i < 64; i++)
		pthread_join(t[i], NULL);
	say("done");
	return 0;
}
