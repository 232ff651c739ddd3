// Winograd with tiles of 4x4 outputs, F(4x4,3x3) and F(4x4,5x5): 36 or 64 multiplications instead of 144 or 400.
//
//   tensors      x (N,C,H,W), weight (K,C,R,R), y (N,K,P,Q), all nchw; tiles T = N * ceil(P/4) * ceil(Q/4)
//   method       V = B^T d B of each input tile d (6x6 or 8x8), U = G g G^T of each filter g, M = sum over c of U * V at
//                each position, y tile = A^T M A (points.cuh), from the points 0, +-11/16, +-11/8 and infinity, or
//                0, +-1/2, +-1, +-2 and infinity: of all that were tried, those with the smallest error (for 6x6 a quarter
//                of the error with the usual +-1, +-2)
//   GEMM         one per position: M (K,T) = U (K,C) . V (T,C)^T: winograd_gemm.cu
//   u, v         stored as two float16 parts, high + low = value * scale: (rows/64, ceil(C/16), positions, PARTS, 8,
//                2, 8 rows, 8 channels), rows being filters or tiles; m (tiles/64, K, positions, 64)
//   scales       powers of two, one of each image and one of each filter, from their largest |x| and |weight|: no transform
//                overflows float16, and y is scaled back, so images and filters may differ by any factor. Within one the
//                parts hold a value of V to 2^-22 of itself down to 2^-13 of the largest |x| (2^-10 with tiles of 8x8),
//                a value of U down to 2^-15 of the largest |weight|; below, to 2^-35 (2^-32) and 2^-37 of the largest.
//                So an output that sees only such small values keeps fewer bits than float32 would, against the largest
//                of its image none are missing. A value that is not finite makes all y of its image or filter NaN
//   versions     one: winograd_maxima -> winograd_transform -> GEMM -> winograd_transform_y
//   grid, block  maxima: a part of an image, or a filter, a block of 256; transform: 32 tiles (or filters) x 16 channels a
//                block of 256; transform_y: 32 output tiles of a few filters a warp, 4 warps a block
//   limits       float32, 3x3 or 5x5, stride 1, dilation 1, groups 1
//   source       Lavin, Gray: arXiv:1509.09308; Barabasz et al.: Error Analysis and Improving the Accuracy of Winograd
//                Convolution, arXiv:1803.10986 (points); Markidis et al.: arXiv:1803.04014 (splitting)
#include <cuda_fp16.h>

#define HALO (TILE - OUT)
#define Y_THREADS 128

#include "points.cuh"
#include "overlap.cuh"
#include "operands.cuh"
#include "epilogue.cuh"

// A block's or a warp's run of at most 32 tiles is cut where rows of tiles end; lane i finds strip i once.
struct Strip {
    int n, p, q;       // image and first output pixel
    int first, count;  // tiles: first within the run
    float over_width;  // of a row of what it sees of x, for quotients
};
__device__ __forceinline__ Strip strip_at(int index, unsigned begin, unsigned end, int P, int Q) {
    const unsigned tiles_p = (P + OUT - 1) / OUT, tiles_q = (Q + OUT - 1) / OUT, row = begin / tiles_q + index;
    const unsigned from = max(row * tiles_q, begin);
    Strip strip;
    strip.n = row / tiles_p;
    strip.p = (row - strip.n * tiles_p) * OUT;
    strip.q = (from - row * tiles_q) * OUT;
    strip.first = from - begin;
    strip.count = (int)min((row + 1) * tiles_q, end) - (int)from;
    strip.over_width = 1.0f / (OUT * strip.count + HALO + 2);
    return strip;
}
__device__ __forceinline__ Strip strip_of_lane(const Strip& strip, int lane) {
    Strip taken;
    taken.n = __shfl_sync(0xFFFFFFFF, strip.n, lane);
    taken.p = __shfl_sync(0xFFFFFFFF, strip.p, lane);
    taken.q = __shfl_sync(0xFFFFFFFF, strip.q, lane);
    taken.first = __shfl_sync(0xFFFFFFFF, strip.first, lane);
    taken.count = __shfl_sync(0xFFFFFFFF, strip.count, lane);
    taken.over_width = __shfl_sync(0xFFFFFFFF, strip.over_width, lane);
    return taken;
}
__device__ __forceinline__ int strips_of(unsigned begin, unsigned end, int Q) {
    const unsigned tiles_q = (Q + OUT - 1) / OUT;
    return (end - 1) / tiles_q - begin / tiles_q + 1;
}
// index / width of small numbers: the half keeps rounding away from whole quotients.
__device__ __forceinline__ int quotient(int index, float over_width) { return (int)((index + 0.5f) * over_width); }

