// From sums in the registers of warps that share gemm_k, and of blocks that do, to y: of implicit_gemm_tma_split.cu and
// implicit_gemm_straight.cu.
//
//   before       clusters.cuh, asynchronous.cuh; BP, BF, WARPS_M, WARPS_N, WARPS_K, TILES_M, TILES_N, WORKERS, SUM_PITCH, WGMMA;
//                Sizes, Sums; received_at(sums, sizes), where what a block receives lies behind its sums
//   exchange     each block pushes its sums to the shared memory of the blocks of its cluster that own the pixels (st.async), and
//                each of these counts the bytes that arrive. Nobody reads what is not there, or writes to who is not:
//   - begun      a block pushes when all have passed a barrier of the cluster. The one thread that starts a block's counter fences
//                that (fence.mbarrier_init) before it arrives there, and all wait with acquire; the arrival need not release, for
//                nothing else that is written before it is another block's to read
//   - room       what is pushed comes to `received_at`, where neither stages nor sums lie: a block that still multiplies loses
//                nothing. A block has one tile, so nobody pushes there again
//   - arrived    st.async counts its bytes when they are there, and who waits for the count acquires for the cluster. The count
//                cannot be complete too early: that takes the arrival by which the thread says how many bytes to expect
//   - left       a block ends when it has all bytes that anyone sends it. One that owns no pixel expects none, and is sent none

#define COLUMNS (BF / 4)  // of four filters in a pixel of y

// All warps that multiply.
#ifdef __CUDA_ARCH__
__device__ __forceinline__ void meet() { asm volatile("bar.sync 2, %0;" ::"n"(WORKERS) : "memory"); }
#else
inline void meet() { __syncthreads(); }
#endif

// sums (WARPS_K, BP, SUM_PITCH).
__device__ __forceinline__ void store_sums(float* sums, const Sums& sum) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp % WARPS_M * (BM / WARPS_M) + lane / 4, column = warp / WARPS_M % WARPS_N * (BN / WARPS_N) + lane % 4 * 2;
    sums += warp / (WARPS_M * WARPS_N) * BP * SUM_PITCH + (WGMMA ? column * SUM_PITCH + row : row * SUM_PITCH + column);
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
#if WGMMA
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[(8 * j + e % 2) * SUM_PITCH + 16 * i + e / 2 * 8] = sum[i][j][e];
#else
            *(float2*)(sums + 16 * i * SUM_PITCH + 8 * j) = make_float2(sum[i][j][0], sum[i][j][1]);
            *(float2*)(sums + (16 * i + 8) * SUM_PITCH + 8 * j) = make_float2(sum[i][j][2], sum[i][j][3]);
#endif
        }
    }
}

// Which pixels and filters of a tile a thread adds up: 16 bytes of every ROW_STEP-th pixel. A few threads may have none.
#define ROW_STEP (WORKERS / COLUMNS)
__device__ __forceinline__ int first_row() { return threadIdx.x < ROW_STEP * COLUMNS ? threadIdx.x / COLUMNS : BP; }
__device__ __forceinline__ int first_column() { return threadIdx.x % COLUMNS * 4; }

// The sum of parts that lie `distance` floats apart.
__device__ __forceinline__ float4 sum_of(const float* part, int count, int distance) {
    float4 total = *(const float4*)part;
#pragma unroll 4
    for (int other = 1; other < count; ++other) {
        const float4 more = *(const float4*)(part + other * distance);
        total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
    }
    return total;
}

// The sums of every pixel to the block of the cluster that owns it: received (blocks, owned, BF).
__device__ __forceinline__ void push_sums(float* received, const float* sums, int rows, int rank, const void* barrier,
                                          const Sizes& sizes) {
#pragma unroll 2
    for (int row = first_row(); row < rows; row += ROW_STEP) {
        const int owner = row * sizes.owned_magic16 >> 16, place = rank * sizes.owned + row - owner * sizes.owned;
        const float4 total = sum_of(sums + row * SUM_PITCH + first_column(), WARPS_K, BP * SUM_PITCH);
        push_counted(received + place * BF + first_column(), owner, total, barrier);
    }
}

// Some pixels of y, and a tile's filters.
struct Outputs {
    unsigned pixel, filter;
    int rows;
};
template <typename Visit>
__device__ __forceinline__ void for_outputs(const Outputs& outputs, const Sizes& sizes, const Visit& visit) {
    const unsigned filter = outputs.filter + first_column();
    if (filter >= min(outputs.filter + sizes.filters, (unsigned)sizes.K)) return;
#pragma unroll 1
    for (int row = first_row(); row < outputs.rows; row += ROW_STEP)
        visit(row, filter, (size_t)(outputs.pixel + row) * sizes.y_pitch + filter);
}

// Has memory brought near that is read much later.
__device__ __forceinline__ void fetch([[maybe_unused]] const Storage* place) {
#ifdef __CUDA_ARCH__
    [[maybe_unused]] unsigned unread;
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(unread) : "l"(place));
#endif
}

__device__ __forceinline__ void store_four(Storage* place, const float (&four)[4]) {
#ifdef STORAGE_FLOAT32
    *(float4*)place = make_float4(four[0], four[1], four[2], four[3]);
#else
    *(uint2*)place = make_uint2(narrow_pair(four[0], four[1]), narrow_pair(four[2], four[3]));
#endif
}

// y, each output the sum of `count` parts that lie `distance` floats apart.
__device__ __forceinline__ void store_y(Storage* y, const Epilogue& epilogue, const float* from, int pitch, int count, int distance,
                                        const Outputs& outputs, const Sizes& sizes) {
    for_outputs(outputs, sizes, [&](int row, unsigned filter, size_t at) {
        const float4 total = sum_of(from + row * pitch + first_column(), count, distance);
        float four[] = {total.x, total.y, total.z, total.w};
        epilogue.apply<true>(four, filter, y + at);
        store_four(y + at, four);
    });
}

// y from the sums that a block's warps have stored, of all `rows` pixels of the tile: a block stores its own. Its threads have
// arrived at the barrier of the cluster, if it has several blocks.
__device__ __forceinline__ void end_tile(Storage* y, const Epilogue& epilogue, float* sums, const void* counter, int rows,
                                         int rank, int blocks, const Outputs& own, const Sizes& sizes) {
    if (blocks == 1) {
        store_y(y, epilogue, sums, SUM_PITCH, WARPS_K, BP * SUM_PITCH, own, sizes);
        return;
    }
    float* const received = received_at(sums, sizes);
    cluster_wait();
    push_sums(received, sums, rows, rank, counter, sizes);
    wait_for_bytes(counter);
    store_y(y, epilogue, received, BF, blocks, sizes.owned * BF, own, sizes);
}
