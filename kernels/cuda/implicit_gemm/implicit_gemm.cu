// Implicit GEMM in one launch: the im2col matrix exists only as tiles in shared memory, with split-K where pixels are few.
//
//   tensors      x (N,C,H,W), weight (K,C,R,S), y (N,K,P,Q), all nchw as they are: no transform, no workspace
//   GEMM         y (K, N*P*Q) = weight (K, C*R*S) . columns (C*R*S, N*P*Q): gemm_m filters, gemm_n pixels, gemm_k = C*R*S
//   versions     -DTENSOR=0: products by FFMA, TM x TN outputs a thread. -DTENSOR=1: mma.sync with float32 accumulators,
//                m16n8k16 for half precision, m16n8k8 on float32 rounded to tf32
//                -DLOADING: RUNS: 1x1, copies of 16 bytes of pixels; POINTS: 1x1, copies of 4 bytes; TAPS: any filter, stride
//                and dilation, by a table of taps; all by cp.async, except half-precision TAPS, through registers
//   split        WARPS_K groups of a block's threads each take a part of every stage of BK; the blocks of a cluster each
//                take a part of the stages. Reduction in shared memory: every block pushes to each block of its
//                cluster the slice which that block owns; each then adds its slices in rank order
//   grid, block  a cluster per tile of BM filters x BN pixels, filters fastest; THREADS threads, registers for BLOCKS
//                blocks per multiprocessor; tile, loading and cluster are chosen by plan.py
//   limits       groups 1; at most 1024 taps, 57 where half-precision elements are gathered; clusters from compute capability
//                9.0 on, elsewhere one block per tile; deterministic
//   source       split-K for small batches: cuConv, arXiv:2103.16234; distributed shared memory: CUDA
//                C++ Programming Guide, "Thread Block Clusters"

#include "clusters.cuh"
#include "epilogue.cuh"
#include "overlap.cuh"
#include "asynchronous.cuh"
#if TENSOR
#include "tf32.cuh"
#include "fragments.cuh"
#endif

#define RUNS 0
#define POINTS 1
#define TAPS 2

#ifdef STORAGE_FLOAT32
#define ELEMENT 4
#else
#define ELEMENT 2
#endif

#define IS_GATHER (LOADING == TAPS && ELEMENT == 2)
#define VECTOR (16 / ELEMENT)  // elements of 16 bytes
#define X_VECTOR (LOADING == RUNS ? VECTOR : LOADING == POINTS ? 4 / ELEMENT : 1)

#if TENSOR
#define THREADS (32 * WARPS_M * WARPS_N * WARPS_K)
#define X_PITCH (IS_GATHER ? BK + VECTOR : BN + 8)
#define SUM_PITCH (BN + 8)
#else
#define THREADS (BM / TM * (BN / TN) * WARPS_K)
#define X_PITCH BN
#define SUM_PITCH BN
#endif
#define WEIGHT_PITCH (BK + VECTOR)
#define PART_K (BK / WARPS_K)
#define WEIGHT_ELEMENTS (BM * WEIGHT_PITCH)
#define STAGE_ELEMENTS (WEIGHT_ELEMENTS + (IS_GATHER ? BN * X_PITCH : BK * X_PITCH))
#define PIPELINE_FLOATS (STAGES * STAGE_ELEMENTS * ELEMENT / 4)
#define SUM_FLOATS (WARPS_K * BM * SUM_PITCH)
#define BODY_FLOATS (PIPELINE_FLOATS > SUM_FLOATS ? PIPELINE_FLOATS : SUM_FLOATS)

static_assert(THREADS % (BN / X_VECTOR) == 0 && BK % (THREADS / (BN / X_VECTOR)) == 0, "whole columns of x a thread");
static_assert(BM * BK / VECTOR % THREADS == 0 && THREADS % (BK / VECTOR) == 0, "whole rows of weight a thread");

