// Implicit GEMM with channels innermost, fed by the tensor memory accelerator: persistent blocks, one group of warps loads.
//
//   tensors      x (N,H,W,C), weight (K,R,S,C), y (N,P,Q,K); C and K multiples of 16 bytes
//   types        two-byte elements, or float32 as tf32: the accelerator rounds x and weight on their way to shared memory;
//                -DPRODUCTS=3: float32 by three products of tf32 (three_products.cuh), or where it IS_OF_HALVES of float16
//                (three_products_of_halves.cuh)
//   GEMM         rows are pixels of y, columns filters, gemm_k = R*S taps of C channels: tiles of BP pixels and BF filters,
//                stages of ROW_BYTES of the channels of one tap; what lies behind the last channel is zeros
//   x            IS_DENSE (1x1, stride 1, no padding): a matrix of pixels and channels, boxes of it. Else im2col mode: the
//                accelerator walks BP pixels of y over rows and images from the tile's first one on, with stride, and shifts
//                them by the tap; what it finds outside x is zeros, so padding costs nothing
//   warps        a group of 128 threads loads, of which one thread is awake; two groups multiply by wgmma, m64, each half of
//                a tile's pixels
//   BY_TURNS     or whole tiles, every other one of the block's: while one group ends its sums, the other multiplies
//   IS_SPLIT     a cluster of blocks shares each tile: a part of the stages is each one's, then a part of the boxes of y, whose
//                sums the others push to it; for tiles that are fewer than multiprocessors
//   ring         STAGES stages; `full` counts bytes, `empty` warps that have read
//   y            turned to rows in shared memory, stored by the accelerator in boxes of 64 pixels (16) and 128 bytes (64) of filters,
//                which it clips to y; it loads the residual in the same boxes
//   grid, block  as many blocks as multiprocessors, or tiles, or where it IS_SPLIT a cluster a tile; 384 threads. A block's tiles are
//                grid blocks apart, and those of the same pixels come one after the other, so that concurrent blocks share both
//                operands in the L2 cache
//   limits       groups 1; compute capability 9.0 (sm_90a); the same sums in the same order every time
//   source       PTX ISA 8.0, cp.async.bulk.tensor, mbarrier, wgmma; CUTLASS 3, "sm90 warp-specialised" (structure)

#include "epilogue.cuh"

#define GROUPS 2  // of warps that multiply
#define THREADS (128 * (1 + GROUPS))
#define READERS (BY_TURNS ? 1 : GROUPS)  // groups that multiply a tile
#define PIXELS (BP / READERS)
#define TILES_M (PIXELS / 64)
#define TILES_N (BF / 8)
#define STAGE_BYTES ((BP + (PRODUCTS == 3 && !IS_OF_HALVES ? 2 : 1) * BF) * ROW_BYTES)
// Pixels of a box of y, and threads that fill it: a group's, or a warp's, for blocks to share tiles out evenly.
#if IS_SPLIT
#define BOX 16
#define BOX_THREADS 32
#else
#define BOX 64
#define BOX_THREADS 128
#endif
#define BOX_ROW_BYTES 128  // of a pixel's filters, if they divide those of a tile; else half as many
#define BOX_LINE_BYTES (BF * (int)sizeof(Storage) % BOX_ROW_BYTES ? BOX_ROW_BYTES / 2 : BOX_ROW_BYTES)
#define BOX_BYTES (BOX * BOX_LINE_BYTES)
#define BOX_FILTERS (BOX_LINE_BYTES / (int)sizeof(Storage))
#define FILLERS (GROUPS * 128 / BOX_THREADS)
#define BOXES 2  // of each filler in shared memory
#define CHANNELS (ROW_BYTES / (int)sizeof(Storage))
// Of a thread that multiplies, and of the group that loads: together as many as three groups begin with.
#if IS_OF_HALVES && TILES_M * TILES_N * 4 > 96
#define REGISTERS 224
#define LOADER_REGISTERS 56
#elif IS_OF_HALVES
#define REGISTERS 184
#define LOADER_REGISTERS 136
#elif PRODUCTS == 3
#define REGISTERS 216
#define LOADER_REGISTERS 72
#elif BY_TURNS
#define REGISTERS 240
#define LOADER_REGISTERS 24
#else
#define REGISTERS 232
#define LOADER_REGISTERS 40
#endif
#if IS_SPLIT
#define FIRST_TILE cluster_index()  // and the only one
#else
#define FIRST_TILE blockIdx.x
#endif
static_assert(PIXELS % 64 == 0 && BF % BOX_FILTERS == 0, "whole products and boxes");
static_assert(!BY_TURNS || (!IS_SPLIT && PRODUCTS == 1), "clusters share tiles, and weight is parted, for both groups");

