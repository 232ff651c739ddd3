// Direct convolution: the four kernels of the post "Convolutions in CUDA", over N, C and K.
//
//   tensors      x (N,C,H,W), weight (K,C/groups,R,S), y (N,K,P,Q), all nchw
//   work         a thread computes one output pixel (n,p,q) of FILTERS filters, so that an input element it reads
//                serves FILTERS products; the sums stay in registers
//   versions     direct_naive         filter and input from global memory
//                direct_constant      filter in constant memory: one launch a chunk of filters that fits 64 KB
//                direct_tiled_halo    input tile and its halo staged in shared memory
//                direct_tiled_cached  input tile alone in shared memory, the halo left to the L1 and L2 caches
//                The tiled ones stage the filters in shared memory too: K filters of C planes outgrow 64 KB.
//   grid, block  naive, constant: blocks of 64 to 256 consecutive pixels; filter blocks vary fastest, so that the
//                blocks that read the same pixels run together
//                tiled: a block is a tile of blockDim.y x blockDim.x pixels of one image
//   filter size  a launch constant; with -DFILTER_SIZE=<R and S> a compile-time one, whose rows are unrolled
//   limits       naive: stride, dilation and groups; constant: too, with FILTERS = 1 where groups > 1
//                tiled: stride 1, dilation 1, groups 1; tile and filters of one channel within 48 KB
//   source       "Convolutions in CUDA" (post): naive, constant filter, tiled with full halo, tiled cached

#include "epilogue.cuh"

#ifndef FILTERS
#error "define FILTERS, the filters a thread computes"
#endif

#ifdef FILTER_SIZE
#define TAPS_R FILTER_SIZE
#define TAPS_S FILTER_SIZE
#define UNROLL_TAPS _Pragma("unroll")
#define UNROLL_ROWS _Pragma("unroll 1")  // whole windows unrolled spill on Blackwell
#else
#define TAPS_R R
#define TAPS_S S
#define UNROLL_TAPS
#define UNROLL_ROWS
#endif

#define CONSTANT_BYTES 65536

__constant__ Storage constant_weight[CONSTANT_BYTES / sizeof(Storage)];

struct Pixel {
    int n, p, q;
};

__device__ __forceinline__ Pixel pixel_at(unsigned index, int P, int Q) {
    Pixel pixel;
    pixel.q = index % Q;
    index /= Q;
    pixel.p = index % P;
    pixel.n = index / P;
    return pixel;
}

// Padding is multiplied too: zero times an infinite weight is NaN.
// sum[j] += x[n, channel 0 .. channels - 1, window of (p,q)] . filter j; weight_at(j, i) is element i of filter j.
template <class WeightAt>
__device__ __forceinline__ void accumulate_window(float (&sum)[FILTERS], const Storage* __restrict__ planes,
                                                         Pixel pixel, int channels, int H, int W, int R, int S,
                                                         int stride_h, int stride_w, int pad_h, int pad_w,
                                                         int dilation_h, int dilation_w, WeightAt weight_at) {
    const int h0 = pixel.p * stride_h - pad_h;
    const int w0 = pixel.q * stride_w - pad_w;
    for (int c = 0; c < channels; ++c) {
        const Storage* const plane = planes + (size_t)c * H * W;
        UNROLL_ROWS for (int r = 0; r < R; ++r) {
            const int h = h0 + r * dilation_h;
            UNROLL_TAPS for (int s = 0; s < S; ++s) {
                const int w = w0 + s * dilation_w;
                const float value = is_inside(h, H) && is_inside(w, W) ? widen(plane[h * W + w]) : 0.0f;
#pragma unroll
                for (int j = 0; j < FILTERS; ++j) sum[j] += value * weight_at(j, (c * R + r) * S + s);
            }
        }
    }
}

__device__ __forceinline__ void store_sums(const float (&sum)[FILTERS], Storage* __restrict__ y, const Epilogue& epilogue,
                                                  Pixel pixel, int k0, int filters, int K, int P, int Q) {
    Storage* const target = y + ((size_t)pixel.n * K + k0) * P * Q + pixel.p * Q + pixel.q;
#pragma unroll
    for (int j = 0; j < FILTERS; ++j)
        if (j < filters) target[(size_t)j * P * Q] = narrow(epilogue.of(sum[j], k0 + j, target + (size_t)j * P * Q));
}

