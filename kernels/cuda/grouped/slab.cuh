// Part of grouped.cu: what is staged in shared memory, and its layout.

struct Tile {
    int n0, p0, q0;
};

struct Place {
    int image, p, q;
};

// value / d for by = ceil(2^32 / d), 0 where d is 1; value and d below 2^16.
__device__ __forceinline__ int quotient(int value, unsigned by) {
    return by == 0 ? value : (int)((unsigned long long)(unsigned)value * by >> 32);
}

// value / d for factor = ceil(2^(32 + shift) / d) with 2^shift < d <= 2^(shift + 1), 0 where d is 1; value below 2^31.
__device__ __forceinline__ unsigned quotient(unsigned value, unsigned factor, int shift) {
    return factor == 0 ? value : (unsigned)((unsigned long long)value * factor >> 32) >> shift;
}

// Of a pixel of the tile.
__device__ __forceinline__ Place place_of(int pixel, int tile_p, int tile_q, unsigned by_pixels, unsigned by_q) {
    Place place;
    place.image = quotient(pixel, by_pixels);
    pixel -= place.image * tile_p * tile_q;
    place.p = quotient(pixel, by_q);
    place.q = pixel - place.p * tile_q;
    return place;
}

__device__ __forceinline__ unsigned bits_of(Storage value) {
    unsigned bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}

#if PAIRS
#define LOADS_AHEAD (MT * NT <= 12 ? 4 : 8)  // of words of two loads each, as registers allow
#endif

#if MODE == NCHW
#if PAIRS
template <int RUN>
struct alignas(2 * RUN) PlaneRun {
    unsigned short of[RUN];
};
__device__ __forceinline__ void store_words(unsigned* to, PlaneRun<1> low, PlaneRun<1> high) {
    *to = low.of[0] | (unsigned)high.of[0] << 16;
}
__device__ __forceinline__ void store_words(unsigned* to, PlaneRun<2> low, PlaneRun<2> high) {
    *(uint2*)to = {low.of[0] | (unsigned)high.of[0] << 16, low.of[1] | (unsigned)high.of[1] << 16};
}
__device__ __forceinline__ void store_words(unsigned* to, PlaneRun<4> low, PlaneRun<4> high) {
    *(uint4*)to = {low.of[0] | (unsigned)high.of[0] << 16, low.of[1] | (unsigned)high.of[1] << 16,
                   low.of[2] | (unsigned)high.of[2] << 16, low.of[3] | (unsigned)high.of[3] << 16};
}
#endif

// A thread takes runs of pixels that are neighbours in memory too, of every so manieth word; words of two-byte elements
// are put together from two planes.
template <int RUN>
__device__ __forceinline__ void fetch_planes(unsigned* slab, const int* sources, const Storage* __restrict__ x, int pixels,
                                             int channels, int words, int pitch, int plane, int lanes, unsigned by_lanes) {
    const int line = quotient(threadIdx.x, by_lanes), lines = quotient(blockDim.x, by_lanes);
    if (line >= lines) return;
    for (int pixel = (threadIdx.x - line * lanes) * RUN; pixel < pixels; pixel += lanes * RUN) {
        const int source = sources[pixel];
        unsigned* to = slab + line * pitch + pixel;
        const Storage* from = x + (size_t)max(source, 0) + (size_t)(line * ELEMENTS) * plane;
        const int there = source < 0 ? 0 : channels;
#if ELEMENTS == 1
#pragma unroll 4
        for (int word = line; word < words; word += lines) {
            copy_async<4 * RUN>(to, from, word < there ? 4 * RUN : 0);
            to += lines * pitch;
            from += (size_t)lines * plane;
        }
#else
        constexpr int AHEAD = RUN == 4 ? LOADS_AHEAD / 2 : LOADS_AHEAD;
        for (int first = line; first < words; first += AHEAD * lines) {
            PlaneRun<RUN> low[AHEAD], high[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const int channel = (first + i * lines) * 2;
                low[i] = high[i] = {};
                if (channel < there) low[i] = *(const PlaneRun<RUN>*)from;
                if (channel + 1 < there) high[i] = *(const PlaneRun<RUN>*)(from + plane);
                from += (size_t)(lines * 2) * plane;
            }
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                if (first + i * lines < words) store_words(to, low[i], high[i]);
                to += lines * pitch;
            }
        }
#endif
    }
}
#else
// A thread takes a run of words of every so manieth pixel.
template <int RUN>
__device__ __forceinline__ void fetch_pixels(unsigned* slab, const int* sources, const Storage* __restrict__ x, int pixels,
                                             int channels, int words, int pitch, int lanes, unsigned by_lanes) {
    const int line = quotient(threadIdx.x, by_lanes), lines = quotient(blockDim.x, by_lanes);
    if (line >= lines) return;
    for (int word = (threadIdx.x - line * lanes) * RUN; word < words; word += lanes * RUN) {
        unsigned* to = slab + line * pitch + word;
        const Storage* const from = x + word * ELEMENTS;
        const bool has_low = word * ELEMENTS < channels;
#if PAIRS
        const bool has_high = word * ELEMENTS + 1 < channels;
#endif
        for (int pixel = line; pixel < pixels; pixel += 4 * lines) {
            int source[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) source[i] = pixel + i * lines < pixels ? sources[pixel + i * lines] : -1;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const Storage* const at = from + (unsigned)max(source[i], 0);
#if PAIRS
                const unsigned low = source[i] >= 0 && has_low ? bits_of(at[0]) : 0;
                const unsigned high = source[i] >= 0 && has_high ? bits_of(at[1]) : 0;
                if (pixel + i * lines < pixels) *to = low | high << 16;
#else
                if (pixel + i * lines < pixels) copy_async<4 * RUN>(to, at, source[i] >= 0 && has_low ? 4 * RUN : 0);
#endif
                to += lines * pitch;
            }
        }
    }
}
#endif