#include "stages.cuh"
#if IS_GATHER
#include "gather.cuh"
#endif
#include "products.cuh"
#if TENSOR
#include "warp_sums.cuh"
#endif
#include "outputs.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    implicit_gemm(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE,
                  SHAPE) {
    extern __shared__ __align__(16) float shared[];  // stages, then sums | received slices of a cluster | table of taps
    const unsigned rank = cluster_rank(), blocks = cluster_size(), tile = cluster_index();
    if (blocks > 1) cluster_arrive();
    const unsigned tiles_k = (K + BM - 1) / BM, plane = (unsigned)P * Q, pixels = plane * N;
    const int first_k = tile % tiles_k * BM;
    const unsigned first_pixel = tile / tiles_k * BN;
    const int taps = R * S, gemm_k = C * taps, x_plane = H * W;
    const unsigned stages = (gemm_k + BK - 1) / BK;
    const int begin = stages * rank / blocks, end = stages * (rank + 1) / blocks;
    const unsigned rows = (BM + blocks - 1) / blocks;  // that a block of the cluster owns
    float* const received = shared + BODY_FLOATS;      // (blocks, rows, BN)
    Storage* const ring = (Storage*)shared;

    prefetch_rows(weight + (size_t)first_k * gemm_k + begin * BK, min(BM, K - first_k),
                  (min(end * BK, gemm_k) - begin * BK) * sizeof(Storage), gemm_k * sizeof(Storage));
    wait_for_kernel_ahead();
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (begin + stage < end)
            fetch_weight(ring + stage * STAGE_ELEMENTS, weight, first_k, (begin + stage) * BK, K, gemm_k);
    }
    const Column column = column_at(x, first_pixel + threadIdx.x % (BN / X_VECTOR) * X_VECTOR, N, C, H, W, P, Q,
                                    stride_h, stride_w, pad_h, pad_w);
    const int tap_step = BK % taps, offset_step = (LOADING == TAPS ? BK / taps : BK) * x_plane;
    Walk walk;
    walk.start(begin * BK, taps, x_plane);
    TapEntry* const table = (TapEntry*)(received + (blocks > 1 ? blocks * rows * BN : 0));
    if constexpr (LOADING == TAPS) {
        for (int index = threadIdx.x; index < taps + BK; index += THREADS) {
            const int channel = index / taps, tap = index - channel * taps, r = tap / S;
            const int h = r * dilation_h, w = (tap - r * S) * dilation_w, offset = channel * x_plane + h * W + w;
#if IS_GATHER
            table[index] = offset * ELEMENT;
#else
            table[index] = Tap{offset, h, w, 0};
#endif
        }
        __syncthreads();
    }
#if IS_GATHER
    const unsigned long long inside = taps_inside(column, H, W, R, S, dilation_h, dilation_w);
    const unsigned first = (unsigned)((column.source - x) * ELEMENT);
    Phases phases;
    phases.start(taps);
    Gathered gathered;
#endif
    float sum[SUMS] = {};

#pragma unroll 1
    for (int stage = begin; stage < begin + STAGES - 1; ++stage) {
        if (stage < end) {
            Storage* const target = ring + (stage - begin) * STAGE_ELEMENTS + WEIGHT_ELEMENTS;
#if IS_GATHER
            gather_x(gathered, (const char*)x, first, inside, phases, walk, table, gemm_k);
            store_x(target, gathered);
#else
            fetch_x(target, column, walk, table, H, W, gemm_k);
#endif
            walk.advance(x_plane, tap_step, offset_step);
        }
        commit_copies();
    }
    int read = 0, write = STAGES - 1;
#pragma unroll 1
    for (int stage = begin; stage < end; ++stage) {
        wait_for_all_copies_but<STAGES - 2>();
        __syncthreads();
        Storage* const target = ring + write * STAGE_ELEMENTS;
        const bool has_next = stage + STAGES - 1 < end;
        if (has_next) {
            fetch_weight(target, weight, first_k, walk.k, K, gemm_k);
#if IS_GATHER
            gather_x(gathered, (const char*)x, first, inside, phases, walk, table, gemm_k);
#else
            fetch_x(target + WEIGHT_ELEMENTS, column, walk, table, H, W, gemm_k);
#endif
            walk.advance(x_plane, tap_step, offset_step);
        }
        commit_copies();
        multiply(sum, ring + read * STAGE_ELEMENTS, ring + read * STAGE_ELEMENTS + WEIGHT_ELEMENTS);
#if IS_GATHER
        if (has_next) store_x(target + WEIGHT_ELEMENTS, gathered);
#endif
        read = read + 1 == STAGES ? 0 : read + 1;
        write = write + 1 == STAGES ? 0 : write + 1;
    }

    wait_for_all_copies_but<0>();
    __syncthreads();
    store_sums(shared, sum);
    __syncthreads();
    const float* from = shared;
    int pitch = SUM_PITCH, count = WARPS_K, distance = BM * SUM_PITCH, own_k = first_k, own_rows = BM;
    if (blocks > 1) {
        cluster_wait();
        for (int vector = threadIdx.x; vector < BM * BN / 4; vector += THREADS) {
            const unsigned row = vector / (BN / 4), column4 = vector % (BN / 4) * 4, owner = row / rows;
            const float* const part = shared + row * SUM_PITCH + column4;
            float4 total = *(const float4*)part;
#pragma unroll
            for (int other = 1; other < WARPS_K; ++other) {
                const float4 more = *(const float4*)(part + other * BM * SUM_PITCH);
                total.x += more.x;
                total.y += more.y;
                total.z += more.z;
                total.w += more.w;
            }
            push(received + (rank * rows + row - owner * rows) * BN + column4, owner, total);
        }
        cluster_arrive();
        cluster_wait();
        from = received;
        pitch = BN, count = blocks, distance = rows * BN, own_k += rank * rows;
        own_rows = min((int)rows, BM - (int)(rank * rows));
    }
    const Epilogue epilogue = EPILOGUE_OF(y);
    if (plane % 4 == 0)
        store_y<4>(y, epilogue, from, pitch, count, distance, own_k, own_rows, first_pixel, pixels, K, plane);
    else
        store_y<1>(y, epilogue, from, pitch, count, distance, own_k, own_rows, first_pixel, pixels, K, plane);
}
