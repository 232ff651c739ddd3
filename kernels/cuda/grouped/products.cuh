// Part of grouped.cu: the products of a warp.
//
//   nhwc         ldmatrix: eight rows of four words, of a pixel's channels or of a filter; lanes 0-15 name rows of the first
//                four words of a step of eight, lanes 16-31 of the others
//   else         a thread loads its words of x one by one; where they are, a table says for both halves of a step

#if MODE == NHWC
#define WINDOWS MT
#else
#define WINDOWS (2 * MT)
#endif
#define FILTER_ROWS ((NT + 1) / 2)
#define UNROLL (MT * NT == 4 || MT * NT == 12 || SPLIT && (MT * NT >= 8 || NT == 3) ? 1 : 2)  // steps, as registers allow

// Which of the warp's pixels the lane's window i is of; which filter its row j of the weight is of.
__device__ __forceinline__ int pixel_of_window(int i) {
    return MODE == NHWC ? i * 16 + threadIdx.x % 16 : i * 8 + threadIdx.x % 32 / 4;
}
__device__ __forceinline__ int row_of_filter(int j) { return (2 * j + threadIdx.x % 32 / 16) * 8 + threadIdx.x % 8; }

// Of a word of gemm_k in the table: a thread's words t and t + 4 of a step are neighbours, or four words follow each other.
__device__ __forceinline__ int place_of_offset(int k) {
    return MODE == NHWC ? k : k / 8 * 8 + k % 4 * 2 + k / 4 % 2;
}

#ifdef __CUDA_ARCH__
__device__ __forceinline__ void load_matrices(unsigned (&to)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(shared_address(row)));
}
#else  // on a CPU: what other lanes hold, by way of memory
template <int COUNT>
void load_matrices(unsigned (&to)[COUNT], const void* row) {
    static const void* rows[1024];
    const int lane = threadIdx.x % 32, warp = threadIdx.x - lane;
    rows[threadIdx.x] = row;
    host::yield();
    for (int i = 0; i < COUNT; ++i) to[i] = ((const unsigned*)rows[warp + i * 8 + lane / 4])[lane % 4];
    host::yield();
}
inline float part_of(unsigned word, int part) {
    Storage values[ELEMENTS];
    memcpy(values, &word, sizeof word);
    return widen(values[part]);
}
template <int ROWS_A, int COLUMNS_B>
void add_product(float (&sum)[ROWS_A][COLUMNS_B][4], unsigned (&a)[ROWS_A][4], unsigned (&b)[COLUMNS_B][2]) {
    static unsigned every_a[1024][ROWS_A][4], every_b[1024][COLUMNS_B][2];
    const int lane = threadIdx.x % 32, warp = threadIdx.x - lane;
    memcpy(every_a[threadIdx.x], a, sizeof a);
    memcpy(every_b[threadIdx.x], b, sizeof b);
    host::yield();
    for (int i = 0; i < ROWS_A; ++i)
        for (int j = 0; j < COLUMNS_B; ++j)
            for (int e = 0; e < 4; ++e)
                for (int k = 0; k < 8; ++k)
                    for (int part = 0; part < ELEMENTS; ++part)
                        sum[i][j][e] += part_of(every_a[warp + lane / 4 * 4 + k % 4][i][e / 2 + k / 4 * 2], part) *
                                        part_of(every_b[warp + (lane % 4 * 2 + e % 2) * 4 + k % 4][j][k / 4], part);
    host::yield();
}
#endif

template <bool IS_LAST>
__device__ __forceinline__ void multiply_step_at(float (&sum)[MT][NT][4], const char* slab, const char* weights,
                                                 const int* offsets, const int (&window)[WINDOWS],
                                                 const int (&filter)[FILTER_ROWS], int k, int gemm_k) {
    unsigned a[MT][4], b[NT][2];
    const int lane = threadIdx.x % 32;
#if MODE == NHWC
    const int offset = offsets[k + lane / 16 * 4];
#pragma unroll
    for (int i = 0; i < MT; ++i) {
        load_matrices(a[i], slab + (window[i] + offset));
        // Beyond gemm_k the weight is zero: x must be finite there.
        if (IS_LAST) a[i][2] = a[i][3] = 0;
    }
#else
    const int2 offset = *(const int2*)(offsets + k + lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < 2 * MT; ++i) {
        unsigned* const pair = a[i / 2] + i % 2;
        pair[0] = *(const unsigned*)(slab + (window[i] + offset.x));
        pair[2] = *(const unsigned*)(slab + (window[i] + offset.y));
        if (IS_LAST && k + lane % 4 >= gemm_k) pair[0] = 0;
        if (IS_LAST && k + lane % 4 + 4 >= gemm_k) pair[2] = 0;
    }
#endif
#pragma unroll
    for (int j = 0; j < NT; j += 2) {
        const char* const row = weights + (filter[j / 2] + 4 * k);
        if (j + 1 < NT) {
            unsigned four[4];
            load_matrices(four, row);
            b[j][0] = four[0], b[j][1] = four[1], b[j + 1][0] = four[2], b[j + 1][1] = four[3];
        } else {
            load_matrices(b[j], row);
        }
    }
    add_product(sum, a, b);
}

__device__ __forceinline__ void multiply(float (&sum)[MT][NT][4], const unsigned* slab, const unsigned* weights,
                                         const int* offsets, const int (&window)[WINDOWS],
                                         const int (&filter)[FILTER_ROWS], int gemm_k) {
    const char *const x = (const char*)slab, *const w = (const char*)weights;
    int k = 0;
#pragma unroll UNROLL
    for (; k + 8 <= gemm_k; k += 8) multiply_step_at<false>(sum, x, w, offsets, window, filter, k, gemm_k);
    if (k < gemm_k) multiply_step_at<true>(sum, x, w, offsets, window, filter, k, gemm_k);
}
