// Fragments of two-byte types, and their products. Include after clusters.cuh.

#ifdef __CUDA_ARCH__
#ifdef STORAGE_FLOAT16
#define TYPES "f32.f16.f16.f32 "
#else
#define TYPES "f32.bf16.bf16.f32 "
#endif
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], Address row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}
__device__ __forceinline__ void load_matrices(unsigned (&to)[2], Address row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(row) : "memory");
}
__device__ __forceinline__ void multiply_fragments(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col." TYPES "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void multiply_fragments(float (&sum)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
    asm("mma.sync.aligned.m16n8k8.row.col." TYPES "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
#else  // on a CPU: what other lanes hold, by way of memory
template <int COUNT>
void load_matrices(unsigned (&to)[COUNT], Address row) {
    static Address rows[1024];
    const int lane = threadIdx.x % 32, warp = threadIdx.x - lane;
    rows[threadIdx.x] = row;
    host::yield();
    for (int i = 0; i < COUNT; ++i) to[i] = ((const unsigned*)rows[warp + i * 8 + lane / 4])[lane % 4];
    host::yield();
}
inline float half_of(unsigned word, int half) {
    Storage values[2];
    memcpy(values, &word, sizeof word);
    return widen(values[half]);
}
template <int DEPTH>
void multiply_fragments(float (&sum)[4], const unsigned (&a)[2 * DEPTH], const unsigned (&b)[DEPTH]) {
    static unsigned every_a[1024][2 * DEPTH], every_b[1024][DEPTH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x - lane;
    memcpy(every_a[threadIdx.x], a, sizeof a);
    memcpy(every_b[threadIdx.x], b, sizeof b);
    host::yield();
    for (int e = 0; e < 4; ++e)
        for (int k = 0; k < 8 * DEPTH; ++k)
            sum[e] += half_of(every_a[warp + lane / 4 * 4 + k % 8 / 2][e / 2 + k / 8 * 2], k % 2) *
                      half_of(every_b[warp + (lane % 4 * 2 + e % 2) * 4 + k % 8 / 2][k / 8], k % 2);
    host::yield();
}
#endif
