// Winograd with tiles of 4x4 outputs in channels last: like winograd_large.cu, which describes method, scales and limits.
//
//   tensors      x (N,H,W,C), weight (K,R,R,C), y (N,P,Q,K), all nhwc; tiles T = N * ceil(P/4) * ceil(Q/4)
//   GEMM         one per position: M (T,K) = V (T,C) . U (K,C)^T: winograd_gemm.cu, tiles as its left operand
//   u, v         operands.cuh; m (K/64, T, positions, 64), filters padded to whole blocks: neighbours in y are neighbours in m
//   versions     one: winograd_maxima -> winograd_transform -> GEMM -> winograd_transform_y
//   method       Neighbouring threads have neighbouring channels, so windows are read from x and outputs written to y
//                directly, without shared memory; overlapping tiles hit the L1 cache
//   grid, block  maxima: a part of an image, or a filter, a block of 256; transform: 16 channels of 32 tiles (or filters) a
//                block of 256, channels fastest; transform_y: 32 filters of a tile a warp, 4 warps a block, filters fastest
#include <cuda_fp16.h>

#define Y_THREADS 128

#include "points.cuh"
#include "overlap.cuh"
#include "operands.cuh"
#include "epilogue.cuh"

struct Tile {
    int n, p, q;  // image and first output pixel
};
__device__ __forceinline__ Tile tile_at(unsigned index, int P, int Q) {
    const unsigned tiles_p = (P + OUT - 1) / OUT, tiles_q = (Q + OUT - 1) / OUT, row = index / tiles_q;
    const unsigned n = row / tiles_p;
    return {(int)n, (int)(row - n * tiles_p) * OUT, (int)(index - row * tiles_q) * OUT};
}

// The largest magnitude of an image, by the neighbouring lanes that have channels of one tile.
__device__ __forceinline__ unsigned largest_of_image(const unsigned* __restrict__ maxima, int parts) {
    constexpr int lanes = 8 / CHANNELS;
    unsigned largest = 0;
    for (int part = threadIdx.x % lanes; part < parts; part += lanes) largest = max(largest, maxima[part]);
#pragma unroll
    for (int step = 1; step < lanes; step *= 2) largest = max(largest, __shfl_xor_sync(0xFFFFFFFF, largest, step));
    return largest;
}

// The window of a tile whose first element is at (h, w), from x at the first of so many channels that are there.
template <bool IS_PAIRED>
__device__ __forceinline__ void read_window(float (&values)[CHANNELS][POSITIONS], const float* __restrict__ x, int h,
                                            int w, int channels, int C, int H, int W) {
#pragma unroll
    for (int i = 0; i < TILE; ++i) {
        const bool is_row = channels > 0 && is_inside(h + i, H);
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            const bool is_read = is_row && is_inside(w + j, W);
            const float* const from = x + (is_read ? ((h + i) * W + w + j) * C : 0);
            if constexpr (IS_PAIRED) {
                const float2 both = is_read ? *(const float2*)from : make_float2(0, 0);
                values[0][TILE * i + j] = both.x;
                values[CHANNELS - 1][TILE * i + j] = both.y;
            } else {
#pragma unroll
                for (int e = 0; e < CHANNELS; ++e) values[e][TILE * i + j] = is_read && e < channels ? from[e] : 0.0f;
            }
        }
    }
}

