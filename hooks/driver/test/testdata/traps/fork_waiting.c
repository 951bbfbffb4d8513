/* SPDX-License-Identifier: Apache-2.0 */
/* fork while other threads wait at the gate; a child may do anything but compute. */
#include "trap.h"

int main(void)
{
	int status;
	pid_t pid;

	begin();
	in_thread(submit_for_ever);
	in_thread(submit_for_ever);
	for (int i = 0; i < 20; i++) {
		pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			free(malloc(100000));
			CHECK(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED);
			if (i % 2)
				exit(0);
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
		compute(1);
	}
	say("20 children ended");
	_exit(0);
}
