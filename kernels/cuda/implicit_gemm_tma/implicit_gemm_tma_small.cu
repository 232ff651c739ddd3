// Implicit GEMM with channels innermost, fed by the tensor memory accelerator, in small tiles: for layers that begin and end soon.
//
//   tensors      x (N,H,W,C), weight (K,R,S,C), y (N,P,Q,K), of two-byte elements; C and K multiples of 8
//   GEMM         as in implicit_gemm_tma.cu: tiles of BP pixels and BF filters, stages of ROW_BYTES of the channels of one tap
//   filters      tiles of them are of one size, BF or somewhat fewer: the accelerator takes long for rows that do not exist. What
//                columns without a filter are multiplied by is whatever lies there, and goes nowhere
//   warps        one for every 16 pixels, at least four, that multiply by wgmma, 64 rows a group of four; with 32 pixels the other
//                rows are whatever lies behind them, and go nowhere. One more warp loads, of which one thread is awake
//   slots        as many stages of x, and of weight, as the launch gives shared memory for, mostly all of gemm_k: then the first
//                thread asks for everything at once. Where weight IS_KEPT it has a slot for every stage, and is loaded once
//   y            a warp turns its 16 pixels to rows in shared memory, and stores 16 bytes a thread. The residual is copied to
//                where y's rows will be before the tile is multiplied
//   grid, block  a column of blocks for every tile of filters; in a column a block's tiles are gridDim.y apart. Several blocks share a
//                multiprocessor where the launch leaves them shared memory
//   limits       groups 1; compute capability 9.0 (sm_90a); the same sums in the same order every time
//   source       as of implicit_gemm_tma.cu

#include "epilogue.cuh"

#define GROUPS ((BP + 63) / 64)
#define LOADER (4 * GROUPS)  // the warp
#define THREADS (32 * (LOADER + 1))
#define TILES_M 1
#define TILES_N (BF / 8)
#define X_BYTES (BP * ROW_BYTES)  // of a stage
#define WEIGHT_BYTES (BF * ROW_BYTES)
#define CHANNELS (ROW_BYTES / 2)
#define MOST_SLOTS 16
#define BARRIER_BYTES (2 * MOST_SLOTS * 8)
#define LINE_BYTES (BF * 2 + 16)  // of a pixel of y: eight lines meet all banks
#define UNITS (BF / 8)            // of 16 bytes in a line
static_assert(BP % 16 == 0 && BF % 16 == 0 && (BP % 64 == 0 || (BP == 32 && BF >= 32)), "whole fragments, in shared memory");

#include "clusters.cuh"
#include "accelerator.cuh"
#define INSTRUCTION_N BF
#define SWIZZLE_BYTES ROW_BYTES
#include "wgmma.cuh"
#include "warp_products.cuh"
#include "pairs.cuh"
#include "overlap.cuh"

struct Sizes {
    int C, K, R, S;
    unsigned pixels, plane, Q, y_pitch;  // y_pitch: elements from a pixel of y to the next, K or more
    int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    unsigned tiles_p;
    unsigned filters;  // of a tile
    int stages;
    unsigned slots;
    int is_kept;   // weight
    int recycles;  // slots: there are more stages
};

// Whose turn it is: a ring that has gone round an even or odd number of times.
struct Turn {
    unsigned slot = 0, parity = 0;

    // Whether the ring is round.
    __device__ __forceinline__ bool advance(unsigned slots) {
        const bool is_round = ++slot == slots;
        if (is_round) slot = 0, parity ^= 1;
        return is_round;
    }
};

// Addresses in shared memory.
struct Ring {
    unsigned x, weight, full, empty;

    __device__ __forceinline__ unsigned weight_at(const Sizes& sizes, int stage, unsigned slot) const {
        return weight + (sizes.is_kept ? stage : slot) * WEIGHT_BYTES;
    }
};

