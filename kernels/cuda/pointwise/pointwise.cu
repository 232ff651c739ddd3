// 1x1 convolution in one launch: warpgroup products whose register operand is x in its own layout.
//
//   tensors      x (N,C,H,W), weight (K,C,1,1), y (N,K,P,Q), all nchw as they are: no transform, no workspace
//   GEMM         y^T (N*P*Q, K) = x^T (N*P*Q, C) . weight^T (C, K): wgmma's m is 64 pixels, its n filters, its k channels.
//                wgmma reads float32 from shared memory only with k contiguous. The weight is so, and goes to shared
//                memory. x is not: its fragments are read into registers element by element, from rows of any alignment
//   versions     -DSPLIT=0: one product, of half-precision elements or of float32 rounded to tf32: x in registers, the weight
//                in shared memory. -DSPLIT=1: 3xTF32: an operand is split into a rounded tf32 and the remainder, and
//                all products but remainder x remainder are accumulated. Tensor cores truncate as they accumulate, so
//                the products of 16 channels are accumulated from zero and then added to the total in registers, with
//                rounding to nearest; infinities become NaN
//                -DRESIDENT=1: a block keeps the weight of its filters and walks over tiles of pixels, whose stages it
//                prefetches across tile boundaries. 0: the weight is streamed like x, and a block computes one tile
//                -DLOADING: VECTORS: copies of 16 bytes, H*W a multiple of that; WORDS: copies of 4 bytes (float32);
//                CHUNKS: the aligned 16-byte chunks that contain a row's pixels, so a row starts anywhere in its first
//                chunk; ELEMENTS: one element at a time, for channels that are not a multiple of 16 bytes
//   grid, block  a block per tile of BN filters x BP pixels (RESIDENT: several), filters fastest, pixels numbered over
//                the batch; SPLIT_C: a cluster whose blocks split the channels (split-K), at least a stage each, and
//                reduce through distributed shared memory; WARPGROUPS of 128 threads; chosen by plan.py
//   limits       stride 1 (any with WORDS, and with ELEMENTS of float32); no padding; groups 1; compute capability 9.0 only;
//                CHUNKS: a tile spans at most SEGMENTS images; deterministic
//   files        stages.cuh fills shared memory, products.cuh multiplies, outputs.cuh stores
//   source       PTX ISA, "Asynchronous warpgroup level matrix instructions"; 3xTF32: Ootomo, Yokota, arXiv:2203.03341

#define VECTORS 0
#define WORDS 1
#define CHUNKS 2
#define ELEMENTS 3

#ifdef STORAGE_FLOAT32
#define ELEMENT 4
#define STEP_K 8
#else
#define ELEMENT 2
#define STEP_K 16
#endif
#define DIRECT (ELEMENT == 4 && LOADING == VECTORS && !SPLIT_C)  // y goes from registers to memory
#define BK (128 / ELEMENT)                                       // a stage's channels: a row of weight is one 128-byte swizzle
#define VECTOR (16 / ELEMENT)  // elements of 16 bytes
#define ROUNDS (ELEMENT == 4 && !SPLIT)  // to tf32
#define STEPS (BK / STEP_K)
#define IS_STRIDED (ELEMENT == 4 && (LOADING == WORDS || LOADING == ELEMENTS))  // or may be
#define THREADS (128 * WARPGROUPS)
#define BP (64 * WARPGROUPS * TILES_P)
#define TILES_N (BN / INST_N)