// What a strip sees of x, from an even column on: rows of so many pairs of columns.
__device__ __forceinline__ int pairs_of(int count) { return OUT / 2 * count + HALO / 2 + 1; }

__device__ __forceinline__ int pairs_before(int first, int strips) {
    return OUT / 2 * first + (HALO / 2 + 1) * strips;
}

// staged (SLICE / 2, pitch): pairs of channels, in each the strips one after the other, each (TILE, pairs of columns, 2),
// and in that the two channels. A thread loads WIDTH columns at a time.
template <int WIDTH>
__device__ __forceinline__ void stage_strips(float* staged, int pitch, const Strip& of_lane, int strips,
                                             const float* __restrict__ x, const unsigned* __restrict__ maxima,
                                             int* __restrict__ exponents, int parts, int c0, int C, int H, int W,
                                             int pad_h, int pad_w) {
    const int lane = threadIdx.x % 32, plane = H * W;
    int index = 0, line = threadIdx.x / 32;
    while (true) {
        Strip strip = strip_of_lane(of_lane, index);
        while (true) {
            const int lines = (TILE * pairs_of(strip.count) * (2 / WIDTH) + 31) / 32;
            if (line < lines) break;
            line -= lines;
            if (++index >= strips) return;
            strip = strip_of_lane(of_lane, index);
        }
        const unsigned part = lane < parts ? maxima[strip.n * parts + lane] : 0;
        const int inner = (line * 32 + lane) * WIDTH, width = 2 * pairs_of(strip.count);
        const int i = quotient(inner, strip.over_width);
        const int h = strip.p - pad_h + i, w = strip.q - pad_w - (pad_w & 1) + inner - i * width;
        const bool is_read = i < TILE && is_inside(h, H) && is_inside(w, W);
        const float* const source = x + (is_read ? ((size_t)strip.n * C + c0) * plane + h * W + w : 0);
        const int step = is_read ? plane : 0, channels = is_read ? C - c0 : 0;
        float values[SLICE][WIDTH];
#pragma unroll
        for (int c = 0; c < SLICE; ++c) {
            if constexpr (WIDTH == 2) {
                const float2 pair = c < channels ? *(const float2*)(source + c * step) : make_float2(0, 0);
                values[c][0] = pair.x;
                values[c][WIDTH - 1] = pair.y;
            } else {
                values[c][0] = c < channels ? source[c * step] : 0.0f;
            }
        }
        const unsigned largest = __reduce_max_sync(0xFFFFFFFF, part);
        if (c0 == 0 && strip.p == 0 && strip.q == 0 && line * 32 + lane == 0)
            exponents[strip.n] = kept_exponent(largest, TOP_X);
        const float scale = power_of_two(exponent_for(largest, TOP_X));
        float* const target = staged + 2 * (TILE * 2 * pairs_before(strip.first, index) + inner);
        if (i < TILE) {
#pragma unroll
            for (int c = 0; c < SLICE; c += 2) {
#pragma unroll
                for (int e = 0; e < WIDTH; ++e)
                    *(float2*)(target + c / 2 * pitch + 2 * e) = make_float2(values[c][e] * scale, values[c + 1][e] * scale);
            }
        }
        line += THREADS / 32;
    }
}

