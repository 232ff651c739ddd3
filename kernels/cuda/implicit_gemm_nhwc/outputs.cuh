// Part of implicit_gemm_nhwc.cu, after its macros: from accumulators in registers to y.
//
//   staged       without a split: narrowed to y's type, transposed by stmatrix so that y's fastest dimension is innermost, then
//                copied out in pieces of up to 16 bytes
//   sums         with split-K: float32 in shared memory, pushed to the block of the cluster that owns the rows, and added there
//   residual     in half precision: prefetched while the last stages are multiplied, into stages that are no longer
//                refilled; the staged outputs take its place. Where a cluster's partial sums leave no free stage, it is
//                fetched after them, while they are exchanged

#if COPIES_RESIDUAL
template <int COUNT>
__device__ __forceinline__ void copy_neighbours(Address target, const Storage* source) {
#ifdef __CUDA_ARCH__
    if constexpr (COUNT == 8)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source));
    else if constexpr (COUNT == 4)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(target), "l"(source));
    else
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(target), "h"(__ldg((const unsigned short*)source)) : "memory");
#else
    memcpy((void*)target, source, COUNT * ELEMENT);
#endif
}
#endif

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

// Adds `count` sums that lie `distance` apart, for COUNT neighbours, and ends them; their residual, where it was copied.
template <int COUNT>
__device__ __forceinline__ void store_run(Storage* y, const Epilogue& epilogue, const float* from, int count, int distance,
                                          unsigned filter, const Storage* copied) {
    float total[COUNT];
    load_run<COUNT>(total, from);
    for (int part = 1; part < count; ++part) {
        float more[COUNT];
        load_run<COUNT>(more, from + part * distance);
#pragma unroll
        for (int e = 0; e < COUNT; ++e) total[e] += more[e];
    }
    Run<COUNT> run;
#if COPIES_RESIDUAL
    float residual[COUNT];
    run = *(const Run<COUNT>*)copied;
#pragma unroll
    for (int e = 0; e < COUNT; ++e) residual[e] = widen(run.values[e]);
    epilogue.apply_with<IS_NHWC>(total, filter, residual);
#else
    epilogue.apply<IS_NHWC>(total, filter, y);
#endif
#pragma unroll
    for (int e = 0; e < COUNT; ++e) run.values[e] = narrow(total[e]);
    *(Run<COUNT>*)y = run;
}