#if LOADING == CHUNKS
#define SLOTS (BP / VECTOR + 2 * SEGMENTS)
#define X_PITCH (ELEMENT == 2 ? (SLOTS + (37 - SLOTS % 4) % 4) * VECTOR : (SLOTS + (42 - SLOTS % 8) % 8) * VECTOR)
#else
#define SLOTS 0
#define X_PITCH (BP + 8)
#endif
#define WEIGHT_BYTES (BN * 128)
#define X_BYTES (BK * X_PITCH * ELEMENT)
#define COPIES_RESIDUAL (RESIDUAL && ELEMENT == 2)
#define PREFETCHES_RESIDUAL (RESIDUAL && ELEMENT == 4 && LOADING == VECTORS)  // elsewhere registers are short
#define RESIDUAL_STAGES (COPIES_RESIDUAL ? (BN + BK - 1) / BK : 0)  // behind a tile's, in the same ring
#define LOW_STAGES 2  // where weight streams, a stage's small parts are used up before the next but one
#define SUM_PITCH (BP + (ELEMENT == 4 || SPLIT_C ? 4 : 8))

#include "clusters.cuh"

#ifdef __CUDA_ARCH__
template <int BYTES>
__device__ __forceinline__ void copy_async(unsigned target, const void* source, int bytes) {
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int COUNT>
__device__ __forceinline__ void wait_for_all_copies_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
}
__device__ __forceinline__ void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}
// Adds to the sums those that another block of the cluster has at the same place.
template <int COUNT>
__device__ __forceinline__ void add_of(float (&sums)[COUNT], unsigned address, unsigned rank) {
    address = address_in(address, rank);
    if constexpr (COUNT % 4 == 0) {
#pragma unroll
        for (int e = 0; e < COUNT; e += 4) {
            float4 four;
            asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
                         : "r"(address + 4 * e));
            sums[e] += four.x, sums[e + 1] += four.y, sums[e + 2] += four.z, sums[e + 3] += four.w;
        }
    } else {
#pragma unroll
        for (int e = 0; e < COUNT; ++e) {
            float value;
            asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address + 4 * e));
            sums[e] += value;
        }
    }
}
__device__ __forceinline__ void prefetch(const void* place) { asm volatile("prefetch.global.L2 [%0];" ::"l"(place)); }
#else  // on a CPU: one block a cluster
inline void prefetch(const void*) {}
template <int BYTES>
void copy_async(uintptr_t target, const void* source, int bytes) {
    memset((void*)target, 0, BYTES);
    if (bytes) memcpy((void*)target, source, bytes);
}
inline void commit_copies() {}
template <int COUNT>
void wait_for_all_copies_but() {}
inline void cluster_sync() { __syncthreads(); }
template <int COUNT>
void add_of(float (&sums)[COUNT], uintptr_t address, unsigned) {
    for (int e = 0; e < COUNT; ++e) sums[e] += ((const float*)address)[e];
}
template <class T>
void __stcs(T* place, T value) { *place = value; }
#endif

#include "tf32.cuh"
#include "epilogue.cuh"
#include "overlap.cuh"
#include "stages.cuh"
#ifdef __CUDA_ARCH__
#define INSTRUCTION_N INST_N
#include "wgmma.cuh"
#endif
#include "products.cuh"
#include "outputs.cuh"