// Words of `channels` channels, of which x is the first, of every pixel of the slab; zeros where there is no pixel or no
// channel. A copy has `run` neighbouring pixels (nchw) or words (nhwc).
__device__ __forceinline__ void fetch_slab(unsigned* slab, const int* sources, const Storage* __restrict__ x, int pixels,
                                           int channels, int words, int pitch, int plane, int run, int lanes,
                                           unsigned by_lanes) {
#if MODE == NCHW
    if (run == 4)
        fetch_planes<4>(slab, sources, x, pixels, channels, words, pitch, plane, lanes, by_lanes);
    else if (run == 2)
        fetch_planes<2>(slab, sources, x, pixels, channels, words, pitch, plane, lanes, by_lanes);
    else
        fetch_planes<1>(slab, sources, x, pixels, channels, words, pitch, plane, lanes, by_lanes);
#elif PAIRS
    fetch_pixels<1>(slab, sources, x, pixels, channels, words, pitch, lanes, by_lanes);
#else
    if (run == 4)
        fetch_pixels<4>(slab, sources, x, pixels, channels, words, pitch, lanes, by_lanes);
    else
        fetch_pixels<1>(slab, sources, x, pixels, channels, words, pitch, lanes, by_lanes);
#endif
}

// A thread takes a run of gemm_k of every so manieth filter: of a chunk that begins with first_word, zeros where there is no
// channel, and up to padded_k.
template <int RUN>
__device__ __forceinline__ void fetch_filters(unsigned* target, const Storage* __restrict__ weight, int count,
                                              int channels, int taps, int first_word, int words, int padded_k, int pitch,
                                              int lanes, unsigned by_lanes, unsigned by_inner) {
    const int line = quotient(threadIdx.x, by_lanes), lines = quotient(blockDim.x, by_lanes);
    if (line >= lines) return;
    const int row = channels * taps;
    for (int k = (threadIdx.x - line * lanes) * RUN; k < padded_k; k += lanes * RUN) {
        const int outer = quotient(k, by_inner), inner = k - outer * (MODE == NCHW ? taps : words);
        const int tap = MODE == NCHW ? inner : outer, word = MODE == NCHW ? outer : inner;
        const int channel = (first_word + word) * ELEMENTS;
        const bool has_low = k < words * taps && channel < channels;
        const Storage* from = weight + (size_t)line * row + (MODE == NCHW ? channel * taps + tap : tap * channels + channel);
        unsigned* to = target + line * pitch + k;
#if PAIRS
        const bool has_high = has_low && channel + 1 < channels;
        const int step = MODE == NCHW ? taps : 1;
#endif
#if PAIRS
        for (int filter = line; filter < count; filter += LOADS_AHEAD * lines) {
            unsigned low[LOADS_AHEAD], high[LOADS_AHEAD];
#pragma unroll
            for (int i = 0; i < LOADS_AHEAD; ++i) {
                const bool is_there = filter + i * lines < count;
                low[i] = is_there && has_low ? bits_of(from[0]) : 0;
                high[i] = is_there && has_high ? bits_of(from[step]) : 0;
                from += (size_t)lines * row;
            }
#pragma unroll
            for (int i = 0; i < LOADS_AHEAD; ++i) {
                if (filter + i * lines < count) *to = low[i] | high[i] << 16;
                to += lines * pitch;
            }
        }
#else
#pragma unroll 4
        for (int filter = line; filter < count; filter += lines) {
            copy_async<4 * RUN>(to, from, has_low ? 4 * RUN : 0);
            to += lines * pitch;
            from += (size_t)lines * row;
        }
#endif
    }
}

__device__ __forceinline__ void fetch_weight(unsigned* target, const Storage* __restrict__ weight, int count, int channels,
                                             int taps, int first_word, int words, int padded_k, int pitch, int run,
                                             int lanes, unsigned by_lanes, unsigned by_inner) {
#if !PAIRS
    if (run == 4)
        return fetch_filters<4>(target, weight, count, channels, taps, first_word, words, padded_k, pitch, lanes,
                                by_lanes, by_inner);
#endif
    fetch_filters<1>(target, weight, count, channels, taps, first_word, words, padded_k, pitch, lanes, by_lanes, by_inner);
}
