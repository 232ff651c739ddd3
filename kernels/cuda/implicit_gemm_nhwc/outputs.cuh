// From sums in registers to y: part of implicit_gemm_nhwc.cu, after its macros.
//
//   staged       without a split: narrowed to y's type, turned by stmatrix so that y's fastest dimension is innermost, then
//                copied out by up to 16 bytes
//   sums         with a split: float32 in shared memory, pushed to the block of the cluster that owns the rows, added there

// sums (WARPS_K, OUTER, SUM_PITCH).
__device__ __forceinline__ void store_sums(float* sums, const float (&sum)[SUMS]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m0 = warp % WARPS_M * (BM / WARPS_M) + lane / 4;
    const int n0 = warp / WARPS_M % WARPS_N * (BN / WARPS_N) + lane % 4 * 2;
    sums += warp / (WARPS_M * WARPS_N) * OUTER * SUM_PITCH;
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int m = m0 + i * 16 + half * 8;
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
                const int n = n0 + j * 8;
                const float first = sum[i][j][2 * half], second = sum[i][j][2 * half + 1];
                if (IS_TURNED) {
                    sums[n * SUM_PITCH + m] = first;
                    sums[(n + 1) * SUM_PITCH + m] = second;
                } else {
                    *(float2*)(sums + m * SUM_PITCH + n) = make_float2(first, second);
                }
            }
        }
    }
}

template <int COUNT>
struct __align__(COUNT * ELEMENT) Run {
    Storage values[COUNT];
};

template <int COUNT>
__device__ __forceinline__ void load_run(float (&to)[COUNT], const float* from) {
    if constexpr (COUNT % 4 == 0) {
#pragma unroll
        for (int e = 0; e < COUNT; e += 4) *(float4*)(to + e) = *(const float4*)(from + e);
    } else {
#pragma unroll
        for (int e = 0; e < COUNT; ++e) to[e] = from[e];
    }
}

// Adds `count` sums that lie `distance` apart, for COUNT neighbours, and ends them.
template <int COUNT>
__device__ __forceinline__ void store_run(Storage* y, const Epilogue& epilogue, const float* from, int count, int distance,
                                          unsigned filter) {
    float total[COUNT];
    load_run<COUNT>(total, from);
    for (int part = 1; part < count; ++part) {
        float more[COUNT];
        load_run<COUNT>(more, from + part * distance);
#pragma unroll
        for (int e = 0; e < COUNT; ++e) total[e] += more[e];
    }
    epilogue.apply<IS_NHWC>(total, filter, y);
    Run<COUNT> run;
#pragma unroll
    for (int e = 0; e < COUNT; ++e) run.values[e] = narrow(total[e]);
    *(Run<COUNT>*)y = run;
}

// Where a thread's outputs lie: every `step`-th row of a tile from `outer` on, COUNT neighbours of a row.
template <int COUNT, typename Store>
__device__ __forceinline__ void for_outputs(Storage* y, int outer, int rows, unsigned first_filter, unsigned first_pixel,
                                            unsigned pixels, int K, const Divisor& plane, Store store) {
    constexpr int columns = INNER / COUNT, across = columns < THREADS ? columns : THREADS, step = THREADS / across;
    if (THREADS % across && threadIdx.x >= across * step) return;
#pragma unroll 1
    for (int column = threadIdx.x % across * COUNT; column < INNER; column += across * COUNT) {
        unsigned left;
        size_t pitch;
        Storage* target = y;
        if (IS_NHWC) {
            left = first_filter + column < K ? pixels - min(first_pixel + outer, pixels) : 0;
            pitch = K;
            target += (size_t)(first_pixel + outer) * K + first_filter + column;
        } else {
            const unsigned pixel = first_pixel + column, image = plane.divide(pixel);
            left = pixel < pixels ? K - min((int)first_filter + outer, K) : 0;
            pitch = plane.value;
            target += ((size_t)image * K + first_filter + outer) * pitch + (pixel - image * plane.value);
        }
        const int end = min((unsigned)rows, left);  // rows is not negative
        int row = threadIdx.x / across;
        target += row * pitch;
#pragma unroll 4
        for (; row < end; row += step, target += step * pitch) store(target, row, column);
    }
}