// Blocks of a filter tile share out the tiles of pixels: block b of B takes b, b + B, ...
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    pointwise(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE,
              SHAPE) {
    extern __shared__ __align__(16) float shared[];  // weight | its small parts | x's stages | sums; or all, then sums
#if SPLIT_C
    const unsigned rank = cluster_rank(), blocks = cluster_size(), block = cluster_index();
    const unsigned clusters = gridDim.x / blocks;
#else
    const unsigned rank = 0, blocks = 1, block = blockIdx.x, clusters = gridDim.x;
#endif
    const unsigned tiles_k = (K + BN - 1) / BN, plane = (unsigned)P * Q, pixels = plane * N;
    const Strides strides = {IS_STRIDED ? (unsigned)H * W : plane, W, Q, stride_h, stride_w};
    const int first_k = block % tiles_k * BN;
    const unsigned tiles = (pixels + BP - 1) / BP, step = clusters / tiles_k, first_tile = block / tiles_k;
    const unsigned stages = (C + BK - 1) / BK;
    const int begin = stages * rank / blocks, count = stages * (rank + 1) / blocks - begin;
    // Partial sums are added: one block adds the residual to its own.
    const int all = count + (rank == 0 ? RESIDUAL_STAGES : 0);
    const int kept = RESIDENT ? count : STAGES;  // stages of weight in shared memory
    unsigned char* const ring = (unsigned char*)shared + (1024 - shared_address(shared) % 1024) % 1024;
    unsigned char* const low = ring + kept * WEIGHT_BYTES;
    unsigned char* const x_ring = low + (SPLIT ? (RESIDENT ? count : LOW_STAGES) : 0) * WEIGHT_BYTES;
    [[maybe_unused]] Sum* const sums = (Sum*)(RESIDENT ? x_ring + STAGES * X_BYTES : ring);
    const int work = RESIDENT ? all * (int)((tiles - first_tile + step - 1) / step) : all;  // stages of all its tiles

    prefetch_rows(weight + (size_t)first_k * C + begin * BK, min(BN, K - first_k), min(count * BK, C - begin * BK) * sizeof(Storage),
                  C * sizeof(Storage));
    wait_for_kernel_ahead();
    if (RESIDENT) {
        for (int stage = 0; stage < count; ++stage)
            fetch_weight(ring + stage * WEIGHT_BYTES, weight, first_k, (begin + stage) * BK, K, C);
        commit_copies();
    } else {
#pragma unroll 1
        for (int stage = 0; stage < STAGES - 1; ++stage)
            if (stage < count) fetch_weight(ring + stage * WEIGHT_BYTES, weight, first_k, (begin + stage) * BK, K, C);
    }
    unsigned fetched_tile = first_tile;
    int fetched = 0;  // stage of that tile
    Column column = column_of(x, first_tile * BP, pixels, C, plane, strides);
    const auto fetch_next = [&](int stage) {
        Storage* const target = (Storage*)(x_ring + stage * X_BYTES);
        Column from = column;
        int k0 = (begin + fetched) * BK, end = C;
        bool is_aligned = true;
#if COPIES_RESIDUAL
        if (fetched >= count) {
            from = residual_of(column, residual, x, C, K, plane);
            k0 = first_k + (fetched - count) * BK, end = min(K, first_k + BN);
            is_aligned = LOADING != CHUNKS || K % VECTOR == 0;
            if (!is_aligned) fetch_unaligned(target, residual, k0, end, fetched_tile * BP, pixels, K, plane);
        }
#endif
        if (is_aligned) fetch_x(target, x, from, k0, end, strides.plane);
        if (++fetched == all && RESIDENT) {
            fetched = 0;
            fetched_tile += step;
            column = column_of(x, fetched_tile * BP, pixels, C, plane, strides);
        }
    };
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < work) fetch_next(stage);
        commit_copies();
    }
#if RESIDENT
    wait_for_all_copies_but<STAGES - 1>();
#if SPLIT
    if (LOADING == ELEMENTS) __syncthreads();
    for (int stage = 0; stage < count; ++stage) split_weight(ring + stage * WEIGHT_BYTES, low + stage * WEIGHT_BYTES);
#elif ROUNDS
    for (int stage = 0; stage < count; ++stage) round_weight(ring + stage * WEIGHT_BYTES);
#endif
#elif ROUNDS
    wait_for_all_copies_but<STAGES - 2>();
    round_weight(ring);
#endif
    // Filters that the block stores.
    [[maybe_unused]] const int k_begin = BN * rank / blocks, k_end = BN * (rank + 1) / blocks;
    const auto prefetch_ends = [&](unsigned tile) {
#if PREFETCHES_RESIDUAL
        prefetch_residual(residual, first_k + k_begin, first_k + k_end, tile * BP, pixels, K, plane);
#endif
        (void)tile;
    };
    prefetch_ends(first_tile);
    Places places = places_of(first_tile * BP, pixels, plane);
    float sum[SUMS];
