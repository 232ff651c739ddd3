// Implicit GEMM for few input channels and filters of many taps on Hopper's tensor cores: four warps multiply together, the weight
// is read from shared memory by the instruction, and a window's row is a run of neighbouring elements, read in place.
//
//   tensors      x (N,H,W,C) with C = CHANNELS of 1 or 2, weight (K,R,S,C) with K a multiple of 8, y (N,P,Q,K)
//   GEMM         gemm_k = R rows of chunks of 16 bytes, S C elements and zeros; two chunks are a step. GEMM rows are 16
//                neighbouring pixels of a row of y a warp; columns are FILTERS filters, ordered so that a thread's accumulators are
//                4 NT neighbours (8 at most)
//   raw rows     of x are copied as they lie, 16 bytes at a time from the last multiple of 16 bytes on, while the tile before is
//                multiplied, and then spread over slots with zeros for what is beside the image
//   slots        windows begin every stride_w C elements, ldmatrix reads from multiples of 16 bytes: rows are stored up to eight
//                times, each copy shifted by the greatest distance that divides both
//   weight       in core matrices of 8 filters x 16 bytes, 128 bytes apart along gemm_k, 256 along filters
//   versions     -DCHANNELS, and the tile: MT tiles of 16 pixels and NT of 8 filters of each of WARPS warps
//   grid, block  persistent blocks keep their filters' weight in shared memory and take tiles in turn; 32 WARPS threads,
//                registers for BLOCKS blocks per multiprocessor; tiles of tile_p rows x tile_q pixels, chosen by plan.py
//   limits       compute capability 9.0 (sm_90a); groups 1, dilation 1, float16 and bfloat16; deterministic
//   source       PTX ISA 8.0, ldmatrix and wgmma; Chetlur et al., arXiv:1410.0759

#include "clusters.cuh"
#include "asynchronous.cuh"
#include "epilogue.cuh"
#include "overlap.cuh"
#include "pairs.cuh"

#define THREADS (32 * WARPS)
#define FILTERS (8 * NT)
#define GROUP (NT < 4 ? NT : 4)  // tiles of filters whose sums a thread stores at once
#define VECTOR (2 * GROUP)       // filters of a store
#define CHUNK 8                  // elements of 16 bytes
#define IS_NHWC 1
#define IS_PAIR 0
static_assert(NT % GROUP == 0 && WARPS % 4 == 0, "whole stores, and warps in fours");

#include "half_fragments.cuh"
#include "pixels.cuh"
#ifdef __CUDA_ARCH__
#undef TYPES
#define INSTRUCTION_N FILTERS
#include "wgmma.cuh"
#endif
#include "taps_products.cuh"
#include "outputs.cuh"

// Which filter of the block a column of the products is.
__device__ __forceinline__ int filter_of(int column) {
    const int tile = column / 8, pair = column % 8 / 2;
    return tile / GROUP * (8 * GROUP) + pair * VECTOR + tile % GROUP * 2 + column % 2;
}

// The block's weight as the instruction reads it: zeros behind each row of a filter, behind the last and where no filter is.
__device__ __forceinline__ void pack_weight(unsigned char* to, const Storage* __restrict__ weight, int first_filter, int K, int R,
                                            int S, int of_row, int steps) {
#pragma unroll 2
    for (int i = threadIdx.x; i < FILTERS * 2 * steps; i += THREADS) {
        const int column = i / (2 * steps), chunk = i - column * (2 * steps), r = chunk / of_row;
        const int filter = first_filter + filter_of(column), first = (chunk - r * of_row) * CHUNK;
        const bool is_there = filter < K && r < R;
        const unsigned short* const from =
            (const unsigned short*)weight + (is_there ? ((size_t)filter * R + r) * S * CHANNELS : 0);
        unsigned words[4] = {};
#pragma unroll
        for (int e = 0; e < CHUNK; ++e) {
            const int s = (first + e) / CHANNELS, c = (first + e) % CHANNELS;
            if (is_there && s < S) words[e / 2] |= (unsigned)__ldg(from + s * CHANNELS + c) << 16 * (e % 2);
        }
        *(uint4*)(to + chunk / 2 * (FILTERS * 32) + column / 8 * 256 + chunk % 2 * 128 + column % 8 * 16) = {words[0], words[1],
                                                                                                             words[2], words[3]};
    }
}

