// Implicit GEMM of planar tensors (nchw), fed by the tensor memory accelerator: filters are the rows of the products, pixels the columns.
//
//   tensors      x (N,C,H,W) as it lies or packed to (N,H,W,CP), weight (K,R,S,CP), y (N,K,P,Q), of two-byte elements; CP is a
//                multiple of 8
//   GEMM         y (filters, pixels) = weight (filters, gemm_k) * x (gemm_k, pixels), gemm_k = R*S taps of CP channels: tiles of BF
//                filters and BP pixels, stages of CHANNELS channels of one tap; what lies behind the last channel is zeros
//   FORM 0, 1    x is packed, rows of a stage are pixels. 0: im2col mode, the accelerator walks BP pixels of y from the tile's first
//                one on. 1 (1x1, stride 1, no padding): boxes of a matrix of pixels and channels
//   FORM 2       1x1, stride 1, no padding, H*W a multiple of 8: x as it lies. Boxes of 64 pixels of one image by CHANNELS channels,
//                rows are channels: wgmma reads such an operand turned. A tile has BP / 64 boxes, those of an image before those of
//                the next; an image's last box sticks out of its plane, and what is read there is zeros and goes nowhere
//   warps        GROUPS groups of four multiply by wgmma, m64: each a part of the tile's filters, or where they stand ACROSS of its
//                pixels. One more warp loads, of which one thread is awake
//   ring         as many stages as the launch gives shared memory for; `full` counts bytes, `empty` warps that have read
//   IS_SPLIT     a cluster of blocks shares each tile: a part of the stages is each one's, then some of the chunks of y, whose sums
//                the others push to it; for tiles that are fewer than multiprocessors
//   y            in chunks of a warp's 16 filters by LINE pixels, which are turned to rows in shared memory (lines.cuh)
//   grid, block  as many blocks as multiprocessors hold, or tiles, or where it IS_SPLIT a cluster a tile. A block's tiles are grid
//                blocks apart, and those of the same pixels come one after the other, so that concurrent blocks share them in L2
//   limits       groups 1; compute capability 9.0 (sm_90a); the same sums in the same order every time
//   source       as of implicit_gemm_tma.cu; PTX ISA 8.0, "Shared Memory Matrix Layout" (operands whose rows are gemm_k)

#include "epilogue.cuh"

#define IM2COL 0
#define DENSE 1
#define PLANAR 2
#define WORKERS (128 * GROUPS)
#define LOADER (4 * GROUPS)  // the warp
#define THREADS (WORKERS + 32)
#define OWN_F (ACROSS ? BF : BF / GROUPS)  // filters of a group, and its pixels
#define OWN_P (ACROSS ? BP / GROUPS : BP)
#define TILES_M (OWN_F / 64)
#define TILES_N (OWN_P / 8)
#define CHANNELS (ROW_BYTES / 2)
#define X_BYTES (BP * ROW_BYTES)  // of a stage
#define WEIGHT_BYTES (BF * ROW_BYTES)
#define STAGE_BYTES (X_BYTES + WEIGHT_BYTES)
#define MOST_SLOTS 16
#define HEAD_BYTES 1024  // the barriers, and what aligns the stages
#define BOX 64                          // pixels of a box of planes: 128 bytes
#define LINE (OWN_P < 64 ? OWN_P : 64)  // pixels of a chunk of y
#define LINES_N (OWN_P / LINE)          // chunks of a warp side by side
#define CHUNKS (TILES_M * LINES_N)      // of a warp
#if IS_SPLIT
#define FIRST_TILE cluster_index()  // and the only one
#else
#define FIRST_TILE blockIdx.x
#endif
static_assert(OWN_F % 64 == 0 && OWN_P % LINE == 0 && LINE % 32 == 0, "whole products and chunks");
static_assert(FORM != PLANAR || OWN_P % BOX == 0, "whole boxes");

