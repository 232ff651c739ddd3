// GEMM for few filters, channels innermost, on tensor cores: each pixel of x is multiplied once, by every tap of every
// filter, and each output then sums the products of its window (kn2row).
//
//   tensors      x (N,H,W,C), weight (K,R,S,C) with K of 1 to 8, y (N,P,Q,K)
//   GEMM         rows are pixels of x, gemm_k is C, columns are taps and filters, (r S + s) K + k: 27 of them for 3x3 and three
//                filters, where an implicit GEMM of y would fill three of the eight columns of a product
//   operands     are loaded straight into fragments: a thread has 16 of every 64 bytes of a pixel's channels, and of a tap's.
//                The order of channels is free, because both operands use the same
//   windows      products are stored in shared memory, a plane of the tile's pixels per column; a thread sums R S of them.
//                Filters with many columns take several passes of rows_at_once rows, accumulated
//   versions     -DNT: number of 8-column groups; -DWARPS; -DALIGN: bytes of a load, as C allows; -DSPLIT=1: 3xTF32,
//                -DSPLIT=0: tf32 rounded to nearest (fragments.cuh)
//   grid, block  a block per tile of tile_p x tile_q pixels of y, powers of two, chosen by plan.py; 32 WARPS threads; warps
//                are divided over `splits` parts of the channels, and within a part over the pixels
//   limits       groups 1, stride 1, dilation 1; float32: infinities become NaN; deterministic
//   source       PTX ISA 8.0, mma; Vasudevan, Anderson, Gregg: Parallel Multi Channel Convolution using General Matrix
//                Multiplication, arXiv:1704.04428 (kn2row)

#include "clusters.cuh"
#include "epilogue.cuh"
#include "overlap.cuh"
#include "tf32.cuh"
#ifdef __CUDA_ARCH__
#include "fragments.cuh"
#endif

#define THREADS (32 * WARPS)
#define MT (NT > (SPLIT ? 2 : 5) ? 1 : 2)  // tiles of 16 pixels that a warp multiplies at a time, as registers allow
#define STEPS_AT_A_TIME (ALIGN == 16 && !SPLIT && NT < 6 ? 2 : 1)
#define RUN (16 / (int)sizeof(Storage))  // channels that a thread has of a step
#define STEP (4 * RUN)                   // channels of a step, four threads to a pixel or a column

#include "products.cuh"

// RUN channels from `from` on, of which there are `left`; zeros behind them.
template <bool IS_STREAMED>
__device__ __forceinline__ void read_run(unsigned (&words)[4], const Storage* from, int left) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = 0;
#if ALIGN == 16
    if (left > 0) {
        const uint4 all = IS_STREAMED ? read_once((const uint4*)from) : __ldg((const uint4*)from);
        words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
    }
#elif ALIGN == 8
#pragma unroll
    for (int i = 0; i < 2; ++i)
        if (left > i * (RUN / 2)) {
            const uint2 pair = __ldg((const uint2*)from + i);
            words[2 * i] = pair.x, words[2 * i + 1] = pair.y;
        }
#elif ALIGN == 4
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (left > i * (RUN / 4)) words[i] = __ldg((const unsigned*)from + i);
#else
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (left > i) words[i / 2] |= (unsigned)__ldg((const unsigned short*)from + i) << 16 * (i % 2);
#endif
}

// The tile's pixels of x from h0, w0 on, `width` in a row, times `columns` columns of the weight: those of a warp's part.
__device__ __forceinline__ void multiply_pixels(float* products, const Storage* image, const Storage* weight,
                                                const int (&column_at)[NT], int pixels, int columns, int h0, int w0, int width,
                                                unsigned width_magic, int H, int W, int C, int splits, int pitch) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % splits, run = lane % 4 * RUN;
    for (int first = warp / splits * (16 * MT); first < pixels; first += WARPS / splits * (16 * MT)) {
        int pixel_at[MT][2];
#pragma unroll
        for (int i = 0; i < MT; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const unsigned pixel = first + i * 16 + half * 8 + lane / 4;
                const int row = (unsigned)((unsigned long long)pixel * width_magic >> 32), column = pixel - row * width;
                const bool is_there = pixel < pixels && is_inside(h0 + row, H) && is_inside(w0 + column, W);
                pixel_at[i][half] = is_there ? ((h0 + row) * W + w0 + column) * C : -1;
            }
        }
        float sum[MT][NT][4] = {};
#pragma unroll STEPS_AT_A_TIME
        for (int step = part * STEP; step < C; step += STEP * splits) {
            const int left = C - step - run;
            unsigned a[MT][2][4], b[NT][4];
#pragma unroll
            for (int i = 0; i < MT; ++i) {
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    read_run<true>(a[i][half], image + pixel_at[i][half] + step + run, pixel_at[i][half] < 0 ? 0 : left);
            }
#pragma unroll
            for (int j = 0; j < NT; ++j) read_run<false>(b[j], weight + column_at[j] + step + run, column_at[j] < 0 ? 0 : left);
#pragma unroll
            for (int k = 0; k < 4; k += 2) {
                unsigned of_pixels[MT][4], of_columns[NT][2];
#pragma unroll
                for (int i = 0; i < MT; ++i) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) of_pixels[i][e] = a[i][e % 2][k + e / 2];
                }
