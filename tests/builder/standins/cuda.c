/* A stand-in for libcuda.so.1: the driver API's questions about devices, answered from the environment.

   STANDIN_GPUS    one line a device: name|major|minor|SMs|integrated|ECC|MiB|PCI address; a number below 0 is a question that fails
   STANDIN_CUINIT  the code that cuInit() gives; "crash" or "hang" is what it does instead */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *enginefleet_simulated = "EngineFleet simulated CUDA";

typedef struct { char name[96], pci[32]; int major, minor, sms, integrated, ecc, mib; } Gpu;

static int gpu(int ordinal, Gpu *found) {
    const char *line = getenv("STANDIN_GPUS");
    for (; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (ordinal-- == 0) {
            memset(found, 0, sizeof *found);
            return sscanf(line, "%95[^|]|%d|%d|%d|%d|%d|%d|%31[^\n]", found->name, &found->major, &found->minor, &found->sms, &found->integrated,
                          &found->ecc, &found->mib, found->pci) < 7 ? 999 : 0;
        }
    return 101;
}

int cuInit(unsigned flags) {
    const char *how = getenv("STANDIN_CUINIT");
    if (how && !strcmp(how, "crash")) abort();
    while (how && !strcmp(how, "hang")) pause();
    return how ? atoi(how) : (int)flags;
}

int cuGetErrorName(int code, const char **name) {
    *name = code == 100 ? "CUDA_ERROR_NO_DEVICE" : code == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : NULL;
    return *name ? 0 : 1;
}

int cuDriverGetVersion(int *version) { *version = 12060; return 0; }

int cuDeviceGetCount(int *count) {
    Gpu g;
    for (*count = 0; gpu(*count, &g) == 0; ++*count) {}
    return 0;
}

int cuDeviceGet(int *device, int ordinal) { Gpu g; *device = ordinal; return gpu(ordinal, &g); }

int cuDeviceGetName(char *name, int size, int device) {
    Gpu g;
    int code = gpu(device, &g);
    snprintf(name, size, "%s", code || g.name[0] == '-' ? "" : g.name);
    return code ? code : g.name[0] == '-';
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    Gpu g;
    int code = gpu(device, &g);
    switch (attribute) {
        case 16: *value = g.sms; break;
        case 18: *value = g.integrated; break;
        case 32: *value = g.ecc; break;
        case 75: *value = g.major; break;
        case 76: *value = g.minor; break;
        default: return 1;
    }
    return code ? code : *value < 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    Gpu g;
    int code = gpu(device, &g);
    *bytes = (size_t)g.mib << 20;
    return code;
}

int cuDeviceGetPCIBusId(char *text, int size, int device) {
    Gpu g;
    int code = gpu(device, &g);
    snprintf(text, size, "%s", g.pci);
    return code;
}
