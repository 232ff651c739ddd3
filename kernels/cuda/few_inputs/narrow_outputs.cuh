// Part of few_inputs_narrow.cu: in which order the filters are multiplied, so that a thread's sums are
// neighbours of y, and how it stores them.

// Tiles of filters whose sums a thread stores at once. Fewer than eight at a time lie in the order of the products: a store of
// four threads is then 8 or 16 bytes of a pixel, and not spread over 64.
#define GROUP (STORE < 8 ? 1 : NT % 4 == 0 ? 4 : NT % 2 == 0 ? 2 : 1)
#define VECTOR (2 * GROUP)  // filters of a store

// Which filter of the block a column of the products is.
__device__ __forceinline__ int filter_of(int column) {
    const int tile = column / 8, pair = column % 8 / 2;
    return tile / GROUP * (8 * GROUP) + pair * VECTOR + tile % GROUP * 2 + column % 2;
}

// The sums of a tile of rows of pixels, from p0, q0 of an image's y on; its next pixel lies y_pitch elements on, K or more.
__device__ __forceinline__ void store_tile(const float (&sum)[MT][NT][4], Storage* __restrict__ y, const Epilogue epilogue, int p0,
                                           int q0, int tile_q_bits, int first_filter, int P, int Q, int K, int y_pitch) {
    const int first_pixel = threadIdx.x / 32 * (MT * 16) + threadIdx.x % 32 / 4, first = first_filter + threadIdx.x % 4 * VECTOR;
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int pixel = first_pixel + i * 16 + half * 8, row = pixel >> tile_q_bits;
            const int p = p0 + row, q = q0 + pixel - (row << tile_q_bits);
            if (p >= P || q >= Q) continue;
            Storage* const outputs = y + (p * Q + q) * y_pitch;
#pragma unroll
            for (int j = 0; j < NT; j += GROUP) {
                const int filter = first + j * 8;
                if (filter >= K) continue;
                float values[VECTOR];
#pragma unroll
                for (int e = 0; e < VECTOR; ++e) values[e] = sum[i][j + e / 2][half * 2 + e % 2];
#if STORE < 8
#pragma unroll
                for (int e = 0; e < VECTOR; e += STORE) {
                    if (filter + e >= K) continue;
                    Storage* const output = outputs + filter + e;
#if STORE == 2
                    float pair[2] = {values[e], values[e + 1]};
                    epilogue.apply<true>(pair, filter + e, output);
                    *(unsigned*)output = narrow_pair(pair[0], pair[1]);
#else
                    *output = narrow(epilogue.of(values[e], filter + e, output));
#endif
                }
#else
                epilogue.apply<true>(values, filter, outputs + filter);
                __align__(16) unsigned pairs[GROUP];
#pragma unroll
                for (int e = 0; e < GROUP; ++e) pairs[e] = narrow_pair(values[2 * e], values[2 * e + 1]);
                if constexpr (GROUP == 4)
                    *(uint4*)(outputs + filter) = *(const uint4*)pairs;
                else if constexpr (GROUP == 2)
                    *(uint2*)(outputs + filter) = *(const uint2*)pairs;
                else
                    *(unsigned*)(outputs + filter) = pairs[0];
#endif
            }
        }
    }
}
