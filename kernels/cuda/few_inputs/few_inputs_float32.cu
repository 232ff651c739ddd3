// Implicit GEMM of few input channels, channels innermost, of float32 on tensor cores: a tile's rows of x lie in shared
// memory as they lie in the image, and a table says where each element of a window is.
//
//   tensors      x (N,H,W,C) with C of 1 to 4, weight (K,R,S,C) with K a multiple of 8, y (N,P,Q,K)
//   GEMM         gemm_k = R S C in the order in which the weight has it, in steps of 8. Rows of the products are pixels, 16
//                neighbours of a row of y; columns are filters, FILTERS of them, in the order in which a thread's sums of two
//                tiles are four neighbours of y: it stores 16 bytes, four threads the 64 bytes of 16 filters
//   versions     -DSPLIT=1: float32 in three products of tf32, whose sums begin at zero at each step and are added up in
//                registers (fragments.cuh); -DSPLIT=0: tf32, both operands rounded to nearest. The tile: MT tiles of 16 pixels
//                and NT of 8 filters of each of WARPS warps
//   weight       packed once a block as a warp's threads hold it, both parts of float32 side by side: 16 bytes a load
//   stages       rows of x, halo and padding with them, copied as they are; the next tile's while this one's sums are stored
//   grid, block  blocks stay and take tiles in turns; 32 WARPS threads, BLOCKS blocks' registers a multiprocessor; tiles are of
//                tile_p rows of tile_q pixels, chosen by plan.py
//   limits       groups 1, dilation 1; float32: what is infinite becomes NaN; the same sums in the same order every time
//   source       PTX ISA 8.0, mma; Ootomo and Yokota, arXiv:2203.03341

#include "clusters.cuh"
#include "asynchronous.cuh"
#include "epilogue.cuh"
#include "overlap.cuh"
#ifdef __CUDA_ARCH__
#include "fragments.cuh"
#endif

#define THREADS (32 * WARPS)
#define FILTERS (8 * NT)
#define STEP 8    // of gemm_k
#define VECTOR 4  // filters of a store: of two tiles
static_assert(NT % 2 == 0, "tiles of filters in pairs");

#include "float32_products.cuh"

// Which filter of the block a column of the products is.
__device__ __forceinline__ int filter_of(int column) {
    return column / 16 * 16 + column % 8 / 2 * VECTOR + column / 8 % 2 * 2 + column % 2;
}

// The block's weight as threads hold it, zeros behind gemm_k and where no filter is.
__device__ __forceinline__ void pack_weight(uint4* to, const float* __restrict__ weight, int first_filter, int K, int gemm_k,
                                            int steps) {
#pragma unroll 4
    for (int i = threadIdx.x; i < FILTERS * STEP * steps; i += THREADS) {
        const int column = i / (STEP * steps), k = i - column * (STEP * steps), filter = first_filter + filter_of(column);
        keep_weight(to, column, k, k < gemm_k && filter < K ? __ldg(weight + (size_t)filter * gemm_k + k) : 0.0f);
    }
}

// In bytes, where each element of a window lies behind its first: a thread's two of a step are neighbours.
__device__ __forceinline__ void list_offsets(int* offsets, int gemm_k, int steps, int row_elements, int pitch) {
    for (int k = threadIdx.x; k < STEP * steps; k += THREADS) {
        const int r = k < gemm_k ? k / row_elements : 0, rest = k < gemm_k ? k - r * row_elements : 0;
        offsets[k / 8 * 8 + k % 4 * 2 + k / 4 % 2] = 4 * (r * pitch + rest);
    }
}

