// Implicit GEMM with channels innermost, fed by the tensor memory accelerator, in small tiles whose gemm_k is shared by warps and blocks:
// for layers that begin and end soon.
//
//   tensors      x (N,H,W,C), weight (K,R,S,C), y (N,P,Q,K); C and K multiples of 16 bytes
//   GEMM         as in implicit_gemm_tma.cu: a block has one tile of BP pixels and BF filters, stages of 128 bytes of the channels
//                of one tap
//   types        -DSPLIT=1: float32 in three products of tf32 (fragments.cuh); -DSPLIT=0: tf32, which the accelerator rounds on its
//                way, and two-byte types
//   tiles        are all of one size, BP pixels and BF filters or somewhat fewer: the accelerator takes long for what does not exist.
//                What rows and columns of a product that are not in a tile are made of is whatever lies there, and goes nowhere
//   versions     -DWGMMA=0: mma.sync, rows are pixels, each warp cuts what it reads. -DWGMMA=1: wgmma m64, rows are filters. Those of
//                float32 come from registers, where each warp cuts its own; of the pixels, the columns, three more warps write
//                the low parts, and what has arrived is read as the high ones
//   warps        WARPS_M * WARPS_N * WARPS_K multiply: parts of the pixels, of the filters and of each stage; one more loads, of
//                which one thread is awake
//   slots        as many stages as the launch gives shared memory for, mostly all that the block has: these are asked for at once
//   split        the blocks of a cluster each have a part of the stages. Each pushes its sums to the blocks that own the pixels, and
//                these add what they received in the order of the ranks
//   grid, block  x: a cluster for every tile of pixels, y: tiles of filters; BLOCKS share a multiprocessor's registers
//   limits       groups 1; compute capability 9.0 (sm_90a); the same sums in the same order every time; float32: not for infinities
//   source       as of implicit_gemm_tma.cu and of implicit_gemm_tensor.cu

#include "epilogue.cuh"

#define ROW_BYTES 128
#define STEPS 4  // of 32 bytes of channels in a stage
#define WORKERS (32 * WARPS_M * WARPS_N * WARPS_K)
#define LOADER (WORKERS / 32)  // the warp
#define PARTED (WGMMA * SPLIT)
#define PARTERS (96 * PARTED)  // threads behind it
#define THREADS (WORKERS + 32 + PARTERS)
#if WGMMA
#define BM BF
#define BN BP
#else
#define BM BP
#define BN BF
#endif
#define TILES_M (BM / WARPS_M / 16)
#define TILES_N (BN / WARPS_N / 8)
#define X_BYTES (BP * ROW_BYTES)  // of a stage
#define WEIGHT_BYTES (BF * ROW_BYTES)
#define CHANNELS (ROW_BYTES / (int)sizeof(Storage))
#define MOST_SLOTS 32  // a lane starts the barriers of each
#define BARRIER_BYTES ((3 * MOST_SLOTS + 1) * 8)
#define SUM_PITCH (BF + 8 - 4 * WGMMA)
static_assert(BM % (16 * WARPS_M) == 0 && BN % (8 * WARPS_N) == 0 && STEPS % WARPS_K == 0, "whole fragments");
static_assert(WGMMA ? WARPS_M % 4 == 0 && TILES_M == 1 && WARPS_N * WARPS_K == 1 : TILES_N % 2 == 0, "whole groups");

#include "clusters.cuh"
#include "asynchronous.cuh"
#include "accelerator.cuh"
#include "tf32.cuh"
#include "fragments.cuh"
#include "pairs.cuh"
#if WGMMA
#define INSTRUCTION_N BN
#include "warp_products.cuh"
#endif
#if PARTED
#include "register_products.cuh"
#endif
#include "division.cuh"
#include "overlap.cuh"

