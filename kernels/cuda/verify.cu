// What the runner itself needs on the device: random operands, the float64 reference at chosen outputs, and checks.
//
// x (N,C,H,W) or (N,H,W,C), weight (K,C/G,R,S) or (K,R,S,C/G), y (N,K,P,Q) or (N,P,Q,K), T = storage type.
//
// fill            one element a thread, grid-stride; uniform in (-1, 1) from splitmix64 of (seed, index)
// reference_at    one block a chosen output; its threads share the C/G*R*S products; double throughout
// gather          one thread a chosen output; T to double
// count_not_finite  grid-stride; adds to one counter
// nothing         the empty kernel whose time is the floor of every measurement
//
// Source: splitmix64 is Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

using Index = long long;

__device__ inline float load(float v) { return v; }
__device__ inline float load(__half v) { return __half2float(v); }
__device__ inline float load(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline void store(float* p, float v) { *p = v; }
__device__ inline void store(__half* p, float v) { *p = __float2half_rn(v); }
__device__ inline void store(__nv_bfloat16* p, float v) { *p = __float2bfloat16_rn(v); }

template <typename T>
__global__ void fill(T* out, Index count, Index seed) {
    for (Index i = blockIdx.x * (Index)blockDim.x + threadIdx.x; i < count; i += (Index)gridDim.x * blockDim.x) {
        unsigned long long z = (unsigned long long)i + 0x9E3779B97F4A7C15ull * (unsigned long long)(2 * seed + 1);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        z ^= z >> 31;
        // 23 bits and a half step: never 0, never +-1, exact in float
        store(out + i, ((float)(unsigned)(z >> 41) + 0.5f) * (2.0f / 8388608.0f) - 1.0f);
    }
}

template <typename T>
__global__ void reference_at(const T* x, const T* weight, const Index* outputs, double* reference, Index C, Index H,
                             Index W, Index K, Index R, Index S, Index stride_h, Index stride_w, Index pad_h,
                             Index pad_w, Index dilation_h, Index dilation_w, Index groups, Index is_nhwc) {
    const Index* output = outputs + 4 * (Index)blockIdx.x;
    const Index n = output[0], k = output[1], p = output[2], q = output[3];
    const Index depth = C / groups, c0 = k / (K / groups) * depth;
    double sum = 0.0;
    for (Index i = threadIdx.x; i < depth * R * S; i += blockDim.x) {
        const Index c = i / (R * S), r = i / S % R, s = i % S;
        const Index h = p * stride_h - pad_h + r * dilation_h, w = q * stride_w - pad_w + s * dilation_w;
        // padding is zeros that are multiplied like any other input: 0 * inf is NaN, as in the host's reference
        const bool is_inside = 0 <= h && h < H && 0 <= w && w < W;
        const Index at_x = is_nhwc ? ((n * H + h) * W + w) * C + c0 + c : ((n * C + c0 + c) * H + h) * W + w;
        const Index at_weight = is_nhwc ? ((k * R + r) * S + s) * depth + c : ((k * depth + c) * R + r) * S + s;
        sum += (is_inside ? (double)load(x[at_x]) : 0.0) * (double)load(weight[at_weight]);
    }
    __shared__ double partial[256];
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned width = blockDim.x / 2; width; width /= 2) {
        if (threadIdx.x < width) partial[threadIdx.x] += partial[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0) reference[blockIdx.x] = partial[0];
}

template <typename T>
__global__ void gather(const T* y, const Index* offsets, double* out, Index count) {
    const Index i = blockIdx.x * (Index)blockDim.x + threadIdx.x;
    if (i < count) out[i] = (double)load(y[offsets[i]]);
}

template <typename T>
__global__ void count_not_finite(const T* values, Index count, unsigned* counter) {
    unsigned bad = 0;
    for (Index i = blockIdx.x * (Index)blockDim.x + threadIdx.x; i < count; i += (Index)gridDim.x * blockDim.x)
        bad += !isfinite(load(values[i]));
    if (bad) atomicAdd(counter, bad);
}

__global__ void nothing() {}
