// Implicit GEMM in one launch: the im2col matrix exists only as tiles in shared memory, and K is split where pixels are few.
//
//   tensors      x (N,C,H,W), weight (K,C,R,S), y (N,K,P,Q), all nchw as they are: no transform, no workspace
//   GEMM         y (K, N*P*Q) = weight (K, C*R*S) . columns (C*R*S, N*P*Q): gemm_m filters, gemm_n pixels, gemm_k = C*R*S
//   versions     -DTENSOR=0: products by FFMA, TM x TN outputs a thread. -DTENSOR=1: mma.sync with float32 sums, m16n8k16
//                for the two-byte types, m16n8k8 on float32 rounded to tf32
//                -DLOADING: RUNS 1x1, 16 bytes of pixels at a copy; POINTS 1x1, 4 bytes at a copy; TAPS any filter, stride
//                and dilation, by a table of taps; cp.async throughout, but two-byte TAPS pass through registers
//   split        WARPS_K groups of a block's threads each take a part of every stage of BK; the blocks of a cluster each
//                take a part of the stages. Partial sums meet in shared memory: every block pushes to each block of its
//                cluster the slice that that one owns, then each adds its slices in the order of their ranks
//   grid, block  a cluster a tile of BM filters x BN pixels, filters fastest; THREADS threads, BLOCKS blocks' registers a
//                multiprocessor; tile, loading and cluster are chosen by plan.py
//   limits       groups 1; at most 1024 taps, 57 where two-byte elements are gathered; clusters from compute capability
//                9.0 on, elsewhere one block a tile; the same sums in the same order every time
//   source       the idea of many K parts for small batches: cuConv, arXiv:2103.16234; distributed shared memory: CUDA
//                C++ Programming Guide, "Thread Block Clusters"

#include "clusters.cuh"
#include "epilogue.cuh"
#include "overlap.cuh"
#include "asynchronous.cuh"
#if TENSOR
#include "tf32.cuh"
#include "fragments.cuh"
#endif

#define RUNS 0
#define POINTS 1
#define TAPS 2

#ifdef STORAGE_FLOAT32
#define ELEMENT 4
#else
#define ELEMENT 2
#endif

#define IS_GATHER (LOADING == TAPS && ELEMENT == 2)
#define VECTOR (16 / ELEMENT)  // elements of 16 bytes
#define X_VECTOR (LOADING == RUNS ? VECTOR : LOADING == POINTS ? 4 / ELEMENT : 1)

#if TENSOR
#define THREADS (32 * WARPS_M * WARPS_N * WARPS_K)
#define X_PITCH (IS_GATHER ? BK + VECTOR : BN + 8)
#define SUM_PITCH (BN + 8)
#else
#define THREADS (BM / TM * (BN / TN) * WARPS_K)
#define X_PITCH BN
#define SUM_PITCH BN
#endif
#define WEIGHT_PITCH (BK + VECTOR)
#define PART_K (BK / WARPS_K)
#define WEIGHT_ELEMENTS (BM * WEIGHT_PITCH)
#define STAGE_ELEMENTS (WEIGHT_ELEMENTS + (IS_GATHER ? BN * X_PITCH : BK * X_PITCH))
#define PIPELINE_FLOATS (STAGES * STAGE_ELEMENTS * ELEMENT / 4)
#define SUM_FLOATS (WARPS_K * BM * SUM_PITCH)
#define BODY_FLOATS (PIPELINE_FLOATS > SUM_FLOATS ? PIPELINE_FLOATS : SUM_FLOATS)

static_assert(THREADS % (BN / X_VECTOR) == 0 && BK % (THREADS / (BN / X_VECTOR)) == 0, "whole columns of x a thread");
static_assert(BM * BK / VECTOR % THREADS == 0 && THREADS % (BK / VECTOR) == 0, "whole rows of weight a thread");

// Where one tap of the filter lies: elements from the first tap's, and rows and columns for the guard.
struct __align__(16) Tap {
    int offset, h, w, unused;
};
#if IS_GATHER
typedef int TapEntry;  // bytes from the first tap's
#else
typedef Tap TapEntry;
#endif

// What a thread fetches of x: one column of pixels, every so many rows of a stage.
struct Column {
    const Storage* source;  // the first tap of channel 0
    int h0, w0;
    bool is_valid;
};

