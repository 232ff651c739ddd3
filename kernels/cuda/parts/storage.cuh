// What every kernel here shares: the storage type and the shape's parameters. compile.py puts it before each .cu.
//
//   storage      x, weight and y are kept in Storage: float, __half or __nv_bfloat16, selected by -DSTORAGE_FLOAT32,
//                -DSTORAGE_FLOAT16 or -DSTORAGE_BFLOAT16; every product and sum is in float32
//   tensors      nchw: x (N,C,H,W), weight (K,C/groups,R,S), y (N,K,P,Q); nhwc: x (N,H,W,C), weight (K,R,S,C/groups)
//   limits       a tensor has at most 2^31 - 1 elements, so an offset inside one image fits an int and a linear pixel
//                index an unsigned; offsets of whole images are size_t. A padded input has at most 2^30 rows and columns.
//   grid         blocks are numbered in x alone: y and z end at 65,535

#if defined(STORAGE_FLOAT16)
#include <cuda_fp16.h>
typedef __half Storage;
__device__ __forceinline__ float widen(Storage value) { return __half2float(value); }
__device__ __forceinline__ Storage narrow(float value) { return __float2half_rn(value); }
#elif defined(STORAGE_BFLOAT16)
#include <cuda_bf16.h>
typedef __nv_bfloat16 Storage;
__device__ __forceinline__ float widen(Storage value) { return __bfloat162float(value); }
__device__ __forceinline__ Storage narrow(float value) { return __float2bfloat16_rn(value); }
#elif defined(STORAGE_FLOAT32)
typedef float Storage;
__device__ __forceinline__ float widen(Storage value) { return value; }
__device__ __forceinline__ Storage narrow(float value) { return value; }
#else
#error "define STORAGE_FLOAT32, STORAGE_FLOAT16 or STORAGE_BFLOAT16"
#endif

#define SHAPE                                                                                                        \
    int N, int C, int H, int W, int K, int R, int S, int P, int Q, int stride_h, int stride_w, int pad_h, int pad_w, \
        int dilation_h, int dilation_w, int groups

__device__ __forceinline__ bool is_inside(int index, int size) { return (unsigned)index < (unsigned)size; }

// sum[j] += value * filters[j]; filters lies in shared memory, at a multiple of 16 bytes where COUNT is one of 4.
template <int COUNT>
__device__ __forceinline__ void add_products(float (&sum)[COUNT], float value, const float* filters) {
    if constexpr (COUNT % 4 == 0) {
#pragma unroll
        for (int j = 0; j < COUNT; j += 4) {
            const float4 four = *(const float4*)(filters + j);
            sum[j] += value * four.x;
            sum[j + 1] += value * four.y;
            sum[j + 2] += value * four.z;
            sum[j + 3] += value * four.w;
        }
    } else {
#pragma unroll
        for (int j = 0; j < COUNT; ++j) sum[j] += value * filters[j];
    }
}