// Of each chunk how far behind a window's first it lies; IS_LAST where not all of it need belong to the window, IS_BEHIND where
// nothing does.
__device__ __forceinline__ void list_offsets(int* offsets, int R, int of_row, int steps, int row_bytes, bool has_tail) {
    for (int chunk = threadIdx.x; chunk < 2 * steps + 4; chunk += THREADS) {
        const int r = chunk / of_row, place = chunk - r * of_row;
        offsets[chunk] = r < R ? r * row_bytes + place * 16 + (has_tail && place + 1 == of_row ? IS_LAST : 0) : IS_BEHIND;
    }
}

// Where a tile's part of x lies: its first row and pixel, and which of its pixels are in the image.
struct Part {
    const Storage* image;
    int h, w, first, end;  // first and end: of the pixels, counted from w on

    __device__ __forceinline__ Part(const Storage* x, int image_index, int h0, int w0, int pixels, int H, int W)
        : image(x + (size_t)image_index * H * W * CHANNELS), h(h0), w(w0), first(w0 < 0 ? -w0 : 0), end(W - w0 < pixels ? W - w0 : pixels) {}
    __device__ __forceinline__ const Storage* row(int r, int W) const { return image + ((h + r) * W + w + first) * CHANNELS; }
};
// Bytes of the row's first element behind the last multiple of 16.
__device__ __forceinline__ int skipped(const Storage* row) { return (int)((size_t)row & 15); }

// Asks for the rows of x that a tile needs, `raw_bytes` apart; nothing behind x_end is read.
__device__ __forceinline__ void ask(unsigned char* raw, const Part& part, const Storage* x_end, int rows, int raw_bytes, int H, int W) {
    const int chunks = raw_bytes / 16;
#pragma unroll 2
    for (int i = threadIdx.x; i < rows * chunks; i += THREADS) {
        const int r = i / chunks, chunk = i - r * chunks;
        if (!is_inside(part.h + r, H) || part.first >= part.end) continue;
        const char* const row = (const char*)part.row(r, W);
        const char* const from = row - skipped((const Storage*)row) + chunk * 16;
        const char* const end = row + (part.end - part.first) * (CHANNELS * 2);
        const long long left = (const char*)x_end - from;
        if (from < end) copy_async<16>(raw + i * 16, from, left < 16 ? (int)left : 16);
    }
    commit_copies();
}