__device__ __forceinline__ void load_tiles(const TensorMap& x, const TensorMap& weight, const Ring& ring, const Sizes& sizes) {
    const unsigned filter = blockIdx.x * sizes.filters, weight_bytes = sizes.filters * ROW_BYTES;
    Turn turn;
    bool loads_weight = true, has_gone_round = false;
#pragma unroll 1
    for (unsigned tile = blockIdx.y; tile < sizes.tiles_p; tile += gridDim.y) {
        const unsigned pixel = tile * BP;
#if !IS_DENSE
        const unsigned image = pixel / sizes.plane, inner = pixel - image * sizes.plane, p = inner / sizes.Q;
        const int h = (int)p * sizes.stride_h - sizes.pad_h;
        const int w = (int)(inner - p * sizes.Q) * sizes.stride_w - sizes.pad_w;
#endif
        int tap = 0, c = 0, r = 0, s = 0;
#pragma unroll 1
        for (int stage = 0; stage < sizes.stages; ++stage, has_gone_round |= turn.advance(sizes.slots)) {
            const unsigned arrived = ring.full + turn.slot * 8, to = ring.x + turn.slot * X_BYTES;
            if (has_gone_round) wait_for(ring.empty + turn.slot * 8, turn.parity ^ 1);
            expect_bytes(arrived, X_BYTES + (loads_weight ? weight_bytes : 0));
#if IS_DENSE
            load_box(to, x, arrived, c, pixel);
#else
            load_pixels(to, x, arrived, c, w, h, image, s * sizes.dilation_w, r * sizes.dilation_h);
#endif
            if (loads_weight) load_box(ring.weight_at(sizes, stage, turn.slot), weight, arrived, c, tap, filter);
            if ((c += CHANNELS) < sizes.C) continue;
            c = 0, ++tap;
            if (++s == sizes.S) s = 0, ++r;
        }
        loads_weight = !sizes.is_kept;
    }
}

// sum = the products of a group's 64 pixels.
__device__ __forceinline__ void multiply_tile(float (&sum)[SUMS], const Ring& ring, unsigned first_row, Turn& turn,
                                              const Sizes& sizes) {
    const bool arrives = sizes.recycles && threadIdx.x % 32 == 0;
    const unsigned x = operand_at(ring.x + first_row * ROW_BYTES), weight = operand_at(ring.weight);
    unsigned read = 0;
#pragma unroll 1
    for (int stage = 0; stage < sizes.stages; ++stage, turn.advance(sizes.slots)) {
        wait_for(ring.full + turn.slot * 8, turn.parity);
        const unsigned weight_slot = sizes.is_kept ? stage : turn.slot;
        multiply(sum, x + turn.slot * (X_BYTES / 16), weight + weight_slot * (WEIGHT_BYTES / 16), stage > 0);
        // The products of the stage before are done.
        wait_for_all_products_but<1>(sum);
        if (stage > 0 && arrives) arrive(ring.empty + read * 8);
        read = turn.slot;
    }
    wait_for_all_products_but<0>(sum);
    if (arrives) arrive(ring.empty + read * 8);
}

#include "bias.cuh"

// A warp's 16 pixels of y, from a filter on: lines in shared memory, and memory in units of 16 bytes.
class Lines {
   public:
    __device__ __forceinline__ Lines(unsigned place, unsigned pixel, unsigned filter, const Sizes& sizes)
        : place_(place), pixel_(pixel), filter_(filter), end_(min(filter + sizes.filters, (unsigned)sizes.K)), sizes_(sizes) {}

    // Begins to copy the residual to the lines; `wait_for_residual` before they are filled.
    __device__ __forceinline__ void copy_residual(const Storage* residual) const {
#if RESIDUAL
        each_unit([&](unsigned line, size_t at) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(line), "l"(residual + at) : "memory");
        });
        asm volatile("cp.async.commit_group;" ::: "memory");
