/* SPDX-License-Identifier: Apache-2.0 */
/* Submissions and captures, of all kinds of streams, from two threads, while turns
 * come and go: in none of them does anybody wait for the GPU. */
#include "test.h"

static CUcontext context;
static CUstream one, two;

static void *more(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	for (int i = 0; i < 2000; i++)
		OK(launch(two));
	return NULL;
}

static void capture(void)
{
	CUgraph graph;

	OK(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_RELAXED));
	for (int i = 0; i < 20; i++)
		OK(launch(one));
	OK(cuStreamEndCapture(one, &graph));
}

int main(void)
{
	pthread_t t;

	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuStreamCreate(&one, 0));
	OK(cuStreamCreate(&two, 0));
	CHECK(pthread_create(&t, NULL, more, NULL) == 0);
	for (int i = 0; i < 100; i++) {
		for (int n = 0; n < 20; n++) {
			OK(launch(one));
			OK(launch(NULL));
			OK(launch(CU_STREAM_PER_THREAD));
		}
		capture();
	}
	CHECK(pthread_join(t, NULL) == 0);
	CHECK(FAKE_CAPTURED() == 2000 && FAKE_LAUNCHES() == 8000);
	CHECK(FAKE_SYNCS() == 0);
	OK(cuStreamSynchronize(one));
	CHECK(FAKE_SYNCS() == 1); /* they are counted */
	CHECK_NO_VIOLATION();
	say("done");
	return 0;
}
