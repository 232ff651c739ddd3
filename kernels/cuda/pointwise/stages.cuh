// Part of pointwise.cu: stages in shared memory, which pixels they hold, and how weight and x get there.
//
//   weight       (BN, 128 bytes of channels), each row's 16 bytes exchanged by the row's number, as wgmma wants them
//   x            (BK, X_PITCH): rows as in memory. CHUNKS: the parts of several images one behind the other, each as the
//                aligned 16 bytes that hold it, so a row's first pixel lies where its address modulo 16 says

#define WEIGHT_COPIES ((BN * 8 + THREADS - 1) / THREADS)
__device__ __forceinline__ void fetch_weight(unsigned char* target, const Storage* __restrict__ weight, int first, int k0,
                                             int K, int C) {
#pragma unroll
    for (int i = 0; i < WEIGHT_COPIES; ++i) {
        const int index = threadIdx.x + i * THREADS, m = index / 8, j = index % 8, k = k0 + j * VECTOR;
        if (BN * 8 % THREADS != 0 && index >= BN * 8) break;
        unsigned char* const to = target + m * 128 + ((j ^ m & 7) << 4);
        const bool is_row = first + m < K;
        const Storage* const source = weight + (size_t)(is_row ? first + m : 0) * C;
        if constexpr (LOADING == ELEMENTS) {
            Storage values[VECTOR];
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) values[e] = is_row && k + e < C ? source[k + e] : narrow(0.0f);
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) ((Storage*)to)[e] = values[e];
        } else {
            const bool is_read = is_row && k < C;
            copy_async<16>(shared_address(to), is_read ? source + k : weight, is_read ? 16 : 0);
        }
    }
}
#if SPLIT
// Rounds what this thread copied of a stage, and keeps what rounding took away.
__device__ __forceinline__ void split_weight(unsigned char* stage, unsigned char* low) {
#pragma unroll
    for (int i = 0; i < WEIGHT_COPIES; ++i) {
        const int index = threadIdx.x + i * THREADS, m = index / 8, j = index % 8;
        if (BN * 8 % THREADS != 0 && index >= BN * 8) break;
        const int offset = m * 128 + ((j ^ m & 7) << 4);
        float4* const place = (float4*)(stage + offset);
        const float4 value = *place, high = high_part(value);
        *place = high;
        *(float4*)(low + offset) =
            make_float4(value.x - high.x, value.y - high.y, value.z - high.z, value.w - high.w);
    }
}
#elif ROUNDS
// Rounds what this thread copied of a stage.
__device__ __forceinline__ void round_weight(unsigned char* stage) {
#pragma unroll
    for (int i = 0; i < WEIGHT_COPIES; ++i) {
        const int index = threadIdx.x + i * THREADS, m = index / 8, j = index % 8;
        if (BN * 8 % THREADS != 0 && index >= BN * 8) break;
        float4* const place = (float4*)(stage + m * 128 + ((j ^ m & 7) << 4));
        *place = round_to_tf32(*place);
    }
}
#endif

// The pixels of a tile that belong to one image.
struct Segment {
    unsigned image;
    int p, length, column, slot;  // first pixel in the image, pixels, first column of the tile, first chunk of a row
};
__device__ __forceinline__ int slots_of(int length) { return (length + 2 * VECTOR - 2) / VECTOR; }
__device__ __forceinline__ Segment segment_at(unsigned image, unsigned first, unsigned pixels, unsigned plane) {
    const unsigned image0 = first / plane, p0 = first - image0 * plane, last = min(first + BP, pixels);
    Segment found;
    found.image = image;
    found.p = image == image0 ? p0 : 0;
    found.column = image == image0 ? 0 : image * plane - first;
    found.length = (int)min(plane - found.p, last - first - found.column);
    found.slot = image == image0 ? 0 : slots_of(min(plane - p0, last - first)) + (image - image0 - 1) * slots_of(plane);
    return found;
}

#if LOADING == CHUNKS
#define COLUMNS (SLOTS <= 32 ? 32 : 64)
#define WIDTH 16
#elif LOADING == VECTORS
#define COLUMNS (BP / VECTOR)
#define WIDTH 16
#else
#define COLUMNS BP
#define WIDTH 4
#endif
#define X_STEP (THREADS / COLUMNS)
static_assert(THREADS % COLUMNS == 0 && BK % X_STEP == 0, "whole rows and columns of copies");