struct Sizes {
    int C, K, R, S;
    unsigned pixels, plane, Q;
    int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    unsigned of_tile, filters;     // pixels and filters of a tile
    int stages, more_stages;       // of a block; so many blocks of a cluster have one more
    int slots;
    int owned, owned_magic16;      // pixels of a tile that a block of the cluster owns
    Divisor of_plane, of_row, of_tap, of_taps;  // pixels of an image, and of a row of y; chunks of a tap, and taps of a row
};

typedef float Sums[TILES_M][TILES_N][4];

// Addresses in shared memory.
struct Ring {
    unsigned full, empty, parted, x, weight, low;

    // What is the rows of a product, and its columns.
    __device__ __forceinline__ unsigned rows() const { return WGMMA ? weight : x; }
    __device__ __forceinline__ unsigned columns() const { return WGMMA ? x : weight; }
};

// Stages and whose turn it is: a ring that has gone round an even or odd number of times.
struct Turn {
    int slot = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance(int slots) {
        if (++slot == slots) slot = 0, parity ^= 1;
    }
};

__device__ __forceinline__ int first_stage(int rank, const Sizes& sizes) {
    return rank * sizes.stages + min(rank, sizes.more_stages);
}

// Where a stage's channels lie in gemm_k.
struct Walk {
    int tap, r, s, c;

    __device__ __forceinline__ Walk(int stage, const Sizes& sizes) {
        unsigned chunk = stage, column = sizes.of_tap.take_quotient(chunk);
        tap = column;
        r = sizes.of_taps.take_quotient(column);
        s = column;
        c = chunk * CHANNELS;
    }
    __device__ __forceinline__ void advance(const Sizes& sizes) {
        if ((c += CHANNELS) < sizes.C) return;
        c = 0, ++tap;
        if (++s == sizes.S) s = 0, ++r;
    }
};

#if defined(OVERLAPS)
// Has a block's filters brought to L2 while the kernel ahead runs: nothing on the way writes them.
__device__ __forceinline__ void prefetch_weight(const TensorMap& weight, int first, int count, unsigned filter, const Sizes& sizes) {
    Walk walk(first, sizes);
#pragma unroll 1
    for (int stage = 0; stage < count; ++stage, walk.advance(sizes)) prefetch_box(weight, walk.c, walk.tap, filter);
}
#endif

__device__ __forceinline__ void load_stages(const TensorMap& x, const TensorMap& weight, const Ring& ring, int first, int count,
                                            unsigned pixel, unsigned filter, const Sizes& sizes) {
    const unsigned bytes = (sizes.of_tile + sizes.filters) * ROW_BYTES;
#if !IS_DENSE
    unsigned column = pixel;
    const unsigned image = sizes.of_plane.take_quotient(column), p = sizes.of_row.take_quotient(column);
    const int h = (int)p * sizes.stride_h - sizes.pad_h, w = (int)column * sizes.stride_w - sizes.pad_w;
#endif
    Walk walk(first, sizes);
    Turn turn;
#pragma unroll 1
    for (int stage = 0; stage < count; ++stage, turn.advance(sizes.slots), walk.advance(sizes)) {
        const unsigned arrived = ring.full + turn.slot * 8, to = ring.x + turn.slot * X_BYTES;
        if (stage >= sizes.slots) wait_for(ring.empty + turn.slot * 8, turn.parity ^ 1);
        expect_bytes(arrived, bytes);
#if IS_DENSE
        load_box(to, x, arrived, walk.c, pixel);
#else
        load_pixels(to, x, arrived, walk.c, w, h, image, walk.s * sizes.dilation_w, walk.r * sizes.dilation_h);
#endif
        load_box(ring.weight + turn.slot * WEIGHT_BYTES, weight, arrived, walk.c, walk.tap, filter);
    }
}

__device__ __forceinline__ void load_matrices(unsigned& first, unsigned& second, unsigned& third, unsigned& fourth,
                                              unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(first), "=r"(second), "=r"(third), "=r"(fourth)
                 : "r"(address)
                 : "memory");
}

