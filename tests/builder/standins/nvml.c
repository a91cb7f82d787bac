/* A stand-in for libnvidia-ml.so.1 of CUDA 12: each answer is the variable NVML_<name>; one that is not set is not supported (3). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *enginefleet_simulated = "EngineFleet simulated NVML";
enum { NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;

static int number(const char *name, unsigned long long *value) {
    const char *text = getenv(name);
    if (!text) return NOT_SUPPORTED;
    *value = strtoull(text, NULL, 0);
    return 0;
}

static int small(const char *name, unsigned *value) {
    unsigned long long wide;
    int code = number(name, &wide);
    if (!code) *value = (unsigned)wide;
    return code;
}

static int processes(const char *name, unsigned *count, Process *table) {
    const char *text = getenv(name);
    unsigned found = 0, room = *count;
    if (!text) return NOT_SUPPORTED;
    for (char *end; *text; text = end + (*end == ',')) {
        Process one = {(unsigned)strtoul(text, &end, 10), 1 << 20, ~0u, ~0u};
        if (found < room) table[found] = one;
        ++found;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : 0;
}

int nvmlInit_v2(void) { const char *code = getenv("NVML_INIT"); return code ? atoi(code) : 0; }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Unknown Error"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    const char *version = getenv("NVML_driver");
    if (version) snprintf(text, size, "%s", version);
    return version ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = NULL; return index ? NOT_FOUND : 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **device) {
    const char *ours = getenv("NVML_pci");
    *device = NULL;
    return ours && !strcmp(ours, pci) ? 0 : NOT_FOUND;
}

int nvmlDeviceGetClockInfo(void *d, unsigned kind, unsigned *mhz) { return small(kind == 1 ? "NVML_smClock" : "NVML_memoryClock", mhz); }
int nvmlDeviceGetMaxClockInfo(void *d, unsigned kind, unsigned *mhz) { return small(kind == 1 ? "NVML_smClockMax" : "NVML_memoryClockMax", mhz); }
int nvmlDeviceGetTemperature(void *d, unsigned sensor, unsigned *degrees) { return small("NVML_temperature", degrees); }
int nvmlDeviceGetPowerUsage(void *d, unsigned *mw) { return small("NVML_power", mw); }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *mw) { return small("NVML_powerLimit", mw); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *bits) { return number("NVML_reasons", bits); }
int nvmlDeviceGetUtilizationRates(void *d, unsigned *rates) { rates[1] = 0; return small("NVML_load", rates); }

int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *sizes) {
    sizes[1] = 0;
    return number("NVML_memoryTotal", sizes) || number("NVML_memoryUsed", sizes + 2) ? NOT_SUPPORTED : 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *count, Process *table) { return processes("NVML_processes", count, table); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *d, unsigned *count, Process *table) { return processes("NVML_graphics", count, table); }
