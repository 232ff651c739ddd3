// Part of few_outputs.cu: loads of x that bypass L1, since it is read once, and products on a CPU.

#ifdef __CUDA_ARCH__
__device__ __forceinline__ uint4 read_once(const uint4* from) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
    return value;
}
#else  // on a CPU: what other lanes hold, by way of memory
inline uint4 read_once(const uint4* from) { return *from; }
inline float element_of(unsigned word, int place) {
    Storage values[4 / sizeof(Storage)];
    memcpy(values, &word, sizeof word);
    return widen(values[place]);
}
inline void add_product(float (&sum)[MT][NT][4], unsigned (&a)[MT][4], unsigned (&b)[NT][2]) {
    constexpr int in_word = 4 / sizeof(Storage);
    static unsigned every_a[1024][MT][4], every_b[1024][NT][2];
    const int lane = threadIdx.x % 32, warp = threadIdx.x - lane;
    memcpy(every_a[threadIdx.x], a, sizeof a);
    memcpy(every_b[threadIdx.x], b, sizeof b);
    host::yield();
    for (int i = 0; i < MT; ++i)
        for (int j = 0; j < NT; ++j)
            for (int e = 0; e < 4; ++e)
                for (int k = 0; k < 8 * in_word; ++k) {
                    const int word = k / in_word % 4, half = k / in_word / 4;
                    const unsigned of_pixel = every_a[warp + lane / 4 * 4 + word][i][e / 2 + half * 2];
                    const unsigned of_column = every_b[warp + (lane % 4 * 2 + e % 2) * 4 + word][j][half];
                    sum[i][j][e] += element_of(of_pixel, k % in_word) * element_of(of_column, k % in_word);
                }
    host::yield();
}
#endif
