// What Winograd's transforms share in both layouts: the scales, and how the operands of the GEMM are written.
//
//   u, v         (rows/64, ceil(C/16), POSITIONS, PARTS, 8, 2, 8 rows, 8 channels) of float16, rows being filters or tiles:
//                core matrices, as wgmma reads them; high + low = value * scale
//   needs        points.cuh, overlap.cuh, cuda_fp16.h
#define THREADS 256
// The largest |x| of an image is scaled to [2^TOP_X, 2^(TOP_X + 1)): |V| is at most 4.88^2 or 15^2 times that (the
// largest sums of a row of B^T), below 65504. The largest |weight| of a filter likewise: |U| <= 2.02^2 * 2^13.
#define TOP_X (TILE == 6 ? 10 : 7)
#define TOP_WEIGHT 12
#define SPOILED (1 << 20)
#define PARTS 2
#define BLOCK_TILES 32  // or filters: that a block transforms
#define CHANNELS (TILE == 6 ? 2 : 1)  // of a thread
#define SLICE 16
#define BLOCK_ROWS 64  // of u, v and m
#define BLOCK_PAIRS (BLOCK_ROWS * SLICE / 2)

// The power of two that brings a largest magnitude, given by its bits, to [2^top, 2^(top + 1)); both it and its inverse
// are normal.
__device__ __forceinline__ int exponent_for(unsigned bits, int top) {
    return max(-126, min(126, top + 127 - (int)(bits >> 23)));
}
// What is kept of it: SPOILED where the largest is not finite.
__device__ __forceinline__ int kept_exponent(unsigned bits, int top) {
    return bits < 0x7F800000 ? exponent_for(bits, top) : SPOILED;
}
__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// What scales y back, in two factors, each of them normal; NaN where the image or the filter is spoiled.
__device__ __forceinline__ float2 scales_back(int image_exponent, int filter_exponent) {
    const int exponent = -image_exponent - filter_exponent;
    const bool is_spoiled = image_exponent == SPOILED || filter_exponent == SPOILED;
    return make_float2(is_spoiled ? __int_as_float(0x7FC00000) : power_of_two(exponent / 2),
                       power_of_two(exponent - exponent / 2));
}

__device__ __forceinline__ unsigned bits_of(float value) { return __float_as_uint(value) & 0x7FFFFFFF; }

// The largest magnitude in length elements, by all threads; the bits of a float, which order as its magnitude does.
__device__ __forceinline__ unsigned largest_of(const float* __restrict__ from, size_t length) {
    const size_t skipped = (16 - (size_t)from % 16) % 16 / 4, head = skipped < length ? skipped : length;
    const size_t vectors = (length - head) / 4;
    unsigned largest = threadIdx.x < head ? bits_of(from[threadIdx.x]) : 0;
    const float4* const body = (const float4*)(from + head);
#pragma unroll 4
    for (size_t index = threadIdx.x; index < vectors; index += THREADS) {
        const float4 four = body[index];
        largest = max(max(largest, max(bits_of(four.x), bits_of(four.y))), max(bits_of(four.z), bits_of(four.w)));
    }
    const size_t tail = head + vectors * 4 + threadIdx.x;
    return tail < length ? max(largest, bits_of(from[tail])) : largest;
}

// maxima: of each of the parts of an image, then of each filter.
extern "C" __global__ void __launch_bounds__(THREADS)
    winograd_maxima(const float* __restrict__ x, const float* __restrict__ weight, unsigned* __restrict__ maxima,
                    int parts, SHAPE) {
    wait_for_kernel_ahead();
    __shared__ unsigned of_warps[THREADS / 32];
    const int images = N * parts, index = blockIdx.x;
    const float* from = weight + (size_t)(index - images) * C * TAPS * TAPS;
    size_t length = (size_t)C * TAPS * TAPS;
    if (index < images) {
        const size_t image = (size_t)C * H * W, begin = image * (index % parts) / parts;
        length = image * (index % parts + 1) / parts - begin;
        from = x + index / parts * image + begin;
    }
    unsigned largest = __reduce_max_sync(0xFFFFFFFF, largest_of(from, length));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int warp = 1; warp < THREADS / 32; ++warp) largest = max(largest, of_warps[warp]);
    maxima[index] = largest;
}

