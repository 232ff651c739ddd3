// Implicit GEMM with channels innermost, on tensor cores, with split-K where outputs are few: 16-byte copies for any filter.
//
//   tensors      x (N,H,W,C), weight (K,R,S,C) with C a multiple of VECTOR, 16 bytes; y (N,P,Q,K), or (N,K,P,Q) with
//                -DIS_NHWC=0: x and weight may be packed copies of nchw tensors, see nhwc_pack.cu
//   GEMM         gemm_k = R*S*C, channels fastest, so 16 bytes of it belong to one tap. Tiles of BF filters and BP pixels; with
//                -DPIXELS_M=1 the rows of the products (BM) are pixels and the columns (BN) filters, else the reverse
//   versions     -DWGMMA=0: mma.sync m16n8k16, m16n8k8 on float32 rounded to tf32. -DWGMMA=1: wgmma m64, both operands from
//                shared memory; unpacked float32 is truncated to tf32, and the sums are compensated for that.
//                -DIS_POINTWISE: 1x1 without padding, no loop over taps. -DPROLOGUE=1: x is scaled, shifted and rectified
//                first, and may be some of more channels; see prologue.cuh
//   stages       128 bytes of gemm_k, BF rows of weight and BP of x, by cp.async; the 16 bytes c of row r lie at c ^ r % 8,
//                the 128-byte swizzle of wgmma, which ldmatrix reads without conflicts too
//   split        WARPS_K groups of a block's warps each take a part of every stage; the blocks of a cluster each take a part
//                of the stages. Reduction in shared memory as in implicit_gemm.cu, in rank order
//   grid, block  a cluster per tile, filters fastest; THREADS threads, registers for BLOCKS blocks per multiprocessor; tile
//                and cluster are chosen by plan.py
//   limits       groups 1; compute capability 9.0 (sm_90a); deterministic
//   source       PTX ISA 8.0, wgmma and cp.async; CUDA C++ Programming Guide, "Thread Block Clusters"

#include "tf32.cuh"
#include "epilogue.cuh"

#ifdef STORAGE_FLOAT32
#define ELEMENT 4
#else
#define ELEMENT 2
#endif
#define VECTOR (16 / ELEMENT)  // elements of 16 bytes
#define ROW_BYTES 128
#define CHUNKS 8  // of 16 bytes in a row

#if PIXELS_M
#define BM BP
#define BN BF
#else
#define BM BF
#define BN BP
#endif
#define THREADS (32 * WARPS_M * WARPS_N * WARPS_K)
#define ROW_STEP (THREADS / CHUNKS)
#define STAGE_BYTES ((BF + BP) * ROW_BYTES)
#define AHEAD (WGMMA && !DRAIN ? STAGES - 2 : STAGES - 1)  // stages fetched before they are multiplied

// Sums in shared memory: y's fastest dimension innermost.
#if IS_NHWC
#define OUTER BP
#define INNER BF
#else
#define OUTER BF
#define INNER BP
#endif
#define IS_TURNED (IS_NHWC != PIXELS_M)  // the rows of the products are innermost
#define SUM_PITCH (INNER + (IS_TURNED ? 4 : 8))
#define PIPELINE_BYTES (STAGES * STAGE_BYTES)
#define SUM_BYTES (WARPS_K * OUTER * SUM_PITCH * 4)
#define BODY_BYTES (PIPELINE_BYTES > SUM_BYTES ? PIPELINE_BYTES : SUM_BYTES)

// Without a split y's values are staged in its own type: where a residual was copied ahead, in its place.
#define COPIES_RESIDUAL (RESIDUAL && ELEMENT == 2)
#define IS_STAGED (ELEMENT == 2 && WARPS_K == 1)
#define STAGED_PITCH (INNER + 8)
#define STAGED_BYTES (OUTER * STAGED_PITCH * ELEMENT)
#define SLOTS (COPIES_RESIDUAL ? (STAGED_BYTES + STAGE_BYTES - 1) / STAGE_BYTES : 1)
#define SLOT_ROWS (OUTER / SLOTS)

