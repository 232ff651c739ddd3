// cuConv: the scalar products of filter rows along the depth, then their sum over the taps.
//
//   tensors      x (N,C,H,W), weight (K,C,R,S), y (N,K,P,Q), all nchw; planes (R*S,N,K,P,Q) in float32
//   work         stage 1: planes[tap,n,k,p,q] = sum over c of weight[k,c,tap] * x[n,c,h,w]; a thread computes one pixel
//                of FILTERS filters, whose rows of one tap lie in shared memory; neighbouring threads read
//                neighbouring pixels of the same plane, so x needs no transform. A thread's loads of AHEAD channels
//                are in flight together: a small layer has few warps to hide their latency
//                stage 2: y = sum of the R*S planes
//   versions     cuconv_scalar_products then cuconv_sum_planes | cuconv_pointwise: 1x1, straight to y
//   grid, block  stage 1: filter block fastest, then tap, then blocks of 64 to 256 consecutive pixels of the batch
//                stage 2: 256 outputs a block
//   limits       groups 1; the paper's is stride 1, stride and dilation cost only the address of the first channel
//   source       Jorda, Valero-Lara, Pena: cuConv, arXiv:2103.16234, section 3

#include "epilogue.cuh"

#ifndef FILTERS
#error "define FILTERS, the filters a thread computes"
#endif

#define AHEAD (FILTERS < 16 ? 16 : 8)

__device__ __forceinline__ void put(float* target, float value) { *target = value; }
#if !defined(STORAGE_FLOAT32)
__device__ __forceinline__ void put(Storage* target, float value) { *target = narrow(value); }
#endif

// finish(sum, filter, target): what is stored there.
template <class Output, class Finish>
__device__ __forceinline__ void multiply_rows(const Storage* __restrict__ x, const Storage* __restrict__ weight,
                                                     Output* __restrict__ planes, SHAPE, int stage_channels,
                                                     Finish finish) {
    extern __shared__ __align__(16) float rows[];  // (stage_channels, FILTERS)
    const unsigned filter_blocks = (K + FILTERS - 1) / FILTERS;
    const int taps = R * S;
    const int k0 = blockIdx.x % filter_blocks * FILTERS;
    const int tap = blockIdx.x / filter_blocks % taps;
    const unsigned index = blockIdx.x / filter_blocks / taps * blockDim.x + threadIdx.x;
    const bool has_pixel = index < (unsigned)(N * P * Q);
    const int n = has_pixel ? index / (P * Q) : 0;
    const int pixel = has_pixel ? index % (P * Q) : 0;
    const int h = pixel / Q * stride_h - pad_h + tap / S * dilation_h;
    const int w = pixel % Q * stride_w - pad_w + tap % S * dilation_w;
    const bool is_read = has_pixel && is_inside(h, H) && is_inside(w, W);
    const Storage* const column = x + (size_t)n * C * H * W + (is_read ? h * W + w : 0);
    const size_t plane = (size_t)H * W;

    float sum[FILTERS] = {};
    for (int c0 = 0; c0 < C; c0 += stage_channels) {
        const int channels = min(stage_channels, C - c0);
        __syncthreads();
        for (int i = threadIdx.x; i < channels * FILTERS; i += blockDim.x) {
            const int j = i / channels, c = i % channels;
            rows[c * FILTERS + j] = k0 + j < K ? widen(weight[((size_t)(k0 + j) * C + c0 + c) * taps + tap]) : 0.0f;
        }
        __syncthreads();
        const Storage* source = column + c0 * plane;
        int c = 0;
        for (; c + AHEAD <= channels; c += AHEAD) {
            float values[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i, source += plane) values[i] = is_read ? widen(*source) : 0.0f;
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) add_products(sum, values[i], rows + (c + i) * FILTERS);
        }
        for (; c < channels; ++c, source += plane)
            add_products(sum, is_read ? widen(*source) : 0.0f, rows + c * FILTERS);
    }
    if (!has_pixel) return;
    Output* const target = planes + (((size_t)tap * N + n) * K + k0) * P * Q + pixel;
#pragma unroll
    for (int j = 0; j < FILTERS; ++j)
        if (k0 + j < K) put(target + (size_t)j * P * Q, finish(sum[j], k0 + j, target + (size_t)j * P * Q));
}

#define SHAPE_ARGUMENTS \
    N, C, H, W, K, R, S, P, Q, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups

extern "C" __global__ void __launch_bounds__(256, 3)
    cuconv_scalar_products(const Storage* __restrict__ x, const Storage* __restrict__ weight,
                           float* __restrict__ planes, SHAPE, int stage_channels) {
    multiply_rows(x, weight, planes, SHAPE_ARGUMENTS, stage_channels, [](float sum, int, const float*) { return sum; });
}

extern "C" __global__ void __launch_bounds__(256, 3)
    cuconv_pointwise(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE,
                     SHAPE, int stage_channels) {
    const Epilogue epilogue = EPILOGUE_OF(y);
    multiply_rows(x, weight, y, SHAPE_ARGUMENTS, stage_channels, [&](float sum, int filter, const Storage* target) {
        return epilogue.of(sum, filter, target);
    });
}

#if HAS_EPILOGUE
#define OUTPUTS , int K, int pixels
#else
#define OUTPUTS
#endif
extern "C" __global__ void __launch_bounds__(256)
    cuconv_sum_planes(const float* __restrict__ planes, Storage* __restrict__ y EPILOGUE, int taps, int count OUTPUTS) {
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (unsigned)count) return;
    float sum = 0.0f;
#pragma unroll 8
    for (int tap = 0; tap < taps; ++tap) sum += planes[(size_t)tap * count + index];
#if HAS_EPILOGUE
    sum = EPILOGUE_OF(y).of(sum, index / pixels % K, y + index);
#endif
    put(y + index, sum);
}