#pragma unroll
    for (int i = 0; i < TILES_P; ++i) {
#pragma unroll
        for (int n = 0; n < TILES_N; ++n) {
#pragma unroll
            for (int e = 0; e < INST_N / 2; ++e) sum[i][n][e] = 0.0f;
        }
    }

    const Epilogue epilogue = EPILOGUE_OF(y);
    int read = 0, write = STAGES - 1, stage = 0;
    unsigned tile = first_tile;
#pragma unroll 1
    for (int done = 0; done < work; ++done) {
        wait_for_all_copies_but<STAGES - 2>();
        const int at = RESIDENT ? stage : read;
        unsigned char* const current = ring + at * WEIGHT_BYTES;
        unsigned char* const small = low + (RESIDENT ? stage : done & 1) * WEIGHT_BYTES;
#if SPLIT && !RESIDENT
        if (LOADING == ELEMENTS) __syncthreads();
        split_weight(current, small);
#endif
#ifdef __CUDA_ARCH__
        if (!RESIDENT || done == 0) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
        __syncthreads();
        if (done + STAGES - 1 < work) {
            if (!RESIDENT && (!COPIES_RESIDUAL || fetched < count))
                fetch_weight(ring + write * WEIGHT_BYTES, weight, first_k, (begin + fetched) * BK, K, C);
            fetch_next(write);
        }
        commit_copies();
        multiply_stage(sum, (const Storage*)(x_ring + read * X_BYTES), shared_address(current), shared_address(small),
                       places, (C - (begin + stage) * BK + STEP_K - 1) / STEP_K);
        read = read + 1 == STAGES ? 0 : read + 1;
        write = write + 1 == STAGES ? 0 : write + 1;
#if ROUNDS && !RESIDENT
        if (done + 1 < work) {  // while the tensor cores multiply
            wait_for_all_copies_but<STAGES - 2>();
            round_weight(ring + read * WEIGHT_BYTES);
        }
#endif
        wait_for_products();
        if (++stage < count) continue;
#if COPIES_RESIDUAL
        // A loop of its own: in one with the products, ptxas makes these wait for each other.
#pragma unroll 1
        for (; stage < all; ++stage) {
            ++done;
            wait_for_all_copies_but<STAGES - 2>();
            __syncthreads();
            if ((RESIDENT || RESIDUAL_STAGES >= STAGES) && done + STAGES - 1 < work) fetch_next(write);
            commit_copies();
            add_residual(sum, (const Storage*)(x_ring + read * X_BYTES), places, stage - count);
            read = read + 1 == STAGES ? 0 : read + 1;
            write = write + 1 == STAGES ? 0 : write + 1;
        }
#endif

        const unsigned first = tile * BP;
#if DIRECT
        store_directly(y, epilogue, sum, first, pixels, first_k, K, plane);
#else
        if (!RESIDENT) {
            wait_for_all_copies_but<0>();
            __syncthreads();
        }
#if HAS_EPILOGUE && !SUMS_ARE_FLOATS
        end_sums(epilogue, sum, first_k, K);
#endif
        store_sums(sums, sum);
#if SPLIT_C
        cluster_sync();
#else
        __syncthreads();
#endif
        if (plane % VECTOR == 0)
            store_y<VECTOR>(y, epilogue, sums, k_begin, k_end, first, pixels, first_k, K, plane, blocks);
        else if (plane % 2 == 0)
            store_y<2>(y, epilogue, sums, k_begin, k_end, first, pixels, first_k, K, plane, blocks);
        else
            store_y<1>(y, epilogue, sums, k_begin, k_end, first, pixels, first_k, K, plane, blocks);
#if SPLIT_C
        cluster_sync();
#endif
#endif
        if (!RESIDENT) break;
        stage = 0;
        tile += step;
        prefetch_ends(tile);
        places = places_of(tile * BP, pixels, plane);
#pragma unroll
        for (int i = 0; i < TILES_P; ++i) {
#pragma unroll
            for (int n = 0; n < TILES_N; ++n) {
#pragma unroll
                for (int e = 0; e < INST_N / 2; ++e) sum[i][n][e] = 0.0f;
            }
        }
    }
}
