// Of implicit_gemm.cu: the products of a stage, by FFMA or on tensor cores; by FFMA also the sums of a block's threads in
// shared memory (on tensor cores: warp_sums.cuh).

#if !TENSOR
#define ROWS (BM / TM)
#define COLUMNS (BN / TN)
#define SUMS TM][TN

// sum[i][j] += weight . x for filters ROWS * i + row, pixels BN / (TN / 4) * (j / 4) + 4 * column + j % 4.
__device__ __forceinline__ void multiply(float (&sum)[SUMS], const float* weight, const float* x) {
    const int thread = threadIdx.x % (ROWS * COLUMNS), part = threadIdx.x / (ROWS * COLUMNS);
    weight += thread / COLUMNS * WEIGHT_PITCH + part * PART_K;
    x += thread % COLUMNS * 4 + part * PART_K * X_PITCH;
#pragma unroll
    for (int k = 0; k < PART_K; k += 4) {
        float left[TM][4];
#pragma unroll
        for (int i = 0; i < TM; ++i) *(float4*)left[i] = *(const float4*)(weight + i * ROWS * WEIGHT_PITCH + k);
#pragma unroll
        for (int inner = 0; inner < 4; ++inner) {
            float right[TN];
#pragma unroll
            for (int j = 0; j < TN; j += 4)
                *(float4*)(right + j) = *(const float4*)(x + (k + inner) * X_PITCH + j * COLUMNS);
#pragma unroll
            for (int i = 0; i < TM; ++i) {
#pragma unroll
                for (int j = 0; j < TN; ++j) sum[i][j] += left[i][inner] * right[j];
            }
        }
    }
}

// sums (WARPS_K, BM, SUM_PITCH).
__device__ __forceinline__ void store_sums(float* sums, const float (&sum)[SUMS]) {
    const int thread = threadIdx.x % (ROWS * COLUMNS), part = threadIdx.x / (ROWS * COLUMNS);
    sums += (part * BM + thread / COLUMNS) * SUM_PITCH + thread % COLUMNS * 4;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TN; j += 4)
            *(float4*)(sums + i * ROWS * SUM_PITCH + j * COLUMNS) = *(const float4*)(sum[i] + j);
    }
}
#else
#define TILES_M (BM / WARPS_M / 16)
#define TILES_N (BN / WARPS_N / 8)
#define SUMS TILES_M][TILES_N][4
static_assert(TILES_N % 2 == 0 && PART_K % MMA_K == 0, "whole fragments");

// Warps number the filters fastest, then the pixels, then the parts of a stage.
__device__ __forceinline__ void multiply(float (&sum)[SUMS], const Storage* weight, const Storage* x) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int k0 = warp / (WARPS_M * WARPS_N) * PART_K, n0 = warp / WARPS_M % WARPS_N * (BN / WARPS_N);
    weight += (warp % WARPS_M * (BM / WARPS_M) + lane % 16) * WEIGHT_PITCH + k0 + lane / 16 * (VECTOR);
#pragma unroll
    for (int k = 0; k < PART_K; k += MMA_K) {
        unsigned a[TILES_M][4], b[TILES_N / 2][4];
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) load_matrices(a[i], weight + i * 16 * WEIGHT_PITCH + k);
#pragma unroll
        for (int j = 0; j < TILES_N / 2; ++j) {
#if ELEMENT == 4
            const float* const from = x + (k0 + k + lane % 4) * X_PITCH + n0 + 16 * j + lane / 4;
#pragma unroll
            for (int e = 0; e < 4; ++e)
                b[j][e] = round_to_tf32(__float_as_uint(from[e % 2 * 4 * X_PITCH + e / 2 * 8]));
#elif IS_GATHER
            load_matrices(b[j], x + (n0 + 16 * j + lane % 8 + lane / 16 * 8) * X_PITCH + k0 + k + lane / 8 % 2 * 8);
#else
            load_matrices_transposed(b[j], x + (k0 + k + lane % 16) * X_PITCH + n0 + 16 * j + lane / 16 * 8);
#endif
        }
#if ELEMENT == 4
        round_all_to_tf32(a);
#endif
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
            for (int j = 0; j < TILES_N; ++j)
                multiply_fragments(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }
}
#endif
