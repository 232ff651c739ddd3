// FFT convolution around cuFFT: pad, transform, multiply and sum over the channels, transform back, crop.
//
//   tensors      x (N,C,H,W), weight (K,C,R,S), y (N,K,P,Q), all nchw; a chunk of images and of filters at a time.
//                A padded plane is FH rows of `pitch` = 2 * (FW / 2 + 1) floats, of which FW count; cuFFT turns it in
//                place into FH x (FW / 2 + 1) complex numbers, `frequencies` of them.
//   method       y[p] = sum over j of x[p - pad + j] * weight[j] is a circular correlation of length F, so
//                Y = X * conj(WEIGHT), as soon as F >= H + pad on either side and F >= R: no index then meets a wrong element of x,
//                and output row p is row (p - pad) mod F
//   versions     fft_pad | fft_multiply (TILE_N x TILE_K sums a thread) | fft_crop
//   grid, block  pad, crop: blocks of elements of one plane; multiply: 256 threads a block, a thread holds one
//                frequency of TILE_N images x TILE_K filters, frequency fastest
//   limits       stride 1, dilation 1, groups 1; a buffer has fewer than 2^31 floats
//   source       Mathieu, Henaff, LeCun: Fast Training of Convolutional Networks through FFTs, arXiv:1312.5851

#include "epilogue.cuh"

#ifndef TILE_N
#error "define TILE_N and TILE_K, the images and filters a thread computes"
#endif

// padded (planes, FH, pitch) = source (planes, H, W), zero elsewhere.
extern "C" __global__ void __launch_bounds__(256)
    fft_pad(const Storage* __restrict__ source, float* __restrict__ padded, int H, int W, int FH, int pitch) {
    const int elements = FH * pitch;
    const unsigned blocks = (elements + blockDim.x - 1) / blockDim.x;
    const unsigned plane = blockIdx.x / blocks;
    const unsigned element = blockIdx.x % blocks * blockDim.x + threadIdx.x;
    if (element >= (unsigned)elements) return;
    const int row = element / pitch, column = element % pitch;
    padded[(size_t)plane * elements + element] =
        row < H && column < W ? widen(source[(size_t)plane * H * W + row * W + column]) : 0.0f;
}

// y (N,K,frequencies) = sum over c of x (N,C,frequencies) * conj(weight (K,C,frequencies)).
extern "C" __global__ void __launch_bounds__(256)
    fft_multiply(const float2* __restrict__ x, const float2* __restrict__ weight, float2* __restrict__ y, int N, int C,
                 int K, int frequencies) {
    const unsigned tiles_k = (K + TILE_K - 1) / TILE_K;
    unsigned rest = blockIdx.x * blockDim.x + threadIdx.x;
    const int frequency = rest % frequencies;
    rest /= frequencies;
    const int k0 = rest % tiles_k * TILE_K;
    const int n0 = rest / tiles_k * TILE_N;
    if (n0 >= N) return;
    // Images and filters beyond the last read the last one again: their sums are never stored.
    const float2 *x_rows[TILE_N], *weight_rows[TILE_K];
#pragma unroll
    for (int i = 0; i < TILE_N; ++i) x_rows[i] = x + (size_t)min(n0 + i, N - 1) * C * frequencies + frequency;
#pragma unroll
    for (int j = 0; j < TILE_K; ++j) weight_rows[j] = weight + (size_t)min(k0 + j, K - 1) * C * frequencies + frequency;

    float real[TILE_N][TILE_K] = {}, imaginary[TILE_N][TILE_K] = {};
#pragma unroll 2
    for (int c = 0; c < C; ++c) {
        const size_t offset = (size_t)c * frequencies;
        float2 a[TILE_N], b[TILE_K];
#pragma unroll
        for (int i = 0; i < TILE_N; ++i) a[i] = x_rows[i][offset];
#pragma unroll
        for (int j = 0; j < TILE_K; ++j) b[j] = weight_rows[j][offset];
#pragma unroll
        for (int i = 0; i < TILE_N; ++i) {
#pragma unroll
            for (int j = 0; j < TILE_K; ++j) {
                real[i][j] += a[i].x * b[j].x + a[i].y * b[j].y;
                imaginary[i][j] += a[i].y * b[j].x - a[i].x * b[j].y;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < TILE_N; ++i) {
#pragma unroll
        for (int j = 0; j < TILE_K; ++j)
            if (n0 + i < N && k0 + j < K)
                y[((size_t)(n0 + i) * K + k0 + j) * frequencies + frequency] =
                    make_float2(real[i][j], imaginary[i][j]);
    }
}

// y[n, k_begin + k, p, q] = scale * planes[n, k, (p - pad_h) mod FH, (q - pad_w) mod FW], planes (N, k_count, FH, pitch).
extern "C" __global__ void __launch_bounds__(256)
    fft_crop(const float* __restrict__ planes, Storage* __restrict__ y EPILOGUE, int K, int P, int Q, int pad_h,
             int pad_w, int FH, int FW, int pitch, int k_begin, int k_count, float scale) {
    const int pixels = P * Q;
    const unsigned blocks = (pixels + blockDim.x - 1) / blockDim.x;
    const unsigned plane = blockIdx.x / blocks;
    const unsigned pixel = blockIdx.x % blocks * blockDim.x + threadIdx.x;
    if (pixel >= (unsigned)pixels) return;
    int row = (int)(pixel / Q) - pad_h, column = (int)(pixel % Q) - pad_w;
    if (row < 0) row += FH;
    if (column < 0) column += FW;
    const unsigned n = plane / k_count, k = k_begin + plane % k_count;
    y[((size_t)n * K + k) * pixels + pixel] =
        narrow(EPILOGUE_OF(y).of(scale * planes[((size_t)plane * FH + row) * pitch + column], k,
                                 y + ((size_t)n * K + k) * pixels + pixel));
}
