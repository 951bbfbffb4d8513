/* SPDX-License-Identifier: Apache-2.0 */
/* What is measured on a GPU: constants of a cool board with little to do, and without fans. */
#include "nvml.h"

#define TEMPERATURE 34
#define PCIE_GENERATION 4
#define PCIE_WIDTH 16
#define PCIE_MBPS 16000
#define SAMPLING_US 166666

static const unsigned clocks[NVML_CLOCK_COUNT] = {
	[NVML_CLOCK_GRAPHICS] = 1410, [NVML_CLOCK_SM] = 1410, [NVML_CLOCK_MEM] = 1215, [NVML_CLOCK_VIDEO] = 1275,
};

/* As if the power had always been what it is. */
unsigned long long energy_mj(void)
{
	return clock_ns() / 1000000 * POWER_MW / 1000;
}

GET(nvmlDeviceGetPowerUsage, unsigned int, POWER_MW)
GET(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
GET(nvmlDeviceGetPowerManagementLimit, unsigned int, POWER_LIMIT_MW)
GET(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, POWER_LIMIT_MW)
GET(nvmlDeviceGetEnforcedPowerLimit, unsigned int, POWER_LIMIT_MW)
GET2(nvmlDeviceGetPowerManagementLimitConstraints, unsigned int, 100000, POWER_LIMIT_MW)
GET(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy_mj())
GET(nvmlDeviceGetPerformanceState, nvmlPstates_t, NVML_PSTATE_0)
GET(nvmlDeviceGetPowerState, nvmlPstates_t, NVML_PSTATE_0)
GET(nvmlDeviceGetNumFans, unsigned int, 0)
GET(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 0x1ff)
GET(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 0x1ff)
GET(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, PCIE_GENERATION)
GET(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, PCIE_WIDTH)
GET(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, PCIE_GENERATION)
GET(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, PCIE_WIDTH)
GET(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, PCIE_GENERATION)
GET(nvmlDeviceGetPcieSpeed, unsigned int, PCIE_MBPS)
GET(nvmlDeviceGetPcieLinkMaxSpeed, unsigned int, PCIE_MBPS)
GET(nvmlDeviceGetPcieReplayCounter, unsigned int, 0)
GET2(nvmlDeviceGetEncoderUtilization, unsigned int, 0, SAMPLING_US)
GET2(nvmlDeviceGetDecoderUtilization, unsigned int, 0, SAMPLING_US)
GET2(nvmlDeviceGetJpgUtilization, unsigned int, 0, SAMPLING_US)
GET2(nvmlDeviceGetOfaUtilization, unsigned int, 0, SAMPLING_US)

EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t h, nvmlPcieUtilCounter_t counter, unsigned int *value)
{
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	if (r)
		return r;
	if (!value || counter >= NVML_PCIE_UTIL_COUNT)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*value = 0;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t h, nvmlTemperatureSensors_t sensor, unsigned int *value)
{
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	if (r)
		return r;
	if (!value || sensor != NVML_TEMPERATURE_GPU)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*value = TEMPERATURE;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t h, nvmlTemperature_t *t)
{
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	if (r)
		return r;
	if (!t || t->sensorType != NVML_TEMPERATURE_GPU)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	if (t->version != VERSION(nvmlTemperature_v1_t, 1u))
		return leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	t->temperature = TEMPERATURE;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t h, nvmlTemperatureThresholds_t which, unsigned int *value)
{
	static const unsigned at[NVML_TEMPERATURE_THRESHOLD_COUNT] = {
		[NVML_TEMPERATURE_THRESHOLD_SHUTDOWN] = 92, [NVML_TEMPERATURE_THRESHOLD_SLOWDOWN] = 89,
		[NVML_TEMPERATURE_THRESHOLD_MEM_MAX] = 95, [NVML_TEMPERATURE_THRESHOLD_GPU_MAX] = 85,
	};
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	if (r)
		return r;
	if (!value || which >= NVML_TEMPERATURE_THRESHOLD_COUNT)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	if (!at[which])
		return leave(NVML_ERROR_NOT_SUPPORTED);
	*value = at[which];
	return leave(NVML_SUCCESS);
}

static nvmlReturn_t clock_of(nvmlDevice_t h, nvmlClockType_t type, unsigned *mhz)
{
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	if (r)
		return r;
	if (!mhz || type >= NVML_CLOCK_COUNT)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*mhz = clocks[type];
	return leave(NVML_SUCCESS);
}

/* The clocks are always the highest. */
EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t h, nvmlClockType_t type, unsigned int *mhz)
{
	return clock_of(h, type, mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t h, nvmlClockType_t type, unsigned int *mhz)
{
	return clock_of(h, type, mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t h, nvmlClockType_t type, unsigned int *mhz)
{
	return clock_of(h, type, mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t h, nvmlClockType_t type, unsigned int *mhz)
{
	return clock_of(h, type, mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t h, nvmlClockType_t type, nvmlClockId_t id, unsigned int *mhz)
{
	return id < NVML_CLOCK_ID_COUNT ? clock_of(h, type, mhz) : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t one_clock(nvmlDevice_t h, unsigned *n, unsigned *mhz, nvmlClockType_t type)
{
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	if (r)
		return r;
	if (!n)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	unsigned room = *n;
	*n = 1;
	if (room < 1 || !mhz)
		return leave(NVML_ERROR_INSUFFICIENT_SIZE);
	*mhz = clocks[type];
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t h, unsigned int *n, unsigned int *mhz)
{
	return one_clock(h, n, mhz, NVML_CLOCK_MEM);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t h, unsigned int memory, unsigned int *n, unsigned int *mhz)
{
	return memory == clocks[NVML_CLOCK_MEM] ? one_clock(h, n, mhz, NVML_CLOCK_GRAPHICS) : NVML_ERROR_NOT_FOUND;
}

/* Nobody measures how much of a GPU each process uses. */
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t h, nvmlProcessUtilizationSample_t *samples, unsigned int *n,
						    unsigned long long since)
{
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	(void)samples;
	(void)since;
	if (r)
		return r;
	if (!n)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*n = 0;
	return leave(NVML_ERROR_NOT_FOUND);
}

static void field(const struct sim_gpu *g, nvmlFieldValue_t *v)
{
	v->nvmlReturn = NVML_SUCCESS;
	v->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
	v->timestamp = (long long)(clock_ns() / 1000);
	switch (v->fieldId) {
	case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
		v->value.uiVal = atomic_load(&g->is.recovery);
		break;
	case NVML_FI_DEV_ECC_CURRENT:
	case NVML_FI_DEV_ECC_PENDING:
		v->value.uiVal = 1;
		break;
	case NVML_FI_DEV_NVLINK_LINK_COUNT:
	case NVML_FI_DEV_PCIE_REPLAY_COUNTER:
		v->value.uiVal = 0;
		break;
	case NVML_FI_DEV_POWER_INSTANT:
		v->value.uiVal = POWER_MW;
		break;
	case NVML_FI_DEV_POWER_CURRENT_LIMIT:
		v->value.uiVal = POWER_LIMIT_MW;
		break;
	case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
	case NVML_FI_DEV_ENERGY:
		v->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
		v->value.ullVal = energy_mj();
		break;
	default:
		v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
	}
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t h, int n, nvmlFieldValue_t *values)
{
	struct sim_gpu *g;
	nvmlReturn_t r = enter_device(h, &g, NULL);

	if (r)
		return r;
	if (!values || n <= 0)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	for (int i = 0; i < n; i++)
		field(g, &values[i]);
	return leave(NVML_SUCCESS);
}