#if PARTED
// What is left of a value behind the first 11 bits, which are all that the tensor cores read: so much that when they cut it too it is
// rounded to the nearest, ties to even.
__device__ __forceinline__ unsigned rest_of(unsigned value) {
    const unsigned rest = __float_as_uint(__uint_as_float(value) - __uint_as_float(value & 0xffffe000u));
    return rest + 0xfffu + (rest >> 13 & 1);
}

// By the threads behind the loader, of as many stages as are loaded; `parted` counts warps.
__device__ __forceinline__ void part_pixels(const uint4* x, uint4* low, const Ring& ring, int count, const Sizes& sizes) {
    constexpr int vectors = X_BYTES / 16, turns = (vectors + PARTERS - 1) / PARTERS;
    const int first = threadIdx.x - WORKERS - 32, used = sizes.of_tile * (ROW_BYTES / 16) - first;
    Turn turn;
#pragma unroll 1
    for (int stage = 0; stage < count; ++stage, turn.advance(sizes.slots)) {
        wait_for(ring.full + turn.slot * 8, turn.parity);
        const int place = turn.slot * vectors + first;
        uint4 value[turns];
        // All of them before the first is stored: the compiler cannot know that they are others.
#pragma unroll
        for (int i = 0; i < turns; ++i)
            if (i * PARTERS < used) value[i] = x[place + i * PARTERS];
#pragma unroll
        for (int i = 0; i < turns; ++i) {
            const uint4 rest = {rest_of(value[i].x), rest_of(value[i].y), rest_of(value[i].z), rest_of(value[i].w)};
            if (i * PARTERS < used) low[place + i * PARTERS] = rest;
        }
        publish_to_accelerator();
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(ring.parted + turn.slot * 8);
    }
}
#endif

// A lane's rows for ldmatrix, in the first slot: where its 16 bytes of the first step lie. Those of step k lie at ^ k * 32.
struct Rows {
    unsigned a, b;
};
__device__ __forceinline__ Rows rows_of(const Ring& ring) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int a = warp % WARPS_M * (BM / WARPS_M) + lane % 16;
    const int b = warp / WARPS_M % WARPS_N * (BN / WARPS_N) + lane % 8 + lane / 16 * 8;
    Rows rows;
    // In registers: else they are found again in every stage.
    asm volatile("mov.u32 %0, %1;" : "=r"(rows.a) : "r"(ring.rows() + a * ROW_BYTES + (lane / 16 ^ lane % 8) * 16));
    asm volatile("mov.u32 %0, %1;" : "=r"(rows.b) : "r"(ring.columns() + b * ROW_BYTES + (lane / 8 % 2 ^ lane % 8) * 16));
    return rows;
}

#if PARTED
// Adds the products of a group's part of a stage: a chain from zero, the small ones first. Of the columns it is told where both
// parts begin. Their high ones are cut, not rounded; the rows' low ones are of either sign, so what is left out leans nowhere.
__device__ __forceinline__ void multiply_stage(Sums& sum, unsigned a, unsigned high_b, unsigned low_b) {
    constexpr int steps = STEPS / WARPS_K;
    const int first = threadIdx.x / (32 * WARPS_M) * steps;
    unsigned high[steps][4], low[steps][4];
#pragma unroll
    for (int k = 0; k < steps; ++k) load_matrices(high[k][0], high[k][1], high[k][2], high[k][3], a ^ (first + k) * 32);
#pragma unroll
    for (int k = 0; k < steps; ++k) split(high[k], low[k]);
    const unsigned of_high = operand_at(high_b) + first * 2, of_low = operand_at(low_b) + first * 2;
    Sums part;
    keep(part);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < steps; ++k) {
        multiply_add(part[0], low[k], descriptor(of_high + k * 2), k > 0);
        multiply_add(part[0], high[k], descriptor(of_low + k * 2), true);
    }
