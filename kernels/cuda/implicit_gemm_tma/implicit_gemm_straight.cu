// Implicit GEMM with channels innermost, from memory straight to registers: for layers that are over before the accelerator has begun.
//
//   tensors      x (N,H,W,C), weight (K,R,S,C), y (N,P,Q,K), of two-byte elements; C and K multiples of 8
//   GEMM         a block has one tile of BP pixels and BF filters. gemm_k is R*S*C, in pieces of 8 channels of one tap
//   fragments    of mma.sync m16n8k16: a thread's two k of 2, twice, are 16 bytes of a row in memory. The order of gemm_k within a
//                product is any, if it is the same for both operands: four threads read 4 pieces of a row of x, and of weight, for
//                two products. So nothing goes through shared memory, no barrier is waited for, and no address is swizzled
//   warps        WARPS_M * WARPS_N * WARPS_K: parts of the pixels, of the filters, and steps of 4 pieces by turns. Each asks for AHEAD
//                steps before it multiplies the first
//   y            where WARPS_K is 1, a thread's sums are of neighbouring filters, and it stores them: which filter is which column of
//                a product is any too. Else the warps' sums meet in shared memory
//   split        as in implicit_gemm_tma_split.cu: the blocks of a cluster each have a part of the steps
//   grid, block  x: a cluster for every tile of pixels, y: tiles of filters; BLOCKS share a multiprocessor's registers
//   versions     -DIS_DENSE=1: every pixel of x is one of y. -DIS_WHOLE=1: and gemm_k is of whole steps
//   limits       groups 1; compute capability 9.0; the same sums in the same order every time
//   source       as of implicit_gemm_tensor.cu

#include "epilogue.cuh"

#define WORKERS (32 * WARPS_M * WARPS_N * WARPS_K)
#define WGMMA 0
#define BM BP
#define BN BF
#define TILES_M (BP / WARPS_M / 16)
#define TILES_N (BF / WARPS_N / 8)
#define PIECE 8    // channels
#define OF_STEP 4  // pieces
#define IS_DIRECT (WARPS_K == 1)
#define NEIGHBOURS (2 * TILES_N)  // sums of a thread in a row
#define COUNTER_BYTES 16
#define SUM_PITCH (BF + 8 + BF % 16)
static_assert(BP % (16 * WARPS_M) == 0 && BF % (8 * WARPS_N) == 0, "whole fragments");
static_assert(!IS_DIRECT || 16 % (NEIGHBOURS * 2) == 0, "one store");

#include "clusters.cuh"
#include "asynchronous.cuh"
#include "fragments.cuh"
#include "pairs.cuh"
#include "division.cuh"
#include "overlap.cuh"

struct Sizes {
    int C, K, R, S;
    unsigned pixels, plane, Q, y_pitch;  // y_pitch: elements from a pixel of y to the next, K or more
    int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int H, W;
    unsigned of_tile, filters;  // pixels and filters of a tile
    int steps, more_steps;      // of a block; so many blocks of a cluster have one more
    unsigned pieces;            // of gemm_k
    int owned, owned_magic16;   // pixels of a tile that a block of the cluster owns
    Divisor of_plane, of_row, of_tap, of_taps;  // pixels of an image, and of a row of y; pieces of a tap, and taps of a row
};

typedef float Sums[TILES_M][TILES_N][4];

__device__ __forceinline__ float* received_at(float* sums, const Sizes&) { return sums + WARPS_K * BP * SUM_PITCH; }
#include "parted_sums.cuh"

// 16 bytes. Asked for here: else the compiler moves it to where it is used.
__device__ __forceinline__ uint4 read_piece(const Storage* place) {
    uint4 piece;
#ifdef __CUDA_ARCH__
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                 : "l"(place));
#else
    piece = *(const uint4*)place;
#endif
    return piece;
}
// The same, or zeros.
__device__ __forceinline__ uint4 read_piece(const Storage* place, bool exists) {
    uint4 piece = {};
#ifdef __CUDA_ARCH__
    asm volatile(
        "{\n.reg .pred exists;\nsetp.ne.u32 exists, %5, 0;\n"
        "mov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"
        "@exists ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "=&r"(piece.x), "=&r"(piece.y), "=&r"(piece.z), "=&r"(piece.w)
        : "l"(place), "r"((unsigned)exists));
#else
    if (exists) piece = *(const uint4*)place;
#endif
    return piece;
}

