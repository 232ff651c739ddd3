// Part of implicit_gemm.cu: half-precision elements of x, too narrow for asynchronous copies, are loaded through registers.

#define GROUP_STEP (THREADS / BN)
#define GROUPS (BK / 8 / GROUP_STEP)
static_assert(GROUPS * GROUP_STEP * 8 == BK, "whole groups of eight rows a thread");

// Which of the taps lie inside the image, as bits; they go on periodically to the last bit.
__device__ __forceinline__ unsigned long long taps_inside(const Column& column, int H, int W, int R, int S,
                                                          int dilation_h, int dilation_w) {
    unsigned long long bits = 0;
    int shift = 0;
    for (int r = 0; r < R; ++r) {
        const bool has_row = is_inside(column.h0 + r * dilation_h, H);
        for (int s = 0; s < S; ++s, ++shift)
            bits |= (unsigned long long)(has_row && is_inside(column.w0 + s * dilation_w, W)) << shift;
    }
    for (; shift < 64; shift *= 2) bits |= bits << shift;
    return bits;
}

// What a thread gathers of a stage of x: groups of eight gemm_k of its pixel, as pairs of two-byte elements.
struct Gathered {
    unsigned pairs[GROUPS][4];
};

// Taps from the first row of a stage to the first of each group, modulo the filter's.
struct Phases {
    int taps[GROUPS];

    __device__ __forceinline__ void start(int filter_taps) {
        const int step = GROUP_STEP * 8 % filter_taps;
        taps[0] = threadIdx.x / BN * 8 % filter_taps;
#pragma unroll
        for (int group = 1; group < GROUPS; ++group) taps[group] = wrap(taps[group - 1] + step, filter_taps);
    }
    static __device__ __forceinline__ int wrap(int tap, int filter_taps) {
        return tap >= filter_taps ? tap - filter_taps : tap;
    }
};

// x has fewer than 2^32 bytes, so an unsigned offset from its first one reaches all of it.
__device__ __forceinline__ void gather_x(Gathered& values, const char* __restrict__ x, unsigned first,
                                         unsigned long long inside, const Phases& phases, const Walk& walk,
                                         const int* offsets, int gemm_k) {
    const int row = threadIdx.x / BN * 8;
    offsets += walk.tap + row;
    first += walk.offset * ELEMENT;
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        const int left = gemm_k - walk.k - row - group * GROUP_STEP * 8;
        unsigned bits = (unsigned)(inside >> Phases::wrap(walk.tap + phases.taps[group], walk.taps));
        if (left < 8) bits &= left > 0 ? (1u << left) - 1 : 0;
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
            unsigned halves[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const unsigned offset = first + offsets[group * GROUP_STEP * 8 + 2 * pair + half];
                halves[half] = bits >> (2 * pair + half) & 1 ? __ldg((const unsigned short*)(x + (size_t)offset)) : 0;
            }
            values.pairs[group][pair] = halves[0] | halves[1] << 16;
        }
    }
}

// A stage of x (BN, X_PITCH).
__device__ __forceinline__ void store_x(Storage* target, const Gathered& values) {
    target += threadIdx.x % BN * X_PITCH + threadIdx.x / BN * 8;
#pragma unroll
    for (int group = 0; group < GROUPS; ++group)
        *(uint4*)(target + group * GROUP_STEP * 8) =
            make_uint4(values.pairs[group][0], values.pairs[group][1], values.pairs[group][2], values.pairs[group][3]);
}