#define INSTRUCTION_N OWN_P
#define SWIZZLE_BYTES ROW_BYTES
#if FORM == PLANAR
#define COLUMNS_ARE_INNERMOST
#endif

#include "clusters.cuh"
#include "accelerator.cuh"
#include "wgmma.cuh"
#include "pairs.cuh"
#include "division.cuh"
#include "overlap.cuh"

struct Sizes {
    int C, K, R, S;
    unsigned pixels, plane, Q;  // pixels of all images; in planes those of all boxes, also outside the planes
    int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    unsigned tiles_f, tiles;
    int stages, more_stages;  // of a block; so many blocks of a cluster have one more
    int slots;
    Divisor of_plane;  // pixels of an image; in planes its boxes
};

typedef float Sums[TILES_M][TILES_N][4];

#include "lines.cuh"
#include "pushed_sums.cuh"

// Where a tile begins.
struct Part {
    unsigned filter, pixel;
};
__device__ __forceinline__ Part part_of(unsigned tile, const Sizes& sizes) {
    const unsigned p = tile / sizes.tiles_f;
    return {(tile - p * sizes.tiles_f) * BF, p * BP};
}

// Which of a tile's stages are a block's.
struct Stages {
    int first, count;
};
__device__ __forceinline__ Stages stages_of(const Sizes& sizes) {
#if IS_SPLIT
    const int rank = cluster_rank();
    return {rank * sizes.stages + min(rank, sizes.more_stages), sizes.stages + (rank < sizes.more_stages)};
#else
    return {0, sizes.stages};
#endif
}

// Whose turn it is: a ring that has gone round an even or odd number of times.
struct Turn {
    int slot = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance(int slots) {
        if (++slot == slots) slot = 0, parity ^= 1;
    }
};

// Addresses in shared memory.
struct Ring {
    unsigned full, empty, stages;
};

// The pixels of a tile, on their way to a stage.
class Pixels {
   public:
    __device__ __forceinline__ Pixels(unsigned pixel, const Sizes& sizes) {
#if FORM == PLANAR
        boxes_ = min(BP / BOX, (int)((sizes.pixels - pixel) / BOX));
#pragma unroll
        for (int i = 0; i < BP / BOX; ++i) {
            unsigned box = pixel / BOX + i;
            image_[i] = sizes.of_plane.take_quotient(box);
            first_[i] = box * BOX;
        }
#elif FORM == DENSE
        pixel_ = pixel;
#else
        unsigned column = pixel;
        image_ = sizes.of_plane.take_quotient(column);
        const unsigned p = column / sizes.Q;
        h_ = (int)p * sizes.stride_h - sizes.pad_h;
        w_ = (int)(column - p * sizes.Q) * sizes.stride_w - sizes.pad_w;
#endif
        (void)sizes;
    }
    // What a stage gets.
    __device__ __forceinline__ int bytes() const {
#if FORM == PLANAR
        return boxes_ * (BOX * ROW_BYTES);
#else
        return X_BYTES;
#endif
    }
    __device__ __forceinline__ void load(unsigned to, const TensorMap& x, unsigned arrived, int c, int r, int s,
                                         const Sizes& sizes) const {
#if FORM == PLANAR
        // A box wholly outside is not for the accelerator.
#pragma unroll
        for (int i = 0; i < BP / BOX; ++i)
            if (i < boxes_) load_box(to + i * (BOX * ROW_BYTES), x, arrived, first_[i], c, image_[i]);
#elif FORM == DENSE
        load_box(to, x, arrived, c, pixel_);
#else
        load_pixels(to, x, arrived, c, w_, h_, image_, s * sizes.dilation_w, r * sizes.dilation_h);
#endif
        (void)r, (void)s, (void)sizes;
    }

   private:
#if FORM == PLANAR
    int boxes_;
    unsigned image_[BP / BOX], first_[BP / BOX];
#elif FORM == DENSE
    unsigned pixel_;
#else
    unsigned image_;
    int h_, w_;
#endif
};

