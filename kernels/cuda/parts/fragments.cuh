// Matrix fragments in a warp's registers, and their products on tensor cores with float32 accumulators.
//
//   shapes       m16n8k16 for half precision; m16n8k8 for float32, rounded to tf32 here
//   needs        tf32.cuh
//   SPLIT        3xTF32, which keeps float32's accuracy: a value is the nearest tf32 plus a remainder (low part), and a
//                product takes three (low x low is below the last bit); infinities become NaN
//   sums         tensor cores truncate them towards zero, and truncated high parts would bias the remainders: with SPLIT the
//                high parts are rounded, and each step accumulates from zero and is then added to the total, to nearest

#ifdef STORAGE_FLOAT32
#define MMA_K 8
#define MMA "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
#elif defined(STORAGE_FLOAT16)
#define MMA_K 16
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#else
#define MMA_K 16
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#endif

#ifdef __CUDA_ARCH__
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row)));
}
__device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(shared_address(row)));
}
__device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row)));
}
__device__ __forceinline__ void multiply_fragments(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm(MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#elif !defined(STORAGE_FLOAT32)  // on a CPU: what other lanes hold, by way of memory
inline float element_of(unsigned pair, int place) {
    Storage values[2];
    memcpy(values, &pair, sizeof pair);
    return widen(values[place]);
}
inline void multiply_fragments(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    static unsigned every_a[1024][4], every_b[1024][2];
    const int lane = threadIdx.x % 32, warp = threadIdx.x - lane;
    memcpy(every_a[threadIdx.x], a, sizeof a);
    every_b[threadIdx.x][0] = b0, every_b[threadIdx.x][1] = b1;
    host::yield();
    for (int e = 0; e < 4; ++e) {
        const int of_row = warp + lane / 4 * 4, of_column = warp + (lane % 4 * 2 + e % 2) * 4;
        for (int k = 0; k < MMA_K; ++k)
            sum[e] += element_of(every_a[of_row + k % 8 / 2][e / 2 + k / 8 * 2], k % 2) *
                      element_of(every_b[of_column + k % 8 / 2][k / 8], k % 2);
    }
    host::yield();
}
#endif
template <int ROWS_A, int COLUMNS_B>
__device__ __forceinline__ void multiply_all(float (&sum)[ROWS_A][COLUMNS_B][4], const unsigned (&a)[ROWS_A][4],
                                             const unsigned (&b)[COLUMNS_B][2]) {
#pragma unroll
    for (int i = 0; i < ROWS_A; ++i) {
#pragma unroll
        for (int j = 0; j < COLUMNS_B; ++j) multiply_fragments(sum[i][j], a[i], b[j][0], b[j][1]);
    }
}

#ifdef STORAGE_FLOAT32
__device__ __forceinline__ unsigned round_to_tf32(unsigned bits) {
    return __float_as_uint(round_to_tf32(__uint_as_float(bits)));
}
template <int FRAGMENTS, int COUNT>
__device__ __forceinline__ void round_all_to_tf32(unsigned (&bits)[FRAGMENTS][COUNT]) {
#pragma unroll
    for (int i = 0; i < FRAGMENTS; ++i) {
#pragma unroll
        for (int e = 0; e < COUNT; ++e) bits[i][e] = round_to_tf32(bits[i][e]);
    }
}
// Rounds each value to tf32, and gives what that took away, of which the tensor cores read the first 11 bits: of either sign.
template <int COUNT>
__device__ __forceinline__ void split(unsigned (&value)[COUNT], unsigned (&low)[COUNT]) {
#pragma unroll
    for (int e = 0; e < COUNT; ++e) {
        const float whole = __uint_as_float(value[e]), high = high_part(whole);
        low[e] = __float_as_uint(whole - high);
        value[e] = __float_as_uint(high);
    }
}
#endif

// sum += a . b, of which nothing is needed afterwards.
template <int ROWS_A, int COLUMNS_B>
__device__ __forceinline__ void add_product(float (&sum)[ROWS_A][COLUMNS_B][4], unsigned (&a)[ROWS_A][4],
                                            unsigned (&b)[COLUMNS_B][2]) {
#if SPLIT
    unsigned a_low[ROWS_A][4], b_low[COLUMNS_B][2];
#pragma unroll
    for (int i = 0; i < ROWS_A; ++i) split(a[i], a_low[i]);
#pragma unroll
    for (int j = 0; j < COLUMNS_B; ++j) split(b[j], b_low[j]);
#pragma unroll
    for (int i = 0; i < ROWS_A; ++i) {
#pragma unroll
        for (int j = 0; j < COLUMNS_B; ++j) {
            float part[4] = {};
            multiply_fragments(part, a_low[i], b[j][0], b[j][1]);
            multiply_fragments(part, a[i], b_low[j][0], b_low[j][1]);
            multiply_fragments(part, a[i], b[j][0], b[j][1]);
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[i][j][e] += part[e];
        }
    }
#else
#ifdef STORAGE_FLOAT32
    round_all_to_tf32(a);
    round_all_to_tf32(b);
#endif
    multiply_all(sum, a, b);
#endif
}
