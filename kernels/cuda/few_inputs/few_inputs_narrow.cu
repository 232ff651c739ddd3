// Implicit GEMM for narrow layers, channels innermost, on tensor cores: a tile's rows of x are staged in shared memory, each
// pixel once for all taps.
//
//   tensors      x (N,H,W,C), weight (K,R,S,C), y (N,P,Q,K)
//   GEMM         gemm_k = R S C in the weight's order, in chunks of 16 bytes, two per step: a tap has `runs` chunks of 8
//                channels, the last zero-padded. GEMM rows are 16 neighbouring pixels of a row of y; columns are FILTERS
//                filters (narrow_outputs.cuh)
//   stages       rows of x with halo and padding, at a pitch of an odd number of chunks per pixel, so ldmatrix reads eight
//                neighbours without bank conflicts; double-buffered: the next tile loads while this one is multiplied and
//                stored. A table has the offset of each chunk from a window's first
//   versions     -DALIGN: bytes of a copy, as C allows; 2: element by element, not asynchronously. -DSTORE: filters of a store, as
//                K allows: 8 (or as many neighbours as a thread has), 2 or 1; the tile: MT tiles of 16 pixels and NT of 8 filters
//                of each of WARPS warps
//   grid, block  persistent blocks keep their filters' weight in shared memory and take tiles in turn; 32 WARPS threads,
//                registers for BLOCKS blocks per multiprocessor; tiles of tile_p rows x tile_q pixels, chosen by plan.py
//   limits       groups 1, dilation 1, float16 and bfloat16; deterministic
//   source       PTX ISA 8.0, cp.async, ldmatrix and mma; Chetlur et al., arXiv:1410.0759

#include "clusters.cuh"
#include "asynchronous.cuh"
#include "epilogue.cuh"
#include "overlap.cuh"
#include "pairs.cuh"

#define THREADS (32 * WARPS)
#define FILTERS (8 * NT)

#include "half_fragments.cuh"
#include "narrow_layers.cuh"
#include "narrow_outputs.cuh"

// The block's weight: a row a column of the products, zeros behind its last chunk and where no filter is.
__device__ __forceinline__ void pack_weight(unsigned char* to, const Storage* __restrict__ weight, int first_filter, int K,
                                            int taps, int C, int runs, int steps, int pitch) {
#pragma unroll 1
    for (int i = threadIdx.x; i < FILTERS * 2 * steps; i += THREADS) {
        const int column = i / (2 * steps), chunk = i - column * (2 * steps), filter = first_filter + filter_of(column);
        const int tap = chunk / runs, c = (chunk - tap * runs) * CHUNK;
        copy_chunk(to + column * pitch + chunk * 16, weight + ((size_t)filter * taps + tap) * C + c, weight,
                   filter < K && tap < taps ? C - c : 0);
    }
}

// Which chunk of a tile a thread copies, and how far it is to its next: there is no division in the loop over them.
struct Copies {
    int run, column, row;

    __device__ __forceinline__ Copies(int chunk, int columns, int runs) {
        const int pixel = chunk / runs;
        run = chunk - pixel * runs, row = pixel / columns, column = pixel - row * columns;
    }
    __device__ __forceinline__ void advance(const Copies& by, int columns, int runs) {
        run += by.run, column += by.column, row += by.row;
        if (run >= runs) run -= runs, ++column;
        if (column >= columns) column -= columns, ++row;
    }
};

// Rows of an image from h0 on, pixels from w0 on: zeros beside it.
__device__ __forceinline__ void stage(unsigned char* staged, const Storage* __restrict__ image, Copies at, const Copies& by, int h0,
                                      int w0, int rows, int columns, int H, int W, int C, int runs) {
    const int pixel_bytes = (runs | 1) * 16;
#pragma unroll 2
    for (; at.row < rows; at.advance(by, columns, runs)) {
        const int h = h0 + at.row, w = w0 + at.column, c = at.run * CHUNK;
        const bool is_there = is_inside(h, H) && is_inside(w, W);
        copy_chunk(staged + (at.row * columns + at.column) * pixel_bytes + at.run * 16, image + (h * W + w) * C + c, image,
                   is_there ? C - c : 0);
    }
}

// A step's two chunks of the windows: the lane reads one of them, `offset` behind the first. Behind the last chunk are zeros.
template <bool HAS_ZEROS>
__device__ __forceinline__ void multiply_step(float (&sum)[MT][NT][4], const Address (&window)[MT], int offset, Address zeros,
                                              Address weight, int pitch) {
    unsigned a[MT][4];
#pragma unroll
    for (int i = 0; i < MT; ++i) load_matrices(a[i], HAS_ZEROS && offset < 0 ? zeros : window[i] + offset);
    multiply_by_weight(sum, a, weight, pitch);
}