#endif
        (void)residual;
    }
    __device__ __forceinline__ void wait_for_residual() const {
#if RESIDUAL
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncwarp();
#endif
    }
    // A thread's sums of 8 columns: rows lane / 4 and 8 more, columns lane % 4 * 2 and the next. What a warp reads of the
    // residual it overwrites itself.
    __device__ __forceinline__ void fill(const Epilogue& epilogue, const Bias& bias, float (&sum)[TILES_N][4]) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < TILES_N; j += 2) {
            const unsigned place = place_ + lane % 16 * LINE_BYTES + (j + lane / 16) * 16;
            end_columns(place, epilogue, sum + j, bias.pairs + j);
        }
        (void)epilogue, (void)bias;
    }
    __device__ __forceinline__ void store(Storage* y) const {
        __syncwarp();
        each_unit([&](unsigned line, size_t at) {
            uint4 unit;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(unit.x), "=r"(unit.y), "=r"(unit.z), "=r"(unit.w)
                         : "r"(line)
                         : "memory");
            *(uint4*)(y + at) = unit;
        });
        __syncwarp();
    }

   private:
    // Address in shared memory, and place in y, of each unit that lies in y and is this thread's.
    template <typename Visit>
    __device__ __forceinline__ void each_unit(const Visit& visit) const {
#pragma unroll
        for (unsigned unit = threadIdx.x % 32; unit < 16 * UNITS; unit += 32) {
            const unsigned row = unit / UNITS, column = unit % UNITS, filter = filter_ + column * 8;
            if (pixel_ + row < sizes_.pixels && filter < end_)
                visit(place_ + row * LINE_BYTES + column * 16, (size_t)(pixel_ + row) * sizes_.y_pitch + filter);
        }
    }

    unsigned place_, pixel_, filter_, end_;  // filters end there
    const Sizes& sizes_;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    implicit_gemm_tma_small(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map,
                            Storage* __restrict__ y EPILOGUE, const __grid_constant__ Sizes sizes) {
    extern __shared__ unsigned char unaligned[];
    Ring ring;
    // In a register: else the assembler asks a special one for the address again at each use, before the first load.
    asm volatile("mov.u32 %0, %1;" : "=r"(ring.full) : "r"(shared_address(unaligned)));
    ring.empty = ring.full + MOST_SLOTS * 8;
    ring.x = (ring.full + BARRIER_BYTES + 1023) & ~1023u;
    ring.weight = ring.x + sizes.slots * X_BYTES;
    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
    if (warp == LOADER) {
        if (is_elected()) {
#pragma unroll
            for (unsigned slot = 0; slot < MOST_SLOTS; ++slot) start_barrier(ring.full + slot * 8, 1);
            if (sizes.recycles) {
#pragma unroll
                for (unsigned slot = 0; slot < MOST_SLOTS; ++slot) start_barrier(ring.empty + slot * 8, LOADER);
            }
            publish_to_accelerator();
        }
        __syncwarp();
        asm volatile("bar.arrive 1, %0;" ::"n"(THREADS) : "memory");
    }
    wait_for_kernel_ahead();
    if (warp == LOADER) {
        if (is_elected()) load_tiles(x_map, weight_map, ring, sizes);
        return;
    }
    const Epilogue epilogue = EPILOGUE_OF(nullptr);
    Bias ahead;  // all tiles of a block have the same filters
    ahead.read(epilogue, blockIdx.x * sizes.filters, sizes);
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
    const unsigned lines = ring.weight + (sizes.is_kept ? sizes.stages : sizes.slots) * WEIGHT_BYTES + warp * 16 * LINE_BYTES;
    Turn turn;
#pragma unroll 1
    for (unsigned tile = blockIdx.y; tile < sizes.tiles_p; tile += gridDim.y) {
        const Lines mine(lines, tile * BP + warp * 16, blockIdx.x * sizes.filters, sizes);
        const bool has_pixels = warp * 16 < BP;
#if RESIDUAL
        if (has_pixels) mine.copy_residual(residual);
#endif
        float sum[SUMS];
        multiply_tile(sum, ring, warp / 4 * 64, turn, sizes);
        if (!has_pixels) continue;
        mine.wait_for_residual();
        mine.fill(epilogue, ahead, sum[0]);
        mine.store(y);
    }
}