#if RESIDUAL
#define RESIDUAL_MAP , const __grid_constant__ TensorMap residual_map
#else
#define RESIDUAL_MAP
#define residual_map y_map  // not read
#endif

struct Sizes {
    int C, K, R, S;
    unsigned pixels, plane, Q, y_pitch;  // y_pitch: elements from a pixel of y to the next, K or more
    int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    unsigned tiles_p, tiles_f;
};

// Where a tile, or those who fill a box together have their part of it, begins in y.
struct Part {
    unsigned pixel, filter;
};
// Box (i, j) of a part, and whether any of it lies in y: one wholly outside is not for the accelerator.
__device__ __forceinline__ Part box_of(const Part& part, int i, int j) {
    return {part.pixel + i * 64, part.filter + j * BOX_FILTERS};
}
__device__ __forceinline__ bool is_in_y(const Part& box, const Sizes& sizes) {
    return box.pixel < sizes.pixels && box.filter < (unsigned)sizes.K;
}

// Of eight pixels that a warp multiplies, the one in row `row` of its fragments.
__device__ __forceinline__ int pixel_of_row(int row) { return IS_OF_HALVES ? row % 2 * 4 + row / 2 : row; }

#include "clusters.cuh"
#include "accelerator.cuh"
#if IS_OF_HALVES
#define OPERANDS_ARE_HALVES
#define INSTRUCTION_N (BF > 128 ? BF / 2 : BF)  // a thread has registers for so many sums of a stage
#else
#define INSTRUCTION_N BF
#endif
#define SWIZZLE_BYTES ROW_BYTES
#include "wgmma.cuh"
#include "warp_products.cuh"
#include "pairs.cuh"
#include "shared_sums.cuh"
#include "bias.cuh"
#include "boxes.cuh"
#include "overlap.cuh"

// Where a tile begins.
__device__ __forceinline__ Part part_of(unsigned tile, const Sizes& sizes) {
    const unsigned p = tile / sizes.tiles_f;
    return {p * BP, (tile - p * sizes.tiles_f) * BF};
}

// Which of a tile's stages are a block's, how many a tap has, and whether the second half of its last one is zeros.
struct Stages {
    int first, end, of_tap;
    bool has_short;

    __device__ __forceinline__ int count() const { return end - first; }
};
__device__ __forceinline__ Stages stages_of(const Sizes& sizes) {
    const int of_tap = (sizes.C + CHANNELS - 1) / CHANNELS, count = sizes.R * sizes.S * of_tap;
    const bool has_short = of_tap * CHANNELS - sizes.C >= CHANNELS / 2;
#if IS_SPLIT
    const int rank = cluster_rank(), blocks = cluster_size();
    return {count * rank / blocks, count * (rank + 1) / blocks, of_tap, has_short};
#else
    return {0, count, of_tap, has_short};
#endif
}

// Stages and whose turn it is: a ring that has gone round an even or odd number of times.
struct Ring {
    unsigned stage = 0, parity = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ void advance(unsigned count) {
        stage += count;
        parity ^= stage / STAGES & 1;
        stage %= STAGES;
    }
};

// Whose turn it is to multiply, of groups that take tiles by turns. One that waits for a stage knows so that the other has
// waited for all stages before: the ring is never more than a round ahead of it, and parity tells the stage.
#define TURN_BARRIER (1 + GROUPS)  // behind those of the boxes
__device__ __forceinline__ void wait_for_turn(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(TURN_BARRIER + group), "n"(128 * GROUPS) : "memory");
}
__device__ __forceinline__ void pass_turn(int group) {
    asm volatile("bar.arrive %0, %1;" ::"r"(TURN_BARRIER + GROUPS - 1 - group), "n"(128 * GROUPS) : "memory");
}

