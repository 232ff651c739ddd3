// Compensation for the truncation of tensor cores. They truncate float32 operands to tf32 (the first 19 bits), and sums to float32
// at every accumulation. Errors of one sign add up over the layers of a network, so operands are rounded first, or sums are scaled
// by the average loss. A sum that ends in zero bits may be an integer, from which nothing was truncated, and is not changed.

#if defined(STORAGE_FLOAT32) && defined(__CUDA_ARCH__)
// Adds half a unit in tf32's last place, so truncation then gives the nearest tf32, ties away from zero: the result of cvt.rna
// in half the instructions. Infinities and NaN are unchanged.
__device__ __forceinline__ float round_to_tf32(float value) {
    return fmaf(__uint_as_float(__float_as_uint(value) & 0xff800000u), 0x1p-11f, value);
}
// The nearest tf32, and nothing else: finite values alone.
__device__ __forceinline__ float high_part(float value) {
    return __uint_as_float(__float_as_uint(value) + 0x1000u & 0xffffe000u);
}
#else  // on a CPU, products are of what is there
__device__ __forceinline__ float round_to_tf32(float value) { return value; }
__device__ __forceinline__ float high_part(float value) { return value; }
#endif
__device__ __forceinline__ float4 round_to_tf32(float4 value) {
    return make_float4(round_to_tf32(value.x), round_to_tf32(value.y), round_to_tf32(value.z), round_to_tf32(value.w));
}
__device__ __forceinline__ float4 high_part(float4 value) {
    return make_float4(high_part(value.x), high_part(value.y), high_part(value.z), high_part(value.w));
}

__device__ __forceinline__ bool ends_in_zeros(float sum) { return !(__float_as_uint(sum) & 0x3f); }

// By what to raise a sum whose chains, each from zero, had so many steps of large products: benchmarks/rounding.py emulates it. The
// share of a sum that was cut, in units of 2^-23, was measured behind ReLU; steps whose operands are all zeros cut nothing, and do
// not count. Rounding adds one unit in the last place or none: one where the mantissa exceeds 0.5 / factor, so that
// (2 factor - 0.5) / ln 2 is added on average where mantissas are spread evenly by their logarithm.
__device__ __forceinline__ constexpr float raised_by(float steps) {
    const float share = 0.192f + 0.123f * steps;
    return (0.25f + 0.34657f * share) * 0x1p-23f;
}
// Steps of the chains of `count` steps, MOST of them a chain, where the last chain may be shorter: the mean, a chain counting as
// much as it adds to the sum.
template <int MOST>
__device__ __forceinline__ float mean_steps(int count) {
    const int last = count % MOST;
    return (float)((count - last) * MOST + last * last) / (float)count;
}
// So that it is right after rounding.
__device__ __forceinline__ float restored(float sum, float raised) {
#ifdef __CUDA_ARCH__
    return ends_in_zeros(sum) ? sum : fmaf(sum, raised, sum);
#else
    return (void)raised, sum;
#endif
}
template <class Sums>
__device__ __forceinline__ void restore_cut(Sums& sums, float raised) {
    float* const each = (float*)sums;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(Sums) / sizeof(float)); ++i) each[i] = restored(each[i], raised);
}

// Sums of products of operands that were both cut to tf32. Each loses half a unit of its last place on average, which is
// 2^-11 / m of a value of mantissa m: 0.7213 * 2^-11 where mantissas are spread evenly by their logarithm.
template <class Sums>
__device__ __forceinline__ void restore_cut_operands(Sums& sums) {
#ifdef __CUDA_ARCH__
    float* const each = (float*)sums;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(Sums) / sizeof(float)); ++i)
        if (!ends_in_zeros(each[i])) each[i] *= 1.00070456f;
#endif
    (void)sums;
}