// v of the N images of a chunk, rows of it; a block: 32 tiles, 16 channels.
__device__ __forceinline__ void transform_tiles(const float* __restrict__ x, const unsigned* __restrict__ maxima,
                                                __half2* __restrict__ v, int* __restrict__ exponents, int parts,
                                                unsigned block, SHAPE) {
    extern __shared__ __align__(16) float staged[];
    const unsigned tiles = (unsigned)N * ((P + OUT - 1) / OUT) * ((Q + OUT - 1) / OUT);
    const unsigned tile_blocks = (tiles + BLOCK_TILES - 1) / BLOCK_TILES;
    const int slices = (C + SLICE - 1) / SLICE, slice = block / tile_blocks;
    const unsigned begin = block % tile_blocks * BLOCK_TILES, end = min(begin + BLOCK_TILES, tiles);
    // Pairs 2 banks apart: the 4 pairs and 4 tiles of half a warp meet in none.
    const int strips = strips_of(begin, end, Q);
    const int pitch = (4 * TILE * pairs_before(BLOCK_TILES, strips) + 31) / 32 * 32 + 2;
    const Strip of_lane = strip_at(threadIdx.x % 32, begin, end, P, Q);
    if (W % 2 == 0)
        stage_strips<2>(staged, pitch, of_lane, strips, x, maxima, exponents, parts, slice * SLICE, C, H, W, pad_h,
                        pad_w);
    else
        stage_strips<1>(staged, pitch, of_lane, strips, x, maxima, exponents, parts, slice * SLICE, C, H, W, pad_h,
                        pad_w);
    __syncthreads();
    const unsigned tiles_q = (Q + OUT - 1) / OUT;
#pragma unroll 1
    for (int item = threadIdx.x; item < BLOCK_TILES * SLICE / CHANNELS; item += THREADS) {
        const Place place = place_of(item);
        const unsigned tile = begin + place.row;
        const int index = min(tile, end - 1) / tiles_q - begin / tiles_q;
        const Strip strip = strip_of_lane(of_lane, index);
        const int width = 2 * pairs_of(strip.count);
        const int column = OUT * (min(tile, end - 1) - begin - strip.first) + (pad_w & 1);
        const float* const window = staged + place.channel / 2 * pitch + place.channel % 2 +
                                    2 * (TILE * 2 * pairs_before(strip.first, index) + column);
        float values[CHANNELS][POSITIONS];
#pragma unroll
        for (int i = 0; i < TILE; ++i) {
#pragma unroll
            for (int j = 0; j < TILE; ++j) {
                const float* const from = window + 2 * (i * width + j);
                if constexpr (CHANNELS == 2) {
                    const float2 both = *(const float2*)from;
                    values[0][TILE * i + j] = both.x;
                    values[CHANNELS - 1][TILE * i + j] = both.y;
                } else {
                    values[0][TILE * i + j] = *from;
                }
            }
        }
#pragma unroll
        for (int e = 0; e < CHANNELS; ++e) transform_tile(values[e]);
        store_split(v + pair_at(tile, slice, slices, place.channel), values, tile < end);
    }
}

// Blocks of x, then those of weight, where they are asked for.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    winograd_transform(const float* __restrict__ x, const float* __restrict__ weight,
                       const unsigned* __restrict__ maxima, const unsigned* __restrict__ filter_maxima,
                       __half2* __restrict__ u, __half2* __restrict__ v, int* __restrict__ exponents,
                       int* __restrict__ filter_exponents, int parts, SHAPE) {
    wait_for_kernel_ahead();
    const unsigned tiles = (unsigned)N * ((P + OUT - 1) / OUT) * ((Q + OUT - 1) / OUT);
    const unsigned blocks = (tiles + BLOCK_TILES - 1) / BLOCK_TILES * ((C + SLICE - 1) / SLICE);
    if (blockIdx.x < blocks)
        transform_tiles(x, maxima, v, exponents, parts, blockIdx.x, N, C, H, W, K, R, S, P, Q, stride_h, stride_w,
                        pad_h, pad_w, dilation_h, dilation_w, groups);
    else
        transform_filters<false>(weight, filter_maxima, u, filter_exponents, K, C, blockIdx.x - blocks);
}

// A warp's run of at most 32 tiles: whole rows of tiles where they fit and their outputs go through shared memory.
struct Run {
    int first, count;  // tiles
    int n, p, q;       // image and first output pixel of the lane's tile
};
__device__ __forceinline__ int tiles_of_run(int Q) {
    const int tiles_q = (Q + OUT - 1) / OUT;
    return Q % 4 == 0 || tiles_q > 32 ? 32 : 32 / tiles_q * tiles_q;
}
__device__ __forceinline__ Run run_at(int index, int tiles, int P, int Q) {
    const int tiles_p = (P + OUT - 1) / OUT, tiles_q = (Q + OUT - 1) / OUT, longest = tiles_of_run(Q);
    Run run;
    run.first = index * longest;
    run.count = min(longest, tiles - run.first);
    const int tile = run.first + min((int)threadIdx.x % 32, run.count - 1), row = tile / tiles_q;
    run.n = row / tiles_p;
    run.p = (row - run.n * tiles_p) * OUT;
    run.q = (tile - row * tiles_q) * OUT;
    return run;
}

