// Implicit GEMM for few input channels on tensor cores: a window row is stored in shared memory as the products read it, so
// nothing is gathered.
//
//   tensors      -DIS_NHWC=1: x (N,H,W,C) with C = CHANNELS of 1 to 4, weight (K,R,S,C) with S = COLUMNS and K a multiple of 8,
//                y (N,P,Q,K); -DIS_NHWC=0: x (N,C,H,W), weight (K,C,R,S), y (N,K,P,Q)
//   GEMM         gemm_k = R rows of CHUNKS chunks of 16 bytes, each two pixels of four channels, zero-padded. GEMM rows are
//                16 neighbouring pixels of a row of y; columns are FILTERS filters, ordered so that a thread's accumulators
//                are 4 NT neighbours (8 at most): in NHWC it stores 16 bytes
//   stages       a tile's rows of x with halo and padding, eight bytes per pixel. Windows overlap in memory and begin at even
//                slots, so ldmatrix can read them in place. For an odd column stride x is stored twice, shifted by one slot
//   versions     -DCHANNELS, -DCOLUMNS, and the tile: MT tiles of 16 pixels and NT of 8 filters of each of WARPS warps
//   grid, block  persistent blocks keep their filters' weight in shared memory and take tiles in turn; 32 WARPS threads,
//                registers for BLOCKS blocks per multiprocessor; tiles of tile_p rows x tile_q pixels, chosen by plan.py
//   limits       groups 1, dilation 1, float16 and bfloat16; deterministic
//   source       PTX ISA 8.0, ldmatrix and mma; Chetlur et al., arXiv:1410.0759

#include "clusters.cuh"
#include "asynchronous.cuh"
#include "epilogue.cuh"
#include "overlap.cuh"
#include "pairs.cuh"

#define THREADS (32 * WARPS)
#define FILTERS (8 * NT)
#define CHUNKS ((COLUMNS + 1) / 2)  // of a window's row, each of two pixels
#define GROUP (NT < 4 ? NT : 4)     // tiles of filters whose sums a thread stores at once
#define VECTOR (2 * GROUP)          // filters of a store
#define RUN 4                       // pixels that a thread stages at a time
static_assert(NT % GROUP == 0 && NT % 2 == 0, "whole stores, and tiles of filters in pairs");

#include "half_fragments.cuh"
#include "pixels.cuh"
#include "products.cuh"
#include "slots.cuh"
#include "outputs.cuh"

// Which filter of the block a column of the products is.
__device__ __forceinline__ int filter_of(int column) {
    const int tile = column / 8, pair = column % 8 / 2;
    return tile / GROUP * (8 * GROUP) + pair * VECTOR + tile % GROUP * 2 + column % 2;
}

// The block's weight: a row a column of the products, four channels a tap, zeros behind the last of each.
__device__ __forceinline__ void pack_weight(unsigned char* to, const Storage* __restrict__ weight, int first_filter, int K,
                                            int R, int pitch) {
    const int taps = R * CHUNKS * 2;
#pragma unroll 4
    for (int i = threadIdx.x; i < FILTERS * taps; i += THREADS) {
        const int column = i / taps, tap = i - column * taps, r = tap / (2 * CHUNKS), s = tap - r * (2 * CHUNKS);
        const int filter = first_filter + filter_of(column);
        unsigned channels[CHANNELS] = {};
        if (filter < K && s < COLUMNS) {
            const int of_filter = IS_NHWC ? (r * COLUMNS + s) * CHANNELS : r * COLUMNS + s;
            const unsigned short* const from = (const unsigned short*)weight + (size_t)filter * R * COLUMNS * CHANNELS + of_filter;
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) channels[c] = __ldg(from + (IS_NHWC ? c : c * R * COLUMNS));
        }
        *(uint2*)(to + column * pitch + tap * 8) = pixel_of(channels);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    few_inputs(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE, SHAPE,
               int tile_p, int tile_q, int tiles_p, int tiles_q, int tiles_f, int rows, int slots, int copy_bytes,
               int asked_at) {
    extern __shared__ __align__(16) float memory[];
    unsigned char *const weights = (unsigned char*)memory, *const staged = weights + FILTERS * weight_pitch_of(R);
    const int first_filter = blockIdx.x % tiles_f * FILTERS, blocks = gridDim.x / tiles_f;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, lead = -pad_w & (RUN - 1);
    const int row_bytes = slots * 8, tiles = N * tiles_p * tiles_q;

    // Where the lane's pixel of each tile of the warp begins its window, and its row of the weight.
    Address window[MT];
#pragma unroll
    for (int i = 0; i < MT; ++i) {
        const int pixel = (warp * MT + i) * 16 + pixel_of_row(lane % 16), p = pixel / tile_q, column = (pixel - p * tile_q) * stride_w + lead;
        window[i] = shared_address(staged) + p * stride_h * row_bytes + (column + column % 2) * 8 + column % 2 * copy_bytes;
    }
    const Address filters = shared_address(weights);
    uint2* const asked = asked_at ? (uint2*)(staged + asked_at) : nullptr;
    const auto ask = [&](int tile) {
        const int line = tile / tiles_q, image = line / tiles_p;
        ask_for_runs(asked, x + (size_t)image * H * W * CHANNELS, (line - image * tiles_p) * tile_p * stride_h - pad_h,
                     (tile - line * tiles_q) * tile_q * stride_w - pad_w - lead, rows, slots, H, W);
    };

    wait_for_kernel_ahead();
    if (asked && blockIdx.x / tiles_f < tiles) ask(blockIdx.x / tiles_f);
    pack_weight(weights, weight, first_filter, K, R, weight_pitch_of(R));
    for (int tile = blockIdx.x / tiles_f; tile < tiles; tile += blocks) {
        const int line = tile / tiles_q, image = line / tiles_p;
        const int p0 = (line - image * tiles_p) * tile_p, q0 = (tile - line * tiles_q) * tile_q;
        wait_for_all_copies_but<0>();
        __syncthreads();
        stage(staged, asked, x + (size_t)image * H * W * CHANNELS, p0 * stride_h - pad_h, q0 * stride_w - pad_w - lead, rows, slots,
              H, W, lead % 2, stride_w % 2, copy_bytes);
        __syncthreads();
        if (asked && tile + blocks < tiles) ask(tile + blocks);

        float sum[MT][NT][4] = {};
        multiply_window(sum, window, filters, R, row_bytes);

        const Epilogue epilogue = EPILOGUE_OF(y);
        Storage* const outputs = y + (size_t)image * K * P * Q;
        store_sums(epilogue, sum, outputs, first_filter, K, P, Q, [&](int of_warp) {
            const int pixel = warp * (MT * 16) + of_warp, row = pixel / tile_q;
            return Place{p0 + row, q0 + pixel - row * tile_q};
        });
    }
}