// v of the N images of a chunk, rows of it; a block: 32 tiles, 16 channels.
template <bool IS_PAIRED>
__device__ __forceinline__ void transform_tiles(const float* __restrict__ x, const unsigned* __restrict__ maxima,
                                                __half2* __restrict__ v, int* __restrict__ exponents, int parts,
                                                unsigned block, unsigned tiles, SHAPE) {
    const int slices = (C + SLICE - 1) / SLICE, slice = block % slices;
#pragma unroll 1
    for (int item = threadIdx.x; item < BLOCK_TILES * SLICE / CHANNELS; item += THREADS) {
        const Place place = place_of(item);
        const unsigned row = block / slices * BLOCK_TILES + place.row;
        const bool is_valid = row < tiles;
        const Tile tile = tile_at(is_valid ? row : tiles - 1, P, Q);
        const int c = slice * SLICE + place.channel;
        float values[CHANNELS][POSITIONS];
        read_window<IS_PAIRED>(values, x + (size_t)tile.n * H * W * C + (c < C ? c : 0), tile.p - pad_h, tile.q - pad_w,
                               C - c, C, H, W);
        const unsigned largest = largest_of_image(maxima + tile.n * parts, parts);
        if (is_valid && c == 0 && tile.p == 0 && tile.q == 0) exponents[tile.n] = kept_exponent(largest, TOP_X);
        const float scale = power_of_two(exponent_for(largest, TOP_X));
#pragma unroll
        for (int e = 0; e < CHANNELS; ++e) {
#pragma unroll
            for (int i = 0; i < POSITIONS; ++i) values[e][i] *= scale;
            transform_tile(values[e]);
        }
        store_split(v + pair_at(row, slice, slices, place.channel), values, is_valid);
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
    if (blockIdx.x >= blocks)
        transform_filters<true>(weight, filter_maxima, u, filter_exponents, K, C, blockIdx.x - blocks);
    else if (CHANNELS == 2 && C % 2 == 0)
        transform_tiles<CHANNELS == 2>(x, maxima, v, exponents, parts, blockIdx.x, tiles, N, C, H, W, K, R, S, P, Q,
                                       stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups);
    else
        transform_tiles<false>(x, maxima, v, exponents, parts, blockIdx.x, tiles, N, C, H, W, K, R, S, P, Q, stride_h,
                               stride_w, pad_h, pad_w, dilation_h, dilation_w, groups);
}

// y of the N images of a chunk from m (K/64, T, POSITIONS, 64); a thread: a filter of a tile. The next pixel of y lies y_pitch
// elements on, K or more.
extern "C" __global__ void __launch_bounds__(Y_THREADS, TILE == 6 ? 8 : 5)
    winograd_transform_y(const float* __restrict__ m, const int* __restrict__ exponents,
                         const int* __restrict__ filter_exponents, float* __restrict__ y EPILOGUE, int y_pitch, SHAPE) {
    wait_for_kernel_ahead();
    const unsigned tiles = (unsigned)N * ((P + OUT - 1) / OUT) * ((Q + OUT - 1) / OUT), groups_k = (K + 31) / 32;
    const unsigned warp = blockIdx.x * (Y_THREADS / 32) + threadIdx.x / 32, row = warp / groups_k;
    const int k = (warp - row * groups_k) * 32 + threadIdx.x % 32;
    if (row >= tiles || k >= K) return;
    const float* const from = m + ((size_t)(k / BLOCK_ROWS) * tiles + row) * (POSITIONS * BLOCK_ROWS) + k % BLOCK_ROWS;
    float values[POSITIONS];
#pragma unroll
    for (int position = 0; position < POSITIONS; ++position) values[position] = from[position * BLOCK_ROWS];
    const Tile tile = tile_at(row, P, Q);
    const float2 scales = scales_back(exponents[tile.n], filter_exponents[k]);
    float outputs[OUT][OUT];
    transform_product(outputs, values);
    const Epilogue epilogue = EPILOGUE_OF(y);
    float* line = y + (((size_t)tile.n * P + tile.p) * Q + tile.q) * y_pitch + k;
#pragma unroll
    for (int i = 0; i < OUT; ++i, line += Q * y_pitch) {
        if (tile.p + i >= P) return;
#pragma unroll
        for (int j = 0; j < OUT; ++j) {
            float* const target = line + j * y_pitch;
            if (tile.q + j < Q) *target = epilogue.of(outputs[i][j] * scales.x * scales.y, k, target);
        }
    }
}