__device__ __forceinline__ void load_tiles(const TensorMap& x, const TensorMap& weight, unsigned ring_bytes, unsigned full,
                                           unsigned empty, const Sizes& sizes) {
    const Stages stages = stages_of(sizes);
    const int first_tap = stages.first / stages.of_tap;
    const int loaded_bytes = (BP + min(BF, (sizes.K + 7) / 8 * 8)) * ROW_BYTES;  // few rows that do not exist: they take long
    Ring ring;
#pragma unroll 1
    for (unsigned tile = FIRST_TILE; tile < sizes.tiles_p * sizes.tiles_f; tile += gridDim.x) {
        const Part part = part_of(tile, sizes);
#if !IS_DENSE
        const unsigned image = part.pixel / sizes.plane, inner = part.pixel - image * sizes.plane, p = inner / sizes.Q;
        const int h = (int)p * sizes.stride_h - sizes.pad_h;
        const int w = (int)(inner - p * sizes.Q) * sizes.stride_w - sizes.pad_w;
#endif
        int tap = first_tap, c = (stages.first - tap * stages.of_tap) * CHANNELS, r = tap / sizes.S, s = tap - r * sizes.S;
#pragma unroll 1
        for (int stage = stages.first; stage < stages.end; ++stage, ring.advance()) {
            const unsigned to = ring_bytes + ring.stage * STAGE_BYTES, arrived = full + ring.stage * 8;
            wait_for(empty + ring.stage * 8, ring.parity ^ 1);
            expect_bytes(arrived, loaded_bytes);
#if IS_DENSE
            load_box(to, x, arrived, c, part.pixel);
#else
            load_pixels(to, x, arrived, c, w, h, image, s * sizes.dilation_w, r * sizes.dilation_h);
#endif
            load_box(to + BP * ROW_BYTES, weight, arrived, c, tap, part.filter);
            if ((c += CHANNELS) < sizes.C) continue;
            c = 0, ++tap;
            if (++s == sizes.S) s = 0, ++r;
        }
    }
}

#include "tf32.cuh"
#if IS_OF_HALVES
#include "three_products_of_halves.cuh"
#elif PRODUCTS == 3
#include "three_products.cuh"
#endif

// sum = the products of a group's part of a tile; by turns, all of it, and the turn `passes` as soon as the last are enqueued.
#if PRODUCTS == 1
__device__ __forceinline__ void multiply_tile(float (&sum)[SUMS], unsigned ring_bytes, unsigned full, unsigned empty, int group,
                                              Ring& ring, const Stages& stages, bool passes) {
    unsigned read = 0;
    const bool arrives = threadIdx.x % 32 == 0;
    const unsigned first = operand_at(ring_bytes), own = (BY_TURNS ? 0 : group) * (PIXELS * ROW_BYTES / 16);
#pragma unroll 1
    for (int stage = 0, left = stages.of_tap - stages.first % stages.of_tap; stage < stages.count(); ++stage, ring.advance()) {
        const bool is_last = --left == 0;  // of its tap
        if (is_last) left = stages.of_tap;
        wait_for(full + ring.stage * 8, ring.parity);
        const unsigned from = first + ring.stage * (STAGE_BYTES / 16);
        if (is_last && stages.has_short)
            multiply<ROW_BYTES / 2>(sum, from + own, from + BP * ROW_BYTES / 16, stage > 0);
        else
            multiply(sum, from + own, from + BP * ROW_BYTES / 16, stage > 0);
        // The products of the stage before are done.
        wait_for_all_products_but<1>(sum);
        if (stage > 0 && arrives) arrive(empty + read * 8);
        read = ring.stage;
    }
    if (passes) pass_turn(group);
    wait_for_all_products_but<0>(sum);
    if (arrives) arrive(empty + read * 8);
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    implicit_gemm_tma(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map,
                      const __grid_constant__ TensorMap y_map RESIDUAL_MAP EPILOGUE, const __grid_constant__ Sizes sizes) {
    extern __shared__ unsigned char unaligned[];
    __shared__ unsigned long long barriers[(PRODUCTS == 3 ? 3 : 2) * STAGES + FILLERS * BOXES];
    const unsigned ring_bytes = (shared_address(unaligned) + 1023) & ~1023u;
    unsigned char* const ring_place = unaligned + (ring_bytes - shared_address(unaligned));
    const unsigned full = shared_address(barriers), empty = full + STAGES * 8, loaded = empty + STAGES * 8;
    const unsigned parted = loaded + FILLERS * BOXES * 8;
    unsigned char* const scales = ring_place + STAGES * STAGE_BYTES + FILLERS * BOXES * BOX_BYTES;  // where it IS_OF_HALVES
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            start_barrier(full + stage * 8, 1);
            start_barrier(empty + stage * 8, 4 * READERS);
#if PRODUCTS == 3
            start_barrier(parted + stage * 8, PART_THREADS / 32);
#endif
        }
        for (int box = 0; box < FILLERS * BOXES; ++box) start_barrier(loaded + box * 8, 1);
        publish_barriers();
    }
    __syncthreads();
    wait_for_kernel_ahead();

    const int group = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0) - 1;
    if (group < 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LOADER_REGISTERS));
        if (threadIdx.x < 32 && is_elected()) load_tiles(x_map, weight_map, ring_bytes, full, empty, sizes);