// Spreads raw rows over slots: a thread makes a chunk of every copy.
__device__ __forceinline__ void spread(unsigned char* slots, const unsigned char* raw, const Part& part, int rows, int row_bytes,
                                       int raw_bytes, int copies, int copy_bytes, int shift, int H, int W) {
    const int chunks = row_bytes / 16;
#pragma unroll 1
    for (int i = threadIdx.x; i < rows * chunks; i += THREADS) {
        const int r = i / chunks, chunk = i - r * chunks;
        const bool is_row = is_inside(part.h + r, H);
        const unsigned short* const from =
            (const unsigned short*)(raw + r * raw_bytes) + skipped(part.row(r, W)) / 2 - part.first * CHANNELS;
#pragma unroll 1
        for (int copy = 0; copy < copies; ++copy) {
            const int first = chunk * CHUNK + copy * shift;  // element of the row
            unsigned words[4] = {};
#pragma unroll
            for (int e = 0; e < CHUNK; ++e) {
                const int pixel = (first + e) / CHANNELS, c = (first + e) % CHANNELS;
                if (is_row && pixel >= part.first && pixel < part.end)
                    words[e / 2] |= (unsigned)from[pixel * CHANNELS + c] << 16 * (e % 2);
            }
            *(uint4*)(slots + copy * copy_bytes + i * 16) = {words[0], words[1], words[2], words[3]};
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    few_inputs_taps(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE, SHAPE,
                    int tile_p, int tile_q_bits, int tiles_p, int tiles_q, int tiles_f, int rows, int pixels, int row_bytes,
                    int raw_bytes, int copies, int copy_bytes, int steps) {
    extern __shared__ __align__(16) float memory[];
    const int of_row = (S * CHANNELS + CHUNK - 1) / CHUNK, tail = S * CHANNELS % CHUNK, shift = CHUNK / copies;
    unsigned char *const weights = (unsigned char*)memory, *const slots = weights + FILTERS * 32 * steps;
    unsigned char* const raw = slots + copies * copy_bytes;
    int* const offsets = (int*)(raw + rows * raw_bytes);
    const int first_filter = blockIdx.x % tiles_f * FILTERS, blocks = gridDim.x / tiles_f, tiles = N * tiles_p * tiles_q;
    const int tile_q = 1 << tile_q_bits, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Storage* const x_end = x + (size_t)N * H * W * CHANNELS;

    const auto part_of = [&](int tile) {
        const int line = tile / tiles_q, image = line / tiles_p;
        return Part(x, image, (line - image * tiles_p) * tile_p * stride_h - pad_h, (tile - line * tiles_q) * tile_q * stride_w - pad_w,
                    pixels, H, W);
    };
    // Where the lane's pixel of each tile of the warp begins its window, behind the first slot.
    int window[MT];
#pragma unroll
    for (int i = 0; i < MT; ++i) {
        const int pixel = (warp * MT + i) * 16 + lane % 16, p = pixel >> tile_q_bits;
        const int element = (pixel & tile_q - 1) * stride_w * CHANNELS;
        window[i] = element % CHUNK / shift * copy_bytes + p * stride_h * row_bytes + element / CHUNK * 16;
    }
    const int kept = tail - lane % 4 * 2;  // of the lane's two elements of a row's last chunk
    const unsigned of_tail = kept >= 2 ? 0xffffffffu : kept == 1 ? 0xffffu : 0;

    wait_for_kernel_ahead();
    int tile = blockIdx.x / tiles_f;
    if (tile < tiles) ask(raw, part_of(tile), x_end, rows, raw_bytes, H, W);
    pack_weight(weights, weight, first_filter, K, R, S, of_row, steps);
    publish_weight();
    list_offsets(offsets, R, of_row, steps, row_bytes, tail > 0);
    for (; tile < tiles; tile += blocks) {
        wait_for_all_copies_but<0>();
        __syncthreads();
        spread(slots, raw, part_of(tile), rows, row_bytes, raw_bytes, copies, copy_bytes, shift, H, W);
        __syncthreads();
        if (tile + blocks < tiles) ask(raw, part_of(tile + blocks), x_end, rows, raw_bytes, H, W);

        float sum[MT][NT][4] = {};
        multiply_window(sum, Slots{shared_address(slots), of_tail}, window, weights, offsets, steps);

        const Epilogue epilogue = EPILOGUE_OF(y);
        const int line = tile / tiles_q, image = line / tiles_p;
        const int p0 = (line - image * tiles_p) * tile_p, q0 = (tile - line * tiles_q) * tile_q;
        Storage* const outputs = y + (size_t)image * K * P * Q;
        store_sums(epilogue, sum, outputs, first_filter, K, P, Q, [&](int of_warp) {
            const int pixel = warp * (MT * 16) + of_warp;
            return Place{p0 + (pixel >> tile_q_bits), q0 + (pixel & tile_q - 1)};
        });
    }
}