#pragma unroll
                for (int j = 0; j < NT; ++j) of_columns[j][0] = b[j][k], of_columns[j][1] = b[j][k + 1];
                add_product(sum, of_pixels, of_columns);
            }
        }
#if SPLIT
        restore_cut(sum, raised_by(1));
#endif
#pragma unroll
        for (int j = 0; j < NT; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int column = j * 8 + lane % 4 * 2 + e % 2;
                float* const plane = products + (part * columns + column) * pitch + first + e / 2 * 8 + lane / 4;
#pragma unroll
                for (int i = 0; i < MT; ++i)
                    if (column < columns) plane[i * 16] = sum[i][j][e];
            }
        }
    }
}

// Of one output and filter: what its window meets of `rows` rows of COLUMNS taps, planes of products `step` apart. Rows are
// AT_A_TIME a turn, a power of two where their number is not known: of a loop within another, NVRTC 13.0 makes turns of three
// with none for what is left.
template <int COLUMNS, int AT_A_TIME>
__device__ __forceinline__ float add_rows(float sum, const float* tap, int rows, int step, int width) {
#pragma unroll AT_A_TIME
    for (int r = 0; r < rows; ++r, tap += COLUMNS * step + width) {
#pragma unroll
        for (int s = 0; s < COLUMNS; ++s) sum += tap[s * (step + 1)];
    }
    return sum;
}
__device__ __forceinline__ float add_window(float sum, const float* tap, int rows, int S, int step, int width) {
    if (S == 1) return add_rows<1, 4>(sum, tap, rows, step, width);
    if (sizeof(Storage) == 2 && S == 3 && rows == 3) return add_rows<3, 3>(sum, tap, 3, step, width);  // else it would spill
    if (S == 3) return add_rows<3, 2>(sum, tap, rows, step, width);
    if (S == 5) return add_rows<5, 2>(sum, tap, rows, step, width);
    for (int r = 0; r < rows; ++r, tap += S * step + width) {
#pragma unroll 4
        for (int s = 0; s < S; ++s) sum += tap[s * (step + 1)];
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    few_outputs(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE, SHAPE,
                int tile_p_bits, int tile_q_bits, int tiles_p, int tiles_q, int splits, int rows_at_once, unsigned width_magic,
                int pitch) {
    extern __shared__ __align__(16) float memory[];
    const int line = blockIdx.x / tiles_q, image = line / tiles_p, lane = threadIdx.x % 32;
    const int p0 = line - image * tiles_p << tile_p_bits, q0 = blockIdx.x - line * tiles_q << tile_q_bits;
    const int tile_p = 1 << tile_p_bits, tile_q = 1 << tile_q_bits, width = tile_q + S - 1, tile_bits = tile_p_bits + tile_q_bits;
    float *const products = memory, *const kept = memory + splits * rows_at_once * S * K * pitch;
    const Epilogue epilogue = EPILOGUE_OF(y);

    wait_for_kernel_ahead();
    for (int r0 = 0; r0 < R; r0 += rows_at_once) {
        const int rows = R - r0 < rows_at_once ? R - r0 : rows_at_once, columns = rows * S * K;
        int column_at[NT];
#pragma unroll
        for (int j = 0; j < NT; ++j) {
            const int column = j * 8 + lane / 4, tap = column / K, k = column - tap * K;
            column_at[j] = column < columns ? ((k * R + r0) * S + tap) * C : -1;
        }
        if (r0) __syncthreads();
        multiply_pixels(products, x + (size_t)image * H * W * C, weight, column_at, (tile_p + rows - 1) * width, columns,
                        p0 - pad_h + r0, q0 - pad_w, width, width_magic, H, W, C, splits, pitch);
        __syncthreads();
        for (int i = threadIdx.x; i < K << tile_bits; i += THREADS) {
            const int k = i >> tile_bits, row = i >> tile_q_bits & tile_p - 1, column = i & tile_q - 1;
            const int p = p0 + row, q = q0 + column;
            if (p >= P || q >= Q) continue;
            float sum = r0 ? kept[i] : 0.0f;
            const float* first = products + k * pitch + row * width + column;
            for (int part = 0; part < splits; ++part, first += columns * pitch)
                sum = add_window(sum, first, rows, S, K * pitch, width);
            if (r0 + rows < R) {
                kept[i] = sum;
            } else {
                Storage* const output = y + ((size_t)(image * P + p) * Q + q) * K + k;
                *output = narrow(epilogue.of(sum, k, output));
            }
        }
    }
}