__device__ __forceinline__ void load_tiles(const TensorMap& x, const TensorMap& weight, const Ring& ring, const Sizes& sizes) {
    const Stages stages = stages_of(sizes);
    const int of_tap = (sizes.C + CHANNELS - 1) / CHANNELS, first_tap = stages.first / of_tap;
    const int weight_bytes = min(BF, (sizes.K + 7) / 8 * 8) * ROW_BYTES;  // few rows that do not exist: they take long
    Turn turn;
#pragma unroll 1
    for (unsigned tile = FIRST_TILE; tile < sizes.tiles; tile += gridDim.x) {
        const Part part = part_of(tile, sizes);
        const Pixels pixels(part.pixel, sizes);
        int tap = first_tap, c = (stages.first - tap * of_tap) * CHANNELS, r = tap / sizes.S, s = tap - r * sizes.S;
#pragma unroll 1
        for (int stage = 0; stage < stages.count; ++stage, turn.advance(sizes.slots)) {
            const unsigned to = ring.stages + turn.slot * STAGE_BYTES, arrived = ring.full + turn.slot * 8;
            wait_for(ring.empty + turn.slot * 8, turn.parity ^ 1);
            expect_bytes(arrived, pixels.bytes() + weight_bytes);
            pixels.load(to, x, arrived, c, r, s, sizes);
            load_box(to + X_BYTES, weight, arrived, c, tap, part.filter);
            if ((c += CHANNELS) < sizes.C) continue;
            c = 0, ++tap;
            if (++s == sizes.S) s = 0, ++r;
        }
    }
}

// Where x begins in a stage, as the low half of a descriptor, and the descriptor. In planes 64 pixels are one row of 128 bytes, eight
// channels a group of the swizzle; the low half says how far the next 64 pixels are, the high half how far the next eight channels.
#if FORM == PLANAR
#define STEP_OF_X (16 * 128 / 16)  // from 16 channels to the next, in units of 16 bytes
__device__ __forceinline__ unsigned x_at(unsigned address) {
    return (address & 0x3FFFF) >> 4 | (unsigned)(BOX * ROW_BYTES / 16) << 16;
}
__device__ __forceinline__ unsigned long long descriptor_of_x(unsigned operand) {
    return (unsigned long long)(8 * 128 / 16 | 1u << 30) << 32 | operand;
}
#else
#define STEP_OF_X 2
__device__ __forceinline__ unsigned x_at(unsigned address) { return operand_at(address); }
__device__ __forceinline__ unsigned long long descriptor_of_x(unsigned operand) { return descriptor(operand); }
#endif

// Enqueues the products of a stage.
__device__ __forceinline__ void multiply(Sums& sum, unsigned weight, unsigned x, bool is_added) {
    keep(sum);
    begin_products();
#pragma unroll
    for (int k = 0; k < CHANNELS / 16; ++k) {
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
            multiply_add(sum[i], descriptor(weight + i * 64 * ROW_BYTES / 16 + k * 2), descriptor_of_x(x + k * STEP_OF_X),
                         is_added || k > 0);
    }
    commit_products();
}

