// Implicit GEMM with channels innermost, fed by the tensor memory accelerator, in small tiles whose gemm_k is shared by warps and
// blocks: for layers that begin and end soon.
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
//                these add what they received in the order of the ranks (parted_sums.cuh, and why nothing races)
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
#include "wgmma.cuh"
#include "warp_products.cuh"
#endif
#include "division.cuh"
#include "overlap.cuh"

struct Sizes {
    int C, K, R, S;
    unsigned pixels, plane, Q, y_pitch;  // y_pitch: elements from a pixel of y to the next, K or more
    int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    unsigned of_tile, filters;     // pixels and filters of a tile
    int stages, more_stages;       // of a block; so many blocks of a cluster have one more
    int slots;
    int owned, owned_magic16;      // pixels of a tile that a block of the cluster owns
    Divisor of_plane, of_row, of_tap, of_taps;  // pixels of an image, and of a row of y; chunks of a tap, and taps of a row
};

typedef float Sums[TILES_M][TILES_N][4];

#include "split_stages.cuh"
#include "split_products.cuh"
// Behind the stages too, where the sums lie: others may push before this block has multiplied.
__device__ __forceinline__ float* received_at(float* sums, const Sizes& sizes) {
    const int ring_bytes = sizes.slots * ((1 + PARTED) * X_BYTES + WEIGHT_BYTES), sums_bytes = WARPS_K * BP * SUM_PITCH * 4;
    return (float*)((unsigned char*)sums + max(ring_bytes, sums_bytes));
}
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
    end_tile(y, EPILOGUE_OF(y), sums, counter, rows, rank, blocks, outputs, sizes);
}