#ifndef PROLOGUE
#define PROLOGUE 0
#endif
static_assert(!PROLOGUE || (IS_NHWC && IS_POINTWISE), "channels innermost, and no zeros around an image");
#if PROLOGUE
#define PROLOGUE_OF_X , const float *__restrict__ prologue
#define X_PITCH , unsigned x_pitch
#else
#define PROLOGUE_OF_X
#define X_PITCH
#endif

#define TILES_M (BM / WARPS_M / 16)
#define TILES_N (BN / WARPS_N / 8)
#define SUMS TILES_M][TILES_N][4
static_assert(AHEAD >= 1 && ROW_STEP % 8 == 0, "a ring, and whole swizzles a thread");
static_assert(!COPIES_RESIDUAL || (SLOTS <= AHEAD && SLOTS <= (IS_STAGED ? 2 : 1) && SLOT_ROWS % 16 == 0), "free stages");
static_assert(!COPIES_RESIDUAL || !IS_STAGED || SUM_BYTES + STAGED_BYTES / 2 <= PIPELINE_BYTES, "room behind the sums");
static_assert(!COPIES_RESIDUAL || IS_STAGED || 2 * SUM_BYTES + STAGE_BYTES <= PIPELINE_BYTES, "or before and behind a stage");
static_assert(WGMMA ? BM / WARPS_M == 16 && WARPS_M % 4 == 0 : TILES_N % 2 == 0, "whole fragments");

#include "clusters.cuh"
#include "asynchronous.cuh"
#include "overlap.cuh"

#ifdef __CUDA_ARCH__
// 16 bytes, or zeros.
__device__ __forceinline__ void copy_async(Address target, const Storage* source, bool is_read) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(is_read ? 16 : 0));
}
__device__ __forceinline__ void publish_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void wait_for_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else  // on a CPU
inline void copy_async(Address target, const Storage* source, bool is_read) {
    memset((void*)target, 0, 16);
    if (is_read) memcpy((void*)target, source, 16);
}
inline void publish_to_products() {}
inline void wait_for_launch_before() {}
#endif
// Division by a number known to the host: dividends are below 2^31.
struct Divisor {
    unsigned value, multiplier, shift;

    __device__ __forceinline__ unsigned divide(unsigned dividend) const {
        return value == 1 ? dividend : __umulhi(dividend, multiplier) >> shift;
    }
};

// Walks a thread's 16 bytes of gemm_k stage by stage.
struct Walk {
    int chunk;           // of 16 bytes in gemm_k
    int channel, s;      // chunk of the tap, column of the filter
    int h, w;            // of the tap from the first one
    unsigned offset;     // of the 16 bytes from channel 0 of the first tap, elements

    __device__ __forceinline__ void start(int first, int C, int W, int S, int dilation_h, int dilation_w) {
        chunk = first;
        if (IS_POINTWISE) {
            offset = chunk * VECTOR;
            return;
        }
        const int channels = C / VECTOR, tap = chunk / channels, r = tap / S;
        channel = chunk - tap * channels;
        s = tap - r * S;
        h = r * dilation_h;
        w = s * dilation_w;
        offset = ((unsigned)h * W + w) * C + channel * VECTOR;
    }
    __device__ __forceinline__ void advance(int C, int W, int S, int dilation_h, int dilation_w) {
        chunk += CHUNKS;
        if (IS_POINTWISE) {
            offset += CHUNKS * VECTOR;
            return;
        }
        const int channels = C / VECTOR;
        channel += CHUNKS;
        while (channel >= channels) {
            channel -= channels;
            w += dilation_w;
            if (++s == S) {
                s = w = 0;
                h += dilation_h;
            }
        }
        offset = ((unsigned)h * W + w) * C + channel * VECTOR;
    }
};

#define X_ROWS ((BP + ROW_STEP - 1) / ROW_STEP)
#define WEIGHT_ROWS ((BF + ROW_STEP - 1) / ROW_STEP)

// The pixels whose 16 bytes a thread fetches: every ROW_STEP-th of the tile.
struct Pixels {
    unsigned first[X_ROWS];  // element of channel 0 of the first tap, from x
    int h0[X_ROWS], w0[X_ROWS];