// What a thread transforms of a block of rows (tiles or filters) and 16 channels. A warp stores whole core matrices, or
// halves of two: lanes number the channels of eight fastest, then rows.
struct Place {
    int row, channel;
};
__device__ __forceinline__ Place place_of(int item) {
    constexpr int across = 8 / CHANNELS, rows = 32 / across;
    const int group = item / 32, lane = item % 32;
    return {group / 2 * rows + lane / across, group % 2 * 8 + lane % across * CHANNELS};
}

// Where a pair of channels of a row lies at position 0, part 0, in pairs; a part and a position are whole blocks apart.
__device__ __forceinline__ size_t pair_at(unsigned row, int slice, int slices, int channel) {
    return ((size_t)(row / BLOCK_ROWS) * slices + slice) * (POSITIONS * PARTS * BLOCK_PAIRS) + row % BLOCK_ROWS / 8 * 64 +
           channel / 8 * 32 + row % 8 * 4 + channel % 8 / 2;
}

// A thread's channels of a row, at all positions. Where threads have one channel, of two neighbours the first stores the
// high parts of both and the second the low ones.
__device__ __forceinline__ void store_split(__half2* target, const float (&values)[CHANNELS][POSITIONS], bool is_valid) {
    if constexpr (CHANNELS == 2) {
        if (!is_valid) return;
#pragma unroll
        for (int position = 0; position < POSITIONS; ++position) {
            const float2 both = make_float2(values[0][position], values[CHANNELS - 1][position]);
            const __half2 high = __float22half2_rn(both);
            target[position * PARTS * BLOCK_PAIRS] = high;
            const float2 found = __half22float2(high);
            target[(position * PARTS + 1) * BLOCK_PAIRS] =
                __float22half2_rn(make_float2(both.x - found.x, both.y - found.y));
        }
    } else {
        const bool is_odd = threadIdx.x % 2;
        if (is_odd) target += BLOCK_PAIRS;
#pragma unroll
        for (int position = 0; position < POSITIONS; ++position) {
            const float value = values[0][position], other = __shfl_xor_sync(0xFFFFFFFF, value, 1);
            const float2 both = is_odd ? make_float2(other, value) : make_float2(value, other);
            __half2 part = __float22half2_rn(both);
            const float2 found = __half22float2(part);
            if (is_odd) part = __float22half2_rn(make_float2(both.x - found.x, both.y - found.y));
            if (is_valid) target[position * PARTS * BLOCK_PAIRS] = part;
        }
    }
}

// exponents: of each filter. A block: 32 filters, 16 channels.
template <bool IS_NHWC>
__device__ __forceinline__ void transform_filters(const float* __restrict__ weight,
                                                  const unsigned* __restrict__ maxima, __half2* __restrict__ u,
                                                  int* __restrict__ exponents, int K, int C, unsigned block) {
    const int tap_step = IS_NHWC ? C : 1;
    const int slices = (C + SLICE - 1) / SLICE, slice = block % slices;
#pragma unroll 1
    for (int item = threadIdx.x; item < BLOCK_TILES * SLICE / CHANNELS; item += THREADS) {
        const Place place = place_of(item);
        const int k = block / slices * BLOCK_TILES + place.row, c = slice * SLICE + place.channel;
        const unsigned largest = k < K ? maxima[k] : 0;
        if (c == 0 && k < K) exponents[k] = kept_exponent(largest, TOP_WEIGHT);
        const float scale = power_of_two(exponent_for(largest, TOP_WEIGHT));
        float transformed[CHANNELS][POSITIONS];
#pragma unroll
        for (int e = 0; e < CHANNELS; ++e) {
            float g[TAPS * TAPS];
            const bool is_read = k < K && c + e < C;
            const size_t first = IS_NHWC ? (size_t)k * (TAPS * TAPS) * C + c + e : ((size_t)k * C + c + e) * (TAPS * TAPS);
            const float* const filter = weight + (is_read ? first : 0);
#pragma unroll
            for (int i = 0; i < TAPS * TAPS; ++i) g[i] = is_read ? filter[i * tap_step] * scale : 0.0f;
            transform_filter(transformed[e], g);
        }
        store_split(u + pair_at(k, slice, slices, place.channel), transformed, true);
    }
}