#pragma unroll
    for (int k = 0; k < steps; ++k) multiply_add(part[0], high[k], descriptor(of_high + k * 2), true);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    wait_for_all_products_but<0>(part);
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[0][j][e] += part[0][j][e];
    }
}
#elif !WGMMA
// Adds the products of a warp's part of a stage.
__device__ __forceinline__ void multiply_stage(Sums& sum, unsigned of_a, unsigned of_b) {
    const int first = threadIdx.x / (32 * WARPS_M * WARPS_N) * (STEPS / WARPS_K);
#pragma unroll 1
    for (int k = 0; k < STEPS / WARPS_K; ++k) {
        unsigned a[TILES_M][4], b[TILES_N][2];
        const unsigned flipped = (first + k) * 32;
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
            load_matrices(a[i][0], a[i][1], a[i][2], a[i][3], (of_a ^ flipped) + i * 16 * ROW_BYTES);
#pragma unroll
        for (int j = 0; j < TILES_N; j += 2)
            load_matrices(b[j][0], b[j][1], b[j + 1][0], b[j + 1][1], (of_b ^ flipped) + j * 8 * ROW_BYTES);
#if SPLIT
        add_product(sum, a, b);
#else
        multiply_all(sum, a, b);
#endif
    }
}
#endif

#if WGMMA && !PARTED
// Filters by pixels, both from shared memory: the products of a stage are enqueued while those of the one before are made.
__device__ __forceinline__ void multiply_stages(Sums& sum, const Ring& ring, int count, const Sizes& sizes) {
    const bool arrives = count > sizes.slots && threadIdx.x % 32 == 0;
    const unsigned a = operand_at(ring.weight + threadIdx.x / 128 * 64 * ROW_BYTES), b = operand_at(ring.x);
    int read = 0;
    Turn turn;
#pragma unroll 1
    for (int stage = 0; stage < count; ++stage, turn.advance(sizes.slots)) {
        wait_for(ring.full + turn.slot * 8, turn.parity);
        multiply(sum, a + turn.slot * (WEIGHT_BYTES / 16), b + turn.slot * (X_BYTES / 16), stage > 0);
        wait_for_all_products_but<1>(sum);
        if (stage > 0 && arrives) arrive(ring.empty + read * 8);
        read = turn.slot;
    }
    wait_for_all_products_but<0>(sum);
    if (arrives) arrive(ring.empty + read * 8);
}
#else
__device__ __forceinline__ void multiply_stages(Sums& sum, const Ring& ring, int count, const Sizes& sizes) {
    const Rows rows = rows_of(ring);
    const bool recycles = count > sizes.slots;
    Turn turn;
#pragma unroll 1
    for (int stage = 0; stage < count; ++stage, turn.advance(sizes.slots)) {
        wait_for(ring.full + turn.slot * 8, turn.parity);
        const unsigned a = rows.a + turn.slot * (BM * ROW_BYTES), to_b = turn.slot * (BN * ROW_BYTES);
#if PARTED
        wait_for(ring.parted + turn.slot * 8, turn.parity);
        multiply_stage(sum, a, ring.x + to_b, ring.low + to_b);
#else
        multiply_stage(sum, a, rows.b + to_b);
#endif
        if (!recycles) continue;
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(ring.empty + turn.slot * 8);
    }
#if SPLIT
    restore_cut<WGMMA ? STEPS / WARPS_K : 1>(sum);
#endif
}
#endif

