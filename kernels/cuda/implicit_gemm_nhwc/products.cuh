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
#define INSTRUCTION_N (BN / WARPS_N)
#ifdef STORAGE_FLOAT32
#define TYPES "k8.f32.tf32.tf32 "
#define SCALES ", 1, 1, 1;"
#elif defined(STORAGE_FLOAT16)
#define TYPES "k16.f32.f16.f16 "
#define SCALES ", 1, 1, 1, 0, 0;"
#else
#define TYPES "k16.f32.bf16.bf16 "
#define SCALES ", 1, 1, 1, 0, 0;"
#endif
#define FOUR(d, j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
// Sixteen sums for every 32 columns: their names in the instruction, then themselves, then the names of what follows.
#define NAMES_1 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_2 NAMES_1 ", " "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_3 NAMES_2 ", " "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_4 NAMES_3 ", " "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_5 NAMES_4 ", " "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_6 NAMES_5 ", " "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_7 NAMES_6 ", " "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_8 NAMES_7 ", " "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_1(d) FOUR(d, 0), FOUR(d, 1), FOUR(d, 2), FOUR(d, 3)
#define SUMS_2(d) SUMS_1(d), FOUR(d, 4), FOUR(d, 5), FOUR(d, 6), FOUR(d, 7)
#define SUMS_3(d) SUMS_2(d), FOUR(d, 8), FOUR(d, 9), FOUR(d, 10), FOUR(d, 11)
#define SUMS_4(d) SUMS_3(d), FOUR(d, 12), FOUR(d, 13), FOUR(d, 14), FOUR(d, 15)
#define SUMS_5(d) SUMS_4(d), FOUR(d, 16), FOUR(d, 17), FOUR(d, 18), FOUR(d, 19)
#define SUMS_6(d) SUMS_5(d), FOUR(d, 20), FOUR(d, 21), FOUR(d, 22), FOUR(d, 23)
#define SUMS_7(d) SUMS_6(d), FOUR(d, 24), FOUR(d, 25), FOUR(d, 26), FOUR(d, 27)
#define SUMS_8(d) SUMS_7(d), FOUR(d, 28), FOUR(d, 29), FOUR(d, 30), FOUR(d, 31)
#define INSTRUCTION(n, list, a, b)                                                                       \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n TYPES "{" NAMES_##list "}, %" #a ", %" #b SCALES \
                 : SUMS_##list(d)                                                                        \
                 : "l"(from_a), "l"(from_b))
__device__ __forceinline__ void multiply_add(float (&d)[TILES_N][4], unsigned long long from_a, unsigned long long from_b) {
#if INSTRUCTION_N == 32
    INSTRUCTION(32, 1, 16, 17);
#elif INSTRUCTION_N == 64
    INSTRUCTION(64, 2, 32, 33);
#elif INSTRUCTION_N == 96
    INSTRUCTION(96, 3, 48, 49);
#elif INSTRUCTION_N == 128
    INSTRUCTION(128, 4, 64, 65);
#elif INSTRUCTION_N == 160
    INSTRUCTION(160, 5, 80, 81);
#elif INSTRUCTION_N == 192
    INSTRUCTION(192, 6, 96, 97);
#elif INSTRUCTION_N == 256
    INSTRUCTION(256, 8, 128, 129);
#else
#error "no such instruction here"
#endif
}
__device__ __forceinline__ void keep(float (&sum)[SUMS]) {
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(sum[0][j][e])::"memory");
    }
}
// The low half of a descriptor: where an operand begins, in units of 16 bytes, so that some on is an addition. The high half:
// K-major, 128-byte swizzle, groups of eight rows 1024 bytes apart.
__device__ __forceinline__ unsigned operand_at(unsigned address) { return (address & 0x3FFFF) >> 4 | 1u << 16; }
__device__ __forceinline__ unsigned long long descriptor(unsigned operand) {
    return (unsigned long long)(1024 / 16 | 1u << 30) << 32 | operand;
}
// Enqueues the products of a stage.
__device__ __forceinline__ void multiply(float (&sum)[SUMS], unsigned a, unsigned b) {
    const int group = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0);
    a += group % (WARPS_M / 4) * 64 * ROW_BYTES;
    b += group / (WARPS_M / 4) % WARPS_N * (BN / WARPS_N) * ROW_BYTES;
    const int part = group / (WARPS_M / 4) / WARPS_N * (ROW_BYTES / WARPS_K);
    const unsigned from_a = operand_at(a + part), from_b = operand_at(b + part);
    keep(sum);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < ROW_BYTES / WARPS_K / 16; k += 2) multiply_add(sum[0], descriptor(from_a + k), descriptor(from_b + k));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int COUNT>
__device__ __forceinline__ void wait_for_all_products_but(float (&sum)[SUMS]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(COUNT) : "memory");
    keep(sum);
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
