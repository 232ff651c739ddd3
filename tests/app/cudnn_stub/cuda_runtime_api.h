/* What the legacy snippets use of the CUDA runtime's header. */
#pragma once
#include <stddef.h>

typedef int cudaError_t;
cudaError_t cudaMalloc(void**, size_t);
cudaError_t cudaMemset(void*, int, size_t);
cudaError_t cudaDeviceSynchronize(void);
