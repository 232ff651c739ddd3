// The products of Winograd on Hopper's tensor cores: M = L . R^T at each position, in float32 accuracy.
//
//   operands     rows of channels, as operands.cuh writes them: in nchw L is U (K,C) and R is V (T,C), so that M is (K,T); in
//                nhwc L is V, R is U and M is (T,K). float16 parts high and low of a float32 (22 bits together), in core matrices of 8
//                rows x 16 bytes: (rows/64, ceil(C/16), positions, PARTS, 8, 2, 8, 8); rows padded to whole blocks, channels
//                of the last 16 beyond C are zero
//   product      high.high + high.low + low.high; what is left out is 2^-22 of it
//   m            (right rows/64, left rows, positions, 64) float32, right rows padded to whole blocks
//   method       the first warp copies stages of 32 channels by bulk copies into a ring; each group of four warps multiplies
//                64 left rows by BN right ones with wgmma, both operands from shared memory, no swizzle
//   sums         tensor cores truncate as they accumulate: each stage accumulates from zero, small products first, and is
//                added to the total in registers, to nearest; what they cut on average is given back. A warp that only
//                copies would cost a quarter of these registers
//   grid, block  left blocks fastest, then right blocks, then positions; 128 threads for every 64 left rows of BM
//   limits       compute capability 9.0 alone (sm_90a)
//   source       Markidis et al.: NVIDIA Tensor Core Programmability, arXiv:1803.04014 (splitting); PTX ISA 8.0, wgmma
#include <cuda_fp16.h>

#include "overlap.cuh"
#include "tf32.cuh"

#define PARTS 2

#define GROUPS (BM / 64)
#define THREADS (128 * GROUPS)
#define DEPTH 2  // blocks of 16 channels in a stage
#define ROW_BYTES 32
#define BLOCK_BYTES (64 * ROW_BYTES)
#define LEFT_BYTES (BM * ROW_BYTES)  // one part of 16 channels
#define RIGHT_BYTES (BN * ROW_BYTES)
#define SLICE_BYTES ((LEFT_BYTES + RIGHT_BYTES) * PARTS)
#define STAGE_BYTES (DEPTH * SLICE_BYTES)
#if BN == 64 || BM == 128 && BN == 128
#define STEP_N 64  // or of a second set of sums as wide as that there would be no registers
#else
#define STEP_N 128
#endif
#define STEPS_N (BN / STEP_N)
#define STAGED_PITCH (BN + 8)  // elements: the 8 rows that a warp stores at a time meet in no bank
#define ACCUMULATORS (STEP_N / 2)
static_assert(BN % STEP_N == 0 && BM % 64 == 0, "whole instructions");

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}
__device__ __forceinline__ void barrier_init(unsigned barrier, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// A predicated instruction: a branch between products would serialize them.
__device__ __forceinline__ void barrier_arrive(unsigned barrier, bool is_done) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "setp.ne.u32 done, %1, 0;\n"
        "@done mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(barrier),
        "r"((unsigned)is_done)
        : "memory");
}
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
__device__ __forceinline__ void copy_bulk(unsigned target, const void* source, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
                 "l"(source), "r"(bytes), "r"(barrier)
                 : "memory");
}

#define OPERANDS_ARE_HALVES
#define INSTRUCTION_N STEP_N
#include "wgmma.cuh"

__device__ __forceinline__ void multiply(float (&d)[ACCUMULATORS], unsigned long long a, unsigned long long b,
                                         bool is_added = true) {
    multiply_add((ProductSums&)d, a, b, is_added);
}

// The products of a stage, of one or two slices, from zero: the small ones first.
__device__ __forceinline__ void multiply_stage(float (&part)[ACCUMULATORS], unsigned left, unsigned right, bool has_second) {
    const unsigned long long high_left = descriptor_of_matrices(left), low_left = descriptor_of_matrices(left + LEFT_BYTES);
    const unsigned long long high_right = descriptor_of_matrices(right), low_right = descriptor_of_matrices(right + RIGHT_BYTES);
    constexpr int second = SLICE_BYTES / 16;  // in a descriptor
    begin_products();
    multiply(part, low_left, high_right, false);
    multiply(part, high_left, low_right);
    if (has_second) {
        multiply(part, low_left + second, high_right + second);
        multiply(part, high_left + second, low_right + second);
        multiply(part, high_left + second, high_right + second);
    }
    multiply(part, high_left, high_right);
    commit_products();
}
__device__ __forceinline__ void add_stage(float (&sum)[ACCUMULATORS], float (&part)[ACCUMULATORS]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; ++i) {
        asm volatile("" : "+f"(part[i])::"memory");
        sum[i] += part[i];
    }
}