extern "C" __global__ void __launch_bounds__(256, 3)
    direct_naive(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE, SHAPE) {
    const int channels = C / groups, filters = K / groups;
    const unsigned filter_blocks = (filters + FILTERS - 1) / FILTERS;
    const unsigned columns = groups * filter_blocks;
    const unsigned index = blockIdx.x / columns * blockDim.x + threadIdx.x;
    if (index >= (unsigned)(N * P * Q)) return;
    const int group = blockIdx.x % columns / filter_blocks;
    const int first = blockIdx.x % columns % filter_blocks * FILTERS;
    const int left = min(FILTERS, filters - first);
    const int length = channels * TAPS_R * TAPS_S;
    const Storage* const rows = weight + (size_t)(group * filters + first) * length;
    // Filters beyond the last read the last one again: their sums are never stored.
    int offset[FILTERS];
#pragma unroll
    for (int j = 0; j < FILTERS; ++j) offset[j] = min(j, left - 1) * length;

    const Pixel pixel = pixel_at(index, P, Q);
    const Storage* const planes = x + ((size_t)pixel.n * C + group * channels) * H * W;
    float sum[FILTERS] = {};
    accumulate_window(sum, planes, pixel, channels, H, W, TAPS_R, TAPS_S, stride_h, stride_w, pad_h, pad_w, dilation_h,
                      dilation_w, [&](int j, int i) { return widen(rows[offset[j] + i]); });
    store_sums(sum, y, EPILOGUE_OF(y), pixel, group * filters + first, left, K, P, Q);
}

// Filters k_begin .. k_begin + k_count - 1, which lie at the start of constant_weight. FILTERS is 1 where groups > 1:
// a block's filters then share no input.
extern "C" __global__ void __launch_bounds__(256, 3)
    direct_constant(const Storage* __restrict__ x, Storage* __restrict__ y EPILOGUE, SHAPE, int k_begin, int k_count) {
    const int channels = C / groups;
    const unsigned filter_blocks = (k_count + FILTERS - 1) / FILTERS;
    const unsigned index = blockIdx.x / filter_blocks * blockDim.x + threadIdx.x;
    if (index >= (unsigned)(N * P * Q)) return;
    const int first = blockIdx.x % filter_blocks * FILTERS;
    const int left = min(FILTERS, k_count - first);
    const int group = (k_begin + first) / (K / groups);
    const int length = channels * TAPS_R * TAPS_S;
    int offset[FILTERS];
#pragma unroll
    for (int j = 0; j < FILTERS; ++j) offset[j] = (first + min(j, left - 1)) * length;

    const Pixel pixel = pixel_at(index, P, Q);
    const Storage* const planes = x + ((size_t)pixel.n * C + group * channels) * H * W;
    float sum[FILTERS] = {};
    accumulate_window(sum, planes, pixel, channels, H, W, TAPS_R, TAPS_S, stride_h, stride_w, pad_h, pad_w, dilation_h,
                      dilation_w, [&](int j, int i) { return widen(constant_weight[offset[j] + i]); });
    store_sums(sum, y, EPILOGUE_OF(y), pixel, k_begin + first, left, K, P, Q);
}

// The tile of a block: its first filter, image and first output pixel.
struct Tile {
    int k0, n, p0, q0;
};

__device__ __forceinline__ Tile tile_of_block(int K, int P, int Q) {
    unsigned block = blockIdx.x;
    const unsigned filter_blocks = (K + FILTERS - 1) / FILTERS;
    const unsigned tiles_q = (Q + blockDim.x - 1) / blockDim.x, tiles_p = (P + blockDim.y - 1) / blockDim.y;
    Tile tile;
    tile.k0 = block % filter_blocks * FILTERS;
    block /= filter_blocks;
    tile.q0 = block % tiles_q * blockDim.x;
    block /= tiles_q;
    tile.p0 = block % tiles_p * blockDim.y;
    tile.n = block / tiles_p;
    return tile;
}

// staged[(c * taps + tap) * FILTERS + j] = weight[k0 + j, c0 + c, tap]; zero beyond the last filter.
__device__ __forceinline__ void stage_weight(float* staged, const Storage* __restrict__ weight, int k0, int c0,
                                                    int channels, int K, int C, int taps) {
    const int run = channels * taps;
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < run * FILTERS; i += blockDim.x * blockDim.y) {
        const int j = i / run, element = i % run;
        staged[element * FILTERS + j] =
            k0 + j < K ? widen(weight[((size_t)(k0 + j) * C + c0) * taps + element]) : 0.0f;
    }
}

