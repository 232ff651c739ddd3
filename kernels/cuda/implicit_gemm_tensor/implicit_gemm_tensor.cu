// Implicit GEMM on tensor cores for small batches: every element of x is loaded to shared memory once; taps are offsets into it.
//
//   tensors      x (N,C,H,W), weight (K,C,R,S), y (N,K,P,Q), all nchw as they are: no transform, no workspace
//   GEMM         of one image: y (K, P*Q) = weight (K, C*R*S) . columns (C*R*S, P*Q): gemm_m filters, gemm_n pixels; the
//                columns exist only as addresses: the element of (channel, tap, pixel) is at the pixel's offset in the
//                stage plus the offset of (channel, tap), from a table in shared memory
//   versions     fragments.cuh: one product of float16, bfloat16 or tf32; -DSPLIT=1: float32 as 3xTF32
//                -DLOADING: RUNS: 1x1 on planes of whole vectors; ROWS: 1x1 on any plane, copying each channel's pixels from
//                the aligned vector that contains the first; WINDOWS: any filter, stride and dilation, staging the
//                zero-padded part of the image that the tile's taps see, UNIT elements per copy (single half-precision
//                elements go through registers)
//                -DCLUSTERED=1: split-K over the blocks of a cluster; -DWIDE_WEIGHT=0: weight rows of any length
//   split        WARPS_K groups of a block's warps each take steps of a stage; the blocks of a cluster each take stages.
//                Every block pushes to each block of its cluster the sums of the filters which that block owns; each
//                adds what it received in rank order: deterministic
//   grid, block  x: a cluster per tile of BN pixels, y: images, z: BM filters; THREADS threads; cut.py precomputes all
//                divisions: with few pixels, instructions dominate
//   limits       groups 1; at most 65,535 images; a window has at most 32 * LINES units; float32: infinities become NaN
//   source       split-K for small batches: cuConv, arXiv:2103.16234; distributed shared memory: CUDA
//                C++ Programming Guide; three products for float32: Ootomo, Yokota, arXiv:2203.03341

#include "clusters.cuh"
#include "asynchronous.cuh"
#include "tf32.cuh"
#include "fragments.cuh"
#include "epilogue.cuh"
#include "overlap.cuh"

#ifdef STORAGE_FLOAT32
#define ELEMENT 4
#else
#define ELEMENT 2
#endif

#define RUNS 0
#define ROWS 1
#define WINDOWS 2

#define IS_GATHER (LOADING == WINDOWS && UNIT * ELEMENT == 2)
#define VECTOR (16 / ELEMENT)  // elements of 16 bytes
#define WARPS (WARPS_M * WARPS_N * WARPS_K)
#define THREADS (32 * WARPS)
#define TILES_M (BM / WARPS_M / 16)
#define TILES_N (BN / WARPS_N / 8)
#define SUM_PITCH (BN + 8)
static_assert(BM % (16 * WARPS_M) == 0 && BN % (8 * WARPS_N) == 0, "whole fragments");
static_assert(THREADS % BN == 0 || BN % THREADS == 0, "whole rows of y");

typedef float Sums[TILES_M][TILES_N][4];

// The problem and its cut. A magic number of a divisor replaces the division by it; `umulhi` or the shift is in its name.
struct Sizes {
    int N, C, H, W, K, Q, plane, gemm_k;                       // plane: of y
    int stages, more_stages;                                   // of a block; so many blocks of a cluster have one more
    int stage_k, weight_pitch, chunks, chunks_magic20;         // chunks: vectors of a row of a stage of weight
    int owned, owned_magic16;                                  // filters of a tile that a block of the cluster owns
    int taps, taps_magic20, S, S_magic16;
    int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int strip, strip_umulhi, strip_tiles;                      // columns of y that tiles go through row by row
    int positions, pitch, units, units_magic16, channel_pitch; // of a window: copies, elements and copies of a row
    int last_place, stage_elements, body_floats, is_straight;  // straight: a tile's pixels lie in a row
};

// A thread's share of every stage of weight: one vector of some rows.
struct WeightCopy {
    const Storage* source;
    int row, rows, step, column, target;
};

