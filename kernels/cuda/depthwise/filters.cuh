// Filters of VEC channels of nhwc, and their sums; after depthwise.cuh.

// The filters of VEC channels are one run of memory: element e * FILTER + r * FILTER_S + s.
struct Filters {
    Vector<VEC> vector[FILTER];
    __device__ __forceinline__ float at(int element) const { return widen(vector[element / VEC].value[element % VEC]); }
};

__device__ __forceinline__ Filters read_filters(const Storage* __restrict__ weight, int k) {
    Filters filters;
#pragma unroll
    for (int i = 0; i < FILTER; ++i) filters.vector[i] = ((const Vector<VEC>*)(weight + (size_t)k * FILTER))[i];
    return filters;
}

// What is stored at `target` as the outputs of VEC filters from k on.
__device__ __forceinline__ Vector<VEC> narrowed(const float (&sum)[VEC], const Epilogue& epilogue, int k,
                                                const Storage* target) {
    float ended[VEC];
#pragma unroll
    for (int e = 0; e < VEC; ++e) ended[e] = sum[e];
    epilogue.apply<true>(ended, k, target);
    Vector<VEC> result;
#pragma unroll
    for (int e = 0; e < VEC; ++e) result.value[e] = narrow(ended[e]);
    return result;
}
