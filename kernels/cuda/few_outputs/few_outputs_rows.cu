// GEMM for few filters, channels innermost, on tensor cores: the columns are the taps of one row of every filter, and gemm_k is
// a column of the window; each output then sums the products of S neighbouring pixels.
//
//   tensors      x (N,H,W,C), weight (K,R,S,C) with K of 1 to 8, y (N,P,Q,K)
//   GEMM         rows are the pixels of x in a tile's rows of y; gemm_k is R C, and so accumulates in registers what
//                few_outputs.cu adds up from shared memory; columns are s K + k
//   stages       a tile's rows of x with halo and padding, a piece of CHUNKS times eight channels at a time, zero-padded: 16-byte
//                chunks, swizzled by column so that ldmatrix reads eight neighbours without bank conflicts. With two buffers the
//                next piece is loaded while this one is multiplied
//   sums         of a tile are stored where its last piece was staged: a plane of pixels per column; y by pairs of filters if K is even
//   versions     -DNT: number of 8-column groups; -DWARPS, -DMT: a warp has MT tiles of 16 pixels; -DCHUNKS: 1 (rows of the filter
//                are then multiplied in pairs), 2, 4 or 8; -DALIGN: bytes of a copy, as C allows; 2: element by element
//   grid, block  persistent blocks keep the weight in shared memory and take tiles in turn: tile_p rows of `width` pixels of x,
//                16 WARPS MT in all, chosen by rows.py; 32 WARPS threads
//   limits       groups 1, stride 1, dilation 1, float16 and bfloat16; deterministic
//   source       PTX ISA 8.0, cp.async, ldmatrix and mma; Vasudevan, Anderson, Gregg: Parallel Multi Channel Convolution using
//                General Matrix Multiplication, arXiv:1704.04428 (kn2row)

#include "clusters.cuh"
#include "asynchronous.cuh"
#include "epilogue.cuh"
#include "overlap.cuh"
#include "pairs.cuh"

#define THREADS (32 * WARPS)
#define PAIR (CHUNKS == 1)   // of rows of the filter
#define SUMS (4 * MT * NT)   // of a thread, which decide how many threads registers have room for
#define ROOM (SUMS <= 16 ? 1024 : SUMS <= 64 ? 512 : 256)
#define BLOCKS (ROOM / THREADS ? ROOM / THREADS : 1)

#include "half_fragments.cuh"
#include "narrow_layers.cuh"

// The weight: a row a column of the products, its chunks in the order in which pieces are multiplied; zeros where nothing is.
__device__ __forceinline__ void pack_weight(unsigned char* to, const Storage* __restrict__ weight, int pieces, int of_piece, int pitch,
                                            int C, int K, int R, int S) {
    const int chunks = pieces * of_piece;
#pragma unroll 1
    for (int i = threadIdx.x; i < NT * 8 * chunks; i += THREADS) {
        const int column = i / chunks, chunk = i - column * chunks, piece = chunk / of_piece, rest = chunk - piece * of_piece;
        const int s = column / K, k = column - s * K, r = rest / CHUNKS, c = (piece * CHUNKS + rest % CHUNKS) * CHUNK;
        const bool is_there = s < S && r < R;
        copy_chunk(to + column * pitch + chunk * 16, weight + ((size_t)(is_there ? k * R + r : 0) * S + (is_there ? s : 0)) * C + c,
                   weight, is_there ? C - c : 0);
    }
}

// By how much columns are swizzled: neighbours whose chunks would share banks differ.
__device__ __forceinline__ int swizzle_of(int column) { return column * CHUNKS / 8 & CHUNKS - 1; }

