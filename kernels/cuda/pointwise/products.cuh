// Part of pointwise.cu: products, sums (64 x INST_N) += a (64 x STEP_K, registers) . b (STEP_K x INST_N, shared memory).
//
//   a            64 pixels of x, read from a stage by each thread; two-byte elements are paired by channel
//   b            weight, by a descriptor
//   on a CPU     the fragments pass through memory, so what a GPU would multiply is multiplied

#ifdef __CUDA_ARCH__
__device__ __forceinline__ unsigned long long descriptor_at(unsigned address) { return descriptor(operand_at(address)); }
// sum += a . b of an instruction, in the order in which the kernel numbers a thread's sums.
__device__ __forceinline__ void multiply(float (&sum)[INST_N / 2], const unsigned (&a)[4], unsigned long long b) {
    multiply_add((ProductSums&)sum, a, b);
}
__device__ __forceinline__ void multiply_from_zero(float (&sum)[INST_N / 2], const unsigned (&a)[4], unsigned long long b) {
    multiply_add((ProductSums&)sum, a, b, false);
}
#endif

// Where a thread finds the two pixels of its rows of a 64-pixel tile: elements from a stage's first, for its channels of
// a fragment.
struct Places {
#if ELEMENT == 4
    int at[TILES_P][2];  // channel lane % 4
#else
    int at[TILES_P][2][2];  // channels lane % 4 * 2 and the next
#endif
};
// Column of a thread's pixel. DIRECT: a thread's pixels are neighbours, read and written as one vector.
__device__ __forceinline__ int column_in_tile(int tile, int half) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (DIRECT) return warp * 16 * TILES_P + lane / 4 * 2 * TILES_P + tile * 2 + half;
    return (warp / 4 * TILES_P + tile) * 64 + warp % 4 * 16 + half * 8 + lane / 4;
}
__device__ __forceinline__ Places places_of(unsigned first, unsigned pixels, unsigned plane) {
    const int t = threadIdx.x % 4;
    Places places;
#pragma unroll
    for (int tile = 0; tile < TILES_P; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int column = column_in_tile(tile, half);
            int place = column, p = 0;
            if (LOADING == CHUNKS) {
                place = 0;
                if (first + column < pixels) {
                    const Segment segment = segment_at((first + column) / plane, first, pixels, plane);
                    place = segment.slot * VECTOR + column - segment.column;
                    p = segment.p;
                }
            }
#if ELEMENT == 4
            const int shift = LOADING == CHUNKS ? (t * plane + p) % VECTOR : 0;
            places.at[tile][half] = t * X_PITCH + place + shift;
#else
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                const int shift = LOADING == CHUNKS ? ((2 * t + odd) * plane + p) % VECTOR : 0;
                places.at[tile][half][odd] = (2 * t + odd) * X_PITCH + place + shift;
            }
#endif
        }
    }
    return places;
}

// The fragments of one step.
__device__ __forceinline__ void load_fragments(unsigned (&a)[TILES_P][4], const Storage* x, const Places& places) {
#if DIRECT
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        __align__(16) float values[2 * TILES_P];
        const Storage* const from = x + places.at[0][0] + e * 4 * X_PITCH;
        if constexpr (TILES_P == 1)
            *(float2*)values = *(const float2*)from;
        else
            *(float4*)values = *(const float4*)from;
#pragma unroll
        for (int i = 0; i < 2 * TILES_P; ++i) a[i / 2][e * 2 + i % 2] = __float_as_uint(round_to_tf32(values[i]));
    }
#else
#pragma unroll
    for (int tile = 0; tile < TILES_P; ++tile) {
#if ELEMENT == 4
#pragma unroll
        for (int e = 0; e < 4; ++e)
            a[tile][e] = __float_as_uint(round_to_tf32(x[places.at[tile][e % 2] + e / 2 * 4 * X_PITCH]));
#else
#if LOADING == VECTORS && defined(__CUDA_ARCH__)
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int column = (warp / 4 * TILES_P + tile) * 64 + warp % 4 * 16 + lane / 8 % 2 * 8;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a[tile][0]), "=r"(a[tile][1]), "=r"(a[tile][2]), "=r"(a[tile][3])
                     : "r"(shared_address(x + (lane % 8 + lane / 16 * 8) * X_PITCH + column)));
#else
        const unsigned short* const halves = (const unsigned short*)x;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const unsigned low = halves[places.at[tile][e % 2][0] + e / 2 * 8 * X_PITCH];
            const unsigned high = halves[places.at[tile][e % 2][1] + e / 2 * 8 * X_PITCH];
            a[tile][e] = low | high << 16;
        }
#endif
#endif
    }
#endif
}

#define SUMS TILES_P][TILES_N][INST_N / 2

#define CHAIN 2  // steps whose products the tensor cores sum
#if SPLIT && defined(__CUDA_ARCH__)
#define IN_FLIGHT (BLOCKS == 1 && TILES_P == 1 ? 2 : 1)  // chains: where no other block multiplies while one is added
static_assert(STEPS % CHAIN == 0, "whole chains in a stage");

// The fragment of one tile: its high parts, and what is left, of which the instruction reads the first 11 bits.
__device__ __forceinline__ void load_parts(unsigned (&high)[4], unsigned (&small)[4], const float* x, const Places& places,
                                           int tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const float value = x[places.at[tile][e % 2] + e / 2 * 4 * X_PITCH], rounded = high_part(value);
        high[e] = __float_as_uint(rounded);
        small[e] = __float_as_uint(value - rounded);
    }
}

