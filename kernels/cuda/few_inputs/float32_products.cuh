// Part of few_inputs_float32.cu: the products of a warp's windows with the block's weight, a step of gemm_k at a time.
//
//   weight       what a thread holds of a step, 16 bytes a load: of a tile of filters both high parts, then both low ones; with
//                one product of two tiles

#define STEPS_OF_CHAIN 1
#if SPLIT
#define LOADS_OF_STEP NT
#define STEPS_AT_A_TIME 1
#else
#define LOADS_OF_STEP (NT / 2)
#define STEPS_AT_A_TIME 2
#endif

#ifdef __CUDA_ARCH__
// sum += a . b of all tiles of the warp, of which a is no longer needed.
__device__ __forceinline__ void multiply_step(float (&sum)[MT][NT][4], unsigned (&a)[MT][4], const uint4* weights) {
#if SPLIT
    unsigned low[MT][4];
#pragma unroll
    for (int i = 0; i < MT; ++i) split(a[i], low[i]);
#pragma unroll
    for (int j = 0; j < NT; ++j) {
        const uint4 b = weights[j * 32];
        float part[MT][4] = {};
#pragma unroll
        for (int i = 0; i < MT; ++i) multiply_fragments(part[i], low[i], b.x, b.y);
#pragma unroll
        for (int i = 0; i < MT; ++i) multiply_fragments(part[i], a[i], b.z, b.w);
#pragma unroll
        for (int i = 0; i < MT; ++i) multiply_fragments(part[i], a[i], b.x, b.y);
#pragma unroll
        for (int i = 0; i < MT; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[i][j][e] += part[i][e];
        }
    }
#else
    round_all_to_tf32(a);
#pragma unroll
    for (int j = 0; j < NT; j += 2) {
        const uint4 b = weights[j / 2 * 32];
#pragma unroll
        for (int i = 0; i < MT; ++i) {
            multiply_fragments(sum[i][j], a[i], b.x, b.y);
            multiply_fragments(sum[i][j + 1], a[i], b.z, b.w);
        }
    }
#endif
}
#else  // on a CPU: what other lanes hold, by way of memory
inline void multiply_step(float (&sum)[MT][NT][4], unsigned (&a)[MT][4], const uint4* weights) {
    static unsigned every_a[1024][MT][4];
    const int lane = threadIdx.x % 32, warp = threadIdx.x - lane;
    memcpy(every_a[threadIdx.x], a, sizeof a);
    host::yield();
    for (int i = 0; i < MT; ++i)
        for (int j = 0; j < NT; ++j)
            for (int e = 0; e < 4; ++e)
                for (int k = 0; k < STEP; ++k) {
                    const unsigned* const b = (const unsigned*)(weights - lane + (SPLIT ? j : j / 2) * 32 +
                                                                (lane % 4 * 2 + e % 2) * 4 + k % 4);
                    const float factor = SPLIT ? float_of(b[k / 4]) + float_of(b[2 + k / 4]) : float_of(b[j % 2 * 2 + k / 4]);
                    sum[i][j][e] += float_of(every_a[warp + lane / 4 * 4 + k % 4][i][e / 2 + k / 4 * 2]) * factor;
                }
    host::yield();
}
#endif

// Puts a weight where the threads that multiply by it find it.
__device__ __forceinline__ void keep_weight(uint4* weights, int column, int k, float value) {
    const int tile = column / 8, lane = column % 8 * 4 + k % 4, load = k / STEP * LOADS_OF_STEP + (SPLIT ? tile : tile / 2);
    unsigned* const place = (unsigned*)(weights + load * 32 + lane) + k / 4 % 2;
    unsigned high[1] = {__float_as_uint(value)}, low[1];
    split_weight(high, low);
    place[SPLIT ? 0 : tile % 2 * 2] = high[0];
    if (SPLIT) place[2] = low[0];
}

__device__ __forceinline__ void publish_weight() {}

// Windows begin where `window` says, and second_bytes further those of the second pixels.
__device__ __forceinline__ void multiply_window(float (&sum)[MT][NT][4], const char* const (&window)[MT], int second_bytes,
                                                const uint4* weights, const int* offsets, int steps) {
    const int lane = threadIdx.x % 32;
#pragma unroll STEPS_AT_A_TIME
    for (int step = 0; step < steps; ++step) {
        unsigned a[MT][4];
        load_windows(a, window, second_bytes, offsets + step * STEP);
        multiply_step(sum, a, weights + step * (LOADS_OF_STEP * 32) + lane);
    }
}
