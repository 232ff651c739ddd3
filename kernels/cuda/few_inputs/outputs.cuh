// Shared by the first-layer kernels: epilogue and stores of a thread's accumulators for a tile of 16 pixels.
//
//   before       GROUP, tiles of filters whose sums a thread stores at once; VECTOR, filters of a store; pixels.cuh
//   NHWC         of either pixel VECTOR neighbouring filters at a time
//   NCHW         of each filter both pixels: eight threads store neighbouring elements twice, or IS_PAIR twice as many at once

// Neighbours of y.
__device__ __forceinline__ void store_filters(Storage* place, const float (&values)[VECTOR]) {
#ifdef STORAGE_FLOAT32
    *(float4*)place = *(const float4*)values;
#else
    __align__(16) unsigned pairs[GROUP];
#pragma unroll
    for (int e = 0; e < GROUP; ++e) pairs[e] = narrow_pair(values[2 * e], values[2 * e + 1]);
    if constexpr (GROUP == 4)
        *(uint4*)place = *(const uint4*)pairs;
    else
        *(uint2*)place = *(const uint2*)pairs;
#endif
}
__device__ __forceinline__ void store_pair(Storage* place, const float (&pair)[2]) {
#ifdef STORAGE_FLOAT32
    *(float2*)place = make_float2(pair[0], pair[1]);
#else
    *(unsigned*)place = narrow_pair(pair[0], pair[1]);
#endif
}

// `outputs` is the image's y; p and q are the thread's first pixel.
__device__ __forceinline__ void store_pixels(const Epilogue& epilogue, const float (&sum)[NT][4], Storage* outputs,
                                             int first_filter, int p, int q, int K, int P, int Q) {
    const int first = first_filter + threadIdx.x % 4 * VECTOR;
    if (p >= P) return;
#if IS_NHWC
#pragma unroll
    for (int second = 0; second < 2; ++second) {
        if (q + second * SECOND_PIXEL >= Q) continue;
        Storage* const pixel = outputs + ((size_t)p * Q + q + second * SECOND_PIXEL) * K;
#pragma unroll
        for (int j = 0; j < NT; j += GROUP) {
            const int filter = first + j * 8;
            if (filter >= K) continue;
            __align__(16) float values[VECTOR];
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) values[e] = sum[j + e / 2][second * 2 + e % 2];
            epilogue.apply<true>(values, filter, pixel + filter);
            store_filters(pixel + filter, values);
        }
    }
#else
#if defined(__CUDA_ARCH__) && !defined(STORAGE_FLOAT32)
    asm volatile("" : "+r"(Q));  // else what follows from it takes registers while tiles are multiplied
#endif
    if (q >= Q) return;
    const size_t plane = (size_t)P * Q;
    Storage* target = outputs + first * plane + p * Q + q;
#pragma unroll
    for (int j = 0; j < NT; j += GROUP, target += GROUP * 8 * plane) {
        if (first + j * 8 >= K) continue;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            Storage* const pixels = target + e * plane;
            const float(&sums)[4] = sum[j + e / 2];
#if IS_PAIR
            float pair[2] = {sums[e % 2], sums[2 + e % 2]};
            epilogue.apply(pair, first + j * 8 + e, pixels);
            store_pair(pixels, pair);
#else
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                if (q + second * SECOND_PIXEL >= Q) continue;
                const float value = epilogue.of(sums[second * 2 + e % 2], first + j * 8 + e, pixels + second * SECOND_PIXEL);
                pixels[second * SECOND_PIXEL] = narrow(value);
            }
#endif
        }
    }
#endif
}
