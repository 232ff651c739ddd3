// Depthwise convolution of nhwc through shared memory: each channel has a filter of its own.
//
//   tensors      x (N,H,W,C), weight (C,R,S,1), y (N,P,Q,C)
//   work         a block computes a rectangle of rows x columns outputs of a part of the channels of one image. Its x comes
//                to shared memory by copies of COPY bytes, a pixel every PITCH bytes, with zeros for the padding. A thread computes TP x TQ outputs of
//                VEC channels, `repeats` times below one another, and slides over their rows with the filters in registers
//   grid, block  blocks over images, parts, bands of rows, bands of columns; threads over strips, columns, lanes of VEC
//                channels, at most 256
//   limits       FILTER_R x FILTER_S, STRIDE and DILATION in both directions; K = C, whose bytes are a multiple of COPY;
//                VEC within COPY
//   source       the layer: Howard et al.: MobileNets, arXiv:1704.04861

#include "clusters.cuh"
#include "asynchronous.cuh"
#include "division.cuh"
#include "depthwise.cuh"
#include "slide.cuh"
#include "epilogue.cuh"
#include "filters.cuh"
#include "overlap.cuh"

#define CHUNK ((int)(COPY / sizeof(Storage)))
#define PIXEL ((int)(PITCH / sizeof(Storage)))

// lanes: of COPY bytes; rows and columns, of outputs, are multiples of repeats x TP and of TQ.
extern "C" __global__ void __launch_bounds__(256, BLOCKS)
    depthwise_staged(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE,
                     int C, int H, int W, int P, int Q, int pad_h, int pad_w, int lanes, int parts, int rows, int columns,
                     int repeats, int bands_p, int bands_q, unsigned bands_q_magic, unsigned bands_q_shift, unsigned bands_p_magic,
                     unsigned bands_p_shift, unsigned parts_magic, unsigned parts_shift, unsigned lanes_magic,
                     unsigned lanes_shift, unsigned pitch_magic, unsigned pitch_shift, unsigned vectors_magic,
                     unsigned vectors_shift, unsigned tiles_q_magic, unsigned tiles_q_shift) {
    extern __shared__ __align__(16) float shared[];
    Storage* const staged = (Storage*)shared;
    wait_for_kernel_ahead();
    unsigned band_q = blockIdx.x;
    unsigned band_p = take_quotient(band_q, bands_q, bands_q_magic, bands_q_shift);
    unsigned part = take_quotient(band_p, bands_p, bands_p_magic, bands_p_shift);
    const unsigned n = take_quotient(part, parts, parts_magic, parts_shift);
    const int c0 = part * lanes * CHUNK, p0 = band_p * rows, q0 = band_q * columns;
    const int h0 = p0 * STRIDE - pad_h, w0 = q0 * STRIDE - pad_w;
    const int taken_rows = (rows - 1) * STRIDE + (FILTER_R - 1) * DILATION + 1;
    const int pitch = (columns - 1) * STRIDE + (FILTER_S - 1) * DILATION + 1;
    const Storage* const image = x + (size_t)n * H * W * C;
    for (unsigned i = threadIdx.x; i < (unsigned)(taken_rows * pitch * lanes); i += blockDim.x) {
        unsigned lane = i;
        const unsigned pixel = take_quotient(lane, lanes, lanes_magic, lanes_shift);
        unsigned column = pixel;
        const unsigned row = take_quotient(column, pitch, pitch_magic, pitch_shift);
        const int h = h0 + row, w = w0 + column, c = c0 + lane * CHUNK;
        const bool is_here = is_inside(h, H) && is_inside(w, W) && c < C;
        copy_async<COPY>(staged + pixel * PIXEL + lane * CHUNK, is_here ? image + (h * W + w) * C + c : image, is_here ? COPY : 0);
    }
    commit_copies();

    const int vectors = lanes * (CHUNK / VEC), tiles_q = columns / TQ, strip_rows = repeats * TP;
    const int tasks = rows / strip_rows * tiles_q * vectors;
    Storage* const target = y + (size_t)n * P * Q * C + c0;
    const Epilogue epilogue = EPILOGUE_OF(y);
    bool is_staged = false;
    for (unsigned index = threadIdx.x; index < (unsigned)tasks || !is_staged; index += blockDim.x) {
        unsigned lane = index;
        unsigned tile_q = take_quotient(lane, vectors, vectors_magic, vectors_shift);
        const unsigned tile_p = take_quotient(tile_q, tiles_q, tiles_q_magic, tiles_q_shift);
        const bool is_task = index < (unsigned)tasks && c0 + (int)lane * VEC < C;
        const Filters filters = read_filters(weight, is_task ? c0 + lane * VEC : 0);
        if (!is_staged) {
            wait_for_all_copies_but<0>();
            __syncthreads();
            is_staged = true;
        }
        if (!is_task) continue;
        const Storage* const corner =
            staged + (tile_p * strip_rows * STRIDE * pitch + tile_q * TQ * STRIDE) * PIXEL + lane * VEC;
        const int p_first = p0 + tile_p * strip_rows, q_first = q0 + tile_q * TQ;
        slide<VEC, Vector<VEC>>(
            repeats, [](const Vector<VEC>& value, int e) { return widen(value.value[e]); },
            [&](int e, int tap) { return filters.at(e * FILTER + tap); },
            [&](int i, Vector<VEC>(&value)[COLUMNS]) {
                const Storage* const row = corner + i * pitch * PIXEL;
#pragma unroll
                for (int column = 0; column < COLUMNS; ++column)
                    value[column] = load_or_zeros<VEC>(row + column * PIXEL, true);
            },
            [&](int p, const float(&sum)[TQ][VEC]) {
#pragma unroll
                for (int q = 0; q < TQ; ++q)
                    if (p_first + p < P && q_first + q < Q)
                        *(Vector<VEC>*)(target + ((p_first + p) * Q + q_first + q) * C + lane * VEC) =
                            narrowed(sum[q], epilogue, c0 + lane * VEC,
                                     target + ((p_first + p) * Q + q_first + q) * C + lane * VEC);
            });
    }
}
