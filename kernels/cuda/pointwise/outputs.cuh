// Part of pointwise.cu: outputs, from a warpgroup's accumulators to y, through shared memory or from registers.

#define SUMS_ARE_FLOATS (SPLIT_C || ELEMENT == 4)
#if SPLIT_C
typedef float Sum;
#else
typedef Storage Sum;
#endif
__device__ __forceinline__ Sum to_sum(float value) {
#if SPLIT
    return restored(value, raised_by(CHAIN));
#elif SPLIT_C
    return value;
#else
    return narrow(value);
#endif
}
#if COPIES_RESIDUAL
// sums += the residual of filters [stage * BK, ...) of a tile, whose fragments are those that x would have there.
__device__ __forceinline__ void add_residual(float (&sum)[SUMS], const Storage* copied, const Places& places, int stage) {
#pragma unroll
    for (int part = 0; part < RESIDUAL_STAGES; ++part) {
        if (part != stage) continue;
#pragma unroll
        for (int step = 0; step < min(STEPS, (BN - part * BK) / STEP_K); ++step) {
            unsigned pairs[TILES_P][4];
            load_fragments(pairs, copied + step * STEP_K * X_PITCH, places);
#pragma unroll
            for (int i = 0; i < TILES_P; ++i) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int eight = part * BK / 8 + step * 2 + e / 2, at = eight % (INST_N / 8) * 4 + e % 2 * 2;
                    const Storage* const pair = (const Storage*)&pairs[i][e];
                    sum[i][eight / (INST_N / 8)][at] += widen(pair[0]);
                    sum[i][eight / (INST_N / 8)][at + 1] += widen(pair[1]);
                }
            }
        }
    }
}
#endif
#if HAS_EPILOGUE && !SUMS_ARE_FLOATS
// Before they are narrowed: a thread's filters of a tile, of all its pixels.
__device__ __forceinline__ void end_sums(const Epilogue& epilogue, float (&sum)[SUMS], int first_k, int K) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+r"(first_k));  // else a block that walks keeps its biases in registers, which it has not
#endif
#pragma unroll
    for (int n = 0; n < BN / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            float pixels[2 * TILES_P];
#pragma unroll
            for (int i = 0; i < 2 * TILES_P; ++i) pixels[i] = sum[i / 2][n / (INST_N / 8)][n % (INST_N / 8) * 4 + i % 2 * 2 + e];
            epilogue.end(pixels, min(first_k + n * 8 + (int)threadIdx.x % 4 * 2 + e, K - 1));
#pragma unroll
            for (int i = 0; i < 2 * TILES_P; ++i) sum[i / 2][n / (INST_N / 8)][n % (INST_N / 8) * 4 + i % 2 * 2 + e] = pixels[i];
        }
    }
}
#endif

// tile (BN, SUM_PITCH)
__device__ __forceinline__ void store_sums(Sum* tile, const float (&sum)[SUMS]) {
#if ELEMENT == 2 && !SPLIT_C && defined(__CUDA_ARCH__)
    // Four matrices of 8 filters x 8 pixels at a time: two halves of the rows, two groups of filters.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < TILES_P; ++i) {
        const int column = (warp / 4 * TILES_P + i) * 64 + warp % 4 * 16 + lane / 8 % 2 * 8;
#pragma unroll
        for (int n = 0; n < BN / 8; n += 2) {
            unsigned packed[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int j = n + e / 2, at = j % (INST_N / 8) * 4 + e % 2 * 2;
                const Storage low = narrow(sum[i][j / (INST_N / 8)][at]), high = narrow(sum[i][j / (INST_N / 8)][at + 1]);
                packed[e] = *(const unsigned short*)&low | (unsigned)*(const unsigned short*)&high << 16;
            }
            asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                             shared_address(tile + (n * 8 + lane % 8 + lane / 16 * 8) * SUM_PITCH + column)),
                         "r"(packed[0]), "r"(packed[1]), "r"(packed[2]), "r"(packed[3])
                         : "memory");
        }
    }
#else
#pragma unroll
    for (int i = 0; i < TILES_P; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            Sum* const to = tile + threadIdx.x % 4 * 2 * SUM_PITCH + column_in_tile(i, half);
#pragma unroll
            for (int n = 0; n < TILES_N; ++n) {
#pragma unroll
                for (int j = 0; j < INST_N / 8; ++j) {
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        to[(n * INST_N + j * 8 + e) * SUM_PITCH] = to_sum(sum[i][n][j * 4 + half * 2 + e]);
                }
            }
        }
    }
#endif
}

// COUNT neighbours to y, which nobody here reads again.
template <int COUNT>
__device__ __forceinline__ void store_neighbours(Storage* target, const Storage (&values)[COUNT]) {
    if constexpr (COUNT * ELEMENT == 16) {
        __stcs((float4*)target, *(const float4*)values);
    } else if constexpr (COUNT * ELEMENT == 8) {
        __stcs((float2*)target, *(const float2*)values);
    } else if constexpr (COUNT * ELEMENT == 4) {
        __stcs((float*)target, *(const float*)values);
    } else {
        __stcs((unsigned short*)target, *(const unsigned short*)values);
    }
}