struct Column {
    const Storage* source;  // of channel 0; CHUNKS: the image's first
    int first, last, jump;  // CHUNKS: first and last pixel of the segment, and elements to the first
#if COPIES_RESIDUAL
    unsigned image;
#endif
};
// Where pixels of y lie in x: its plane, rows of x and of y, and how far apart in x those are that are neighbours in y.
struct Strides {
    unsigned plane;
    int W, Q, h, w;
};
__device__ __forceinline__ Column column_of(const Storage* x, unsigned first, unsigned pixels, int C, unsigned plane,
                                            const Strides& strides) {
    Column column;
    column.source = nullptr;
    column.first = column.last = column.jump = 0;
#if COPIES_RESIDUAL
    column.image = 0;
#endif
    const int index = threadIdx.x % COLUMNS;
    if constexpr (LOADING == CHUNKS) {
        const unsigned images = (min(first + BP, pixels) - 1) / plane;
        for (unsigned image = first / plane; image <= images; ++image) {
            const Segment segment = segment_at(image, first, pixels, plane);
            const int j = index - segment.slot;
            if (j < 0 || j >= slots_of(segment.length)) continue;
            column.source = x + (size_t)image * C * plane;
#if COPIES_RESIDUAL
            column.image = image;
#endif
            column.first = segment.p;
            column.last = segment.p + segment.length - 1;
            column.jump = j * VECTOR;
        }
    } else {
        const unsigned pixel = first + index * (WIDTH / ELEMENT > 0 && LOADING == VECTORS ? VECTOR : 1);
        if (pixel < pixels) {
            const unsigned image = pixel / plane;
            unsigned inside = pixel - image * plane;
#if IS_STRIDED
            const unsigned p = inside / strides.Q;
            inside = p * strides.h * strides.W + (inside - p * strides.Q) * strides.w;
#endif
            column.source = x + (size_t)image * C * strides.plane + inside;
#if COPIES_RESIDUAL
            column.image = image;
#endif
        }
    }
    return column;
}
__device__ __forceinline__ void fetch_x(Storage* target, const Storage* x, const Column& column, int k0, int C, int plane) {
    const int row = threadIdx.x / COLUMNS, index = threadIdx.x % COLUMNS;
    if (LOADING == CHUNKS && index >= SLOTS) return;
    target += row * X_PITCH + index * (LOADING == CHUNKS || LOADING == VECTORS ? VECTOR : 1);
#pragma unroll
    for (int i = 0; i < BK / X_STEP; ++i) {
        const int k = k0 + row + i * X_STEP;
        bool is_read = column.source && k < C;
        int offset = k * plane;
        if constexpr (LOADING == CHUNKS) {
            const int end = offset + column.last;
            offset = (offset + column.first) / VECTOR * VECTOR + column.jump;
            is_read = is_read && offset <= end;
        }
        Storage* const to = target + i * X_STEP * X_PITCH;
        if constexpr (LOADING == ELEMENTS)
            *to = is_read ? column.source[offset] : narrow(0.0f);
        else
            copy_async<WIDTH>(shared_address(to), is_read ? column.source + offset : x, is_read ? WIDTH : 0);
    }
}

#if COPIES_RESIDUAL
// The residual of filters lies as x of as many channels would: it is fetched as such, from here.
__device__ __forceinline__ Column residual_of(Column column, const Storage* residual, const Storage* x, int C, int K,
                                              unsigned plane) {
    if (column.source) column.source = residual + (column.source - x) + (long long)column.image * (K - C) * plane;
    return column;
}
// Where an image's residual begins anywhere, its elements come to where those of x would have: filters [k0, end) of a tile.
__device__ __forceinline__ void fetch_unaligned(Storage* target, const Storage* __restrict__ residual, int k0, int end,
                                                unsigned first, unsigned pixels, int K, unsigned plane) {
    constexpr int step = THREADS / BP;
    static_assert(THREADS % BP == 0, "whole rows");
#ifdef __CUDA_ARCH__
    asm volatile("" : "+r"(plane));  // else what comes of it is kept in registers, which a tile of 128 filters has not
#endif
    const unsigned pixel = first + threadIdx.x % BP, image = pixel / plane;
    if (pixel >= pixels) return;
    const Segment segment = segment_at(image, first, pixels, plane);
    target += segment.slot * VECTOR + (int)(threadIdx.x % BP) - segment.column;
    residual += ((size_t)image * K + k0) * plane + (pixel - image * plane);
    end = min(BK, end - k0);
#pragma unroll 1
    for (int row = threadIdx.x / BP; row < end; row += step)
        target[row * X_PITCH + (row * plane + segment.p) % VECTOR] = residual[(size_t)row * plane];
}
#endif
