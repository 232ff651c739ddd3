// Grouped convolution: implicit GEMM of each group on tensor cores, from slabs of x in shared memory.
//
//   tensors      nchw: x (N,C,H,W), weight (K,C/groups,R,S), y (N,K,P,Q); nhwc: x (N,H,W,C), weight (K,R,S,C/groups)
//   GEMM         per group: gemm_m = output pixels, gemm_n = its filters, gemm_k = (tap, channel), in the order of the
//                weight in memory; x follows that order by a table
//   work         a block takes a tile of pixels (images x rows x columns), block_groups consecutive groups and block_filters
//                filters of each. It stages the pixels' windows of these groups once, as a slab that every tap of every
//                filter reads, by a table of gemm_k offsets. The weight is staged beside it. A warp computes 16 MT
//                pixels x 8 NT filters of a group.
//   words        shared memory holds words of four bytes: one float32 channel or two half-precision ones. nhwc: the words of
//                a pixel are adjacent; nchw: the pixels of a word are. What no tap reads (stride, dilation) is not
//                staged; columns are stored by their phase of the stride, so neighbouring pixels are adjacent words
//   stages       channels that do not fit come in chunks; with two stages the next is copied while one is multiplied.
//                A block walks over every tile_blocks-th tile, and keeps its weight where there is one chunk
//   versions     MODE NCHW | NHWC (words of channels in fours: ldmatrix) | NHWC_ODD
//                SPLIT: float32 as 3xTF32 (fragments.cuh); else one product of tf32 or half precision
//   grid, block  tiles x groups x filters in x; one warp per part of the tile, at most MOST_WARPS
//   limits       any filter, stride, dilation, padding, as long as a one-pixel tile of a group fits in shared memory;
//                SPLIT: infinities become NaN
//   source       "cuDNN: Efficient Primitives for Deep Learning", arXiv:1410.0759; 3xTF32: arXiv:2203.03341

#if !defined(MT) || !defined(NT) || !defined(MODE) || !defined(SPLIT)
#error "define MT, NT, MODE and SPLIT"
#endif

#define NCHW 0
#define NHWC 1
#define NHWC_ODD 2

// What follows from the problem and the cut: cut.py
#define CUT                                                                                                              \
    int channels, int filters, int gemm_k, int tile_n, int tile_p, int tile_q, int tiles, int tile_blocks, int tiles_p,  \
        int tiles_q, int block_columns, int filter_blocks, int block_groups, int block_filters, int warps_m, int warps_n, \
        int chunk_words, int chunks, int stages, int rows, int columns, int phase_columns, int lead, int step_h,         \
        int step_w, int stride_p, int stride_q, int dilation_r, int dilation_s, int slab_pixels, int slab_pitch,         \
        int slab_words, int slab_lanes, int x_run, int y_run, int weight_pitch, int weight_lanes, int weight_run,        \
        unsigned by_image, unsigned by_columns, unsigned by_phase, unsigned by_slab_lanes, unsigned by_weight_lanes,     \
        unsigned by_inner, unsigned by_s, unsigned by_stride, unsigned by_tile_pixels, unsigned by_tile_q,               \
        unsigned by_block_columns, int by_block_columns_shift, unsigned by_filter_blocks, int by_filter_blocks_shift,    \
        unsigned by_tiles_q, int by_tiles_q_shift, unsigned by_tiles_p, int by_tiles_p_shift

#define MOST_WARPS 8
#ifdef STORAGE_FLOAT32
#define ELEMENTS 1  // of a word
#else
#define ELEMENTS 2
#endif
#define PAIRS (ELEMENTS == 2 && MODE != NHWC)  // words are put together from elements that are no neighbours

#include "clusters.cuh"
#include "asynchronous.cuh"
#include "tf32.cuh"
#ifdef __CUDA_ARCH__
#include "fragments.cuh"
#endif
#include "epilogue.cuh"
#include "overlap.cuh"
#include "slab.cuh"
#include "products.cuh"
#include "outputs.cuh"

