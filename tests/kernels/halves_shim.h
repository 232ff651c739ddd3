// three_products_of_halves.cuh on a CPU, compiled by g++: a thread for each of a block's, warps that meet at barriers, shared memory as the
// accelerator would have filled it, and wgmma by loops over what its descriptors and registers say. Barriers of stages are not there:
// all stages are loaded, then parted, then multiplied.

#include <immintrin.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __device__
#define __forceinline__ inline
#define ROW_BYTES 128
#define IS_OF_HALVES 1
#define GROUPS 2
#define PIXELS (BP / GROUPS)
#define TILES_M (PIXELS / 64)
#define TILES_N (BF / 8)
#define INSTRUCTION_N (BF > 128 ? BF / 2 : BF)
#define SUMS TILES_M][TILES_N][4
#define STAGE_BYTES ((BP + BF) * ROW_BYTES)
#define FIRST_TILE 0u
using std::max;
using std::min;

struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float __int_as_float(int bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline int __float_as_int(float value) {
    int bits;
    memcpy(&bits, &value, 4);
    return bits;
}

struct Index {
    unsigned x;
};
static thread_local Index threadIdx;
static Index gridDim{1};

struct Warp {
    std::barrier<> all{32};
    float values[32];
    unsigned fragments[32][4];
};
static Warp warps[4 * (1 + GROUPS)];
inline Warp& own_warp() { return warps[threadIdx.x / 32]; }
inline void __syncwarp() { own_warp().all.arrive_and_wait(); }
inline float __shfl_xor_sync(unsigned, float value, int step) {
    own_warp().values[threadIdx.x % 32] = value;
    __syncwarp();
    const float other = own_warp().values[threadIdx.x % 32 ^ step];
    __syncwarp();
    return other;
}
inline bool __any_sync(unsigned, bool is_so) {
    float any = is_so;
    for (int step = 1; step < 32; step *= 2) any = max(any, __shfl_xor_sync(0, any, step));
    return any > 0;
}

struct Sizes {
    int K;
    unsigned tiles_p, tiles_f;
};
struct Stages {
    int first, end;
};
static int stage_count;
inline Stages stages_of(const Sizes&) { return {0, stage_count}; }
struct Ring {
    unsigned stage = 0, parity = 0;
    void advance() { ++stage; }
};
inline void wait_for(unsigned, unsigned) {}
inline void arrive(unsigned) {}
inline void publish_to_accelerator() {}
inline int pixel_of_row(int row) { return row % 2 * 4 + row / 2; }
inline float raised_by(float) { return 0; }
template <int MOST>
inline float mean_steps(int) {
    return 0;
}
template <class Sums>
inline void restore_cut(Sums&, float) {}

static unsigned char* shared_memory;
inline unsigned shared_address(const void* pointer) { return (const unsigned char*)pointer - shared_memory; }
inline unsigned operand_at(unsigned address) { return address / 16; }
inline unsigned long long descriptor(unsigned operand) { return operand; }

inline float half_at(unsigned address) {
    unsigned short bits;
    memcpy(&bits, shared_memory + (address ^ (address >> 7 & 7) << 4), 2);
    return _cvtsh_ss(bits);
}
inline float cut(double value) {
    const float rounded = value;
    return std::isfinite(rounded) && std::fabs((double)rounded) > std::fabs(value) ? std::nextafter(rounded, 0.0f) : rounded;
}
typedef float ProductSums[INSTRUCTION_N / 8][4];
// PTX ISA, wgmma: of a, registers 0 and 2 are of row lane / 4, 1 and 3 of eight below; 2 and 3 are eight columns to the right.
inline void multiply_add(ProductSums& d, const unsigned (&a)[4], unsigned long long b, bool is_added = true) {
    const int lane = threadIdx.x % 32;
    memcpy(own_warp().fragments[lane], a, sizeof a);
    __syncwarp();
    for (int j = 0; j < INSTRUCTION_N / 8; ++j) {
        for (int e = 0; e < 4; ++e) {
            double sum = is_added ? d[j][e] : 0;
            for (int k = 0; k < 16; ++k) {
                const unsigned pair = own_warp().fragments[lane / 4 * 4 + k % 8 / 2][e / 2 + k / 8 * 2];
                const unsigned row = j * 8 + lane % 4 * 2 + e % 2;
                sum += (double)_cvtsh_ss(pair >> k % 2 * 16 & 0xffff) * half_at(b * 16 + row * ROW_BYTES + k * 2);
            }
            d[j][e] = cut(sum);
        }
    }
    __syncwarp();
}
template <int TILES>
inline void keep(float (&)[TILES][INSTRUCTION_N / 8][4]) {}
inline void begin_products() {}
inline void commit_products() {}
template <int COUNT, int TILES>
inline void wait_for_all_products_but(float (&)[TILES][INSTRUCTION_N / 8][4]) {}

inline unsigned short half_bits(float value) { return _cvtss_sh(value, 0); }
inline void part_pair(float first, float second, unsigned& high, unsigned& low) {
    const unsigned short one = half_bits(first), other = half_bits(second);
    high = one | (unsigned)other << 16;
    low = half_bits(first - _cvtsh_ss(one)) | (unsigned)half_bits(second - _cvtsh_ss(other)) << 16;
}

#include "source.cuh"

template <class Body>
inline void run_threads(unsigned first, unsigned end, Body body) {
    std::vector<std::thread> threads;
    for (unsigned thread = first; thread < end; ++thread) threads.emplace_back([=] {
        threadIdx.x = thread;
        body();
    });
    for (std::thread& thread : threads) thread.join();
}

// x (stages, BP, 32), weight (stages, BF, 32) of which `filters` are there, y (BP, BF).
extern "C" void multiply(const float* x, const float* weight, float* y, int filters, int stages) {
    const size_t bytes = STAGES * (STAGE_BYTES + SCALES_BYTES) + BF * 4;
    unsigned char* const ring = shared_memory = (unsigned char*)aligned_alloc(1024, (bytes + 1023) / 1024 * 1024);
    unsigned char* const scales = ring + STAGES * STAGE_BYTES;
    memset(ring, 0xff, bytes);
    stage_count = stages;
    const int loaded = min(BF, (filters + 7) / 8 * 8);
    for (int stage = 0; stage < stages; ++stage) {
        for (int row = 0; row < BP + loaded; ++row) {
            const float* const from = row < BP ? x + (stage * BP + row) * 32 : weight + (stage * BF + row - BP) * 32;
            for (int chunk = 0; chunk < 8; ++chunk)
                memcpy(ring + stage * STAGE_BYTES + row * ROW_BYTES + (chunk ^ row % 8) * 16, from + chunk * 4, 16);
        }
    }
    const Sizes sizes{filters, 1, 1};
    run_threads(32, 128, [=] { part_weights(threadIdx.x / 32, ring, scales, 0, 0, sizes); });
    run_threads(128, 128 * (1 + GROUPS), [=] {
        const auto sums = std::make_unique<float[]>(TILES_M * TILES_N * 4);
        float(&sum)[SUMS] = *(float(*)[SUMS])sums.get();
        const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
        Ring turn;
        multiply_tile(sum, ring, scales, 0, 0, 0, group, turn, stages, stages * 32);
        for (int i = 0; i < TILES_M; ++i) {
            for (int j = 0; j < TILES_N; ++j) {
                for (int e = 0; e < 4; ++e) {
                    const int pixel = group * PIXELS + i * 64 + threadIdx.x / 32 % 4 * 16 + pixel_of_row(lane / 4) + e / 2 * 8;
                    y[pixel * BF + j * 8 + lane % 4 * 2 + e % 2] = sum[i][j][e];
                }
            }
        }
    });
    free(ring);
}
