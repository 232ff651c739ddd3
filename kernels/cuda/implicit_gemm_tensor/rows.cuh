// Part of implicit_gemm_tensor.cu: 1x1 filters, whose columns are the pixels of each channel, as in x.
//
//   a stage      BK channels of BN pixels. A plane of any size is copied by vectors: from the one that holds the tile's first
//                pixel on, so that a channel's pixels start up to VECTOR - 1 elements into its row

#define ROW_PITCH ((BN + VECTOR + 7) / 16 * 16 + 8)  // no two rows of a fragment in one bank
#define X_CHUNKS (BN / VECTOR)
#define X_STEP (THREADS / X_CHUNKS)
#define PART_K (BK / WARPS_K)
static_assert(THREADS % X_CHUNKS == 0 && X_STEP % VECTOR == 0 && THREADS >= BK, "the shift of a thread's channels is one");
static_assert(PART_K % MMA_K == 0, "whole steps");

// The pixels of a tile in one image.
struct Rows {
    const Storage* x;
    const Storage* image;
    int first, rest;  // pixel; elements from the image to the tensor's end
    unsigned start;   // of the first pixel, modulo a vector

    // Elements from the vector's first to the tile's first pixel of a channel.
    __device__ __forceinline__ int shift(unsigned channel, const Sizes& z) const {
        return LOADING == RUNS ? 0 : (start + channel * z.plane) & (VECTOR - 1);
    }
    __device__ __forceinline__ void copy(Storage* target, int offset, bool is_channel) const {
        const int bytes = is_channel ? max(0, min(VECTOR, rest - offset)) * ELEMENT : 0;
        copy_async<16>(target, bytes ? image + offset : x, bytes);
    }
};

__device__ __forceinline__ Rows rows_at(const Storage* x, int tile, int image, const Sizes& z) {
    const unsigned elements = (unsigned)z.C * z.plane;
    return {x, x + (size_t)image * elements, tile * BN, (int)((z.N - image) * elements), image * elements + tile * BN};
}

// A stage of x (BK, ROW_PITCH): channels from k0 on.
__device__ __forceinline__ void fetch_rows(Storage* target, const Rows& rows, int k0, const Sizes& z) {
    const int row0 = threadIdx.x / X_CHUNKS, column = threadIdx.x % X_CHUNKS * VECTOR;
    int offset = (k0 + row0) * z.plane + rows.first - rows.shift(row0, z) + column;
#pragma unroll
    for (int row = 0; row < BK; row += X_STEP) {
        if (BK % X_STEP == 0 || row + row0 < BK)
            rows.copy(target + (row + row0) * ROW_PITCH + column, offset, k0 + row0 + row < z.C);
        offset += X_STEP * z.plane;
    }
    if (LOADING == ROWS && threadIdx.x < BK) {  // a row that starts within a vector ends within another
        const int row = threadIdx.x, end = (k0 + row) * z.plane + rows.first - rows.shift(row, z) + BN;
        rows.copy(target + row * ROW_PITCH + BN, end, k0 + row < z.C);
    }
}

__device__ __forceinline__ void multiply(Sums& sum, const Storage* weight, const Storage* x, const Rows& rows, const Sizes& z) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int k0 = warp / (WARPS_M * WARPS_N) * PART_K, n0 = warp / WARPS_M % WARPS_N * (BN / WARPS_N);
    weight += (warp % WARPS_M * (BM / WARPS_M) + lane % 16) * (BK + VECTOR) + k0 + lane / 16 * VECTOR;
    const int row = lane % 4 * (MMA_K / 8);
    const Storage* const from = x + (k0 + row) * ROW_PITCH + rows.shift(row, z) + n0 + lane / 4;
#if ELEMENT == 2 && LOADING == ROWS
    const unsigned short* const even = (const unsigned short*)from;
    const unsigned short* const odd = even + ROW_PITCH + rows.shift(row + 1, z) - rows.shift(row, z);
#endif
#pragma unroll
    for (int k = 0; k < PART_K; k += MMA_K) {
        unsigned a[TILES_M][4], b[TILES_N][2];
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) load_matrices(a[i], weight + i * 16 * (BK + VECTOR) + k);
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
#if ELEMENT == 4
            b[j][0] = __float_as_uint(from[k * ROW_PITCH + 8 * j]);
            b[j][1] = __float_as_uint(from[(k + 4) * ROW_PITCH + 8 * j]);
#elif LOADING == ROWS
            b[j][0] = even[k * ROW_PITCH + 8 * j] | odd[k * ROW_PITCH + 8 * j] << 16;
            b[j][1] = even[(k + 8) * ROW_PITCH + 8 * j] | odd[(k + 8) * ROW_PITCH + 8 * j] << 16;
#else
            load_matrices_transposed(b[j], x + (k0 + k + lane % 16) * ROW_PITCH + n0 + 8 * j);
#endif
        }
        add_product(sum, a, b);
    }
}