// sum = the products of a group's part of a tile.
__device__ __forceinline__ void multiply_tile(Sums& sum, const Ring& ring, unsigned first_weight, unsigned first_x, Turn& turn,
                                              int stages, int slots) {
    const bool arrives = threadIdx.x % 32 == 0;
    const unsigned weight = operand_at(ring.stages + first_weight), x = x_at(ring.stages + first_x);
    int read = 0;
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage, turn.advance(slots)) {
        wait_for(ring.full + turn.slot * 8, turn.parity);
        const unsigned from = turn.slot * (STAGE_BYTES / 16);
        multiply(sum, weight + from, x + from, stage > 0);
        // The products of the stage before are done.
        wait_for_all_products_but<1>(sum);
        if (stage > 0 && arrives) arrive(ring.empty + read * 8);
        read = turn.slot;
    }
    wait_for_all_products_but<0>(sum);
    if (arrives) arrive(ring.empty + read * 8);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    implicit_gemm_tma_transposed(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map,
                                 Storage* __restrict__ y EPILOGUE, const __grid_constant__ Sizes sizes) {
    // Barriers, then stages or what other blocks push, then chunks of y.
    extern __shared__ __align__(1024) unsigned char shared[];
    Ring ring;
    // In a register: else the assembler asks a special one for the address again at each use.
    asm volatile("mov.u32 %0, %1;" : "=r"(ring.full) : "r"(shared_address(shared)));
    ring.empty = ring.full + MOST_SLOTS * 8;
    ring.stages = ring.full + HEAD_BYTES;
    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
    if (warp == LOADER) {
        const int slot = threadIdx.x % 32;
        if (slot < MOST_SLOTS) {
            start_barrier(ring.full + slot * 8, 1);
            start_barrier(ring.empty + slot * 8, WORKERS / 32);
            publish_barriers();
        }
        if (is_elected()) prefetch_map(x_map), prefetch_map(weight_map);
    }
    __syncthreads();
    // Also where it overlaps with nothing else: x may just be packed.
#if defined(OVERLAPS)
    wait_for_kernel_ahead();
#else
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (warp == LOADER) {
        if (is_elected()) load_tiles(x_map, weight_map, ring, sizes);
#if IS_SPLIT
        __syncwarp();
        PushedSums::meet();
        PushedSums::meet();
#endif
        return;
    }
    const Epilogue epilogue = EPILOGUE_OF(nullptr);
    const Stages stages = stages_of(sizes);
    const int group = warp / 4;
    const unsigned own_filter = (ACROSS ? 0 : group * OWN_F) + warp % 4 * 16, own_pixel = ACROSS ? group * OWN_P : 0;
    const PushedSums pushed((float*)(shared + HEAD_BYTES), warp);
#if IS_SPLIT
    const unsigned ring_bytes = pushed.bytes(sizes.slots);
#else
    const unsigned ring_bytes = sizes.slots * STAGE_BYTES;
#endif
    const unsigned lines = ring.stages + ring_bytes + warp * (BUFFERS * CHUNK_BYTES);
    Turn turn;
#pragma unroll 1
    for (unsigned tile = FIRST_TILE; tile < sizes.tiles; tile += gridDim.x) {
        Part part = part_of(tile, sizes);
        part.filter += own_filter, part.pixel += own_pixel;
        Bias bias;
        bias.read(epilogue, part.filter, sizes);
#if RESIDUAL
        Lines(lines, part.filter, part.pixel, sizes).copy(residual);
#endif
        Sums sum;
        multiply_tile(sum, ring, X_BYTES + (ACROSS ? 0 : group * OWN_F) * ROW_BYTES, own_pixel * ROW_BYTES, turn, stages.count,
                      sizes.slots);
#if IS_SPLIT
        PushedSums::meet();
        pushed.push_others(sum, part.filter, part.pixel, sizes);
        PushedSums::meet();
#endif
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const int i = chunk / LINES_N, j = chunk % LINES_N;
            const Lines here(lines + chunk % BUFFERS * CHUNK_BYTES, part.filter + i * 64, part.pixel + j * LINE, sizes);
#if RESIDUAL
            if (chunk + 1 < CHUNKS) {
                const int next = chunk + 1;
                Lines(lines + next % BUFFERS * CHUNK_BYTES, part.filter + next / LINES_N * 64,
                      part.pixel + next % LINES_N * LINE, sizes)
                    .copy(residual);
            }
            Lines::wait_for_copies_but(chunk + 1 < CHUNKS);
#endif
            if (!here.is_in_y() || !pushed.is_own(chunk)) continue;
            pushed.add_others(sum[i], j * (LINE / 8), chunk);
            here.fill(epilogue, bias, sum[i], j * (LINE / 8), i);
            here.store(y);
        }
    }
}
