/* A stand-in for CUDA's driver: device memory is the host's, streams do at once what is enqueued, and a captured graph runs nothing.
   Blocks have a mark before them, so that an address which is no block, or was freed, ends the process.
   -DDEVICES_ELSEWHERE leaves out what tests/builder/standins/cuda.c answers, for a library made of both. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static size_t held;
enum { MARK = 0x600d };

static void *take(size_t size) {
    size_t *block = malloc(size + 16);
    block[0] = MARK;
    block[1] = size;
    held += size;
    return block + 2;
}

static void give(void *address) {
    size_t *block = (size_t *)address - 2;
    if (block[0] != MARK) abort();
    held -= block[1];
    block[0] = 0;
    free(block);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

size_t standin_held(void) { return held; }
#ifndef DEVICES_ELSEWHERE
const char *enginefleet_simulated = "CUDA stand-in of a test";
int cuInit(unsigned flags) { return getenv("CUDA_STANDIN_NO_GPU") ? 100 : (int)flags; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = 0; return device ? 101 : attribute < 0; }
#endif
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &held; return device; }
int cuCtxSetCurrent(void *context) { return context == &held ? 0 : 201; }
int cuMemGetInfo_v2(size_t *free_, size_t *total) { *total = 1 << 30; *free_ = *total - held; return 0; }
int cuMemAlloc_v2(uint64_t *address, size_t size) { *address = (uint64_t)take(size); return 0; }
int cuMemFree_v2(uint64_t address) { give((void *)address); return 0; }
int cuMemHostAlloc(void **address, size_t size, unsigned flags) { *address = take(size); return flags; }
int cuMemFreeHost(void *address) { give(address); return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream) { memcpy((void *)to, from, size); return stream ? 0 : 400; }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) { memcpy(to, (void *)from, size); return stream ? 0 : 400; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = take(flags); return 0; }
int cuStreamSynchronize(void *stream) { return stream ? 0 : 400; }
int cuEventCreate(void **event, unsigned flags) { *event = take(sizeof(double) + flags); return 0; }
int cuEventRecord(void *event, void *stream) { *(double *)event = now(); return stream ? 0 : 400; }
int cuEventElapsedTime(float *ms, void *start, void *end) { *ms = (float)((*(double *)end - *(double *)start) * 1e3); return 0; }
int cuStreamBeginCapture_v2(void *stream, int mode) { return stream && mode == 2 ? 0 : 400; }
int cuStreamEndCapture(void *stream, void **graph) { *graph = stream; return 0; }
int cuGraphInstantiateWithFlags(void **launchable, void *graph, unsigned long long flags) { *launchable = graph; return (int)flags; }
int cuGraphLaunch(void *launchable, void *stream) { return launchable && stream ? 0 : 400; }
