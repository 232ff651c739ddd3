// Of implicit_gemm_tma_split.cu: the products of a block's stages, as they come.
//
//   mma.sync     a warp's part of the pixels, the filters and each stage, both operands by ldmatrix
//   wgmma        a group's 64 filters by all pixels. Of two-byte types both operands come from shared memory, and a stage's
//                products are enqueued while those of the one before are made; of float32 the filters come from registers

__device__ __forceinline__ void load_matrices(unsigned& first, unsigned& second, unsigned& third, unsigned& fourth,
                                              unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(first), "=r"(second), "=r"(third), "=r"(fourth)
                 : "r"(address)
                 : "memory");
}

// A lane's rows for ldmatrix, in the first slot: where its 16 bytes of the first step lie. Those of step k lie at ^ k * 32.
struct Rows {
    unsigned a, b;
};
__device__ __forceinline__ Rows rows_of(const Ring& ring) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int a = warp % WARPS_M * (BM / WARPS_M) + lane % 16;
    const int b = warp / WARPS_M % WARPS_N * (BN / WARPS_N) + lane % 8 + lane / 16 * 8;
    Rows rows;
    // In registers: else they are found again in every stage.
    asm volatile("mov.u32 %0, %1;" : "=r"(rows.a) : "r"(ring.rows() + a * ROW_BYTES + (lane / 16 ^ lane % 8) * 16));
    asm volatile("mov.u32 %0, %1;" : "=r"(rows.b) : "r"(ring.columns() + b * ROW_BYTES + (lane / 8 % 2 ^ lane % 8) * 16));
    return rows;
}

#if PARTED
// Adds the products of a group's part of a stage: a chain from zero, the small ones first. Of the columns it is told where both
// parts begin. Their high ones are cut, not rounded; the rows' low ones are of either sign, so what is left out leans nowhere.
__device__ __forceinline__ void multiply_stage(Sums& sum, unsigned a, unsigned high_b, unsigned low_b) {
    constexpr int steps = STEPS / WARPS_K;
    const int first = threadIdx.x / (32 * WARPS_M) * steps;
    unsigned high[steps][4], low[steps][4];
#pragma unroll
    for (int k = 0; k < steps; ++k) load_matrices(high[k][0], high[k][1], high[k][2], high[k][3], a ^ (first + k) * 32);
#pragma unroll
    for (int k = 0; k < steps; ++k) split(high[k], low[k]);
    const unsigned of_high = operand_at(high_b) + first * 2, of_low = operand_at(low_b) + first * 2;
    Sums part;
    keep(part);
    begin_products();
#pragma unroll
    for (int k = 0; k < steps; ++k) {
        multiply_add(part[0], low[k], descriptor(of_high + k * 2), k > 0);
        multiply_add(part[0], high[k], descriptor(of_low + k * 2), true);
    }
#pragma unroll
    for (int k = 0; k < steps; ++k) multiply_add(part[0], high[k], descriptor(of_high + k * 2), true);
    commit_products();
    wait_for_all_products_but<0>(part);
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[0][j][e] += part[0][j][e];
    }
}
#elif !WGMMA
// Adds the products of a warp's part of a stage.
__device__ __forceinline__ void multiply_stage(Sums& sum, unsigned of_a, unsigned of_b) {
    const int first = threadIdx.x / (32 * WARPS_M * WARPS_N) * (STEPS / WARPS_K);
#pragma unroll 1
    for (int k = 0; k < STEPS / WARPS_K; ++k) {
        unsigned a[TILES_M][4], b[TILES_N][2];
        const unsigned flipped = (first + k) * 32;
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
            load_matrices(a[i][0], a[i][1], a[i][2], a[i][3], (of_a ^ flipped) + i * 16 * ROW_BYTES);
#pragma unroll
        for (int j = 0; j < TILES_N; j += 2)
            load_matrices(b[j][0], b[j][1], b[j + 1][0], b[j + 1][1], (of_b ^ flipped) + j * 8 * ROW_BYTES);
#if SPLIT
        add_product(sum, a, b);
#else
        multiply_all(sum, a, b);
#endif
    }
}
#endif

#if WGMMA && !PARTED
// Filters by pixels, both from shared memory: the products of a stage are enqueued while those of the one before are made.
__device__ __forceinline__ void multiply_stages(Sums& sum, const Ring& ring, int count, const Sizes& sizes) {
    const bool arrives = count > sizes.slots && threadIdx.x % 32 == 0;
    const unsigned a = operand_at(ring.weight + threadIdx.x / 128 * 64 * ROW_BYTES), b = operand_at(ring.x);
    int read = 0;
    Turn turn;
#pragma unroll 1
    for (int stage = 0; stage < count; ++stage, turn.advance(sizes.slots)) {
        wait_for(ring.full + turn.slot * 8, turn.parity);
        multiply(sum, a + turn.slot * (WEIGHT_BYTES / 16), b + turn.slot * (X_BYTES / 16), stage > 0);
        wait_for_all_products_but<1>(sum);
        if (stage > 0 && arrives) arrive(ring.empty + read * 8);
        read = turn.slot;
    }
    wait_for_all_products_but<0>(sum);
    if (arrives) arrive(ring.empty + read * 8);
}
#else
__device__ __forceinline__ void multiply_stages(Sums& sum, const Ring& ring, int count, const Sizes& sizes) {
    const Rows rows = rows_of(ring);
    const bool recycles = count > sizes.slots;
    Turn turn;
#pragma unroll 1
    for (int stage = 0; stage < count; ++stage, turn.advance(sizes.slots)) {
        wait_for(ring.full + turn.slot * 8, turn.parity);
        const unsigned a = rows.a + turn.slot * (BM * ROW_BYTES), to_b = turn.slot * (BN * ROW_BYTES);
#if PARTED
        wait_for(ring.parted + turn.slot * 8, turn.parity);
        multiply_stage(sum, a, ring.x + to_b, ring.low + to_b);
#else
        multiply_stage(sum, a, rows.b + to_b);
#endif
        if (!recycles) continue;
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(ring.empty + turn.slot * 8);
    }
#if SPLIT
    restore_cut(sum, raised_by(WGMMA ? mean_steps<STEPS>((sizes.C + 7) / 8) : 1));
#endif
}
#endif
