// Two sums as neighbours of the two-byte storage types in one register, the first in its low half.

#if defined(STORAGE_FLOAT16)
__device__ __forceinline__ unsigned narrow_pair(float first, float second) {
    const __half2 pair = __floats2half2_rn(first, second);
    return *(const unsigned*)&pair;
}
#elif defined(STORAGE_BFLOAT16)
__device__ __forceinline__ unsigned narrow_pair(float first, float second) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return *(const unsigned*)&pair;
}
#endif