__device__ __forceinline__ void multiply_window(float (&sum)[MT][NT][4], const Address (&window)[MT], Address zeros,
                                                Address weight, int pitch, const int* offsets, int chunks) {
    const int lane = threadIdx.x % 32, *const offset = offsets + lane / 16;
    weight += lane / 8 % 2 * 16;
#pragma unroll 2
    for (int chunk = 0; chunk + 1 < chunks; chunk += 2)
        multiply_step<false>(sum, window, offset[chunk], zeros, weight + chunk * 16, pitch);
    if (chunks % 2) multiply_step<true>(sum, window, offset[chunks - 1], zeros, weight + (chunks - 1) * 16, pitch);
}

// Where a tile of y lies.
struct Place {
    int image, p, q;

    __device__ __forceinline__ Place(int tile, int tiles_p, int tiles_q, int tile_p, int tile_q) {
        const int line = tile / tiles_q;
        image = line / tiles_p, p = (line - image * tiles_p) * tile_p, q = (tile - line * tiles_q) * tile_q;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    few_inputs_narrow(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE, SHAPE,
                      int tile_p, int tile_q_bits, int tiles_p, int tiles_q, int tiles_f, int rows, int columns,
                      int y_pitch) {
    extern __shared__ __align__(16) float memory[];
    const int runs = (C + CHUNK - 1) / CHUNK, chunks = R * S * runs, steps = (chunks + 1) / 2, pitch = (2 * steps + 1) * 16;
    const int pixel_bytes = (runs | 1) * 16, row_bytes = columns * pixel_bytes, stage_bytes = rows * row_bytes;
    unsigned char *const weights = (unsigned char*)memory, *const zeros = weights + FILTERS * pitch, *staged = zeros + 16;
    int* const offsets = (int*)(staged + 2 * stage_bytes);
    const int first_filter = blockIdx.x % tiles_f * FILTERS, blocks = gridDim.x / tiles_f, tiles = N * tiles_p * tiles_q;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile_q = 1 << tile_q_bits;
    const Copies first(threadIdx.x, columns, runs), by(THREADS, columns, runs);

    const auto stage_at = [&](const Place& place, unsigned char* to) {
        stage(to, x + (size_t)place.image * H * W * C, first, by, place.p * stride_h - pad_h, place.q * stride_w - pad_w, rows,
              columns, H, W, C, runs);
        commit_copies();
    };
    // Where the lane's pixel of each tile of the warp begins its window.
    Address window[MT];
#pragma unroll
    for (int i = 0; i < MT; ++i) {
        const int pixel = (warp * MT + i) * 16 + lane % 16, p = pixel >> tile_q_bits, q = pixel & tile_q - 1;
        window[i] = shared_address(staged) + p * stride_h * row_bytes + q * stride_w * pixel_bytes;
    }

    wait_for_kernel_ahead();
    int tile = blockIdx.x / tiles_f;
    pack_weight(weights, weight, first_filter, K, R * S, C, runs, steps, pitch);
    Place place(tile, tiles_p, tiles_q, tile_p, tile_q);
    if (tile < tiles) stage_at(place, staged);
    for (int chunk = threadIdx.x; chunk < 2 * steps; chunk += THREADS) {
        const int tap = chunk / runs, r = tap / S, s = tap - r * S;
        offsets[chunk] = chunk < chunks ? r * row_bytes + s * pixel_bytes + (chunk - tap * runs) * 16 : -1;
    }
    if (threadIdx.x == 0) *(uint4*)zeros = {0, 0, 0, 0};
    int ahead = stage_bytes;  // from the buffer that is multiplied to the other
    for (; tile < tiles; tile += blocks) {
        wait_for_all_copies_but<0>();
        __syncthreads();
        const Place next(tile + blocks, tiles_p, tiles_q, tile_p, tile_q);
        if (tile + blocks < tiles) stage_at(next, staged + ahead);
        float sum[MT][NT][4] = {};
        multiply_window(sum, window, shared_address(zeros), shared_address(weights), pitch, offsets, chunks);
        store_tile(sum, y + (size_t)place.image * P * Q * y_pitch, EPILOGUE_OF(y), place.p, place.q, tile_q_bits, first_filter, P, Q, K,
                   y_pitch);
        place = next;
#pragma unroll
        for (int i = 0; i < MT; ++i) window[i] += ahead;
        staged += ahead;
        ahead = -ahead;
    }
}
