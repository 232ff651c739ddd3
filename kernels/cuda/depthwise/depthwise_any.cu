// Depthwise convolution without tiling: for geometries without a tiled kernel, and for 1x1 filters.
//
//   tensors      x (N,C,H,W), weight (K,1,R,S), y (N,K,P,Q); is_nhwc: x (N,H,W,C), y (N,P,Q,K)
//   versions     depthwise_any    a thread computes one output from global memory
//                depthwise_scale  1x1, stride 1, no padding, K = C: a thread multiplies a vector of 16 bytes
//   grid, block  elements of y in memory order, 256 a block; scale: its vectors
//   limits       none
//   source       direct.cu

#include "division.cuh"
#include "depthwise.cuh"
#include "epilogue.cuh"
#include "overlap.cuh"

#define VECTOR ((int)(16 / sizeof(Storage)))

extern "C" __global__ void __launch_bounds__(256)
    depthwise_any(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE,
                  SHAPE, int is_nhwc) {
    wait_for_kernel_ahead();
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (unsigned)N * K * P * Q) return;
    unsigned rest = index, k = 0;
    if (is_nhwc) {
        k = rest % K;
        rest /= K;
    }
    const int q = rest % Q;
    rest /= Q;
    const int p = rest % P;
    rest /= P;
    if (!is_nhwc) {
        k = rest % K;
        rest /= K;
    }
    const int c = k / (K / C), pitch = is_nhwc ? C : 1;
    const Storage* const plane = x + (size_t)rest * C * H * W + (is_nhwc ? c : (size_t)c * H * W);
    const Storage* const filter = weight + (size_t)k * R * S;
    const int h0 = p * stride_h - pad_h, w0 = q * stride_w - pad_w;
    float sum = 0.0f;
    for (int r = 0; r < R; ++r) {
        const int h = h0 + r * dilation_h;
        for (int s = 0; s < S; ++s) {
            const int w = w0 + s * dilation_w;
            // Padding is multiplied too: zero times an infinite weight is NaN.
            const float value = is_inside(h, H) && is_inside(w, W) ? widen(plane[(h * W + w) * pitch]) : 0.0f;
            sum += value * widen(filter[r * S + s]);
        }
    }
    y[index] = narrow(EPILOGUE_OF(y).of(sum, k, y + index));
}

// y[i] = x[i] * weight[i / inner % K], inner being 1 in nhwc and H W in nchw.
extern "C" __global__ void __launch_bounds__(256)
    depthwise_scale(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE,
                    unsigned elements, int K, int inner, unsigned filters_magic, unsigned filters_shift,
                    unsigned inner_magic, unsigned inner_shift) {
    wait_for_kernel_ahead();
    const unsigned begin = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    if (begin >= elements) return;
    const bool is_whole = elements - begin >= VECTOR;
    Vector<VECTOR> value;
    if (is_whole) value = *(const Vector<VECTOR>*)(x + begin);
    unsigned within = begin;
    unsigned k = take_quotient(within, inner, inner_magic, inner_shift);
    take_quotient(k, K, filters_magic, filters_shift);
    const Epilogue epilogue = EPILOGUE_OF(y);
    if (!is_whole) {
        for (unsigned i = begin; i < elements; ++i) {
            y[i] = narrow(epilogue.of(widen(x[i]) * widen(weight[k]), k, y + i));
            if (++within < (unsigned)inner) continue;
            within = 0;
            if (++k == (unsigned)K) k = 0;
        }
        return;
    }
    if (inner == 1 && K % VECTOR == 0) {
        const Vector<VECTOR> filters = *(const Vector<VECTOR>*)(weight + k);
#pragma unroll
        for (int e = 0; e < VECTOR; ++e)
            value.value[e] = narrow(epilogue.of(widen(value.value[e]) * widen(filters.value[e]), k + e, y + begin + e));
    } else {
        float filter = widen(weight[k]);
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            value.value[e] = narrow(epilogue.of(widen(value.value[e]) * filter, k, y + begin + e));
            if (++within < (unsigned)inner || e == VECTOR - 1) continue;
            within = 0;
            if (++k == (unsigned)K) k = 0;
            filter = widen(weight[k]);
        }
    }
    *(Vector<VECTOR>*)(y + begin) = value;
}
