/* A stand-in for libcudnn.so.8 and libcublas.so.*: their versions. */
#include <stddef.h>

size_t cudnnGetVersion(void) { return 8600; }
int cublasGetProperty(int kind, int *value) { *value = (int[]){11, 6, 6}[kind]; return 0; }