template <int COUNT>
__device__ __forceinline__ void store_y(Storage* y, const Epilogue& epilogue, const float* from, int pitch, int count,
                                        int distance, int outer, int rows, unsigned first_filter, unsigned first_pixel,
                                        unsigned pixels, int K, const Divisor& plane) {
    for_outputs<COUNT>(y, outer, rows, first_filter, first_pixel, pixels, K, plane,
                       [=](Storage* target, int row, int column) {
                           store_run<COUNT>(target, epilogue, from + row * pitch + column, count, distance,
                                            first_filter + (IS_NHWC ? column : outer + row));
                       });
}

#if IS_STAGED
#if HAS_EPILOGUE
// Two sums of a row of products: of neighbouring filters with PIXELS_M, else of neighbouring pixels of one filter.
__device__ __forceinline__ unsigned narrow_pair(float first, float second, const Epilogue& epilogue, unsigned filter, int K) {
    const unsigned last = K - 1;
    return narrow_pair(epilogue.of(first, min(filter, last), nullptr),
                       epilogue.of(second, min(filter + PIXELS_M, last), nullptr));
}
#endif

// staged (OUTER, STAGED_PITCH), in y's type.
__device__ __forceinline__ void stage_outputs(Storage* staged, const float (&sum)[SUMS], const Epilogue& epilogue,
                                              unsigned first_filter, int K) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m0 = warp % WARPS_M * (BM / WARPS_M) + lane / 8 % 2 * 8, n0 = warp / WARPS_M * (BN / WARPS_N) + lane / 16 * 8;
    const unsigned place = shared_address(IS_TURNED ? staged + (n0 + lane % 8) * STAGED_PITCH + m0
                                                    : staged + (m0 + lane % 8) * STAGED_PITCH + n0);
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
        for (int j = 0; j < TILES_N; j += 2) {
            const unsigned address = place + (IS_TURNED ? j * 8 * STAGED_PITCH + i * 16 : i * 16 * STAGED_PITCH + j * 8) * 2;
#if HAS_EPILOGUE
            // A thread's sums: rows lane / 4 and 8 more, columns lane % 4 * 2 and the next.
            const unsigned m = warp % WARPS_M * (BM / WARPS_M) + i * 16 + lane / 4;
            const unsigned n = warp / WARPS_M * (BN / WARPS_N) + j * 8 + lane % 4 * 2;
            const unsigned filter = first_filter + (PIXELS_M ? n : m), down = PIXELS_M ? 0 : 8, across = PIXELS_M ? 8 : 0;
            const unsigned pairs[] = {
                narrow_pair(sum[i][j][0], sum[i][j][1], epilogue, filter, K),
                narrow_pair(sum[i][j][2], sum[i][j][3], epilogue, filter + down, K),
                narrow_pair(sum[i][j + 1][0], sum[i][j + 1][1], epilogue, filter + across, K),
                narrow_pair(sum[i][j + 1][2], sum[i][j + 1][3], epilogue, filter + across + down, K)};
#else
            const unsigned pairs[] = {
                narrow_pair(sum[i][j][0], sum[i][j][1]), narrow_pair(sum[i][j][2], sum[i][j][3]),
                narrow_pair(sum[i][j + 1][0], sum[i][j + 1][1]), narrow_pair(sum[i][j + 1][2], sum[i][j + 1][3])};
#endif
#if IS_TURNED
#define STORE_MATRICES "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
#else
#define STORE_MATRICES "stmatrix.sync.aligned.m8n8.x4.shared.b16"
#endif
            asm volatile(STORE_MATRICES " [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(pairs[0]), "r"(pairs[1]),
                         "r"(pairs[2]), "r"(pairs[3])
                         : "memory");
        }
    }
}
template <int COUNT>
__device__ __forceinline__ void store_staged(Storage* y, const Storage* staged, unsigned first_filter, unsigned first_pixel,
                                             unsigned pixels, int K, const Divisor& plane) {
    for_outputs<COUNT>(y, 0, OUTER, first_filter, first_pixel, pixels, K, plane,
                       [=](Storage* target, int row, int column) {
                           *(Run<COUNT>*)target = *(const Run<COUNT>*)(staged + row * STAGED_PITCH + column);
                       });
}
#endif
