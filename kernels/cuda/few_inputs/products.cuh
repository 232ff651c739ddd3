// Part of few_inputs.cu: the products of a warp's windows with the block's weight, one or two chunks at a time.

__device__ __forceinline__ int weight_pitch_of(int R) { return (R * CHUNKS | 1) * 16; }  // odd: rows in different banks

#define ROWS_AT_A_TIME (CHUNKS > 2 ? 1 : 2)  // of a window, as registers allow

// DEPTH chunks of a row from `chunk` on; window and weight are those of its first chunk, for the lane.
template <int DEPTH>
__device__ __forceinline__ void multiply_chunks(float (&sum)[MT][NT][4], const Address (&window)[MT], int from, Address weight,
                                                int pitch, bool is_last) {
    const int lane = threadIdx.x % 32;
    unsigned a[MT][2 * DEPTH], b[NT][DEPTH];
#pragma unroll
    for (int i = 0; i < MT; ++i) {
        load_matrices(a[i], window[i] + from + (DEPTH == 2 ? lane / 16 * 16 : 0));
        // The second pixel of the last chunk is no part of the window, and 0 times what is there need not be 0.
        if (is_last && COLUMNS % 2) {
            if (lane % 4 >= 2) a[i][2 * DEPTH - 2] = a[i][2 * DEPTH - 1] = 0;
        }
    }
#pragma unroll
    for (int j = 0; j < NT; j += 2) {
        unsigned both[2 * DEPTH];
        const int row = j * 8 + (DEPTH == 2 ? lane % 8 + lane / 16 * 8 : lane % 16);
        load_matrices(both, weight + row * pitch + (DEPTH == 2 ? lane / 8 % 2 * 16 : 0));
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) b[j][d] = both[d], b[j + 1][d] = both[DEPTH + d];
    }
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
        for (int j = 0; j < NT; ++j) multiply_fragments(sum[i][j], a[i], b[j]);
    }
}

__device__ __forceinline__ void multiply_window(float (&sum)[MT][NT][4], const Address (&window)[MT], Address weight, int R,
                                                int step) {
    const int pitch = weight_pitch_of(R);
#pragma unroll ROWS_AT_A_TIME
    for (int r = 0; r < R; ++r) {
        const Address row = weight + r * CHUNKS * 16;
#pragma unroll
        for (int chunk = 0; chunk + 2 <= CHUNKS; chunk += 2)
            multiply_chunks<2>(sum, window, r * step + chunk * 16, row + chunk * 16, pitch, chunk + 2 == CHUNKS);
        if constexpr (CHUNKS % 2) multiply_chunks<1>(sum, window, r * step + (CHUNKS - 1) * 16, row + (CHUNKS - 1) * 16, pitch, true);
    }
}