#include "parted_sums.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    implicit_gemm_tma_split(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map,
                            Storage* __restrict__ y EPILOGUE, const __grid_constant__ Sizes sizes) {
    // Barriers, then stages or sums, then what other blocks push.
    extern __shared__ unsigned char unaligned[];
    Ring ring;
    // In a register: else the assembler asks a special one for the address again at each use, before the first load.
    asm volatile("mov.u32 %0, %1;" : "=r"(ring.full) : "r"(shared_address(unaligned)));
    ring.empty = ring.full + MOST_SLOTS * 8;
    ring.parted = ring.empty + MOST_SLOTS * 8;
    ring.x = (ring.full + BARRIER_BYTES + 1023) & ~1023u;
    ring.weight = ring.x + sizes.slots * X_BYTES;
    ring.low = ring.weight + sizes.slots * WEIGHT_BYTES;
    unsigned char* const body = unaligned + (ring.x - ring.full);
    void* const counter = unaligned + 3 * MOST_SLOTS * 8;
    const int rank = cluster_rank(), blocks = cluster_size();
    const unsigned filter = blockIdx.y * sizes.filters, pixel = cluster_index() * sizes.of_tile;
    const int rows = min(sizes.of_tile, sizes.pixels - pixel), own_rows = max(0, min(sizes.owned, rows - rank * sizes.owned));
    const int count = sizes.stages + (rank < sizes.more_stages);
    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
    if (warp == LOADER) {
        const int slot = threadIdx.x % 32;
        if (slot < sizes.slots) {
            start_barrier(ring.full + slot * 8, 1);
            if (count > sizes.slots) start_barrier(ring.empty + slot * 8, WORKERS / 32);
            if (PARTED) start_barrier(ring.parted + slot * 8, PARTERS / 32);
            publish_to_accelerator();
        }
        if (is_elected()) {
            prefetch_map(x_map), prefetch_map(weight_map);
            if (blocks > 1) expect_bytes(counter, own_rows * BF * 4 * blocks);
        }
        __syncwarp();
        asm volatile("bar.arrive 1, %0;" ::"n"(THREADS) : "memory");
    }
    if (blocks > 1) cluster_arrive_relaxed();
#if defined(OVERLAPS)
    if (warp == LOADER && is_elected()) prefetch_weight(weight_map, first_stage(rank, sizes), count, filter, sizes);
    __syncwarp();
#endif
    wait_for_kernel_ahead();
    if (warp == LOADER) {
        if (is_elected()) load_stages(x_map, weight_map, ring, first_stage(rank, sizes), count, pixel, filter, sizes);
        __syncwarp();
        if (blocks > 1) cluster_wait();
        return;
    }
#if PARTED
    if (warp > LOADER) {
        asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
        part_pixels((const uint4*)body, (uint4*)(body + (ring.low - ring.x)), ring, count, sizes);
        if (blocks > 1) cluster_wait();
        return;
    }
#endif
    const Outputs outputs = {pixel + rank * sizes.owned, filter, own_rows};
#if BIAS || RESIDUAL
    for_outputs(outputs, sizes, [&]([[maybe_unused]] int row, [[maybe_unused]] unsigned first, [[maybe_unused]] size_t at) {
#if BIAS
        fetch(bias + first);
#endif
#if RESIDUAL
        fetch(residual + at);
#endif
    });
#endif
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
    Sums sum = {};
    multiply_stages(sum, ring, count, sizes);
    float* const sums = (float*)body;
    meet();
    store_sums(sums, sum);
    meet();
    const Epilogue epilogue = EPILOGUE_OF(y);
    if (blocks == 1) {
        store_y(y, epilogue, sums, SUM_PITCH, WARPS_K, BP * SUM_PITCH, outputs, sizes);
        return;
    }
    const int ring_bytes = sizes.slots * ((1 + PARTED) * X_BYTES + WEIGHT_BYTES), sums_bytes = WARPS_K * BP * SUM_PITCH * 4;
    float* const received = (float*)(body + max(ring_bytes, sums_bytes));
    cluster_wait();
    push_sums(received, sums, rows, rank, counter, sizes);
    wait_for_bytes(counter);
    store_y(y, epilogue, received, BF, blocks, sizes.owned * BF, outputs, sizes);
}
