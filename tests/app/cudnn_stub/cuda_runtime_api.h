/* What the legacy snippets use of the CUDA runtime's header. */
#pragma once
#include <stddef.h>

typedef int cudaError_t;
cudaError_t cudaMalloc(void**, size_t);
cudaError_t cudaMemset(void*, int, size_t);
cudaError_t cudaDeviceSynchronize(void);

#ifdef __cplusplus
/* Of CUDA C++, enough for a host to compile a kernel, and for a test to call it for one element after the other. */
#include <math.h>

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x) : x(x), y(1), z(1) {}
};
struct Index {
    unsigned x;
};
#define __global__ extern "C"
extern "C" {
inline Index blockIdx, blockDim, threadIdx;
}
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, void*);
#endif
