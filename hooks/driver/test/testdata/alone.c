/* SPDX-License-Identifier: Apache-2.0 */
/* A process that nobody disturbs: launches on one stream, and a wait after each
 * hundred. The test looks at its system calls between "begin" and "end". */
#include "test.h"

#include <dirent.h>
#include <stdbool.h>

#define LAUNCHES 1000000
#define EACH     100

/* Does any other thread of this process do something? */
static bool others_run(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	bool run = false;
	char path[300], state;
	FILE *f;

	CHECK(tasks);
	while ((task = readdir(tasks))) {
		if (task->d_name[0] == '.' || atoi(task->d_name) == getpid())
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%s/stat", task->d_name);
		f = fopen(path, "r");
		CHECK(f && fscanf(f, "%*d %*s %c", &state) == 1);
		fclose(f);
		run = run || state != 'S';
	}
	closedir(tasks);
	return run;
}

int main(void)
{
	CUcontext context;
	CUstream s;

	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuStreamCreate(&s, 0));
	OK(launch(s)); /* waits for the grant, makes the stream's record */
	OK(cuStreamSynchronize(s));
	while (others_run()) /* the library's thread, until it sleeps */
		usleep(1000);
	say("begin");
	for (int i = 0; i < LAUNCHES; i++) {
		OK(launch(s));
		if (i % EACH == EACH - 1)
			OK(cuStreamSynchronize(s));
	}
	say("end");
	await();
	say("done");
	return 0;
}
