// Of few_inputs_float32.cu and few_inputs_wgmma.cu: how a thread ends and stores its sums of a tile of 16 pixels.
//
//   NHWC         of either pixel four neighbouring filters at a time: four threads store 64 bytes
//   NCHW         of each filter both pixels: eight threads store 32 neighbouring bytes twice, or IS_PAIR 64

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
        for (int j = 0; j < NT; j += 2) {
            const int filter = first + j * 8;
            if (filter >= K) continue;
            __align__(16) float values[VECTOR];
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) values[e] = sum[j + e / 2][second * 2 + e % 2];
            epilogue.apply<true>(values, filter, pixel + filter);
            *(float4*)(pixel + filter) = *(const float4*)values;
        }
    }
#else
    if (q >= Q) return;
    const size_t plane = (size_t)P * Q;
    Storage* target = outputs + first * plane + p * Q + q;
#pragma unroll
    for (int j = 0; j < NT; j += 2, target += 16 * plane) {
        if (first + j * 8 >= K) continue;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            Storage* const pixels = target + e * plane;
            const float(&sums)[4] = sum[j + e / 2];
#if IS_PAIR
            float pair[2] = {sums[e % 2], sums[2 + e % 2]};
            epilogue.apply(pair, first + j * 8 + e, pixels);
            *(float2*)pixels = make_float2(pair[0], pair[1]);
#else
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                if (q + second * SECOND_PIXEL >= Q) continue;
                const float value = epilogue.of(sums[second * 2 + e % 2], first + j * 8 + e, pixels + second * SECOND_PIXEL);
                pixels[second * SECOND_PIXEL] = value;
            }
#endif
        }
    }
#endif
}
