// Winograd F(2x2,3x3): four multiplications for every output of a 2x2 tile instead of nine.
//
//   tensors      x (N,C,H,W), weight (K,C,3,3), y (N,K,P,Q), all nchw; tiles T = N * ceil(P/2) * ceil(Q/2)
//   method       V = B^T d B of each 4x4 input tile d, U = G g G^T of each filter g, M = sum over c of U * V at each of
//                the 16 positions, y tile = A^T M A:
//                B^T = (1 0 -1 0, 0 1 1 0, 0 -1 1 0, 0 1 0 -1)  G = (1 0 0, .5 .5 .5, .5 -.5 .5, 0 0 1)
//                A^T = (1 1 1 0, 0 1 -1 -1)
//   GEMM         16 of them, one a position: M (K,T) = U (K,C) . V (C,T); all in float32
//   versions     winograd_fused: one kernel; a block computes BK filters x BT tiles, BC channels at a stage. Each thread
//                transforms one input tile and one filter of the stage into shared memory, having fetched them into
//                registers while the stage before was multiplied; then warp i multiplies positions 2i and 2i + 1.
//                winograd_transform_x, _weight, (GEMM by cuBLAS), winograd_transform_y: non-fused
//   grid, block  256 threads; fused: filter block fastest; transforms: one tile (or one filter plane) a thread
//   limits       3x3, stride 1, dilation 1, groups 1
//   source       Lavin, Gray: Fast Algorithms for Convolutional Neural Networks, arXiv:1509.09308

#include "epilogue.cuh"

#define BT 32
#define BK 32
#define BC 8
#define THREADS 256
#define POSITIONS 16

struct WinogradTile {
    int n, p, q;  // image and first output pixel
    bool is_valid;
};

__device__ __forceinline__ WinogradTile tile_at(unsigned index, int N, int P, int Q) {
    const unsigned tiles_p = (P + 1) / 2, tiles_q = (Q + 1) / 2;
    WinogradTile tile;
    tile.q = index % tiles_q * 2;
    index /= tiles_q;
    tile.p = index % tiles_p * 2;
    tile.n = index / tiles_p;
    tile.is_valid = tile.n < N;
    return tile;
}

// d (4,4) = the input tile of output pixel (p,q) in one plane, zero outside the input and where !is_read.
__device__ __forceinline__ void fetch_tile(float (&d)[16], const Storage* __restrict__ plane, int h0, int w0,
                                                  int H, int W, bool is_read) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const bool has_row = is_read && is_inside(h0 + i, H);
#pragma unroll
        for (int j = 0; j < 4; ++j)
            d[4 * i + j] = has_row && is_inside(w0 + j, W) ? widen(plane[(h0 + i) * W + w0 + j]) : 0.0f;
    }
}

// In place: d = B^T d B.
__device__ __forceinline__ void transform_tile(float (&d)[16]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float d0 = d[j], d1 = d[4 + j], d2 = d[8 + j], d3 = d[12 + j];
        d[j] = d0 - d2;
        d[4 + j] = d1 + d2;
        d[8 + j] = d2 - d1;
        d[12 + j] = d1 - d3;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float d0 = d[4 * i], d1 = d[4 * i + 1], d2 = d[4 * i + 2], d3 = d[4 * i + 3];
        d[4 * i] = d0 - d2;
        d[4 * i + 1] = d1 + d2;
        d[4 * i + 2] = d2 - d1;
        d[4 * i + 3] = d1 - d3;
    }
}

__device__ __forceinline__ void fetch_filter(float (&g)[9], const Storage* __restrict__ filter, bool is_read) {
#pragma unroll
    for (int i = 0; i < 9; ++i) g[i] = is_read ? widen(filter[i]) : 0.0f;
}