#if IS_OF_HALVES
        const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
        if (warp > 0) part_weights(warp, ring_place, scales, full, parted, sizes);
#elif PRODUCTS == 3
        if (threadIdx.x >= 32) part_weights(ring_place, full, parted, sizes);
#endif
#if IS_SPLIT
        __syncwarp();
        SharedSums::meet();
        SharedSums::meet();
#endif
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
    const Epilogue epilogue = EPILOGUE_OF(nullptr);
    const Stages stages = stages_of(sizes);
    const int filler = threadIdx.x / BOX_THREADS - 128 / BOX_THREADS;
    const SharedSums shared((float*)ring_place, filler);
    Boxes boxes(ring_bytes + STAGES * STAGE_BYTES + filler * BOXES * BOX_BYTES, loaded + filler * BOXES * 8, filler, shared);
    Ring ring;
    const unsigned tiles = sizes.tiles_p * sizes.tiles_f;
#if BY_TURNS
    const unsigned first_tile = blockIdx.x + group * gridDim.x, step = GROUPS * gridDim.x;
    ring.advance(group * stages.end);
#else
    const unsigned first_tile = FIRST_TILE, step = gridDim.x;
#endif
#pragma unroll 1
    for (unsigned tile = first_tile; tile < tiles; tile += step) {
        Part part = part_of(tile, sizes);
        part.pixel += (BY_TURNS ? 0 : group * PIXELS) + filler % (128 / BOX_THREADS) * BOX;
#if RESIDUAL
        boxes.load_first(residual_map, part, sizes);
#endif
        Bias ahead;
        ahead.read(epilogue, part.filter, sizes);
#if PRODUCTS == 3
        float sum[SUMS] = {};  // here: to begin with the first stage's would take an instruction a sum in every stage
#if IS_OF_HALVES
        multiply_tile(sum, ring_place, scales, full, empty, parted, group, ring, stages.count(), sizes.C);
#else
        multiply_tile(sum, ring_place, full, empty, parted, group, ring, stages.count(), sizes.C);
#endif
#else
        float sum[SUMS];
        if (BY_TURNS && tile >= gridDim.x) wait_for_turn(group);
        multiply_tile(sum, ring_bytes, full, empty, group, ring, stages, BY_TURNS && tile + gridDim.x < tiles);
        if (BY_TURNS) ring.advance((unsigned)stages.end);
#endif
#if IS_SPLIT
        SharedSums::meet();
        shared.push_others(sum, part, sizes);
        SharedSums::meet();
#endif
        boxes.store(y_map, residual_map, epilogue, ahead, sum, part, sizes);
    }
    boxes.finish();
    (void)parted, (void)ring_place, (void)scales;
}