// A warp's 16 left rows from registers to shared memory, then row by row to m: whole lines, and no thread waits for them.
__device__ __forceinline__ void store_sums(float* staged, float* target, const float (&d)[STEPS_N][ACCUMULATORS],
                                           int lane, int valid_rows, size_t row_step, size_t block_step) {
    float* const own = staged + lane / 4 * STAGED_PITCH + lane % 4 * 2;
#pragma unroll
    for (int step = 0; step < STEPS_N; ++step) {
#pragma unroll
        for (int j = 0; j < ACCUMULATORS / 2; ++j) {
            const float2 pair = make_float2(d[step][2 * j], d[step][2 * j + 1]);
            float* const to = own + j % 2 * 8 * STAGED_PITCH + step * STEP_N + j / 2 * 8;
            *(float2*)to = pair;
        }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    for (int index = lane; index < 16 * (BN / 64); index += 32) {
        const int row = index % 16, block = index / 16;
        if (row >= valid_rows) continue;
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target + row * row_step +
                                                                                        block * block_step),
                     "r"(shared_address(staged + row * STAGED_PITCH + block * 64)),
                     "r"((unsigned)(64 * sizeof(float)))
                     : "memory");
    }
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    winograd_gemm(const __half* __restrict__ left, const __half* __restrict__ right, float* __restrict__ m, int rows_left,
                  int slices, int positions, int rows_right) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
    const unsigned ring = (shared_address(shared) + 127) & ~127u;
    const unsigned full = shared_address(barriers), empty = full + 8 * STAGES;
    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(full + 8 * stage, 1);
            barrier_init(empty + 8 * stage, GROUPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    wait_for_kernel_ahead();
    const unsigned blocks_left = (rows_left + BM - 1) / BM, blocks_right = rows_right / BN;
    const int first_left = blockIdx.x % blocks_left * BM, first_right = blockIdx.x / blocks_left % blocks_right * BN;
    const int position = blockIdx.x / blocks_left / blocks_right;
    const int stages = (slices + DEPTH - 1) / DEPTH;
    // Lanes: 64 rows of a part of left, then of right, for each slice of a stage.
    constexpr int copies_left = GROUPS * PARTS, copies = copies_left + BN / 64 * PARTS;
    static_assert(DEPTH * copies <= 32, "a lane for every copy");
    const int slice = lane / copies, copy = lane % copies, part_of_copy = copy % PARTS;
    const bool is_left = copy < copies_left;
    const int block = (is_left ? copy : copy - copies_left) / PARTS;
    const size_t row64 = (is_left ? first_left : first_right) / 64 + block;
    const unsigned offset = slice * SLICE_BYTES + block * BLOCK_BYTES +
                            (is_left ? part_of_copy * LEFT_BYTES : PARTS * LEFT_BYTES + part_of_copy * RIGHT_BYTES);
    const char* source = (const char*)(is_left ? left : right) +
                         (((row64 * slices + slice) * positions + position) * PARTS + part_of_copy) * BLOCK_BYTES;
    const unsigned step_bytes = DEPTH * positions * PARTS * BLOCK_BYTES;
    const auto fetch = [&](int stage) {
        const int slot = stage % STAGES, depth = min(DEPTH, slices - stage * DEPTH);
        if (lane == 0) barrier_expect(full + 8 * slot, depth * SLICE_BYTES);
        __syncwarp();
        if (slice < depth) copy_bulk(ring + slot * STAGE_BYTES + offset, source, BLOCK_BYTES, full + 8 * slot);
        source += step_bytes;
    };
    if (warp == 0) {
        for (int stage = 0; stage < min(STAGES, stages); ++stage) fetch(stage);
    }
    const int group = warp / 4;
    float d[STEPS_N][ACCUMULATORS] = {};
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
        const int slot = stage % STAGES;
        barrier_wait(full + 8 * slot, stage / STAGES & 1);
        const unsigned from = ring + slot * STAGE_BYTES;
#pragma unroll
        for (int step = 0; step < STEPS_N; ++step) {
            float part[ACCUMULATORS];
            multiply_stage(part, from + group * 64 * ROW_BYTES, from + PARTS * LEFT_BYTES + step * STEP_N * ROW_BYTES,
                           stage * DEPTH + 1 < slices);
            // Meanwhile, where every group has done the stage before, its slot takes another.
            if (step == 0 && warp == 0 && stage > 0 && stage - 1 + STAGES < stages) {
                barrier_wait(empty + 8 * ((stage - 1) % STAGES), (stage - 1) / STAGES & 1);
                fetch(stage - 1 + STAGES);
            }
            add_stage(d[step], part);
        }
        barrier_arrive(empty + 8 * slot, threadIdx.x % 128 == 0);
    }
    restore_cut(d, raised_by(mean_steps<DEPTH>(slices)));
    // The ring is free once both groups have multiplied.
    asm volatile("bar.sync 1, %0;" ::"n"(128 * GROUPS) : "memory");
    const int row = group * 64 + warp % 4 * 16, first = first_left + row;
    float* const staged = (float*)(shared + (ring - shared_address(shared))) + row * STAGED_PITCH;
    const size_t row_step = (size_t)positions * 64, block_step = rows_left * row_step;
    store_sums(staged, m + first_right / 64 * block_step + first * row_step + position * 64, d, lane,
               min(16, rows_left - first), row_step, block_step);
}