__device__ __forceinline__ WeightCopy weight_copy(const Storage* weight, int first_k, const Sizes& z) {
    WeightCopy copy;
#if LOADING == WINDOWS
    const int chunks = z.chunks, pitch = z.weight_pitch;
    copy.row = threadIdx.x * z.chunks_magic20 >> 20;
    copy.step = THREADS * z.chunks_magic20 >> 20;
    copy.rows = copy.row < copy.step ? min(BM, z.K - first_k) : 0;
#else
    constexpr int chunks = BK / VECTOR, pitch = BK + VECTOR;
    static_assert(THREADS % chunks == 0, "whole rows of weight");
    copy.row = threadIdx.x / chunks;
    copy.step = THREADS / chunks;
    copy.rows = min(BM, z.K - first_k);
#endif
    copy.column = (threadIdx.x - copy.row * chunks) * VECTOR;
    copy.source = weight + (size_t)(first_k + copy.row) * z.gemm_k + copy.column;
    copy.target = copy.row * pitch + copy.column;
    return copy;
}

// Rows beyond the last filter are left as they are: what comes of them is not stored.
__device__ __forceinline__ void fetch_weight(Storage* stage, const WeightCopy& copy, int k0, const Storage* weight,
                                             int first_k, const Sizes& z) {
#if LOADING == WINDOWS
    const int pitch = z.weight_pitch;
#else
    constexpr int pitch = BK + VECTOR;
#endif
#if WIDE_WEIGHT
    const Storage* source = copy.source + k0;
    Storage* target = stage + copy.target;
    const int bytes = k0 + copy.column < z.gemm_k ? 16 : 0;
#if LOADING == WINDOWS
#pragma unroll 2
    for (int row = copy.row; row < copy.rows; row += copy.step) {
        copy_async<16>(target, bytes ? source : weight, bytes);
        source += copy.step * z.gemm_k;
        target += copy.step * pitch;
    }
#else
#pragma unroll
    for (int i = 0; i < BM; i += THREADS / (BK / VECTOR)) {
        if (copy.row + i < copy.rows) copy_async<16>(target + i * pitch, bytes ? source : weight, bytes);
        source += copy.step * z.gemm_k;
    }
#endif
#else
    const int rows = min(BM, z.K - first_k);
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < rows; row += WARPS) {
        const Storage* const source = weight + (size_t)(first_k + row) * z.gemm_k + k0;
        Storage* const target = stage + row * pitch;
#pragma unroll 1
        for (int column = threadIdx.x % 32; column < z.stage_k; column += 32) {
            const bool is_read = k0 + column < z.gemm_k;
#if ELEMENT == 4
            copy_async<4>(target + column, is_read ? source + column : weight, is_read ? 4 : 0);
#else
            target[column] = is_read ? source[column] : narrow(0.0f);
#endif
        }
    }
#endif
}

#if LOADING == WINDOWS
#include "windows.cuh"
#else
#include "rows.cuh"
#endif
#include "warp_sums.cuh"

// The pixel of y in its plane; -1 beyond it.
__device__ __forceinline__ int pixel_at(int tile, int n, const Sizes& z) {
#if LOADING == WINDOWS
    if (z.strip != z.Q) {
        const int strip = tile / z.strip_tiles, flat = (tile - strip * z.strip_tiles) * BN + n;
        const int p = __umulhi(flat, z.strip_umulhi), q = strip * z.strip + flat - p * z.strip, pixel = p * z.Q + q;
        return q < z.Q && pixel < z.plane ? pixel : -1;
    }
#endif
    const int pixel = tile * BN + n;
    return pixel < z.plane ? pixel : -1;
}

template <int WIDTH>
struct __align__(WIDTH * ELEMENT) Outputs {
    Storage values[WIDTH];
};

