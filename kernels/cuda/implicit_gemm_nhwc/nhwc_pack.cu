// Copies tensors so that channels are innermost and a multiple of 16 bytes: what implicit_gemm_nhwc.cu reads.
//
//   tensors      x (N,C,H,W), weight (K,C,R,S) as they are in nchw, to packed_x (N,H,W,CP) and packed_weight (K,R,S,CP);
//                the channels from C to CP are zero. With -DIS_NHWC=1 x (N,H,W,C) and weight (K,R,S,C): they are only padded
//   rounding     nchw: float32 is rounded to the nearest tf32, because wgmma truncates; nhwc: not rounded, the products
//                compensate for the truncation, packed or not
//   grid, block  256 threads a tile of RUNS runs of 16 bytes of channels at 512 / RUNS positions, channels fastest; first
//                the tiles of x, then those of weight, which is the same with filters for images and taps for pixels
//   limits       memory-bound: a warp reads 32 neighbours of one channel; it writes 128 bytes of channels a position

#include "overlap.cuh"

#ifdef STORAGE_FLOAT32
#define VECTOR 4
#else
#define VECTOR 8
#endif
#define THREADS 256
#define READS 2  // of VECTOR elements by a thread
#define POSITIONS (THREADS * READS / RUNS)

struct __align__(16) Channels {
    Storage values[VECTOR];
};

#if !IS_NHWC && defined(STORAGE_FLOAT32) && defined(__CUDA_ARCH__)
__device__ __forceinline__ float rounded(float value) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return __uint_as_float(bits);
}
#else
__device__ __forceinline__ Storage rounded(Storage value) { return value; }
#endif

// source (batch, C, plane), or (batch, plane, C) with IS_NHWC; target (batch * plane, CP).
__device__ __forceinline__ void pack(const Storage* __restrict__ source, Storage* __restrict__ target, unsigned tile,
                                     unsigned count, unsigned plane, int C, int CP) {
    __shared__ Channels staged[POSITIONS][RUNS];
    const unsigned tiles_c = (CP / VECTOR + RUNS - 1) / RUNS, tile_p = tile / tiles_c;
    const int first_run = (tile - tile_p * tiles_c) * RUNS, warp = threadIdx.x / 32, run = warp % RUNS;
    const int own = warp / RUNS * (READS * 32) + threadIdx.x % 32;  // of the tile's positions; then every 32nd
    const unsigned first = tile_p * POSITIONS;
    const int channel = (first_run + run) * VECTOR;
    Channels read[READS];
#pragma unroll
    for (int i = 0; i < READS; ++i) {
        const unsigned position = first + own + i * 32, image = position / plane, inner = position - image * plane;
        const size_t at = IS_NHWC ? (size_t)position * C + channel : ((size_t)image * C + channel) * plane + inner;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            const bool is_read = position < count && channel + e < C;
            read[i].values[e] = is_read ? source[at + (size_t)e * (IS_NHWC ? 1 : plane)] : narrow(0.0f);
        }
    }
#pragma unroll
    for (int i = 0; i < READS; ++i) {
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) read[i].values[e] = rounded(read[i].values[e]);
        staged[own + i * 32][run ^ own % RUNS] = read[i];
    }
    __syncthreads();
    const int to_run = first_run + threadIdx.x % RUNS;
    if (to_run * VECTOR >= CP) return;
#pragma unroll
    for (int i = 0; i < POSITIONS * RUNS / THREADS; ++i) {
        const int row = threadIdx.x / RUNS + i * (THREADS / RUNS);
        if (first + row < count)
            *(Channels*)(target + (size_t)(first + row) * CP + to_run * VECTOR) = staged[row][threadIdx.x % RUNS ^ row % RUNS];
    }
}
static_assert(THREADS / 32 % RUNS == 0, "a warp a run of channels");

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    nhwc_pack(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ packed_x,
              Storage* __restrict__ packed_weight, unsigned x_tiles, unsigned pixels, unsigned plane, unsigned filter_taps,
              unsigned taps, int C, int CP) {
    wait_for_kernel_ahead();
    // The blocks of the next launch may come as soon as there is room; they wait for these to end before they read.
#if !defined(OVERLAPS) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    if (blockIdx.x < x_tiles)
        pack(x, packed_x, blockIdx.x, pixels, plane, C, CP);
    else
        pack(weight, packed_weight, blockIdx.x - x_tiles, filter_taps, taps, C, CP);
}
