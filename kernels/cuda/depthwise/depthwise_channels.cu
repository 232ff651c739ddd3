// Depthwise convolution in nhwc from global memory: for channel counts that no shared-memory copy fits, and for K > C.
//
//   tensors      x (N,H,W,C), weight (K,R,S,1), y (N,P,Q,K)
//   work         a thread computes TP x TQ outputs of VEC channels, `repeats` times below one another, and slides over their
//                rows with the filters in registers. Channels come in parts of `lanes` threads, whose tiles are neighbours
//                in a block and share rows and columns of x in the L1 cache
//   grid, block  threads are numbered over images, parts, strips, tiles of columns, lanes; at most 256 a block
//   limits       FILTER_R x FILTER_S, STRIDE and DILATION in both directions; VEC divides C, and is 1 where K > C
//   source       the layer: Howard et al.: MobileNets, arXiv:1704.04861

#include "division.cuh"
#include "depthwise.cuh"
#include "slide.cuh"
#include "epilogue.cuh"
#include "filters.cuh"
#include "overlap.cuh"

extern "C" __global__ void __launch_bounds__(256, BLOCKS)
    depthwise_channels(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE,
                       int N, int C, int H, int W, int K, int P, int Q, int pad_h, int pad_w, int lanes, int parts, int tiles_p,
                       int tiles_q, int repeats, unsigned multiplier_magic, unsigned multiplier_shift,
                       unsigned lanes_magic, unsigned lanes_shift, unsigned tiles_q_magic, unsigned tiles_q_shift,
                       unsigned tiles_p_magic, unsigned tiles_p_shift, unsigned parts_magic, unsigned parts_shift) {
    wait_for_kernel_ahead();
    unsigned lane = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned tile_q = take_quotient(lane, lanes, lanes_magic, lanes_shift);
    unsigned tile_p = take_quotient(tile_q, tiles_q, tiles_q_magic, tiles_q_shift);
    unsigned part = take_quotient(tile_p, tiles_p, tiles_p_magic, tiles_p_shift);
    const unsigned n = take_quotient(part, parts, parts_magic, parts_shift);
    const int k = (part * lanes + lane) * VEC;
    if (n >= (unsigned)N || k >= K) return;
    const int c = VEC == 1 ? divide(k, multiplier_magic, multiplier_shift) : k;

    const Filters filters = read_filters(weight, k);
    const int w0 = tile_q * TQ * STRIDE - pad_w, q0 = tile_q * TQ;
    const Storage* const image = x + (size_t)n * H * W * C + c;
    Storage* const target = y + (size_t)n * P * Q * K + k;
    const Epilogue epilogue = EPILOGUE_OF(y);
    bool is_column[COLUMNS];
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) is_column[column] = is_inside(w0 + column, W);

    const int p0 = tile_p * repeats * TP, h0 = p0 * STRIDE - pad_h;
    slide<VEC, Vector<VEC>>(
        (min(repeats * TP, P - p0) + TP - 1) / TP, [](const Vector<VEC>& value, int e) { return widen(value.value[e]); },
        [&](int e, int tap) { return filters.at(e * FILTER + tap); },
        [&](int i, Vector<VEC>(&value)[COLUMNS]) {
            const bool is_row = is_inside(h0 + i, H);
            const Storage* const row = image + ((h0 + i) * W + w0) * C;
            // Padding is multiplied too: zero times an infinite weight is NaN.
#pragma unroll
            for (int column = 0; column < COLUMNS; ++column)
                value[column] = load_or_zeros<VEC>(row + column * C, is_row && is_column[column]);
        },
        [&](int p, const float(&sum)[TQ][VEC]) {
#pragma unroll
            for (int q = 0; q < TQ; ++q)
                if (p0 + p < P && q0 + q < Q)
                    *(Vector<VEC>*)(target + ((p0 + p) * Q + q0 + q) * K) =
                        narrowed(sum[q], epilogue, k, target + ((p0 + p) * Q + q0 + q) * K);
        });
}
