// The sums of a block's tensor-core fragments, from the registers of its warps to shared memory.
//
//   needs        BM, BN and SUM_PITCH of the tile; WARPS_M and WARPS_N; TILES_M and TILES_N of a warp's fragments
//   warps        number the filters fastest, then the pixels, then the parts of a stage

// sums (WARPS_K, BM, SUM_PITCH).
__device__ __forceinline__ void store_sums(float* sums, const float (&sum)[TILES_M][TILES_N][4]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m0 = warp / (WARPS_M * WARPS_N) * BM + warp % WARPS_M * (BM / WARPS_M) + lane / 4;
    sums += m0 * SUM_PITCH + warp / WARPS_M % WARPS_N * (BN / WARPS_N) + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
            *(float2*)(sums + 16 * i * SUM_PITCH + 8 * j) = make_float2(sum[i][j][0], sum[i][j][1]);
            *(float2*)(sums + (16 * i + 8) * SUM_PITCH + 8 * j) = make_float2(sum[i][j][2], sum[i][j][3]);
        }
    }
}
