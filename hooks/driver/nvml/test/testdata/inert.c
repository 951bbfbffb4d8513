/* SPDX-License-Identifier: Apache-2.0 */
/* What has happened after nvmlInit: nothing of ours. Then a count, then a handle. */
#include <dirent.h>

#include "test.h"

static unsigned entries(const char *path)
{
	DIR *dir = opendir(path);
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static int loaded(const char *name)
{
	char line[512];
	int found = 0;
	FILE *f = fopen("/proc/self/maps", "r");

	while (fgets(line, sizeof(line), f))
		found |= strstr(line, name) != NULL;
	fclose(f);
	return found;
}

int main(void)
{
	unsigned before = entries("/proc/self/fd"), n;
	char link[64], version[64];
	int (*driver_version)(char *, unsigned) = (void *)named("nvmlSystemGetDriverVersion");
	nvmlDevice_t d;

	OK(nvmlInit_v2());
	OK(driver_version(version, sizeof(version)));
	CHECK(loaded("/libnvidia-ml.so") && !loaded("/libcuda"));
	CHECK(entries("/proc/self/task") == 3); /* with . and .. */
	for (int fd = 3; fd < 1024; fd++) {
		char path[32];
		ssize_t len;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		len = readlink(path, link, sizeof(link) - 1);
		CHECK(len < 0 || strncmp(link, "socket:", 7) != 0);
	}
	say("initialised");
	await();
	OK(nvmlDeviceGetCount_v2(&n));
	say("counted %u", n);
	await();
	OK(nvmlDeviceGetHandleByIndex_v2(0, &d));
	say("found");
	await();
	CHECK(entries("/proc/self/task") == 3 && !loaded("/libcuda"));
	OK(nvmlShutdown());
	CHECK(entries("/proc/self/fd") <= before + 1); /* the log of the simulated machine may stay */
	say("shut down");
	await();
	say("done");
	return 0;
}