// part = a chain's products, on their way: the small ones first.
__device__ __forceinline__ void multiply_chain(float (&part)[INST_N / 2], const unsigned (&high)[CHAIN][4],
                                               const unsigned (&small)[CHAIN][4], unsigned long long b, unsigned long long b_low) {
    begin_products();
#pragma unroll
    for (int i = 0; i < CHAIN; ++i) {
        if (i == 0)
            multiply_from_zero(part, small[i], b);
        else
            multiply(part, small[i], b + i * 2);
        multiply(part, high[i], b_low + i * 2);
    }
#pragma unroll
    for (int i = 0; i < CHAIN; ++i) multiply(part, high[i], b + i * 2);
    commit_products();
}
// sum += part, which all but so many chains behind it are.
template <int COUNT>
__device__ __forceinline__ void add_chain(float (&sum)[INST_N / 2], float (&part)[INST_N / 2]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(COUNT) : "memory");
#pragma unroll
    for (int e = 0; e < INST_N / 2; ++e) {
        asm volatile("" : "+f"(part[e])::"memory");
        sum[e] += part[e];
    }
}

// sums += a stage's products; `steps` of them, whole chains: beyond the last channel all is zero. Tensor cores cut their
// sums, always towards zero: a chain begins at zero and is added to the others here, to nearest.
__device__ __forceinline__ void multiply_stage(float (&sum)[SUMS], const float* x, Address weight, Address low,
                                               const Places& places, int steps) {
    constexpr int chains = STEPS / CHAIN * TILES_P * TILES_N;
    float part[IN_FLIGHT][INST_N / 2];
    unsigned high[CHAIN][4], small[CHAIN][4];
#pragma unroll
    for (int chain = 0; chain < chains; ++chain) {
        const int n = chain % TILES_N, tile = chain / TILES_N % TILES_P, first = chain / TILES_N / TILES_P * CHAIN;
        if (IN_FLIGHT == 1 && first >= steps) break;
        if (n == 0) {
#pragma unroll
            for (int i = 0; i < CHAIN; ++i)
                load_parts(high[i], small[i], x + (first + i) * STEP_K * X_PITCH, places, tile);
        }
        const int offset = n * INST_N * 128 + first * STEP_K * ELEMENT;
        multiply_chain(part[chain % IN_FLIGHT], high, small, descriptor_at(weight + offset), descriptor_at(low + offset));
        const int done = chain + 1 - IN_FLIGHT;
        if (done >= 0) add_chain<IN_FLIGHT - 1>(sum[done / TILES_N % TILES_P][done % TILES_N], part[done % IN_FLIGHT]);
    }
    if (IN_FLIGHT == 2) add_chain<0>(sum[TILES_P - 1][TILES_N - 1], part[(chains - 1) % IN_FLIGHT]);
}
#elif defined(__CUDA_ARCH__)
// Enqueues sums += a stage's products; `steps` of them.
__device__ __forceinline__ void multiply_stage(float (&sum)[SUMS], const Storage* x, Address weight, Address,
                                               const Places& places, int steps) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        if (step >= steps) break;
        unsigned a[TILES_P][4];
        load_fragments(a, x + step * STEP_K * X_PITCH, places);
        begin_products();
#pragma unroll
        for (int tile = 0; tile < TILES_P; ++tile) {
#pragma unroll
            for (int n = 0; n < TILES_N; ++n)
                multiply(sum[tile][n], a[tile], descriptor_at(weight + n * INST_N * 128 + step * STEP_K * ELEMENT));
        }
        commit_products();
    }
}
#else  // the fragments of a block pass through memory
static unsigned fragments[THREADS][TILES_P][4];
inline float fragment_at(int warp, int tile, int row, int k) {
#if ELEMENT == 4
    const unsigned bits = fragments[warp * 32 + row % 8 * 4 + k % 4][tile][row / 8 + k / 4 * 2];
#else
    const unsigned pair = fragments[warp * 32 + row % 8 * 4 + k % 8 / 2][tile][row / 8 + k / 8 * 2];
    const unsigned bits = pair >> k % 2 * 16;
#endif
    Storage value;
    memcpy(&value, &bits, ELEMENT);
    return widen(value);
}
inline void multiply_stage(float (&sum)[SUMS], const Storage* x, Address weight, Address, const Places& places, int steps) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int step = 0; step < min(steps, STEPS); ++step) {
        load_fragments(fragments[threadIdx.x], x + step * STEP_K * X_PITCH, places);
        __syncthreads();
        for (int tile = 0; tile < TILES_P; ++tile)
            for (int filter = lane % 4 * 2; filter < BN; filter += filter % 2 ? 7 : 1)
                for (int half = 0; half < 2; ++half)
                    for (int k = 0; k < STEP_K; ++k) {
                        const int byte = (step * STEP_K + k) * ELEMENT;
                        const Storage* const chunk = (const Storage*)(weight + filter * 128 + ((byte / 16 ^ filter % 8) << 4));
                        sum[tile][filter / INST_N][filter % INST_N / 8 * 4 + half * 2 + filter % 2] +=
                            fragment_at(warp, tile, lane / 4 + half * 8, k) * widen(chunk[byte % 16 / ELEMENT]);
                    }
        __syncthreads();
    }
}
#endif
__device__ __forceinline__ void wait_for_products() {
#ifdef __CUDA_ARCH__
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
}
