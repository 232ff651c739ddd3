// Of implicit_gemm.cu: the stages of weight and x in shared memory, and how a thread finds what it copies there.

// Where one tap of the filter lies: elements from the first tap's, and rows and columns for the guard.
struct __align__(16) Tap {
    int offset, h, w, unused;
};
#if IS_GATHER
typedef int TapEntry;  // bytes from the first tap's
#else
typedef Tap TapEntry;
#endif

// What a thread fetches of x: one column of pixels, every so many rows of a stage.
struct Column {
    const Storage* source;  // the first tap of channel 0
    int h0, w0;
    bool is_valid;
};

__device__ __forceinline__ Column column_at(const Storage* x, unsigned pixel, int N, int C, int H, int W, int P, int Q,
                                            int stride_h, int stride_w, int pad_h, int pad_w) {
    const unsigned plane = (unsigned)P * Q, image = pixel / plane, inner = pixel - image * plane;
    const int p = inner / Q, q = inner - p * Q;
    Column column;
    column.is_valid = image < N;
    column.h0 = column.is_valid ? p * stride_h - pad_h : -(1 << 30);
    column.w0 = q * stride_w - pad_w;
    column.source = x;
    if (column.is_valid) column.source += (long long)image * C * H * W + (long long)column.h0 * W + column.w0;
    return column;
}

// A stage of weight (BM, WEIGHT_PITCH) from gemm_k k0 on.
__device__ __forceinline__ void fetch_weight(Storage* target, const Storage* __restrict__ weight, int first, int k0,
                                             int K, int gemm_k) {
    constexpr int columns = BK / VECTOR, step = THREADS / columns;
    const int row = threadIdx.x / columns, column = threadIdx.x % columns * VECTOR;
    const int left = gemm_k - k0 - column;
    if (gemm_k % VECTOR == 0) {
#pragma unroll
        for (int m = row; m < BM; m += step) {
            const bool is_read = first + m < K && left > 0;
            const Storage* const source = is_read ? weight + (size_t)(first + m) * gemm_k + k0 + column : weight;
            copy_async<16>(target + m * WEIGHT_PITCH + column, source, is_read ? 16 : 0);
        }
    } else if (ELEMENT == 4 || gemm_k % 2 == 0) {
        constexpr int width = 4 / ELEMENT, narrow_columns = BK / width;
        for (int index = threadIdx.x; index < BM * narrow_columns; index += THREADS) {
            const int m = index / narrow_columns, k = index % narrow_columns * width;
            const bool is_read = first + m < K && k0 + k < gemm_k;
            const Storage* const source = is_read ? weight + (size_t)(first + m) * gemm_k + k0 + k : weight;
            copy_async<4>(target + m * WEIGHT_PITCH + k, source, is_read ? 4 : 0);
        }
    } else {
        for (int index = threadIdx.x; index < BM * BK; index += THREADS) {
            const int m = index / BK, k = index % BK;
            const bool is_read = first + m < K && k0 + k < gemm_k;
            target[m * WEIGHT_PITCH + k] = is_read ? weight[(size_t)(first + m) * gemm_k + k0 + k] : narrow(0.0f);
        }
    }
}

// Walks gemm_k stage by stage: `tap` of the filter, `offset` of the channel in an image.
struct Walk {
    int k, tap, offset, taps;

    __device__ __forceinline__ void start(int first, int filter_taps, int plane) {
        taps = filter_taps;
        k = first;
        tap = LOADING == TAPS ? first % taps : 0;
        offset = (LOADING == TAPS ? first / taps : first) * plane;
    }
    __device__ __forceinline__ void advance(int plane, int tap_step, int offset_step) {
        k += BK;
        offset += offset_step;
        if (LOADING != TAPS) return;
        tap += tap_step;
        if (tap >= taps) {
            tap -= taps;
            offset += plane;
        }
    }
};

#if !IS_GATHER
// A stage of x (BK, X_PITCH).
__device__ __forceinline__ void fetch_x(Storage* target, const Column& column, const Walk& walk, const Tap* taps, int H,
                                        int W, int gemm_k) {
    constexpr int columns = BN / X_VECTOR, step = THREADS / columns;
    const int row = threadIdx.x / columns;
    target += row * X_PITCH + threadIdx.x % columns * X_VECTOR;
    if constexpr (LOADING == TAPS) {
        Tap found[BK / step];
#pragma unroll
        for (int i = 0; i < BK / step; ++i) found[i] = taps[walk.tap + row + i * step];
#pragma unroll
        for (int i = 0; i < BK / step; ++i) {
            const bool is_read = is_inside(column.h0 + found[i].h, H) && is_inside(column.w0 + found[i].w, W) &&
                                 walk.k + row + i * step < gemm_k;
            copy_async<4>(target + i * step * X_PITCH, column.source + (walk.offset + found[i].offset), is_read ? 4 : 0);
        }
    } else {
        const int plane = H * W;
#pragma unroll
        for (int i = 0; i < BK / step; ++i) {
            const bool is_read = column.is_valid && walk.k + row + i * step < gemm_k;
            const Storage* const source = column.source + (is_read ? walk.offset + (row + i * step) * plane : 0);
            copy_async<X_VECTOR * ELEMENT>(target + i * step * X_PITCH, source, is_read ? X_VECTOR * ELEMENT : 0);
        }
    }
}
#endif