__device__ __forceinline__ Column column_at(const Storage* x, unsigned pixel, int N, int C, int H, int W, int P, int Q,
                                            int stride_h, int stride_w, int pad_h, int pad_w) {
    const unsigned plane = (unsigned)P * Q, image = pixel / plane, inner = pixel - image * plane;
    const int p = inner / Q, q = inner - p * Q;
    Column column;
    column.is_valid = image < N;
    column.h0 = column.is_valid ? p * stride_h - pad_h : -(1 << 30);
    column.w0 = q * stride_w - pad_w;
    column.source = x;
    if (column.is_valid) column.source += (long long)image * C * H * W + (long long)column.h0 * W + column.w0;
    return column;
}

// A stage of weight (BM, WEIGHT_PITCH) from gemm_k k0 on.
__device__ __forceinline__ void fetch_weight(Storage* target, const Storage* __restrict__ weight, int first, int k0,
                                             int K, int gemm_k) {
    constexpr int columns = BK / VECTOR, step = THREADS / columns;
    const int row = threadIdx.x / columns, column = threadIdx.x % columns * VECTOR;
    const int left = gemm_k - k0 - column;
    if (gemm_k % VECTOR == 0) {
#pragma unroll
        for (int m = row; m < BM; m += step) {
            const bool is_read = first + m < K && left > 0;
            const Storage* const source = is_read ? weight + (size_t)(first + m) * gemm_k + k0 + column : weight;
            copy_async<16>(target + m * WEIGHT_PITCH + column, source, is_read ? 16 : 0);
        }
    } else if (ELEMENT == 4 || gemm_k % 2 == 0) {
        constexpr int width = 4 / ELEMENT, narrow_columns = BK / width;
        for (int index = threadIdx.x; index < BM * narrow_columns; index += THREADS) {
            const int m = index / narrow_columns, k = index % narrow_columns * width;
            const bool is_read = first + m < K && k0 + k < gemm_k;
            const Storage* const source = is_read ? weight + (size_t)(first + m) * gemm_k + k0 + k : weight;
            copy_async<4>(target + m * WEIGHT_PITCH + k, source, is_read ? 4 : 0);
        }
    } else {
        for (int index = threadIdx.x; index < BM * BK; index += THREADS) {
            const int m = index / BK, k = index % BK;
            const bool is_read = first + m < K && k0 + k < gemm_k;
            target[m * WEIGHT_PITCH + k] = is_read ? weight[(size_t)(first + m) * gemm_k + k0 + k] : narrow(0.0f);
        }
    }
}

// Walks gemm_k stage by stage: `tap` of the filter, `offset` of the channel in an image.
struct Walk {
    int k, tap, offset, taps;

    __device__ __forceinline__ void start(int first, int filter_taps, int plane) {
        taps = filter_taps;
        k = first;
        tap = LOADING == TAPS ? first % taps : 0;
        offset = (LOADING == TAPS ? first / taps : first) * plane;
    }
    __device__ __forceinline__ void advance(int plane, int tap_step, int offset_step) {
        k += BK;
        offset += offset_step;
        if (LOADING != TAPS) return;
        tap += tap_step;
        if (tap >= taps) {
            tap -= taps;
            offset += plane;
        }
    }
};

#if !IS_GATHER
// A stage of x (BK, X_PITCH).
__device__ __forceinline__ void fetch_x(Storage* target, const Column& column, const Walk& walk, const Tap* taps, int H,
                                        int W, int gemm_k) {
    constexpr int columns = BN / X_VECTOR, step = THREADS / columns;
    const int row = threadIdx.x / columns;
    target += row * X_PITCH + threadIdx.x % columns * X_VECTOR;
    if constexpr (LOADING == TAPS) {
        Tap found[BK / step];
#pragma unroll
        for (int i = 0; i < BK / step; ++i) found[i] = taps[walk.tap + row + i * step];
#pragma unroll
        for (int i = 0; i < BK / step; ++i) {
            const bool is_read = is_inside(column.h0 + found[i].h, H) && is_inside(column.w0 + found[i].w, W) &&
                                 walk.k + row + i * step < gemm_k;
            copy_async<4>(target + i * step * X_PITCH, column.source + (walk.offset + found[i].offset), is_read ? 4 : 0);
        }
    } else {
        const int plane = H * W;
#pragma unroll
        for (int i = 0; i < BK / step; ++i) {
            const bool is_read = column.is_valid && walk.k + row + i * step < gemm_k;
            const Storage* const source = column.source + (is_read ? walk.offset + (row + i * step) * plane : 0);
            copy_async<X_VECTOR * ELEMENT>(target + i * step * X_PITCH, source, is_read ? X_VECTOR * ELEMENT : 0);
        }
    }
}
#else
#include "gather.cuh"
#endif

