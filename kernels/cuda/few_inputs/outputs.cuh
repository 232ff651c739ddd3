// Shared by the first-layer kernels: epilogue and stores of a thread's accumulators for a tile of 16 pixels.
//
//   before       GROUP, tiles of filters whose sums a thread stores at once; VECTOR, filters of a store; pixels.cuh
//   NHWC         of either pixel VECTOR neighbouring filters at a time
//   NCHW         of each filter both pixels: eight threads store neighbouring elements twice, or IS_PAIR twice as many at once

// Of a pixel of a tile, its row and column in y.
struct Place {
    int p, q;
};

#define EIGHTS (MT > 1 ? 4 : 2)  // eights of pixels, of which one lane of as many comes to store each
template <class Value, int BIT>
__device__ __forceinline__ void exchange_halves(Value (&values)[EIGHTS]) {
    const bool is_upper = threadIdx.x & BIT;
#pragma unroll
    for (int low = 0; low < EIGHTS; ++low) {
        if (low & BIT) continue;
        const Value other = __shfl_xor_sync(~0u, is_upper ? values[low] : values[low | BIT], BIT);
        values[low | BIT] = is_upper ? values[low | BIT] : other;
        values[low] = is_upper ? other : values[low];
    }
}
// Of as many lanes the values of each, in order of the eights, become those of one eight, in order of the lanes, and back.
template <class Value>
__device__ __forceinline__ void exchange(Value (&values)[EIGHTS]) {
    exchange_halves<Value, 1>(values);
    if constexpr (EIGHTS == 4) exchange_halves<Value, 2>(values);
}

// What is exchanged at once: a pixel's outputs of FILTERS_OF_WORD filters.
#ifdef STORAGE_FLOAT32
#define FILTERS_OF_WORD 1
typedef float Word;
__device__ __forceinline__ Word word_of(const float (&values)[1][EIGHTS], int eight) { return values[0][eight]; }
__device__ __forceinline__ void store_of_word(Storage* place, Word word, int) { *place = word; }
#else
#define FILTERS_OF_WORD 2
typedef unsigned Word;
__device__ __forceinline__ Word word_of(const float (&values)[2][EIGHTS], int eight) {
    return narrow_pair(values[0][eight], values[1][eight]);
}
__device__ __forceinline__ void store_of_word(Storage* place, Word word, int filter) { *(unsigned short*)place = word >> 16 * filter; }
#endif

// Neighbours of y.
__device__ __forceinline__ void store_filters(Storage* place, const float (&values)[VECTOR]) {
#ifdef STORAGE_FLOAT32
    *(float4*)place = *(const float4*)values;
#else
    __align__(16) unsigned pairs[GROUP];
#pragma unroll
    for (int e = 0; e < GROUP; ++e) pairs[e] = narrow_pair(values[2 * e], values[2 * e + 1]);
    if constexpr (GROUP == 4)
        *(uint4*)place = *(const uint4*)pairs;
    else
        *(uint2*)place = *(const uint2*)pairs;
#endif
}
__device__ __forceinline__ void store_pair(Storage* place, const float (&pair)[2]) {
#ifdef STORAGE_FLOAT32
    *(float2*)place = make_float2(pair[0], pair[1]);
#else
    *(unsigned*)place = narrow_pair(pair[0], pair[1]);
#endif
}

