// The products of a stage in shared memory, by wgmma or mma.sync, by loops on a CPU: part of implicit_gemm_nhwc.cu, after its macros.
//
//   operands     a (BM, 128 bytes), b (BN, 128 bytes), both with gemm_k innermost and 128-byte swizzle
//   sums         16 x 8 fragments as mma.sync m16n8 lays them out; those of wgmma m64 are the same, 16 rows a warp

#ifndef __CUDA_ARCH__  // on a CPU
inline float element_at(Address rows, int row, int k) {
    return widen(((const Storage*)(rows + row * ROW_BYTES + ((k / VECTOR ^ row % 8) << 4)))[k % VECTOR]);
}
inline void multiply(float (&sum)[SUMS], Address a, Address b) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, depth = ROW_BYTES / ELEMENT / WARPS_K;
    const int m0 = warp % WARPS_M * (BM / WARPS_M) + lane / 4, k0 = warp / (WARPS_M * WARPS_N) * depth;
    const int n0 = warp / WARPS_M % WARPS_N * (BN / WARPS_N) + lane % 4 * 2;
    for (int i = 0; i < TILES_M; ++i)
        for (int j = 0; j < TILES_N; ++j)
            for (int e = 0; e < 4; ++e)
                for (int k = k0; k < k0 + depth; ++k)
                    sum[i][j][e] += element_at(a, m0 + i * 16 + e / 2 * 8, k) * element_at(b, n0 + j * 8 + e % 2, k);
}
template <int COUNT>
void wait_for_all_products_but(float (&)[SUMS]) {}
#elif WGMMA
// Enqueues the products of a stage.
__device__ __forceinline__ void multiply(float (&sum)[SUMS], unsigned a, unsigned b) {
    const int group = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0);
    a += group % (WARPS_M / 4) * 64 * ROW_BYTES;
    b += group / (WARPS_M / 4) % WARPS_N * (BN / WARPS_N) * ROW_BYTES;
    const int part = group / (WARPS_M / 4) / WARPS_N * (ROW_BYTES / WARPS_K);
    const unsigned from_a = operand_at(a + part), from_b = operand_at(b + part);
    keep(sum);
    begin_products();
#pragma unroll
    for (int k = 0; k < ROW_BYTES / WARPS_K / 16; k += 2)
        multiply_add(sum[0], descriptor(from_a + k), descriptor(from_b + k), true);
    commit_products();
}
#else
#ifdef STORAGE_FLOAT32
#define MMA "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
__device__ __forceinline__ void round_operands(unsigned (&bits)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits[e]) : "f"(__uint_as_float(bits[e])));
}
#else
__device__ __forceinline__ void round_operands(unsigned (&)[4]) {}
#ifdef STORAGE_FLOAT16
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#else
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#endif
#endif
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
    round_operands(to);
}
__device__ __forceinline__ void multiply_fragments(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile(MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The products of a stage. Warps number the rows fastest, then the columns, then the parts of a stage.
__device__ __forceinline__ void multiply(float (&sum)[SUMS], unsigned a, unsigned b) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int part = warp / (WARPS_M * WARPS_N) * (CHUNKS / WARPS_K);
    a += (warp % WARPS_M * (BM / WARPS_M) + lane % 16) * ROW_BYTES;
    b += (warp / WARPS_M % WARPS_N * (BN / WARPS_N) + lane % 8 + lane / 16 * 8) * ROW_BYTES;
#pragma unroll
    for (int k = 0; k < CHUNKS / WARPS_K; k += 2) {
        unsigned left[TILES_M][4], right[TILES_N / 2][4];
        const int a_chunk = (part + k + lane / 16) ^ lane % 8, b_chunk = (part + k + lane / 8 % 2) ^ lane % 8;
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) load_matrices(left[i], a + i * 16 * ROW_BYTES + a_chunk * 16);
#pragma unroll
        for (int j = 0; j < TILES_N / 2; ++j) load_matrices(right[j], b + j * 16 * ROW_BYTES + b_chunk * 16);
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
            for (int j = 0; j < TILES_N; ++j)
                multiply_fragments(sum[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
        }
    }
}
#endif