extern "C" __global__ void __launch_bounds__(32 * MOST_WARPS, MT * NT < 4 ? 3 : MT * NT <= 12 ? 2 : 1)
    grouped(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE,
            SHAPE, CUT) {
    wait_for_kernel_ahead();
    extern __shared__ __align__(16) float shared[];  // offsets of gemm_k | sources of pixels | weight | slabs
    const int padded_k = (gemm_k + 7) / 8 * 8, group_words = chunk_words / block_groups;
    const unsigned first_tile = quotient(blockIdx.x, by_block_columns, by_block_columns_shift);
    const int block_column = blockIdx.x - first_tile * block_columns;
    const int group_block = quotient(block_column, by_filter_blocks, by_filter_blocks_shift);
    const int first_filter = (block_column - group_block * filter_blocks) * block_filters;
    const int first_group = group_block * block_groups;
    const int groups_here = min(block_groups, groups - first_group);
    const int filters_here = min(block_filters, filters - first_filter);

    int* const offsets = (int*)shared;
    int* const sources = offsets + padded_k;
    unsigned* const weights = (unsigned*)(sources + (slab_pixels + 3) / 4 * 4);
    const int weight_words = block_groups * block_filters * weight_pitch;
    unsigned* const slabs = weights + (chunks > 1 ? stages : 1) * weight_words;

    const auto tile_of = [&](unsigned index) {
        const unsigned line = quotient(index, by_tiles_q, by_tiles_q_shift);
        const unsigned image = quotient(line, by_tiles_p, by_tiles_p_shift);
        return Tile{(int)image * tile_n, (int)(line - image * tiles_p) * tile_p, (int)(index - line * tiles_q) * tile_q};
    };
    unsigned fetched_tile = first_tile;
    int fetched_chunk = 0;
    const auto fetch_next = [&](int stage) {
        if (fetched_chunk == 0) {
            const Tile tile = tile_of(fetched_tile);
            for (int pixel = threadIdx.x; pixel < slab_pixels; pixel += blockDim.x) {
                const int image = quotient(pixel, by_image), left = pixel - image * rows * columns;
                const int row = quotient(left, by_columns), column = left - row * columns;
                const int phase = quotient(column, by_phase);
                const int at = (column - phase * phase_columns) * stride_q + phase;
                const int h = tile.p0 * stride_h - pad_h + row * step_h;
                const int w = tile.q0 * stride_w - pad_w + (at - lead) * step_w;
                // A run of several pixels is there or not as a whole; columns that no window reaches are not staged.
                const bool is_there = tile.n0 + image < N && is_inside(h, H) && is_inside(w, W) &&
                                      (at <= (tile_q - 1) * stride_q + (S - 1) * dilation_s || stride_q == 1);
                const int n = tile.n0 + image, at_pixel = h * W + w;
                sources[pixel] = !is_there ? -1 : MODE == NCHW ? n * C * H * W + at_pixel : (n * H * W + at_pixel) * C;
            }
            __syncthreads();
        }
        // Channels of the slab in elements: of all the block's groups, or a chunk of its only one.
        const int first = first_group * channels + fetched_chunk * chunk_words * ELEMENTS;
        const int count = (first_group + groups_here) * channels - first;
        fetch_slab(slabs + stage * slab_words, sources, x + (MODE == NCHW ? (size_t)first * H * W : first),
                   slab_pixels, min(count, chunk_words * ELEMENTS), chunk_words, slab_pitch, H * W, x_run, slab_lanes,
                   by_slab_lanes);
        if (chunks > 1 || fetched_tile == first_tile)
            fetch_weight(weights + (chunks > 1 ? stage : 0) * weight_words,
                         weight + (size_t)(first_group * filters + first_filter) * channels * R * S,
                         groups_here * filters_here, channels, R * S, fetched_chunk * group_words, group_words, padded_k,
                         weight_pitch, weight_run, weight_lanes, by_weight_lanes, by_inner);
        commit_copies();
        if (++fetched_chunk == chunks) {
            fetched_chunk = 0;
            fetched_tile += tile_blocks;
        }
    };
    fetch_next(0);

    // Where a word of gemm_k lies from the first of its window, in bytes.
    const int pixel_step = MODE == NCHW ? 1 : slab_pitch, word_step = MODE == NCHW ? slab_pitch : 1;
    for (int k = threadIdx.x; k < padded_k; k += blockDim.x) {
        const int at = k < gemm_k ? k : 0, outer = quotient(at, by_inner);
        const int tap = MODE == NCHW ? at - outer * R * S : outer, word = MODE == NCHW ? outer : at - outer * group_words;
        const int r = quotient(tap, by_s), column = (tap - r * S) * dilation_s, q = quotient(column, by_stride);
        const int offset = (r * dilation_r * columns + (column - q * stride_q) * phase_columns + q) * pixel_step;
        offsets[place_of_offset(k)] = 4 * (offset + word * word_step);
    }

    // What a warp computes: 16 MT pixels of 8 NT filters of a group.
    const int warp = threadIdx.x / 32, warp_column = warp / warps_m, group = warp_column / warps_n;
    const int first_pixel = (warp - warp_column * warps_m) * MT * 16, tile_pixels = tile_n * tile_p * tile_q;
    const int first_column = (warp_column - group * warps_n) * NT * 8;
    const bool has_work = group < groups_here && first_pixel < tile_pixels && first_column < filters_here;
    int window[WINDOWS], filter[FILTER_ROWS];
#pragma unroll
    for (int i = 0; i < WINDOWS; ++i) {
        const Place at = place_of(min(first_pixel + pixel_of_window(i), tile_pixels - 1), tile_p, tile_q, by_tile_pixels,
                                  by_tile_q);
        const int pixel = (at.image * rows + at.p * stride_p) * columns + at.q + lead;
        window[i] = 4 * (pixel * pixel_step + group * group_words * word_step);
    }
#pragma unroll
    for (int j = 0; j < FILTER_ROWS; ++j)
        filter[j] = 4 * ((group * filters_here + min(first_column + row_of_filter(j), filters_here - 1)) * weight_pitch +
                         threadIdx.x / 8 % 2 * 4);
    __syncthreads();

    float sum[MT][NT][4] = {};
    unsigned tile = first_tile;
    for (int chunk = 0, stage = 0; tile < (unsigned)tiles;) {
        if (stages == 2) {
            if (fetched_tile < (unsigned)tiles)
                fetch_next(stage ^ 1);
            else
                commit_copies();
            wait_for_all_copies_but<1>();
        } else {
            wait_for_all_copies_but<0>();
        }
        __syncthreads();
        if (has_work)
            multiply(sum, slabs + stage * slab_words, weights + (chunks > 1 ? stage : 0) * weight_words, offsets, window,
                     filter, gemm_k);
        if (++chunk == chunks) {
            chunk = 0;
            if (has_work) {
#if SPLIT
                restore_cut(sum, raised_by(1));
#endif
                const Tile at = tile_of(tile);
                const auto pixel_at = [&](int pixel) {
                    const Place place = place_of(pixel, tile_p, tile_q, by_tile_pixels, by_tile_q);
                    const int n = at.n0 + place.image, p = at.p0 + place.p, q = at.q0 + place.q;
                    const bool is_there = pixel < tile_pixels && n < N && p < P && q < Q;
                    return Output{is_there, MODE == NCHW ? (size_t)n * K * P * Q + p * Q + q
                                                         : ((size_t)n * P * Q + p * Q + q) * K};
                };
                const int first_k = (first_group + group) * filters + first_filter + first_column;
#if HAS_EPILOGUE
                end_sums(y, EPILOGUE_OF(y), sum, pixel_at, first_pixel, first_k, filters_here - first_column, P * Q);
#endif
                store_sums(y, sum, pixel_at, first_pixel, first_k, filters_here - first_column, K, P * Q, y_run);
            }
#pragma unroll
            for (int i = 0; i < MT; ++i) {
#pragma unroll
                for (int j = 0; j < NT; ++j) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) sum[i][j][e] = 0.0f;
                }
            }
            tile += tile_blocks;
        }
        __syncthreads();
        if (stages == 2)
            stage ^= 1;
        else if (fetched_tile < (unsigned)tiles)
            fetch_next(0);
    }
}