// Of the warp's pixels, which `place_of` knows by their index, the sums of MT tiles; `outputs` is the image's y.
template <class PlaceOf>
__device__ __forceinline__ void store_sums(const Epilogue& epilogue, const float (&sum)[MT][NT][4], Storage* outputs,
                                           int first_filter, int K, int P, int Q, PlaceOf place_of) {
#if IS_NHWC
    const int first = first_filter + threadIdx.x % 4 * VECTOR;
    int pixels[2 * MT];
#pragma unroll
    for (int i = 0; i < 2 * MT; ++i) {
        const Place place = place_of(i / 2 * 16 + first_pixel() + i % 2 * SECOND_PIXEL);
        pixels[i] = place.p < P && place.q < Q ? place.p * Q + place.q : -1;
    }
#pragma unroll
    for (int j = 0; j < NT; j += GROUP) {
        const int filter = first + j * 8;
        if (filter >= K) continue;
        float bias[VECTOR];
        epilogue.read_bias(bias, filter);
#pragma unroll
        for (int i = 0; i < 2 * MT; ++i) {
            if (pixels[i] < 0) continue;
            Storage* const target = outputs + (size_t)pixels[i] * K + filter;
            __align__(16) float values[VECTOR];
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) values[e] = sum[i / 2][j + e / 2][i % 2 * 2 + e % 2];
            epilogue.apply(values, bias, target);
            store_filters(target, values);
        }
    }
#elif IS_PAIR
    const int first = first_filter + threadIdx.x % 4 * VECTOR;
    const size_t plane = (size_t)P * Q;
#pragma unroll
    for (int i = 0; i < MT; ++i) {
        const Place place = place_of(i * 16 + first_pixel());
        if (place.p >= P || place.q >= Q) continue;
        Storage* target = outputs + first * plane + place.p * Q + place.q;
#pragma unroll
        for (int j = 0; j < NT; j += GROUP, target += GROUP * 8 * plane) {
            if (first + j * 8 >= K) continue;
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) {
                Storage* const pixels = target + e * plane;
                const float(&sums)[4] = sum[i][j + e / 2];
                float pair[2] = {sums[e % 2], sums[2 + e % 2]};
                epilogue.apply(pair, first + j * 8 + e, pixels);
                store_pair(pixels, pair);
            }
        }
    }
#else
    const int t = threadIdx.x % 4, own = first_filter + t * VECTOR, first = first_filter + t / EIGHTS * EIGHTS * VECTOR;
    const size_t plane = (size_t)P * Q;
#pragma unroll
    for (int i = 0; i < MT; i += EIGHTS / 2) {
        const Place place = place_of(i * 16 + t % EIGHTS * 8 + threadIdx.x % 32 / 4);
        const int end = place.p < P && place.q < Q ? K : 0;
        Storage* const pixel = outputs + first * plane + place.p * Q + place.q;
#pragma unroll
        for (int j = 0; j < NT; j += GROUP) {
            Storage* targets[EIGHTS];
#pragma unroll
            for (int lane = 0; lane < EIGHTS; ++lane) targets[lane] = pixel + (lane * VECTOR + j * 8) * plane;
#pragma unroll
            for (int e = 0; e < VECTOR; e += FILTERS_OF_WORD) {
                float values[FILTERS_OF_WORD][EIGHTS];
#pragma unroll
                for (int f = 0; f < FILTERS_OF_WORD; ++f) {
                    float residual[EIGHTS] = {};
#if RESIDUAL
#pragma unroll
                    for (int lane = 0; lane < EIGHTS; ++lane) {
                        float one[1] = {0.0f};
                        if (first + lane * VECTOR + j * 8 < end) epilogue.read_residual(one, targets[lane] + f * plane);
                        residual[lane] = one[0];
                    }
                    exchange(residual);
#endif
#pragma unroll
                    for (int eight = 0; eight < EIGHTS; ++eight)
                        values[f][eight] = sum[i + eight / 2][j + e / 2][eight % 2 * 2 + (e + f) % 2];
                    epilogue.apply_with(values[f], min(own + j * 8 + e + f, K - 1), residual);
                }
                Word words[EIGHTS];
#pragma unroll
                for (int eight = 0; eight < EIGHTS; ++eight) words[eight] = word_of(values, eight);
                exchange(words);
#pragma unroll
                for (int lane = 0; lane < EIGHTS; ++lane) {
                    const bool is_there = first + lane * VECTOR + j * 8 < end;
#pragma unroll
                    for (int f = 0; f < FILTERS_OF_WORD; ++f, targets[lane] += plane) {
                        if (is_there) store_of_word(targets[lane], words[lane], f);
                    }
                }
            }
        }
    }
#endif
}
