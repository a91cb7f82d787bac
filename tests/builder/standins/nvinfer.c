/* A stand-in for TensorRT's library: what it says of its version. -DWHOLE=8502 is one of 8.x, -DMAJOR=10 -DMINOR=3 -DPATCH=0 -DBUILD=30 a later one.
   -DNOISE prints while it loads; -DCRASH ends the process then. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

const char *enginefleet_simulated = "EngineFleet simulated TensorRT";

#ifdef WHOLE
int32_t getInferLibVersion(void) { return WHOLE; }
#else
int32_t getInferLibMajorVersion(void) { return MAJOR; }
int32_t getInferLibMinorVersion(void) { return MINOR; }
int32_t getInferLibPatchVersion(void) { return PATCH; }
int32_t getInferLibBuildVersion(void) { return BUILD; }
#endif
#ifdef COMPILER
const char made_with[] = COMPILER;
#endif

__attribute__((constructor)) static void load(void) {
#ifdef NOISE
    puts("{\"a line that looks like an answer\": 1}");
    fflush(stdout);
#endif
#ifdef CRASH
    abort();
#endif
}