// What a thread reads of a warp's part of a tile, step by step.
class Reader {
   public:
    __device__ __forceinline__ Reader(const Storage* x, const Storage* weight, unsigned pixel, unsigned filter, int rows,
                                      const Sizes& sizes)
        : sizes_(sizes), x_(x) {
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const unsigned row = warp % WARPS_M * (BP / WARPS_M) + lane / 4, column = warp / WARPS_M % WARPS_N * (BF / WARPS_N);
#pragma unroll
        for (int i = 0; i < 2 * TILES_M; ++i) {
            // Whatever is read for a pixel or filter that does not exist goes nowhere: it is another one's.
            unsigned inner = pixel + min((int)row + i * 8, rows - 1);
#if IS_DENSE
            first_[i] = (int)inner * sizes.C + lane % 4 * PIECE;
#else
            const unsigned image = sizes.of_plane.take_quotient(inner), p = sizes.of_row.take_quotient(inner);
            h_[i] = (int)p * sizes.stride_h - sizes.pad_h, w_[i] = (int)inner * sizes.stride_w - sizes.pad_w;
            first_[i] = (((int)image * sizes.H + h_[i]) * sizes.W + w_[i]) * sizes.C;
#endif
        }
        const int own = column + (IS_DIRECT ? lane / 8 * NEIGHBOURS + lane / 4 % 2 : lane / 4);
        const int last = (int)min(sizes.filters, sizes.K - filter) - 1;
        const Storage* const rows_of_filters = weight + ((size_t)filter * sizes.pieces + lane % 4) * PIECE;
#pragma unroll
        for (int j = 0; j < TILES_N; ++j)
            weight_[j] = rows_of_filters + (size_t)min(own + j * (IS_DIRECT ? 2 : 8), last) * (sizes.pieces * PIECE);
    }

    struct Step {
        uint4 x[2 * TILES_M], weight[TILES_N];
    };
    // Of pieces at or behind `end` there are zeros.
    __device__ __forceinline__ void read(Step& to, int step, [[maybe_unused]] int end) const {
        const int first = step * OF_STEP;
        [[maybe_unused]] const int piece = first + (int)(threadIdx.x % 4);
        [[maybe_unused]] const bool is_there = piece < end;
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
            const Storage* const place = weight_[j] + first * PIECE;
            to.weight[j] = IS_WHOLE ? read_piece(place) : read_piece(place, is_there);
        }
#if IS_DENSE
#pragma unroll
        for (int i = 0; i < 2 * TILES_M; ++i) {
            const Storage* const place = x_ + first_[i] + first * PIECE;
            to.x[i] = IS_WHOLE ? read_piece(place) : read_piece(place, is_there);
        }
#else
        unsigned inner = piece, s = sizes_.of_tap.take_quotient(inner);
        const unsigned r = sizes_.of_taps.take_quotient(s);
        const int down = r * sizes_.dilation_h, right = s * sizes_.dilation_w;
        const int moved = (down * sizes_.W + right) * sizes_.C + (int)inner * PIECE;
#pragma unroll
        for (int i = 0; i < 2 * TILES_M; ++i) {
            const bool is_read = is_inside(h_[i] + down, sizes_.H) && is_inside(w_[i] + right, sizes_.W);
            to.x[i] = read_piece(x_ + (first_[i] + moved), is_there && is_read);
        }
#endif
    }

   private:
    const Sizes& sizes_;
    const Storage *x_, *weight_[TILES_N];
    int first_[2 * TILES_M];  // in x
#if !IS_DENSE
    int h_[2 * TILES_M], w_[2 * TILES_M];
#endif
};

__device__ __forceinline__ void multiply_step(Sums& sum, const Reader::Step& step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
            const uint4 &above = step.x[2 * i], &below = step.x[2 * i + 1];
            const unsigned a[4] = {half ? above.z : above.x, half ? below.z : below.x, half ? above.w : above.y,
                                   half ? below.w : below.y};
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
                const uint4& b = step.weight[j];
                multiply_fragments(sum[i][j], a, half ? b.z : b.x, half ? b.w : b.y);
            }
        }
    }
}

__device__ __forceinline__ void prefetch_weight(const Storage* weight, unsigned filter, int first, int count, const Sizes& sizes) {
    const unsigned pitch = sizes.pieces * PIECE, begin = first * OF_STEP * PIECE;
    prefetch_rows(weight + (size_t)filter * pitch + begin, min(sizes.filters, sizes.K - filter),
                  min((unsigned)count * OF_STEP * PIECE, pitch - begin) * 2, (size_t)pitch * 2);
}