// A piece of an image's rows from h0 on, pixels from w0 on, channels from c0 on: zeros beside it.
__device__ __forceinline__ void stage(unsigned char* to, const Storage* __restrict__ image, int h0, int w0, int c0, int rows,
                                      int width, int H, int W, int C) {
    constexpr int at_a_time = THREADS / CHUNKS;
    const int run = threadIdx.x % CHUNKS, c = c0 + run * CHUNK, by_rows = at_a_time / width, by_columns = at_a_time % width;
    int row = threadIdx.x / CHUNKS / width, column = threadIdx.x / CHUNKS % width;
#pragma unroll 4
    while (row < rows) {
        const int h = h0 + row, w = w0 + column;
        const bool is_there = is_inside(h, H) && is_inside(w, W);
        copy_chunk(to + ((row * width + column) * CHUNKS + (run ^ swizzle_of(column))) * 16,
                   image + (is_there ? (h * W + w) * C + c : 0), image, is_there ? C - c : 0);
        row += by_rows, column += by_columns;
        if (column >= width) column -= width, ++row;
    }
}

// A step of two chunks: `at` is where the lane finds its chunk behind the first of a window.
__device__ __forceinline__ void multiply_step(float (&sum)[MT][NT][4], const Address (&window)[MT], int at, Address weight, int pitch,
                                              bool is_half) {
    unsigned a[MT][4];
#pragma unroll
    for (int i = 0; i < MT; ++i) {
        load_matrices(a[i], window[i] + at);
        if (PAIR && is_half) a[i][2] = a[i][3] = 0;  // there is no second row, and 0 times what is read need not be 0
    }
    multiply_by_weight(sum, a, weight, pitch);
}

// A piece's products; `weight` is where the piece begins in the first column.
__device__ __forceinline__ void multiply_piece(float (&sum)[MT][NT][4], const Address (&window)[MT], Address weight, int pitch,
                                               int row_bytes, int R) {
    const int lane = threadIdx.x % 32, half = lane / 16;
    weight += lane / 8 % 2 * 16;
    if constexpr (PAIR) {
#pragma unroll 2
        for (int r = 0; r < R; r += 2, weight += 32)
            multiply_step(sum, window, (r + 1 < R ? r + half : r) * row_bytes, weight, pitch, r + 1 == R);
    } else {
        const int swizzle = swizzle_of(lane % 16);
#pragma unroll 1
        for (int r = 0; r < R; ++r, weight += CHUNKS * 16) {
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk += 2)
                multiply_step(sum, window, r * row_bytes + (chunk + half ^ swizzle) * 16, weight + chunk * 16, pitch, false);
        }
    }
}

// What S neighbouring pixels' products add up to, each of the next tap: planes `step` apart.
template <int TAPS>
__device__ __forceinline__ float add_taps(const float* tap, int step) {
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < TAPS; ++s) sum += tap[s * (step + 1)];
    return sum;
}
__device__ __forceinline__ float add_row(const float* tap, int S, int step) {
    if (S == 3) return add_taps<3>(tap, step);
    if (S == 5) return add_taps<5>(tap, step);
    if (S == 7) return add_taps<7>(tap, step);
    if (S == 9) return add_taps<9>(tap, step);
    float sum = 0.0f;
#pragma unroll 4
    for (int s = 0; s < S; ++s) sum += tap[s * (step + 1)];
    return sum;
}

// Which piece of which tile of y.
struct Item {
    int tile, piece;