    __device__ __forceinline__ void find(unsigned pixel, unsigned pixels, const Divisor& plane, const Divisor& width, int pitch,
                                         int H, int W, int stride_h, int stride_w, int pad_h, int pad_w) {
#pragma unroll
        for (int i = 0; i < X_ROWS; ++i, pixel += ROW_STEP) {
            if (IS_POINTWISE && stride_h == 1 && stride_w == 1) {
                h0[i] = pixel < pixels ? 0 : -1;
                first[i] = pixel * pitch;
                continue;
            }
            const unsigned image = plane.divide(pixel), inner = pixel - image * plane.value;
            const unsigned p = width.divide(inner), q = inner - p * width.value;
            h0[i] = pixel < pixels ? (int)p * stride_h - pad_h : -(1 << 30);
            w0[i] = (int)q * stride_w - pad_w;
            // Modulo 2^32: x has fewer than 2^31 elements, what is read lies inside.
            first[i] = ((image * H + (unsigned)h0[i]) * W + (unsigned)w0[i]) * pitch;
        }
    }
};

__device__ __forceinline__ void fetch_x(Address target, const Storage* x, const Pixels& pixels, const Walk& walk,
                                        int chunks, int H, int W) {
#pragma unroll
    for (int i = 0; i < X_ROWS; ++i) {
        if (BP % ROW_STEP && threadIdx.x / CHUNKS + i * ROW_STEP >= BP) continue;
        const bool is_read = walk.chunk < chunks && (IS_POINTWISE ? pixels.h0[i] >= 0
                                                                  : is_inside(pixels.h0[i] + walk.h, H) &&
                                                                        is_inside(pixels.w0[i] + walk.w, W));
        copy_async(target + i * ROW_STEP * ROW_BYTES, x + (is_read ? pixels.first[i] + walk.offset : 0), is_read);
    }
}

__device__ __forceinline__ void fetch_weight(Address target, const Storage* weight, int filter, int chunk, int chunks, int K) {
#pragma unroll
    for (int i = 0; i < WEIGHT_ROWS; ++i) {
        if (BF % ROW_STEP && threadIdx.x / CHUNKS + i * ROW_STEP >= BF) continue;
        const bool is_read = chunk < chunks && filter + i * ROW_STEP < K;
        const unsigned from = is_read ? (unsigned)((filter + i * ROW_STEP) * chunks + chunk) * VECTOR : 0;
        copy_async(target + i * ROW_STEP * ROW_BYTES, weight + from, is_read);
    }
}