// u (4,4) = G g G^T.
__device__ __forceinline__ void transform_filter(float (&u)[16], const float (&g)[9]) {
    float rows[12];
#pragma unroll
    for (int j = 0; j < 3; ++j) {
        const float outer = 0.5f * (g[j] + g[6 + j]), inner = 0.5f * g[3 + j];
        rows[j] = g[j];
        rows[3 + j] = outer + inner;
        rows[6 + j] = outer - inner;
        rows[9 + j] = g[6 + j];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float outer = 0.5f * (rows[3 * i] + rows[3 * i + 2]), inner = 0.5f * rows[3 * i + 1];
        u[4 * i] = rows[3 * i];
        u[4 * i + 1] = outer + inner;
        u[4 * i + 2] = outer - inner;
        u[4 * i + 3] = rows[3 * i + 2];
    }
}

// The up to four outputs of a tile: A^T m A.
__device__ __forceinline__ void store_tile(const float (&m)[16], Storage* __restrict__ y, const Epilogue& epilogue,
                                                  WinogradTile tile, int k, int K, int P, int Q) {
    float rows[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        rows[j] = m[j] + m[4 + j] + m[8 + j];
        rows[4 + j] = m[4 + j] - m[8 + j] - m[12 + j];
    }
    Storage* const target = y + ((size_t)tile.n * K + k) * P * Q + tile.p * Q + tile.q;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (tile.p + i >= P) continue;
        target[i * Q] =
            narrow(epilogue.of(rows[4 * i] + rows[4 * i + 1] + rows[4 * i + 2], k, target + i * Q));
        if (tile.q + 1 < Q)
            target[i * Q + 1] =
                narrow(epilogue.of(rows[4 * i + 1] - rows[4 * i + 2] - rows[4 * i + 3], k, target + i * Q + 1));
    }
}

// sum[e][i][j] += U[position 2 * warp + e, c, k] * V[.., t], for filters k = 4 * (lane / 4) + i, tiles t = 8 * (lane % 4) + j.
__device__ __forceinline__ void multiply_stage(float (&sum)[2][4][8], const float* __restrict__ v,
                                                      const float* __restrict__ u) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const int position = 2 * warp + e;
#pragma unroll 1  // more would spill at two blocks a multiprocessor
        for (int c = 0; c < BC; ++c) {
            const float4 a = *(const float4*)(u + (position * BC + c) * BK + lane / 4 * 4);
            const float4* const row = (const float4*)(v + (position * BC + c) * BT + lane % 4 * 8);
            const float4 low = row[0], high = row[1];
            const float left[4] = {a.x, a.y, a.z, a.w};
            const float right[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 8; ++j) sum[e][i][j] += left[i] * right[j];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    winograd_fused(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE,
                   SHAPE) {
    __shared__ __align__(16) float shared[POSITIONS * BC * (BT + BK)];
    float* const v = shared;                             // (POSITIONS, BC, BT)
    float* const u = shared + POSITIONS * BC * BT;       // (POSITIONS, BC, BK)
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned filter_blocks = (K + BK - 1) / BK;
    const int k0 = blockIdx.x % filter_blocks * BK;
    const WinogradTile tile = tile_at(blockIdx.x / filter_blocks * BT + lane, N, P, Q);
    const int h0 = tile.p - pad_h, w0 = tile.q - pad_w;
    const bool has_filter = k0 + lane < K;
    const Storage* const image = x + (tile.is_valid ? (size_t)tile.n * C * H * W : 0);
    const Storage* const filter = weight + (has_filter ? (size_t)(k0 + lane) * C * 9 : 0);

    float d[16], g[9];
    // Warp i fetches channel i of the stage: lane by lane a tile and a filter.
    const int first = min(warp, C - 1);
    fetch_tile(d, image + (size_t)first * H * W, h0, w0, H, W, tile.is_valid && warp < C);
    fetch_filter(g, filter + (size_t)first * 9, has_filter && warp < C);
    float sum[2][4][8] = {};
    for (int c0 = 0; c0 < C; c0 += BC) {
        __syncthreads();
        float transformed[16];
        transform_tile(d);
        transform_filter(transformed, g);
#pragma unroll
        for (int position = 0; position < POSITIONS; ++position) {
            v[(position * BC + warp) * BT + lane] = d[position];
            u[(position * BC + warp) * BK + lane] = transformed[position];
        }
        __syncthreads();
        const int next = min(c0 + BC + warp, C - 1);
        const bool has_next = c0 + BC + warp < C;
        fetch_tile(d, image + (size_t)next * H * W, h0, w0, H, W, tile.is_valid && has_next);
        fetch_filter(g, filter + (size_t)next * 9, has_filter && has_next);
        multiply_stage(sum, v, u);
    }

    // The 16 positions of an output lie in 8 warps: they meet in shared memory (POSITIONS, 8, BT), 8 filters at a time.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        __syncthreads();
#pragma unroll
        for (int e = 0; e < 2; ++e) {
#pragma unroll
            for (int j = 0; j < 8; ++j)
                shared[((2 * warp + e) * 8 + lane / 4) * BT + lane % 4 * 8 + j] = sum[e][i][j];
        }
        __syncthreads();
        float m[16];
#pragma unroll
        for (int position = 0; position < POSITIONS; ++position) m[position] = shared[(position * 8 + warp) * BT + lane];
        const int k = k0 + 4 * warp + i;
        if (tile.is_valid && k < K) store_tile(m, y, EPILOGUE_OF(y), tile, k, K, P, Q);
    }
}