// Where a thread's outputs lie: every `step`-th row of a tile from `outer` on, COUNT neighbours of a row. In nhwc the next
// pixel lies y_pitch elements on, K or more.
template <int COUNT, typename Store>
__device__ __forceinline__ void for_outputs(Storage* y, int outer, int rows, unsigned first_filter, unsigned first_pixel,
                                            unsigned pixels, int K, const Divisor& plane, unsigned y_pitch, Store store) {
    constexpr int columns = INNER / COUNT, across = columns < THREADS ? columns : THREADS, step = THREADS / across;
    if (THREADS % across && threadIdx.x >= across * step) return;
#pragma unroll 1
    for (int column = threadIdx.x % across * COUNT; column < INNER; column += across * COUNT) {
        unsigned left;
        size_t pitch;
        Storage* target = y;
        if (IS_NHWC) {
            left = first_filter + column < K ? pixels - min(first_pixel + outer, pixels) : 0;
            pitch = y_pitch;
            target += (size_t)(first_pixel + outer) * y_pitch + first_filter + column;
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

#if COPIES_RESIDUAL
// The residual of some rows of a tile, each STAGED_PITCH from the one before.
__device__ __forceinline__ void copy_residual(Address target, const Storage* residual, int outer, int rows,
                                              unsigned first_filter, unsigned first_pixel, unsigned pixels, int K,
                                              const Divisor& plane) {
    Storage* const from = const_cast<Storage*>(residual);
    const unsigned fastest = IS_NHWC ? (unsigned)K : plane.value;
    const auto place = [=](int row, int column) { return target + (row * STAGED_PITCH + column) * ELEMENT; };
    if (fastest % 8 == 0)
        for_outputs<8>(from, outer, rows, first_filter, first_pixel, pixels, K, plane, K,
                       [=](Storage* source, int row, int column) { copy_neighbours<8>(place(row, column), source); });
    else if (fastest % 4 == 0)
        for_outputs<4>(from, outer, rows, first_filter, first_pixel, pixels, K, plane, K,
                       [=](Storage* source, int row, int column) { copy_neighbours<4>(place(row, column), source); });
    else
        for_outputs<1>(from, outer, rows, first_filter, first_pixel, pixels, K, plane, K,
                       [=](Storage* source, int row, int column) { copy_neighbours<1>(place(row, column), source); });
}
#endif

template <int COUNT>
__device__ __forceinline__ void store_y(Storage* y, const Epilogue& epilogue, const float* from, int pitch, int count,
                                        int distance, int outer, int rows, unsigned first_filter, unsigned first_pixel,
                                        unsigned pixels, int K, const Divisor& plane, unsigned y_pitch,
                                        const Storage* copied) {
    for_outputs<COUNT>(y, outer, rows, first_filter, first_pixel, pixels, K, plane, y_pitch,
                       [=](Storage* target, int row, int column) {
                           store_run<COUNT>(target, epilogue, from + row * pitch + column, count, distance,
                                            first_filter + (IS_NHWC ? column : outer + row),
                                            copied + row * STAGED_PITCH + column);
                       });
}

#if IS_STAGED
// Where outputs are staged: OUTER rows of y's type, STAGED_PITCH apart, in one part or two halves.
struct Staging {
    unsigned char *first, *second;

    __device__ __forceinline__ Storage* row(int row) const {
        const bool is_first = SLOTS == 1 || row < SLOT_ROWS;
        return (Storage*)(is_first ? first : second) + (is_first ? row : row - SLOT_ROWS) * STAGED_PITCH;
    }
};

#if HAS_EPILOGUE
// Two sums of a row of products: of neighbouring filters with PIXELS_M, else of neighbouring pixels of one filter.
__device__ __forceinline__ unsigned narrow_pair(float first, float second, unsigned residual, const Epilogue& epilogue,
                                                unsigned filter, int K) {
    const Storage* const added = (const Storage*)&residual;
    const unsigned last = K - 1;
    float one[] = {first}, other[] = {second};
    epilogue.apply_with(one, min(filter, last), {widen(added[0])});
    epilogue.apply_with(other, min(filter + PIXELS_M, last), {widen(added[1])});
    return narrow_pair(one[0], other[0]);
}
#endif

#if IS_TURNED
#define TURNING ".trans"
#else
#define TURNING ""
#endif
// Four matrices of 8 x 8, of which a thread names a row and has two neighbours down or along.
#ifdef __CUDA_ARCH__
__device__ __forceinline__ void store_matrices(const Storage* row, const unsigned (&pairs)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4" TURNING ".shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
                 "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
}
__device__ __forceinline__ void load_staged(unsigned (&pairs)[4], const Storage* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" TURNING ".shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                 : "r"(shared_address(row))
                 : "memory");
}
#else
inline Storage* row_of(int lane, const Storage* row) {
    const unsigned low = __shfl_sync(~0u, (unsigned)(Address)row, lane);
    return (Storage*)((Address)__shfl_sync(~0u, (unsigned)((Address)row >> 32), lane) << 32 | low);
}
template <class Use>
void for_pairs(const Storage* row, Use use) {
    const int lane = threadIdx.x % 32, far = lane / 4, near = lane % 4 * 2;
    for (int e = 0; e < 4; ++e) {
        Storage* const one = row_of(e * 8 + (IS_TURNED ? near : far), row);
        Storage* const other = row_of(e * 8 + (IS_TURNED ? near + 1 : far), row);
        use(e, one + (IS_TURNED ? far : near), other + (IS_TURNED ? far : near + 1));
    }
}
inline void store_matrices(const Storage* row, const unsigned (&pairs)[4]) {
    for_pairs(row, [&](int e, Storage* one, Storage* other) {
        memcpy(one, &pairs[e], 2);
        memcpy(other, (const char*)&pairs[e] + 2, 2);
    });
}
inline void load_staged(unsigned (&pairs)[4], const Storage* row) {
    for_pairs(row, [&](int e, const Storage* one, const Storage* other) {
        memcpy(&pairs[e], one, 2);
        memcpy((char*)&pairs[e] + 2, other, 2);
    });
}
#endif

// What a warp reads of a residual it overwrites itself.
__device__ __forceinline__ void stage_outputs(const Staging& staging, const float (&sum)[SUMS], const Epilogue& epilogue,
                                              unsigned first_filter, int K) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_m = warp % WARPS_M * (BM / WARPS_M), warp_n = warp / WARPS_M * (BN / WARPS_N);
    const int down = lane / 8 % 2 * 8, across = lane / 16 * 8;
    const int place = IS_TURNED ? (across + lane % 8) * STAGED_PITCH + down : (down + lane % 8) * STAGED_PITCH + across;
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
        for (int j = 0; j < TILES_N; j += 2) {
            const int m = warp_m + i * 16, n = warp_n + j * 8;
            Storage* const row = staging.row(IS_TURNED ? n : m) + (IS_TURNED ? m : n) + place;
#if HAS_EPILOGUE
            unsigned added[4] = {};
#if RESIDUAL
            load_staged(added, row);
#endif
            // A thread's sums: rows lane / 4 and 8 more, columns lane % 4 * 2 and the next.
            const unsigned filter = first_filter + (PIXELS_M ? n + lane % 4 * 2 : m + lane / 4);
            const unsigned below = filter + (PIXELS_M ? 0 : 8), beside = PIXELS_M ? 8 : 0;
            const unsigned pairs[] = {
                narrow_pair(sum[i][j][0], sum[i][j][1], added[0], epilogue, filter, K),
                narrow_pair(sum[i][j][2], sum[i][j][3], added[1], epilogue, below, K),
                narrow_pair(sum[i][j + 1][0], sum[i][j + 1][1], added[2], epilogue, filter + beside, K),
                narrow_pair(sum[i][j + 1][2], sum[i][j + 1][3], added[3], epilogue, below + beside, K)};
#else
            const unsigned pairs[] = {
                narrow_pair(sum[i][j][0], sum[i][j][1]), narrow_pair(sum[i][j][2], sum[i][j][3]),
                narrow_pair(sum[i][j + 1][0], sum[i][j + 1][1]), narrow_pair(sum[i][j + 1][2], sum[i][j + 1][3])};
#endif
            store_matrices(row, pairs);
        }
    }
}
template <int COUNT>
__device__ __forceinline__ void store_staged(Storage* y, const Staging& staging, unsigned first_filter, unsigned first_pixel,
                                             unsigned pixels, int K, const Divisor& plane, unsigned y_pitch) {
    for_outputs<COUNT>(y, 0, OUTER, first_filter, first_pixel, pixels, K, plane, y_pitch,
                       [=](Storage* target, int row, int column) {
                           *(Run<COUNT>*)target = *(const Run<COUNT>*)(staging.row(row) + column);
                       });
}
#endif