// y of so many filters from first_k on: the sum of `count` parts that lie `distance` floats apart.
template <int WIDTH>
__device__ __forceinline__ void store_y(Storage* __restrict__ y, const Epilogue& epilogue, const float* from, int pitch,
                                        int count, int distance, int first_k, int rows, int tile, const Sizes& z) {
    constexpr int columns = BN / WIDTH;
    const int column = threadIdx.x % columns * WIDTH, pixel = pixel_at(tile, column, z);
    if (pixel < 0) return;
#pragma unroll 1
    for (int row = threadIdx.x / columns; row < rows; row += THREADS / columns) {
        float total[WIDTH] = {};
        const float* part = from + row * pitch + column;
#pragma unroll 4
        for (int index = 0; index < count; ++index, part += distance) {
            if constexpr (WIDTH == 1) {
                total[0] += *part;
            } else {
#pragma unroll
                for (int j = 0; j < WIDTH; j += 4) {
                    const float4 more = *(const float4*)(part + j);
                    total[j] += more.x, total[j + 1] += more.y, total[j + 2] += more.z, total[j + 3] += more.w;
                }
            }
        }
        Storage* const target = y + (size_t)row * z.plane + pixel;
#if SPLIT
        restore_cut(total, raised_by(1));
#endif
        epilogue.apply(total, first_k + row, target);
        Outputs<WIDTH> outputs;
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) outputs.values[j] = narrow(total[j]);
        *(Outputs<WIDTH>*)target = outputs;
    }
}
// As wide as every plane of y allows.
__device__ __forceinline__ void store_y(Storage* y, const Epilogue& epilogue, const float* from, int pitch, int count,
                                        int distance, int first_k, int rows, int tile, const Sizes& z) {
    if (LOADING == RUNS)
        store_y<THREADS % (BN / VECTOR) == 0 ? VECTOR : 4>(y, epilogue, from, pitch, count, distance, first_k, rows, tile, z);
    else if ((LOADING == WINDOWS || ELEMENT == 2) && z.is_straight)
        store_y<4>(y, epilogue, from, pitch, count, distance, first_k, rows, tile, z);
    else
        store_y<1>(y, epilogue, from, pitch, count, distance, first_k, rows, tile, z);
}

#if WARPS_K == 1 && !CLUSTERED
// Straight from the registers, where the pixels of a quad of lanes lie in one sector.
__device__ __forceinline__ void store_y(Storage* y, const Epilogue& epilogue, const Sums& sum, int first_k, int rows, int tile,
                                        const Sizes& z) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m0 = warp % WARPS_M * (BM / WARPS_M) + lane / 4, n0 = warp / WARPS_M * (BN / WARPS_N) + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
        const int pixel = tile * BN + n0 + 8 * j;
        Storage* target = y + (size_t)m0 * z.plane + pixel;
#pragma unroll
        for (int i = 0; i < 2 * TILES_M; ++i, target += (size_t)8 * z.plane) {
            float two[] = {sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]};
            const bool is_there = m0 + 8 * i < rows && pixel < z.plane;
#if SPLIT
            restore_cut(two, raised_by(1));
#endif
            if (HAS_EPILOGUE && is_there) epilogue.apply(two, first_k + m0 + 8 * i, target);
            const Outputs<2> pair = {{narrow(two[0]), narrow(two[1])}};
            if (is_there) *(Outputs<2>*)target = pair;
        }
    }
}
#endif