// A warp's steps of a block's, some of which are always on their way.
class Steps {
   public:
    // Asks for the first of `count` steps from `first` on.
    __device__ __forceinline__ Steps(const Reader& reader, int first, int count, const Sizes& sizes)
        : reader_(reader), next_(first + __shfl_sync(0xFFFFFFFF, threadIdx.x / (32 * WARPS_M * WARPS_N), 0)),
          end_(min((first + count) * OF_STEP, (int)sizes.pieces)) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i)
            if (is_read(next_ + i * WARPS_K)) reader_.read(steps_[i], next_ + i * WARPS_K, end_);
    }
    // Adds the products of all.
    __device__ __forceinline__ void multiply(Sums& sum) {
        constexpr int turn = AHEAD * WARPS_K;
#pragma unroll 1
        for (; exists(next_); next_ += turn) {
            const bool has_more = exists(next_ + turn);
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const int step = next_ + i * WARPS_K;
                if (!is_read(step)) return;
                multiply_step(sum, steps_[i]);
                if (has_more && is_read(step + turn)) reader_.read(steps_[i], step + turn, end_);
            }
        }
    }

   private:
    // The same for all threads of a warp.
    __device__ __forceinline__ bool exists(int step) const { return step * OF_STEP < end_; }
    // What does not exist is read as zeros, or not at all.
    __device__ __forceinline__ bool is_read(int step) const { return !IS_WHOLE || exists(step); }

    const Reader& reader_;
    int next_;
    const int end_;  // in pieces
    Reader::Step steps_[AHEAD];
};

#if IS_DIRECT
// Some pixels and filters of a tile, as `Reader` gave them to a warp's sums.
__device__ __forceinline__ void store_own(Storage* y, const Epilogue& epilogue, const Sums& sum, unsigned pixel, unsigned filter,
                                          int rows, const Sizes& sizes) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp % WARPS_M * (BP / WARPS_M) + lane / 4;
    const unsigned column = warp / WARPS_M % WARPS_N * (BF / WARPS_N) + lane % 4 * NEIGHBOURS;
    if (column >= min(sizes.filters, sizes.K - filter)) return;
#pragma unroll
    for (int half = 0; half < 2 * TILES_M; ++half) {
        if (row + half * 8 >= rows) return;
        float values[NEIGHBOURS];
#pragma unroll
        for (int e = 0; e < NEIGHBOURS; ++e) values[e] = sum[half / 2][e / 2][half % 2 * 2 + e % 2];
        Storage* const place = y + (size_t)(pixel + row + half * 8) * sizes.y_pitch + filter + column;
        epilogue.apply<true>(values, filter + column, place);
        unsigned pairs[TILES_N];
#pragma unroll
        for (int e = 0; e < TILES_N; ++e) pairs[e] = narrow_pair(values[2 * e], values[2 * e + 1]);
#if TILES_N == 4
        *(uint4*)place = {pairs[0], pairs[1], pairs[2], pairs[3]};
#elif TILES_N == 2
        *(uint2*)place = {pairs[0], pairs[1]};
#else
        *(unsigned*)place = pairs[0];
#endif
    }
}
#endif

extern "C" __global__ void __launch_bounds__(WORKERS, BLOCKS)
    implicit_gemm_straight(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE,
                           const __grid_constant__ Sizes sizes) {
    const unsigned filter = blockIdx.y * sizes.filters, pixel = cluster_index() * sizes.of_tile;
    const int rows = min(sizes.of_tile, sizes.pixels - pixel);
    Sums sum = {};
#if IS_DIRECT
    prefetch_weight(weight, filter, 0, sizes.steps, sizes);
    wait_for_kernel_ahead();
    const Reader reader(x, weight, pixel, filter, rows, sizes);
    Steps(reader, 0, sizes.steps, sizes).multiply(sum);
    store_own(y, EPILOGUE_OF(y), sum, pixel, filter, rows, sizes);
#else
    // A barrier that counts bytes, then sums, then what other blocks push.
    extern __shared__ __align__(16) float shared[];
    float* const sums = shared + COUNTER_BYTES / 4;
    const int rank = cluster_rank();
    const int first = rank * sizes.steps + min(rank, sizes.more_steps), count = sizes.steps + (rank < sizes.more_steps);
    prefetch_weight(weight, filter, first, count, sizes);
    wait_for_kernel_ahead();
    const Reader reader(x, weight, pixel, filter, rows, sizes);
    Steps steps(reader, first, count, sizes);
    const int blocks = cluster_size(), own_rows = max(0, min(sizes.owned, rows - rank * sizes.owned));
    if (blocks > 1) {
        if (threadIdx.x == 0) expect_bytes(shared, own_rows * BF * 4 * blocks);
        __syncwarp();
        cluster_arrive_relaxed();
    }
    const Outputs outputs = {pixel + rank * sizes.owned, filter, own_rows};
#if BIAS || RESIDUAL
    for_outputs(outputs, sizes, [&]([[maybe_unused]] int row, [[maybe_unused]] unsigned first, [[maybe_unused]] size_t at) {
#if BIAS
        fetch(bias + first);
#endif
#if RESIDUAL
        fetch(residual + at);
#endif
    });
#endif
    steps.multiply(sum);
    store_sums(sums, sum);
    meet();
    end_tile(y, EPILOGUE_OF(y), sums, shared, rows, rank, blocks, outputs, sizes);
#endif
}
