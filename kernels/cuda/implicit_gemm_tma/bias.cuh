// The bias of the filters whose sums a thread has, asked for before there are any, and how these end: of
// implicit_gemm_tma.cu and implicit_gemm_tma_small.cu, after their macros.

// Columns lane % 4 * 2 and the next of every 8, from a filter on; of two-byte types, those of float32 are read with the sums.
struct Bias {
#ifdef STORAGE_FLOAT32
    __device__ __forceinline__ void read(const Epilogue&, unsigned, const Sizes&) {}
#else
    unsigned pairs[TILES_N];

    __device__ __forceinline__ void read(const Epilogue& epilogue, unsigned first_filter, const Sizes& sizes) {
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
            const unsigned filter = first_filter + j * 8 + threadIdx.x % 4 * 2;
            pairs[j] = filter < (unsigned)sizes.K ? epilogue.bias_ahead(filter) : 0;
        }
    }
#endif
};

#ifndef STORAGE_FLOAT32
// Ends a warp's sums of 16 rows and 16 columns, two of eight, and stores them to where `place` has a lane's 16 bytes of a row in
// shared memory. Where there is a residual, it lies there before.
__device__ __forceinline__ void end_columns(unsigned place, const Epilogue& epilogue, const float (*sum)[4], const unsigned* bias) {
    unsigned pairs[4] = {};
#if RESIDUAL
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                 : "r"(place)
                 : "memory");
#endif
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        float two[] = {sum[e / 2][e % 2 * 2], sum[e / 2][e % 2 * 2 + 1]};
#if HAS_EPILOGUE
        epilogue.apply_given(two, pairs[e], bias[e / 2]);
#endif
        pairs[e] = narrow_pair(two[0], two[1]);
    }
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(place), "r"(pairs[0]), "r"(pairs[1]),
                 "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
    (void)epilogue, (void)bias;
}
#endif