    __device__ __forceinline__ Item after(int pieces) const {
        return piece + 1 < pieces ? Item{tile, piece + 1} : Item{tile + (int)gridDim.x, 0};
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    few_outputs_rows(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE, SHAPE,
                     int tile_p, int width, int tiles_p, int tiles_q, int pieces, int buffers, int buffer_bytes, int products_pitch,
                     unsigned tile_q_magic) {
    extern __shared__ __align__(16) float memory[];
    const int tile_q = width - S + 1, rows = tile_p + R - 1, row_bytes = width * CHUNKS * 16;
    const int of_piece = PAIR ? (R + 1) / 2 * 2 : R * CHUNKS, pitch = (pieces * of_piece + 1) * 16;
    unsigned char *const weights = (unsigned char*)memory, *staged = weights + NT * 8 * pitch;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tiles = N * tiles_p * tiles_q;
    const Epilogue epilogue = EPILOGUE_OF(y);

    const auto stage_item = [&](const Item& item, unsigned char* to) {
        const int line = item.tile / tiles_q, image = line / tiles_p;
        stage(to, x + (size_t)image * H * W * C, (line - image * tiles_p) * tile_p - pad_h,
              (item.tile - line * tiles_q) * tile_q - pad_w, item.piece * (CHUNKS * CHUNK), rows, width, H, W, C);
        commit_copies();
    };
    // Where the lane's pixel of each tile of the warp begins its column.
    Address window[MT];
#pragma unroll
    for (int i = 0; i < MT; ++i) {
        const int tile = warp * MT + i;
        window[i] = shared_address(staged) + (tile * 16 + lane % 16) * (CHUNKS * 16);
    }

    wait_for_kernel_ahead();
    pack_weight(weights, weight, pieces, of_piece, pitch, C, K, R, S);
    Item item{(int)blockIdx.x, 0};
    if (buffers == 2 && item.tile < tiles) stage_item(item, staged);
    int ahead = buffers == 2 ? buffer_bytes : 0;  // from the buffer that is multiplied to the other
    float sum[MT][NT][4];
    while (item.tile < tiles) {
        const Item next = item.after(pieces);
        if (buffers == 1) {
            __syncthreads();
            stage_item(item, staged);
        }
        wait_for_all_copies_but<0>();
        __syncthreads();
        if (buffers == 2 && next.tile < tiles) stage_item(next, staged + ahead);
        if (item.piece == 0) {
#pragma unroll
            for (int i = 0; i < MT; ++i) {
#pragma unroll
                for (int j = 0; j < NT; ++j) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) sum[i][j][e] = 0.0f;
                }
            }
        }
        multiply_piece(sum, window, shared_address(weights) + item.piece * of_piece * 16, pitch, row_bytes, R);
        if (item.piece + 1 == pieces) {
            float* const products = (float*)staged;
            __syncthreads();  // the last piece is no longer read
#pragma unroll
            for (int j = 0; j < NT; ++j) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int column = j * 8 + lane % 4 * 2 + e % 2;
                    float* const plane = products + column * products_pitch + warp * (MT * 16) + e / 2 * 8 + lane / 4;
#pragma unroll
                    for (int i = 0; i < MT; ++i)
                        if (column < S * K) plane[i * 16] = sum[i][j][e];
                }
            }
            __syncthreads();
            const int line = item.tile / tiles_q, image = line / tiles_p;
            const int p0 = (line - image * tiles_p) * tile_p, q0 = (item.tile - line * tiles_q) * tile_q;
            for (int i = threadIdx.x; i < tile_p * tile_q; i += THREADS) {
                const int row = (unsigned)((unsigned long long)i * tile_q_magic >> 32), column = i - row * tile_q;
                const int p = p0 + row, q = q0 + column;
                if (p >= P || q >= Q) continue;
                Storage* const output = y + ((size_t)(image * P + p) * Q + q) * K;
                const float* const first = products + row * width + column;
                const int step = K * products_pitch;
                if (K % 2) {
#pragma unroll 1
                    for (int k = 0; k < K; ++k) output[k] = narrow(epilogue.of(add_row(first + k * products_pitch, S, step), k, output + k));
                } else {  // half as many stores, each of which takes its turn of the cache for every other pixel
#pragma unroll 1
                    for (int k = 0; k < K; k += 2) {
                        const float* const tap = first + k * products_pitch;
                        float pair[2] = {add_row(tap, S, step), add_row(tap + products_pitch, S, step)};
                        epilogue.apply<true>(pair, k, output + k);
                        *(unsigned*)(output + k) = narrow_pair(pair[0], pair[1]);
                    }
                }
            }
        }
        item = next;
#pragma unroll
        for (int i = 0; i < MT; ++i) window[i] += ahead;
        staged += ahead;
        ahead = -ahead;
    }
}