#if WGMMA && defined(__CUDA_ARCH__)
#define INSTRUCTION_N (BN / WARPS_N)
#include "wgmma.cuh"
#endif
#include "products.cuh"
#include "pairs.cuh"
#if PROLOGUE
#include "prologue.cuh"
#endif
#include "outputs.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    implicit_gemm_nhwc(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE
                           PROLOGUE_OF_X,
                       SHAPE, unsigned plane_multiplier, unsigned plane_shift, unsigned width_multiplier, unsigned width_shift,
                       unsigned y_pitch X_PITCH) {
    extern __shared__ __align__(16) float unaligned[];
    const Address ring = (shared_address(unaligned) + 1023) / 1024 * 1024;
    unsigned char* const body = (unsigned char*)unaligned + (ring - shared_address(unaligned));
    const unsigned rank = cluster_rank(), blocks = cluster_size(), tile = cluster_index();
    const unsigned tiles_f = (K + BF - 1) / BF, tile_p = tile / tiles_f;
    const unsigned first_filter = (tile - tile_p * tiles_f) * BF, first_pixel = tile_p * BP;
    const Divisor plane = {(unsigned)P * Q, plane_multiplier, plane_shift};
    const Divisor width = {(unsigned)Q, width_multiplier, width_shift};
    const unsigned pixels = N * plane.value;
    const int chunks = R * S * (C / VECTOR), stages = (chunks + CHUNKS - 1) / CHUNKS;
    const int begin = stages * rank / blocks, end = stages * (rank + 1) / blocks;
    if (blocks > 1) cluster_arrive();

    const int row = threadIdx.x / CHUNKS, column = threadIdx.x % CHUNKS;
    const unsigned place = row * ROW_BYTES + (column ^ row % 8) * 16;
    const Address weights = ring + place, columns = weights + BF * ROW_BYTES;
    Pixels mine;
#if PROLOGUE
    const int pitch_of_x = x_pitch;
#else
    const int pitch_of_x = C;
#endif
#if defined(OVERLAPS)
    const int kept = min(end * CHUNKS, chunks) - begin * CHUNKS;
    prefetch_rows(weight + ((size_t)first_filter * chunks + begin * CHUNKS) * VECTOR, min(BF, K - (int)first_filter), kept * 16,
                  (size_t)chunks * 16);
    mine.find(first_pixel + row, pixels, plane, width, pitch_of_x, H, W, stride_h, stride_w, pad_h, pad_w);
    wait_for_kernel_ahead();
#elif !IS_NHWC
    mine.find(first_pixel + row, pixels, plane, width, pitch_of_x, H, W, stride_h, stride_w, pad_h, pad_w);
    // The launch before, which packs x and weight, may still run: nothing of theirs is read before here.
    wait_for_launch_before();
#endif
    // The filters first: their addresses are known at once.
#pragma unroll
    for (int stage = 0; stage < AHEAD; ++stage)
        if (begin + stage < end)
            fetch_weight(weights + stage * STAGE_BYTES, weight, first_filter + row, (begin + stage) * CHUNKS + column,
                         chunks, K);
#if IS_NHWC && !defined(OVERLAPS)
    mine.find(first_pixel + row, pixels, plane, width, pitch_of_x, H, W, stride_h, stride_w, pad_h, pad_w);
#endif
#if COPIES_RESIDUAL
    // Rows of a tile that this block stores, and whether their residual comes to stages that are free.
    const int shared_rows = (OUTER + blocks - 1) / blocks, first_row = rank * shared_rows;
    const int stored_rows = max(0, min(shared_rows, OUTER - first_row));
    const bool is_copied_ahead = !IS_STAGED || blocks == 1;
    const auto copy_slot = [&](int slot, Address target) {
        copy_residual(target, residual, IS_STAGED ? slot * SLOT_ROWS : first_row, IS_STAGED ? SLOT_ROWS : stored_rows,
                      first_filter, first_pixel, pixels, K, plane);
    };
#endif
    Walk walk;
    walk.start(begin * CHUNKS + column, C, W, S, dilation_h, dilation_w);
#pragma unroll
    for (int stage = 0; stage < AHEAD; ++stage) {
        if (begin + stage < end) {
            fetch_x(columns + stage * STAGE_BYTES, x, mine, walk, chunks, H, W);
            walk.advance(C, W, S, dilation_h, dilation_w);
        }
#if COPIES_RESIDUAL
        // Behind all stages: no product waits for it.
        if (stage == AHEAD - 1 && is_copied_ahead)
            for (int slot = 0, free = end - begin; slot < SLOTS && free < AHEAD; ++slot, ++free)
                copy_slot(slot, ring + free * STAGE_BYTES);
#endif
        commit_copies();
    }

    float sum[SUMS] = {};
    int read = 0, write = AHEAD;
#pragma unroll 1
    for (int stage = begin; stage < end; ++stage) {
#if PROLOGUE
        Prologue first;
        first.read(prologue, stage * CHUNKS + column, chunks);
#endif
        wait_for_all_copies_but<AHEAD - 1>();
#if PROLOGUE
        first.apply(columns + read * STAGE_BYTES);
#endif
#if WGMMA
        publish_to_products();
#endif
        __syncthreads();
        const Address filters = ring + read * STAGE_BYTES, points = filters + BF * ROW_BYTES;
#if WGMMA
        multiply(sum, PIXELS_M ? points : filters, PIXELS_M ? filters : points);
#endif
        if (stage + AHEAD < end) {
            fetch_weight(weights + write * STAGE_BYTES, weight, first_filter + row, walk.chunk, chunks, K);
            fetch_x(columns + write * STAGE_BYTES, x, mine, walk, chunks, H, W);
            walk.advance(C, W, S, dilation_h, dilation_w);
        }
#if COPIES_RESIDUAL
        else if (is_copied_ahead && stage + AHEAD - end < SLOTS)
            copy_slot(stage + AHEAD - end, ring + write * STAGE_BYTES);
#endif
        commit_copies();
#if WGMMA
        // The products of the stage before are done: after the next barrier its place is free.
        wait_for_all_products_but<!DRAIN>(sum);
#else
        multiply(sum, PIXELS_M ? points : filters, PIXELS_M ? filters : points);
#endif
        read = read + 1 == STAGES ? 0 : read + 1;
        write = write + 1 == STAGES ? 0 : write + 1;
    }
#if WGMMA
    wait_for_all_products_but<0>(sum);
#if IS_NHWC && ELEMENT == 4
    restore_cut_operands(sum);
#endif
#endif
    wait_for_all_copies_but<0>();
    __syncthreads();
    // Neighbours in y that lie at a multiple of their size.
    const unsigned fastest = IS_NHWC ? (unsigned)K : plane.value;
    const Epilogue epilogue = EPILOGUE_OF(y);
#if IS_STAGED
    if (blocks == 1) {
#if RESIDUAL
        const int next = read + 1 == STAGES ? 0 : read + 1;
        const Staging staging = {body + read * STAGE_BYTES, body + next * STAGE_BYTES};
#else
        const Staging staging = {body, body};
#endif
        stage_outputs(staging, sum, epilogue, first_filter, K);
        __syncthreads();
        if (fastest % 8 == 0)
            store_staged<8>(y, staging, first_filter, first_pixel, pixels, K, plane, y_pitch);
        else if (fastest % 4 == 0)
            store_staged<4>(y, staging, first_filter, first_pixel, pixels, K, plane, y_pitch);
        else
            store_staged<1>(y, staging, first_filter, first_pixel, pixels, K, plane, y_pitch);
        return;
    }
#endif
    unsigned char *place_of_sums = body, *copied = body + SUM_BYTES;
#if COPIES_RESIDUAL && IS_STAGED
    copy_residual(ring + SUM_BYTES, residual, first_row, stored_rows, first_filter, first_pixel, pixels, K, plane);
    commit_copies();
#elif COPIES_RESIDUAL
    copied = body + read * STAGE_BYTES;
    if (read * STAGE_BYTES < SUM_BYTES) place_of_sums = copied + STAGE_BYTES;
#endif
    float* const sums = (float*)place_of_sums;
    store_sums(sums, sum);
    __syncthreads();
    const float* from = sums;
    int pitch = SUM_PITCH, count = WARPS_K, distance = OUTER * SUM_PITCH, outer = 0, own_rows = OUTER;
    if (blocks > 1) {
        float* const received = (float*)(body + BODY_BYTES);
        const unsigned rows = (OUTER + blocks - 1) / blocks;
        cluster_wait();
        for (int vector = threadIdx.x; vector < OUTER * INNER / 4; vector += THREADS) {
            const unsigned line = vector / (INNER / 4), inner = vector % (INNER / 4) * 4, owner = line / rows;
            const float* const part = sums + line * SUM_PITCH + inner;
            float4 total = *(const float4*)part;
#pragma unroll
            for (int other = 1; other < WARPS_K; ++other) {
                const float4 more = *(const float4*)(part + other * OUTER * SUM_PITCH);
                total.x += more.x;
                total.y += more.y;
                total.z += more.z;
                total.w += more.w;
            }
            push(received + (rank * rows + line - owner * rows) * INNER + inner, owner, total);
        }
#if COPIES_RESIDUAL
        wait_for_all_copies_but<0>();
#endif
        cluster_arrive();
        cluster_wait();
        from = received;
        outer = rank * rows;
        pitch = INNER, count = blocks, distance = rows * INNER, own_rows = max(0, min((int)rows, OUTER - outer));
    }
    if (fastest % 4 == 0)
        store_y<4>(y, epilogue, from, pitch, count, distance, outer, own_rows, first_filter, first_pixel, pixels, K, plane,
                   y_pitch, (const Storage*)copied);
    else
        store_y<1>(y, epilogue, from, pitch, count, distance, outer, own_rows, first_filter, first_pixel, pixels, K, plane,
                   y_pitch, (const Storage*)copied);
}