// Rows from h0 on, from element w0 on, COUNT elements a copy; zeros beside the image.
template <int COUNT>
__device__ __forceinline__ void stage(float* staged, const float* __restrict__ image, int h0, int w0, int rows, int pitch, int H,
                                      int width) {
    const int copies = pitch / COUNT;
#pragma unroll 2
    for (int i = threadIdx.x; i < rows * copies; i += THREADS) {
        const int row = i / copies, at = (i - row * copies) * COUNT, h = h0 + row, w = w0 + at;
        const bool is_in_image = is_inside(h, H) && is_inside(w, width);
        copy_async<4 * COUNT>(staged + row * pitch + at, image + (is_in_image ? h * width + w : 0), is_in_image ? 4 * COUNT : 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    few_inputs_float32(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE, SHAPE,
                       int tile_p, int tile_q_bits, int tiles_p, int tiles_q, int tiles_f, int rows, int pitch) {
    extern __shared__ __align__(16) float memory[];
    const int gemm_k = R * S * C, steps = (gemm_k + STEP - 1) / STEP;
    uint4* const weights = (uint4*)memory;
    int* const offsets = (int*)(weights + steps * LOADS_OF_STEP * 32);
    float* const staged = (float*)(offsets + STEP * steps);
    const int first_filter = blockIdx.x % tiles_f * FILTERS, blocks = gridDim.x / tiles_f, tiles = N * tiles_p * tiles_q;
    const int tile_q = 1 << tile_q_bits, lane = threadIdx.x % 32, warp = threadIdx.x / 32, lead = -pad_w * C & 3;

    // Where the window of the lane's first pixel of each tile of the warp begins.
    const char* window[MT];
#pragma unroll
    for (int i = 0; i < MT; ++i) {
        const int pixel = (warp * MT + i) * 16 + lane / 4, p = pixel >> tile_q_bits, q = pixel & tile_q - 1;
        window[i] = (const char*)(staged + p * stride_h * pitch + q * stride_w * C + lead);
    }

    const auto stage_tile = [&](int tile) {
        const int line = tile / tiles_q, image = line / tiles_p;
        const int h = (line - image * tiles_p) * tile_p * stride_h - pad_h;
        const int w = ((tile - line * tiles_q) * tile_q * stride_w - pad_w) * C - lead;
        const float* const from = x + (size_t)image * H * W * C;
        if (W * C % 4 == 0)
            stage<4>(staged, from, h, w, rows, pitch, H, W * C);
        else
            stage<1>(staged, from, h, w, rows, pitch, H, W * C);
        commit_copies();
    };

    wait_for_kernel_ahead();
    int tile = blockIdx.x / tiles_f;
    if (tile < tiles) stage_tile(tile);
    pack_weight(weights, weight, first_filter, K, gemm_k, steps);
    list_offsets(offsets, gemm_k, steps, S * C, pitch);
    for (; tile < tiles; tile += blocks) {
        wait_for_all_copies_but<0>();
        __syncthreads();
        float sum[MT][NT][4] = {};
        multiply_window(sum, window, 32 * stride_w * C, weights, offsets, steps);
        __syncthreads();
        if (tile + blocks < tiles) stage_tile(tile + blocks);

        const Epilogue epilogue = EPILOGUE_OF(y);
        const int line = tile / tiles_q, image = line / tiles_p;
        const int p0 = (line - image * tiles_p) * tile_p, q0 = (tile - line * tiles_q) * tile_q;
#pragma unroll
        for (int i = 0; i < MT; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int pixel = (warp * MT + i) * 16 + half * 8 + lane / 4, row = pixel >> tile_q_bits;
                const int p = p0 + row, q = q0 + (pixel & tile_q - 1);
                if (p >= P || q >= Q) continue;
                Storage* const outputs = y + ((size_t)(image * P + p) * Q + q) * K;
#pragma unroll
                for (int j = 0; j < NT; j += 2) {
                    const int filter = first_filter + j * 8 + lane % 4 * VECTOR;
                    if (filter >= K) continue;
                    __align__(16) float values[VECTOR];
#pragma unroll
                    for (int e = 0; e < VECTOR; ++e) values[e] = sum[i][j + e / 2][half * 2 + e % 2];
                    epilogue.apply<true>(values, filter, outputs + filter);
                    *(float4*)(outputs + filter) = *(const float4*)values;
                }
            }
        }
    }
}
