/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint BYTES: how long it takes to move a process with so much device memory off
 * the GPU and back. Prints "checkpoint BYTES LOCK SAVE RESTORE UNLOCK" in ns, or
 * "refused CALL R". The process is a child that works on the GPU by itself; what
 * checkpoints is this one.
 */
#include "stamps.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define TIMEOUT_MS 5000

static void hold(size_t bytes, int ready)
{
	CUdeviceptr p;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	open_device();
	CU(cuMemAlloc(&p, bytes));
	CU(cuMemsetD8(p, 1, bytes));
	CU(cuCtxSynchronize());
	if (write(ready, "", 1) != 1)
		exit(1);
	for (;;)
		pause();
}

static uint64_t took(CUresult r, const char *call, uint64_t from, pid_t child)
{
	uint64_t ns = now_ns() - from;

	if (r == CUDA_SUCCESS)
		return ns;
	printf("refused %s %d\ndone\n", call, (int)r);
	kill(child, SIGKILL);
	exit(0);
}

int main(int argc, char **argv)
{
	size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 1 << 30;
	CUcheckpointLockArgs lock = { .timeoutMs = TIMEOUT_MS };
	CUcheckpointCheckpointArgs save = { 0 };
	CUcheckpointRestoreArgs restore = { 0 };
	CUcheckpointUnlockArgs unlock = { 0 };
	uint64_t ns[4], from;
	int ready[2];
	pid_t child;
	char c;

	if (pipe(ready) || (child = fork()) < 0)
		fail("failed to start a child");
	if (child == 0) {
		close(ready[0]);
		hold(bytes, ready[1]);
	}
	close(ready[1]);
	if (read(ready[0], &c, 1) != 1)
		fail("the child has ended");
	CU(cuInit(0));
	from = now_ns();
	ns[0] = took(cuCheckpointProcessLock(child, &lock), "cuCheckpointProcessLock", from, child);
	from = now_ns();
	ns[1] = took(cuCheckpointProcessCheckpoint(child, &save), "cuCheckpointProcessCheckpoint", from, child);
	from = now_ns();
	ns[2] = took(cuCheckpointProcessRestore(child, &restore), "cuCheckpointProcessRestore", from, child);
	from = now_ns();
	ns[3] = took(cuCheckpointProcessUnlock(child, &unlock), "cuCheckpointProcessUnlock", from, child);
	printf("checkpoint %zu %llu %llu %llu %llu\n", bytes, (unsigned long long)ns[0], (unsigned long long)ns[1],
	       (unsigned long long)ns[2], (unsigned long long)ns[3]);
	kill(child, SIGKILL);
	printf("done\n");
	return 0;
}
