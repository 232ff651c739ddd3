// Part of grouped.cu: from a warp's accumulators to y.

// Where the first filter's output of a pixel lies, if there is one.
struct Output {
    bool is_there;
    size_t at;
};

#if ELEMENTS == 2
__device__ __forceinline__ unsigned pair_of(float low, float high) {
    return bits_of(narrow(low)) | bits_of(narrow(high)) << 16;
}

// Two columns of a row of eight become two rows of a column.
__device__ __forceinline__ unsigned transposed(unsigned pair) {
#ifdef __CUDA_ARCH__
    unsigned result;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
    return result;
#else
    const int lane = threadIdx.x % 32, from = lane % 4 * 8 + lane / 8, shift = lane / 4 % 2 * 16;
    const unsigned low = __shfl_sync(~0u, pair, from), high = __shfl_sync(~0u, pair, from + 4);
    return (low >> shift & 0xffff) | high >> shift << 16;
#endif
}
#endif

#if HAS_EPILOGUE
// Before they are stored: the arguments are those of store_sums.
template <class PixelAt>
__device__ __forceinline__ void end_sums(const Storage* y, const Epilogue& epilogue, float (&sum)[MT][NT][4],
                                         PixelAt pixel_at, int first_pixel, int first_k, int left, int plane) {
    const int row = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#if RESIDUAL
    const size_t step = MODE == NCHW ? plane : 1;
#pragma unroll
    for (int i = 0; i < 2 * MT; ++i) {
        const Output output = pixel_at(first_pixel + i * 8 + row);
        if (!output.is_there) continue;
#pragma unroll
        for (int j = 0; j < 2 * NT; ++j) {
            const int filter = j / 2 * 8 + t * 2 + j % 2;
            float& value = sum[i / 2][j / 2][i % 2 * 2 + j % 2];
            if (filter < left) value = epilogue.of(value, first_k + filter, y + output.at + (first_k + filter) * step);
        }
    }
#else
#pragma unroll
    for (int j = 0; j < 2 * NT; ++j) {
        float pixels[2 * MT];
#pragma unroll
        for (int i = 0; i < 2 * MT; ++i) pixels[i] = sum[i / 2][j / 2][i % 2 * 2 + j % 2];
        epilogue.end(pixels, first_k + min(j / 2 * 8 + t * 2 + j % 2, left - 1));
#pragma unroll
        for (int i = 0; i < 2 * MT; ++i) sum[i / 2][j / 2][i % 2 * 2 + j % 2] = pixels[i];
    }
#endif
}
#endif

// A warp's sums are of 16 MT pixels from first_pixel on and of 8 NT filters from first_k on, of which `left` are there.
// run: two-byte outputs of nchw that are neighbours in memory and in the tile, and aligned.
template <class PixelAt>
__device__ __forceinline__ void store_sums(Storage* __restrict__ y, const float (&sum)[MT][NT][4], PixelAt pixel_at,
                                           int first_pixel, int first_k, int left, int K, int plane, int run) {
    const int row = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#if MODE == NCHW && ELEMENTS == 2
    if (run > 1) {
        Storage* const to = y + (size_t)(first_k + row) * plane;
#pragma unroll
        for (int i = 0; i < MT; ++i) {
            const int pixel = first_pixel + 16 * i;
            const Output first = pixel_at(pixel + (run == 4 ? t % 2 * 8 + t / 2 * 4 : 2 * t));
            const Output second = run == 4 ? first : pixel_at(pixel + 8 + 2 * t);
#pragma unroll
            for (int j = 0; j < NT; ++j) {
                uint2 two = {transposed(pair_of(sum[i][j][0], sum[i][j][1])),
                             transposed(pair_of(sum[i][j][2], sum[i][j][3]))};
                Storage* const at = to + (size_t)(8 * j) * plane;
                const bool is_there = 8 * j + row < left;
                if (run == 4) {
                    // A thread has two pixels of the first eight and two of the others: it takes its neighbour's.
                    const unsigned other = __shfl_xor_sync(~0u, t % 2 ? two.x : two.y, 1);
                    (t % 2 ? two.x : two.y) = other;
                    if (is_there && first.is_there) *(uint2*)(at + first.at) = two;
                } else {
                    if (is_there && first.is_there) *(unsigned*)(at + first.at) = two.x;
                    if (is_there && second.is_there) *(unsigned*)(at + second.at) = two.y;
                }
            }
        }
        return;
    }
#endif
    const int step = MODE == NCHW ? plane : 1;
    const bool is_even = MODE != NCHW && (K | first_k) % 2 == 0;
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Output output = pixel_at(first_pixel + i * 16 + half * 8 + row);
            if (!output.is_there) continue;
            Storage* const to = y + output.at + (size_t)(first_k + 2 * t) * step;
#pragma unroll
            for (int j = 0; j < NT; ++j) {
                const Storage low = narrow(sum[i][j][2 * half]), high = narrow(sum[i][j][2 * half + 1]);
                Storage* const at = to + (size_t)(8 * j) * step;
                const int here = left - 8 * j - 2 * t;
                if (is_even && here > 1) {
#if ELEMENTS == 2
                    *(unsigned*)at = bits_of(low) | bits_of(high) << 16;
#else
                    *(float2*)at = make_float2(low, high);
#endif
                } else {
                    if (here > 0) at[0] = low;
                    if (here > 1) at[step] = high;
                }
            }
        }
    }
}
