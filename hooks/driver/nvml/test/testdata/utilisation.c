/* SPDX-License-Identifier: Apache-2.0 */
/* What is told of use over time, and what is not. */
#include "test.h"

int main(void)
{
	nvmlUtilization_t u;
	nvmlDevice_t d;
	unsigned n = 0;

	OK(nvmlInit_v2());
	d = device(0);
	OK(nvmlDeviceGetUtilizationRates(d, &u));
	say("%u %u", u.gpu, u.memory);
	IS(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetUtilizationRates(d, NULL));
	IS(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetSamples(d, NVML_GPU_UTILIZATION_SAMPLES, 0, NULL, &n, NULL));
	say("done");
	return 0;
}