// staged[c, row, column] = x[plane c, h0 + row, w0 + column], zero outside the input.
__device__ __forceinline__ void stage_input(float* staged, const Storage* __restrict__ planes, int channels,
                                                   int h0, int w0, int rows, int columns, int H, int W) {
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < channels * rows * columns;
         i += blockDim.x * blockDim.y) {
        const int column = i % columns, row = i / columns % rows, c = i / (columns * rows);
        const int h = h0 + row, w = w0 + column;
        staged[i] = is_inside(h, H) && is_inside(w, W) ? widen(planes[(size_t)c * H * W + h * W + w]) : 0.0f;
    }
}

__device__ __forceinline__ void store_tile(const float (&sum)[FILTERS], Storage* __restrict__ y, const Epilogue& epilogue,
                                                  Tile tile, int K, int P, int Q) {
    const Pixel pixel = {tile.n, tile.p0 + (int)threadIdx.y, tile.q0 + (int)threadIdx.x};
    if (pixel.p < P && pixel.q < Q)
        store_sums(sum, y, epilogue, pixel, tile.k0, min(FILTERS, K - tile.k0), K, P, Q);
}

extern "C" __global__ void __launch_bounds__(256, 3)
    direct_tiled_halo(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE,
                      SHAPE, int stage_channels) {
    extern __shared__ __align__(16) float shared[];
    const Tile tile = tile_of_block(K, P, Q);
    const int taps = TAPS_R * TAPS_S, rows = blockDim.y + TAPS_R - 1, columns = blockDim.x + TAPS_S - 1;
    float* const staged_weight = shared;
    float* const staged_input = shared + stage_channels * taps * FILTERS;
    float sum[FILTERS] = {};
    for (int c0 = 0; c0 < C; c0 += stage_channels) {
        const int channels = min(stage_channels, C - c0);
        __syncthreads();
        stage_weight(staged_weight, weight, tile.k0, c0, channels, K, C, taps);
        stage_input(staged_input, x + ((size_t)tile.n * C + c0) * H * W, channels, tile.p0 - pad_h, tile.q0 - pad_w,
                    rows, columns, H, W);
        __syncthreads();
        const float* filters = staged_weight;
        for (int c = 0; c < channels; ++c) {
            UNROLL_ROWS for (int r = 0; r < TAPS_R; ++r) {
                const float* const row = staged_input + (c * rows + threadIdx.y + r) * columns + threadIdx.x;
                UNROLL_TAPS for (int s = 0; s < TAPS_S; ++s, filters += FILTERS) add_products(sum, row[s], filters);
            }
        }
    }
    store_tile(sum, y, EPILOGUE_OF(y), tile, K, P, Q);
}

extern "C" __global__ void __launch_bounds__(256, 3)
    direct_tiled_cached(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE,
                        SHAPE, int stage_channels) {
    extern __shared__ __align__(16) float shared[];
    const Tile tile = tile_of_block(K, P, Q);
    const int taps = TAPS_R * TAPS_S, rows = blockDim.y, columns = blockDim.x;
    float* const staged_weight = shared;
    float* const staged_input = shared + stage_channels * taps * FILTERS;
    float sum[FILTERS] = {};
    for (int c0 = 0; c0 < C; c0 += stage_channels) {
        const int channels = min(stage_channels, C - c0);
        const Storage* const planes = x + ((size_t)tile.n * C + c0) * H * W;
        __syncthreads();
        stage_weight(staged_weight, weight, tile.k0, c0, channels, K, C, taps);
        stage_input(staged_input, planes, channels, tile.p0, tile.q0, rows, columns, H, W);
        __syncthreads();
        const float* filters = staged_weight;
        for (int c = 0; c < channels; ++c) {
            UNROLL_ROWS for (int r = 0; r < TAPS_R; ++r) {
                const int row = (int)threadIdx.y + r - pad_h;
                UNROLL_TAPS for (int s = 0; s < TAPS_S; ++s, filters += FILTERS) {
                    const int column = (int)threadIdx.x + s - pad_w;
                    const int h = tile.p0 + row, w = tile.q0 + column;
                    float value = 0.0f;
                    if (is_inside(row, rows) && is_inside(column, columns))
                        value = staged_input[(c * rows + row) * columns + column];
                    else if (is_inside(h, H) && is_inside(w, W))
                        value = widen(planes[(size_t)c * H * W + h * W + w]);
                    add_products(sum, value, filters);
                }
            }
        }
    }
    store_tile(sum, y, EPILOGUE_OF(y), tile, K, P, Q);
}