#if !TENSOR
#define ROWS (BM / TM)
#define COLUMNS (BN / TN)
#define SUMS TM][TN

// sum[i][j] += weight . x for filters ROWS * i + row, pixels BN / (TN / 4) * (j / 4) + 4 * column + j % 4.
__device__ __forceinline__ void multiply(float (&sum)[SUMS], const float* weight, const float* x) {
    const int thread = threadIdx.x % (ROWS * COLUMNS), part = threadIdx.x / (ROWS * COLUMNS);
    weight += thread / COLUMNS * WEIGHT_PITCH + part * PART_K;
    x += thread % COLUMNS * 4 + part * PART_K * X_PITCH;
#pragma unroll
    for (int k = 0; k < PART_K; k += 4) {
        float left[TM][4];
#pragma unroll
        for (int i = 0; i < TM; ++i) *(float4*)left[i] = *(const float4*)(weight + i * ROWS * WEIGHT_PITCH + k);
#pragma unroll
        for (int inner = 0; inner < 4; ++inner) {
            float right[TN];
#pragma unroll
            for (int j = 0; j < TN; j += 4)
                *(float4*)(right + j) = *(const float4*)(x + (k + inner) * X_PITCH + j * COLUMNS);
#pragma unroll
            for (int i = 0; i < TM; ++i) {
#pragma unroll
                for (int j = 0; j < TN; ++j) sum[i][j] += left[i][inner] * right[j];
            }
        }
    }
}

// sums (WARPS_K, BM, SUM_PITCH).
__device__ __forceinline__ void store_sums(float* sums, const float (&sum)[SUMS]) {
    const int thread = threadIdx.x % (ROWS * COLUMNS), part = threadIdx.x / (ROWS * COLUMNS);
    sums += (part * BM + thread / COLUMNS) * SUM_PITCH + thread % COLUMNS * 4;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TN; j += 4)
            *(float4*)(sums + i * ROWS * SUM_PITCH + j * COLUMNS) = *(const float4*)(sum[i] + j);
    }
}
#else
#define TILES_M (BM / WARPS_M / 16)
#define TILES_N (BN / WARPS_N / 8)
#define SUMS TILES_M][TILES_N][4
static_assert(TILES_N % 2 == 0 && PART_K % MMA_K == 0, "whole fragments");

// Warps number the filters fastest, then the pixels, then the parts of a stage.
__device__ __forceinline__ void multiply(float (&sum)[SUMS], const Storage* weight, const Storage* x) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int k0 = warp / (WARPS_M * WARPS_N) * PART_K, n0 = warp / WARPS_M % WARPS_N * (BN / WARPS_N);
    weight += (warp % WARPS_M * (BM / WARPS_M) + lane % 16) * WEIGHT_PITCH + k0 + lane / 16 * (VECTOR);
#pragma unroll
    for (int k = 0; k < PART_K; k += MMA_K) {
        unsigned a[TILES_M][4], b[TILES_N / 2][4];
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) load_matrices(a[i], weight + i * 16 * WEIGHT_PITCH + k);
#pragma unroll
        for (int j = 0; j < TILES_N / 2; ++j) {
#if ELEMENT == 4
            const float* const from = x + (k0 + k + lane % 4) * X_PITCH + n0 + 16 * j + lane / 4;
#pragma unroll
            for (int e = 0; e < 4; ++e)
                b[j][e] = round_to_tf32(__float_as_uint(from[e % 2 * 4 * X_PITCH + e / 2 * 8]));
#elif IS_GATHER
            load_matrices(b[j], x + (n0 + 16 * j + lane % 8 + lane / 16 * 8) * X_PITCH + k0 + k + lane / 8 % 2 * 8);
#else
            load_matrices_transposed(b[j], x + (k0 + k + lane % 16) * X_PITCH + n0 + 16 * j + lane / 16 * 8);
#endif
        }
