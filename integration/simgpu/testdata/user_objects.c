/* SPDX-License-Identifier: Apache-2.0 */
/* User objects: their end comes with the last who holds them, a running launch too. */
#include "test.h"

static int ended;

static void end(void *data)
{
	__atomic_fetch_add((int *)data, 1, __ATOMIC_RELEASE);
}

/* It is called by another thread. */
static void wait_end(int n)
{
	while (__atomic_load_n(&ended, __ATOMIC_ACQUIRE) < n)
		sleep_ms(1);
}

int main(int argc, char **argv)
{
	CUuserObject o;
	CUgraphExec x;
	CUgraphNode n;
	CUgraph g, c;
	CUstream s;

	begin(argc, argv, 0);
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(&o, &ended, end, 1, 0)); /* the flag is wanted */
	OK(cuUserObjectCreate(&o, &ended, end, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
	OK(cuUserObjectRetain(o, 2));
	OK(cuUserObjectRelease(o, 3));
	wait_end(1);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuUserObjectRelease(o, 1));

	OK(cuUserObjectCreate(&o, &ended, end, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddEmptyNode(&n, g, NULL, 0));
	OK(cuGraphRetainUserObject(g, o, 1, CU_GRAPH_USER_OBJECT_MOVE));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphReleaseUserObject(g, o, 2));
	OK(cuGraphClone(&c, g));
	OK(cuGraphInstantiate(&x, g, 0));
	OK(cuGraphDestroy(g));
	OK(cuGraphDestroy(c));
	hold(s);
	OK(cuGraphLaunch(x, s));
	OK(cuGraphExecDestroy(x));
	sleep_ms(20);
	CHECK(__atomic_load_n(&ended, __ATOMIC_ACQUIRE) == 1); /* the launch is on its way */
	let_go();
	OK(cuStreamSynchronize(s));
	wait_end(2);
	return 0;
}
