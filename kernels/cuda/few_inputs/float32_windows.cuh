// Part of few_inputs_float32.cu and few_inputs_wgmma.cu: what a thread multiplies.

#define THREADS (32 * WARPS)
#define FILTERS (8 * NT)
#define STEP 8    // of gemm_k
#define GROUP 2   // tiles of filters whose sums a thread stores at once
#define VECTOR 4  // neighbouring filters of them
static_assert(NT % 2 == 0, "tiles of filters in pairs");

#ifdef __CUDA_ARCH__
__device__ __forceinline__ void split_weight(unsigned (&high)[1], unsigned (&low)[1]) {
#if SPLIT
    split(high, low);
#else
    high[0] = round_to_tf32(high[0]);
#endif
}
#else  // on a CPU
inline float float_of(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline void split_weight(unsigned (&)[1], unsigned (&low)[1]) { low[0] = 0; }
#endif

// A thread's elements of a step of its windows, which begin where `window` says, and second_bytes further those of its second
// pixels.
__device__ __forceinline__ void load_windows(unsigned (&a)[MT][4], const char* const (&window)[MT], int second_bytes,
                                             const int* offsets) {
    const int2 offset = *(const int2*)(offsets + threadIdx.x % 4 * 2);
#pragma unroll
    for (int i = 0; i < MT; ++i) {
        const char *const first = window[i] + offset.x, *const second = window[i] + offset.y;
        a[i][0] = *(const unsigned*)first;
        a[i][1] = *(const unsigned*)(first + second_bytes);
        a[i][2] = *(const unsigned*)second;
        a[i][3] = *(const unsigned*)(second + second_bytes);
    }
}