// Where the blocks of a cluster share the channels: filters of a thread's pixels whose sums it asks them for before it waits.
#define ROWS_AT_A_TIME (COUNT < 4 ? 8 : 4)
template <int COUNT>
__device__ __forceinline__ void store_y(Storage* __restrict__ y, const Epilogue& epilogue, const Sum* tile, int begin, int end,
                                        unsigned first, unsigned pixels, int first_k, int K, unsigned plane,
                                        unsigned blocks) {
    constexpr int columns = BP / COUNT, step = THREADS / columns;
    static_assert(THREADS % columns == 0, "whole rows");
    const int column = threadIdx.x % columns * COUNT;
    const unsigned pixel = first + column;
    end = min(end, K - first_k);
    if (pixel >= pixels) return;
    const unsigned image = pixel / plane;
    int row = begin + threadIdx.x / columns;
    Storage* target = y + ((size_t)image * K + first_k + row) * plane + (pixel - image * plane);
#if SPLIT_C
    constexpr int rows = ROWS_AT_A_TIME;
#pragma unroll 1
    for (; row < end; row += rows * step) {
        float totals[rows][COUNT] = {};
        for (unsigned rank = 0; rank < blocks; ++rank) {
#pragma unroll
            for (int i = 0; i < rows; ++i)
                if (row + i * step < end) add_of(totals[i], shared_address(tile + (row + i * step) * SUM_PITCH + column), rank);
        }
#pragma unroll
        for (int i = 0; i < rows; ++i) {
            if (row + i * step < end) {
                __align__(16) Storage values[COUNT];
#if COPIES_RESIDUAL
                epilogue.end(totals[i], first_k + row + i * step);
#else
                epilogue.apply(totals[i], first_k + row + i * step, target);
#endif
#pragma unroll
                for (int e = 0; e < COUNT; ++e) values[e] = narrow(totals[i][e]);
                store_neighbours(target, values);
            }
            target += (size_t)step * plane;
        }
    }
#else
#pragma unroll 4
    for (; row < end; row += step) {
        __align__(16) Storage values[COUNT];
        const Sum* const from = tile + row * SUM_PITCH + column;
        if constexpr (COUNT * ELEMENT == 16) {
            *(float4*)values = *(const float4*)from;
        } else {
#pragma unroll
            for (int e = 0; e < COUNT; ++e) values[e] = from[e];
        }
#if ELEMENT == 4
        epilogue.apply(values, first_k + row, target);
#endif
        store_neighbours(target, values);
        target += (size_t)step * plane;
    }
#endif
}

#if DIRECT
#define FILTERS_AT_A_TIME 8  // of a thread: it has read their residual before it stores the first
// From registers to y, each thread its own neighbouring pixels.
__device__ __forceinline__ void store_directly(Storage* __restrict__ y, const Epilogue& epilogue, const float (&sum)[SUMS],
                                               unsigned first, unsigned pixels, int first_k, int K, unsigned plane) {
    const unsigned pixel = first + column_in_tile(0, 0), image = pixel / plane;
    if (pixel >= pixels) return;
    const int own = first_k + threadIdx.x % 4 * 2;
    float* const target = (float*)y + ((size_t)image * K + own) * plane + (pixel - image * plane);
#pragma unroll
    for (int begin = 0; begin < BN / 4; begin += FILTERS_AT_A_TIME) {
        float residual[FILTERS_AT_A_TIME][2 * TILES_P];
#pragma unroll
        for (int i = 0; i < FILTERS_AT_A_TIME; ++i) {
            const int filter = (begin + i) / 2 * 8 + i % 2;
            if (begin + i < BN / 4 && own + filter < K) epilogue.read_residual(residual[i], target + filter * (size_t)plane);
        }
#pragma unroll
        for (int i = 0; i < FILTERS_AT_A_TIME; ++i) {
            const int n = (begin + i) / 2, filter = n * 8 + i % 2;
            if (begin + i >= BN / 4 || own + filter >= K) continue;
            __align__(16) float values[2 * TILES_P];
#pragma unroll
            for (int tile = 0; tile < TILES_P; ++tile) {
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    values[tile * 2 + half] = to_sum(sum[tile][n / (INST_N / 8)][n % (INST_N / 8) * 4 + half * 2 + i % 2]);
            }
            epilogue.apply_with(values, own + filter, residual[i]);
            store_neighbours(target + filter * (size_t)plane, values);
        }
    }
}
#endif

#if PREFETCHES_RESIDUAL
// Has the residual of a tile's filters [begin, end) brought to L2 while its stages are multiplied.
__device__ __forceinline__ void prefetch_residual(const Storage* residual, int begin, int end, unsigned first, unsigned pixels,
                                                  int K, unsigned plane) {
    constexpr int lines = BP * ELEMENT / 128;
    for (int i = threadIdx.x; i < (min(end, K) - begin) * lines; i += THREADS) {
        const unsigned pixel = first + i % lines * (128 / ELEMENT), image = pixel / plane;
        if (pixel >= pixels) continue;
        prefetch(residual + ((size_t)image * K + begin + i / lines) * plane + (pixel - image * plane));
    }
}
#endif