#if ELEMENT == 4
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) a[i][e] = round_to_tf32(a[i][e]);
        }
#endif
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
            for (int j = 0; j < TILES_N; ++j)
                multiply_fragments(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }
}

// sums (WARPS_K, BM, SUM_PITCH).
__device__ __forceinline__ void store_sums(float* sums, const float (&sum)[SUMS]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m0 = warp / (WARPS_M * WARPS_N) * BM + warp % WARPS_M * (BM / WARPS_M) + lane / 4;
    sums += m0 * SUM_PITCH + warp / WARPS_M % WARPS_N * (BN / WARPS_N) + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
            *(float2*)(sums + 16 * i * SUM_PITCH + 8 * j) = make_float2(sum[i][j][0], sum[i][j][1]);
            *(float2*)(sums + (16 * i + 8) * SUM_PITCH + 8 * j) = make_float2(sum[i][j][2], sum[i][j][3]);
        }
    }
}
#endif

// y of `rows` filters of the tile from first_k on: the sum of COUNT parts that lie `distance` floats apart.
template <int WIDTH>
__device__ __forceinline__ void store_y(Storage* __restrict__ y, const Epilogue& epilogue, const float* from, int pitch,
                                        int count, int distance, int first_k, int rows, unsigned first_pixel,
                                        unsigned pixels, int K, unsigned plane) {
    constexpr int columns = BN / WIDTH, step = THREADS / columns;
    const int column = threadIdx.x % columns * WIDTH;
    const unsigned pixel = first_pixel + column, image = pixel / plane;
    if (pixel >= pixels) return;
    rows = min(rows, K - first_k);
    int row = threadIdx.x / columns;
    Storage* target = y + ((size_t)image * K + first_k + row) * plane + (pixel - image * plane);
    from += row * pitch + column;
#pragma unroll 4
    for (; row < rows; row += step) {
        float total[WIDTH];
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) total[j] = from[j];
        for (int part = 1; part < count; ++part) {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) total[j] += from[part * distance + j];
        }
        epilogue.apply(total, first_k + row, target);
        __align__(16) Storage narrowed[WIDTH];
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) narrowed[j] = narrow(total[j]);
        if constexpr (WIDTH == 1) {
            *target = narrowed[0];
        } else {
#if ELEMENT == 4
            *(float4*)target = make_float4(narrowed[0], narrowed[1], narrowed[2], narrowed[3]);
#else
            *(uint2*)target = *(const uint2*)narrowed;
#endif
        }
        target += (size_t)step * plane;
        from += step * pitch;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    implicit_gemm(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE,
                  SHAPE) {
    extern __shared__ __align__(16) float shared[];  // stages, then sums | received slices of a cluster | table of taps
    const unsigned rank = cluster_rank(), blocks = cluster_size(), tile = cluster_index();
    if (blocks > 1) cluster_arrive();
    const unsigned tiles_k = (K + BM - 1) / BM, plane = (unsigned)P * Q, pixels = plane * N;
    const int first_k = tile % tiles_k * BM;
    const unsigned first_pixel = tile / tiles_k * BN;
    const int taps = R * S, gemm_k = C * taps, x_plane = H * W;
    const unsigned stages = (gemm_k + BK - 1) / BK;
    const int begin = stages * rank / blocks, end = stages * (rank + 1) / blocks;
    const unsigned rows = (BM + blocks - 1) / blocks;  // that a block of the cluster owns
    float* const received = shared + BODY_FLOATS;      // (blocks, rows, BN)
    Storage* const ring = (Storage*)shared;

    prefetch_rows(weight + (size_t)first_k * gemm_k + begin * BK, min(BM, K - first_k),
                  (min(end * BK, gemm_k) - begin * BK) * sizeof(Storage), gemm_k * sizeof(Storage));
    wait_for_kernel_ahead();
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (begin + stage < end)
            fetch_weight(ring + stage * STAGE_ELEMENTS, weight, first_k, (begin + stage) * BK, K, gemm_k);
    }
    const Column column = column_at(x, first_pixel + threadIdx.x % (BN / X_VECTOR) * X_VECTOR, N, C, H, W, P, Q,
                                    stride_h, stride_w, pad_h, pad_w);
    const int tap_step = BK % taps, offset_step = (LOADING == TAPS ? BK / taps : BK) * x_plane;
    Walk walk;
    walk.start(begin * BK, taps, x_plane);
    TapEntry* const table = (TapEntry*)(received + (blocks > 1 ? blocks * rows * BN : 0));
    if constexpr (LOADING == TAPS) {
        for (int index = threadIdx.x; index < taps + BK; index += THREADS) {
            const int channel = index / taps, tap = index - channel * taps, r = tap / S;
            const int h = r * dilation_h, w = (tap - r * S) * dilation_w, offset = channel * x_plane + h * W + w;
#if IS_GATHER
            table[index] = offset * ELEMENT;
#else
            table[index] = Tap{offset, h, w, 0};
#endif
        }
        __syncthreads();
    }