// The outputs of whole rows of tiles lie in each image's plane without a gap: through staged, in whole lines.
__device__ __forceinline__ void store_rows(float* __restrict__ y, const Epilogue& epilogue, int k, float* staged,
                                           const float (&outputs)[OUT][OUT], const Run& run, size_t image_step, int P,
                                           int Q) {
    const int lane = threadIdx.x % 32, last = run.count - 1;
    const int n0 = __shfl_sync(0xFFFFFFFF, run.n, 0), p0 = __shfl_sync(0xFFFFFFFF, run.p, 0);
    const int n1 = __shfl_sync(0xFFFFFFFF, run.n, last), p1 = min(__shfl_sync(0xFFFFFFFF, run.p, last) + OUT, P);
    float* const own = staged + ((run.n - n0) * P + run.p - p0) * Q + run.q;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < OUT; ++i) {
#pragma unroll
        for (int j = 0; j < OUT; ++j)
            if (lane < run.count && run.p + i < P && run.q + j < Q) own[i * Q + j] = outputs[i][j];
    }
    __syncwarp();
    for (int n = n0; n <= n1; ++n) {
        const int end = (n == n1 ? p1 : P) * Q;
        const float* const from = staged + ((n - n0) * P - p0) * Q;
        float* const target = y + n * image_step;
        for (int index = (n == n0 ? p0 * Q : 0) + lane; index < end; index += 32)
            target[index] = epilogue.of(from[index], k, target + index);
    }
}

// A tile's outputs where rows of y begin at multiples of four elements, or where rows of tiles are longer than a run.
__device__ __forceinline__ void store_tile(float* target, const Epilogue& epilogue, int k, float (&outputs)[OUT][OUT],
                                           int rows, int columns, int Q) {
#pragma unroll
    for (int i = 0; i < OUT; ++i) {
        if (i >= rows) return;
        if (Q % 4 == 0) {
            epilogue.apply(outputs[i], k, target + i * Q);
            *(float4*)(target + i * Q) = make_float4(outputs[i][0], outputs[i][1], outputs[i][2], outputs[i][3]);
        } else {
#pragma unroll
            for (int j = 0; j < OUT; ++j)
                if (j < columns) target[i * Q + j] = epilogue.of(outputs[i][j], k, target + i * Q + j);
        }
    }
}

// y of the N images of a chunk from m (rows/64, K, POSITIONS, 64); a warp: a run of tiles, `filters` filters one by one.
extern "C" __global__ void __launch_bounds__(Y_THREADS, TILE == 6 ? 8 : 5)
    winograd_transform_y(const float* __restrict__ m, const int* __restrict__ exponents,
                         const int* __restrict__ filter_exponents, float* __restrict__ y EPILOGUE, int filters,
                         SHAPE) {
    wait_for_kernel_ahead();
    __shared__ __align__(16) float staged[Y_THREADS * OUT * OUT];
    const int tiles = N * ((P + OUT - 1) / OUT) * ((Q + OUT - 1) / OUT), longest = tiles_of_run(Q);
    const unsigned runs = (tiles + longest - 1) / longest, warp = blockIdx.x * (Y_THREADS / 32) + threadIdx.x / 32;
    const int first_k = warp / runs * filters;
    if (first_k >= K) return;
    const Run run = run_at(warp % runs, tiles, P, Q);
    const bool is_valid = (int)threadIdx.x % 32 < run.count, is_staged = longest < 32 || (Q % 4 != 0 && Q <= 32 * OUT);
    const int image_exponent = exponents[run.n];
    const size_t plane = (size_t)P * Q;
    const Epilogue epilogue = EPILOGUE_OF(y);
    const int tile = run.first + threadIdx.x % 32;
#pragma unroll 1
    for (int k = first_k; k < min(first_k + filters, K); ++k) {
        const float* const from =
            m + ((size_t)(tile / BLOCK_ROWS) * K + k) * (POSITIONS * BLOCK_ROWS) + tile % BLOCK_ROWS;
        float values[POSITIONS];
#pragma unroll
        for (int position = 0; position < POSITIONS; ++position)
            values[position] = is_valid ? from[position * BLOCK_ROWS] : 0.0f;
        const float2 scales = scales_back(image_exponent, filter_exponents[k]);
        float outputs[OUT][OUT];
        transform_product(outputs, values);
#pragma unroll
        for (int i = 0; i < OUT; ++i) {
#pragma unroll
            for (int j = 0; j < OUT; ++j) outputs[i][j] = outputs[i][j] * scales.x * scales.y;
        }
        if (is_staged)
            store_rows(y + k * plane, epilogue, k, staged + threadIdx.x / 32 * 32 * OUT * OUT, outputs, run, K * plane, P,
                       Q);
        else if (is_valid)
            store_tile(y + ((size_t)run.n * K + k) * plane + run.p * Q + run.q, epilogue, k, outputs, P - run.p, Q - run.q,
                       Q);
    }
}