#if CLUSTERED
// The sums of every filter to the block of the cluster that owns it: received (blocks, owned, BN).
__device__ __forceinline__ void push_sums(float* received, const float* sums, int rows, int rank, const void* barrier,
                                          const Sizes& z) {
#pragma unroll 1
    for (int vector = threadIdx.x; vector < rows * (BN / 4); vector += THREADS) {
        const int row = vector / (BN / 4), column = vector % (BN / 4) * 4, owner = row * z.owned_magic16 >> 16;
        const float* const part = sums + row * SUM_PITCH + column;
        float4 total = *(const float4*)part;
#pragma unroll
        for (int other = 1; other < WARPS_K; ++other) {
            const float4 more = *(const float4*)(part + other * BM * SUM_PITCH);
            total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
        }
        push_counted(received + (rank * z.owned + row - owner * z.owned) * BN + column, owner, total, barrier);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    implicit_gemm_tensor(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE,
                         const Sizes z) {
    extern __shared__ __align__(16) float shared[];  // stages, then sums | table of places | received sums of a cluster
#if CLUSTERED
    __shared__ __align__(8) unsigned long long barrier;
    const int rank = cluster_rank(), tile = cluster_index();
    const int begin = rank * z.stages + min(rank, z.more_stages), count = z.stages + (rank < z.more_stages);
#else
    const int tile = blockIdx.x, begin = 0, count = z.stages;
#endif
    const int image = blockIdx.y, first_k = blockIdx.z * BM, rows = min(BM, z.K - first_k);
    Storage* const ring = (Storage*)shared;
    const WeightCopy copy = weight_copy(weight, first_k, z);
#if LOADING == WINDOWS
    const int stage_k = z.stage_k, weight_elements = BM * z.weight_pitch;
#else
    const int stage_k = BK, weight_elements = BM * (BK + VECTOR);
#endif
    wait_for_kernel_ahead();
    fetch_weight(ring, copy, begin * stage_k, weight, first_k, z);
#if LOADING == WINDOWS
    int* const table = (int*)shared + z.body_floats;
    int pixels[TILES_N];
    const Window window = window_at(x, tile, image, z);
#else
    const Rows source = rows_at(x, tile, image, z);
#endif
#if IS_GATHER
    Gathered gathered;
#endif
    Sums sum = {};

    int read = 0, write = 0;  // slots of the ring
#pragma unroll 1
    for (int stage = 1 - STAGES; stage < count; ++stage) {
        if (stage >= 0) {
            wait_for_all_copies_but<STAGES - 2>();
            __syncthreads();
        }
        const int next = stage + STAGES - 1;
        if (next < count) {
            Storage* const target = ring + write * z.stage_elements;
            if (next > 0) fetch_weight(target, copy, (begin + next) * stage_k, weight, first_k, z);
#if LOADING != WINDOWS
            fetch_rows(target + weight_elements, source, (begin + next) * BK, z);
#elif !IS_GATHER
            fetch_window(target + weight_elements, x, window, (begin + next) * CHANNELS, z);
#endif
        }
        commit_copies();
        write = write + 1 == STAGES ? 0 : write + 1;
        if (stage == 1 - STAGES) {  // while the first copies are under way
#if LOADING == WINDOWS
            find_places(table, pixels, window, z);
#endif
#if CLUSTERED
            if (threadIdx.x == 0)
                expect_bytes(&barrier, max(0, min(z.owned, rows - rank * z.owned)) * BN * 4 * (int)cluster_size());
            cluster_arrive_relaxed();
#endif
        }
#if IS_GATHER
        const bool is_gathered = stage >= -1 && stage + 1 < count;
        if (is_gathered) gather_window(gathered, window, (begin + stage + 1) * CHANNELS, z);
#endif
        if (stage >= 0) {
            const Storage* const from = ring + read * z.stage_elements;
#if LOADING == WINDOWS
            multiply(sum, from, from + weight_elements, table, pixels, z);
#else
            multiply(sum, from, from + weight_elements, source, z);
#endif
            read = read + 1 == STAGES ? 0 : read + 1;
        }
#if IS_GATHER
        if (is_gathered) store_window(ring + read * z.stage_elements + weight_elements, gathered, z);
#endif
    }

    const Epilogue epilogue = EPILOGUE_OF(y);
    y += ((size_t)image * z.K + first_k) * z.plane;
#if WARPS_K == 1 && !CLUSTERED
    if (z.is_straight) {
        store_y(y, epilogue, sum, first_k, rows, tile, z);
        return;
    }
#endif
    wait_for_all_copies_but<0>();
    __syncthreads();
    store_sums(shared, sum);
    __syncthreads();
#if CLUSTERED
    float* const received = shared + z.body_floats + (LOADING == WINDOWS ? stage_k : 0);
    cluster_wait();
    push_sums(received, shared, rows, rank, &barrier, z);
    const int own = rank * z.owned;
    if (own >= rows) return;
    wait_for_bytes(&barrier);
    store_y(y + (size_t)own * z.plane, epilogue, received, BN, cluster_size(), z.owned * BN, first_k + own,
            min(z.owned, rows - own), tile, z);
#else
    store_y(y, epilogue, shared, SUM_PITCH, WARPS_K, BM * SUM_PITCH, first_k, rows, tile, z);
#endif
}