#if IS_GATHER
    const unsigned long long inside = taps_inside(column, H, W, R, S, dilation_h, dilation_w);
    const unsigned first = (unsigned)((column.source - x) * ELEMENT);
    Phases phases;
    phases.start(taps);
    Gathered gathered;
#endif
    float sum[SUMS] = {};

#pragma unroll 1
    for (int stage = begin; stage < begin + STAGES - 1; ++stage) {
        if (stage < end) {
            Storage* const target = ring + (stage - begin) * STAGE_ELEMENTS + WEIGHT_ELEMENTS;
#if IS_GATHER
            gather_x(gathered, (const char*)x, first, inside, phases, walk, table, gemm_k);
            store_x(target, gathered);
#else
            fetch_x(target, column, walk, table, H, W, gemm_k);
#endif
            walk.advance(x_plane, tap_step, offset_step);
        }
        commit_copies();
    }
    int read = 0, write = STAGES - 1;
#pragma unroll 1
    for (int stage = begin; stage < end; ++stage) {
        wait_for_all_copies_but<STAGES - 2>();
        __syncthreads();
        Storage* const target = ring + write * STAGE_ELEMENTS;
        const bool has_next = stage + STAGES - 1 < end;
        if (has_next) {
            fetch_weight(target, weight, first_k, walk.k, K, gemm_k);
#if IS_GATHER
            gather_x(gathered, (const char*)x, first, inside, phases, walk, table, gemm_k);
#else
            fetch_x(target + WEIGHT_ELEMENTS, column, walk, table, H, W, gemm_k);
#endif
            walk.advance(x_plane, tap_step, offset_step);
        }
        commit_copies();
        multiply(sum, ring + read * STAGE_ELEMENTS, ring + read * STAGE_ELEMENTS + WEIGHT_ELEMENTS);
#if IS_GATHER
        if (has_next) store_x(target + WEIGHT_ELEMENTS, gathered);
#endif
        read = read + 1 == STAGES ? 0 : read + 1;
        write = write + 1 == STAGES ? 0 : write + 1;
    }

    wait_for_all_copies_but<0>();
    __syncthreads();
    store_sums(shared, sum);
    __syncthreads();
    const float* from = shared;
    int pitch = SUM_PITCH, count = WARPS_K, distance = BM * SUM_PITCH, own_k = first_k, own_rows = BM;
    if (blocks > 1) {
        cluster_wait();
        for (int vector = threadIdx.x; vector < BM * BN / 4; vector += THREADS) {
            const unsigned row = vector / (BN / 4), column4 = vector % (BN / 4) * 4, owner = row / rows;
            const float* const part = shared + row * SUM_PITCH + column4;
            float4 total = *(const float4*)part;
#pragma unroll
            for (int other = 1; other < WARPS_K; ++other) {
                const float4 more = *(const float4*)(part + other * BM * SUM_PITCH);
                total.x += more.x;
                total.y += more.y;
                total.z += more.z;
                total.w += more.w;
            }
            push(received + (rank * rows + row - owner * rows) * BN + column4, owner, total);
        }
        cluster_arrive();
        cluster_wait();
        from = received;
        pitch = BN, count = blocks, distance = rows * BN, own_k += rank * rows;
        own_rows = min((int)rows, BM - (int)(rank * rows));
    }
    const Epilogue epilogue = EPILOGUE_OF(y);
    if (plane % 4 == 0)
        store_y<4>(y, epilogue, from, pitch, count, distance, own_k, own_rows, first_pixel, pixels, K, plane);
    else
        store_y<1>(y, epilogue, from, pitch, count, distance, own_k, own_rows, first_pixel, pixels, K, plane);
}