// v (POSITIONS, C, tiles) of the N images of a chunk.
extern "C" __global__ void __launch_bounds__(THREADS)
    winograd_transform_x(const Storage* __restrict__ x, float* __restrict__ v, SHAPE) {
    const unsigned tiles = (unsigned)N * ((P + 1) / 2) * ((Q + 1) / 2);
    const unsigned tile_blocks = (tiles + blockDim.x - 1) / blockDim.x;
    const int c = blockIdx.x / tile_blocks;
    const unsigned index = blockIdx.x % tile_blocks * blockDim.x + threadIdx.x;
    const WinogradTile tile = tile_at(index, N, P, Q);
    if (!tile.is_valid) return;
    float d[16];
    fetch_tile(d, x + ((size_t)tile.n * C + c) * H * W, tile.p - pad_h, tile.q - pad_w, H, W, true);
    transform_tile(d);
    const size_t position_size = (size_t)C * tiles;
#pragma unroll
    for (int position = 0; position < POSITIONS; ++position)
        v[position * position_size + (size_t)c * tiles + index] = d[position];
}

// u (POSITIONS, K, C).
extern "C" __global__ void __launch_bounds__(THREADS)
    winograd_transform_weight(const Storage* __restrict__ weight, float* __restrict__ u, int K, int C) {
    const unsigned count = (unsigned)K * C;
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    float g[9], transformed[16];
    fetch_filter(g, weight + (size_t)index * 9, true);
    transform_filter(transformed, g);
#pragma unroll
    for (int position = 0; position < POSITIONS; ++position)
        u[(size_t)position * count + index] = transformed[position];
}

// y of the N images of a chunk from m (POSITIONS, K, tiles).
extern "C" __global__ void __launch_bounds__(THREADS)
    winograd_transform_y(const float* __restrict__ m, Storage* __restrict__ y EPILOGUE, SHAPE) {
    const unsigned tiles = (unsigned)N * ((P + 1) / 2) * ((Q + 1) / 2);
    const unsigned tile_blocks = (tiles + blockDim.x - 1) / blockDim.x;
    const int k = blockIdx.x / tile_blocks;
    const unsigned index = blockIdx.x % tile_blocks * blockDim.x + threadIdx.x;
    const WinogradTile tile = tile_at(index, N, P, Q);
    if (!tile.is_valid) return;
    const size_t position_size = (size_t)K * tiles;
    float values[16];
#pragma unroll
    for (int position = 0; position < POSITIONS; ++position)
        values[position] = m[position * position_size + (size_t)k * tiles + index];
    store_tile(values, y, EPILOGUE_OF(y), tile, k, K, P, Q);
}
