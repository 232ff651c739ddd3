// Part of few_inputs_wgmma.cu: the products of four warps' windows with the block's weight by wgmma, a chain of steps at a time.
//
//   x            in registers, its fragments those of mma.sync
//   weight       in core matrices of 8 filters x 16 bytes, 128 bytes apart along gemm_k, 256 along filters; a step's high parts,
//                then its low ones
//   sums         with SPLIT those of a chain begin at zero, small products first, and are added to the others in registers

#define STEPS_OF_CHAIN 2
#define PARTS (1 + SPLIT)
#define LOADS_OF_STEP (PARTS * NT / 2)
#define PART_BYTES (NT * 256)

// Puts a weight where the instruction finds it.
__device__ __forceinline__ void keep_weight(uint4* weights, int column, int k, float value) {
    unsigned* const place = (unsigned*)weights +
                            (k / STEP * PARTS * PART_BYTES + column / 8 * 256 + k % STEP / 4 * 128 + column % 8 * 16) / 4 + k % 4;
    unsigned high[1] = {__float_as_uint(value)}, low[1];
    split_weight(high, low);
    place[0] = high[0];
    if (SPLIT) place[PART_BYTES / 4] = low[0];
}
__device__ __forceinline__ void publish_weight() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A chain's fragments of a tile of pixels, and what of float32 is left of them.
struct Fragments {
    unsigned high[STEPS_OF_CHAIN][MT][4];
#if SPLIT
    unsigned low[STEPS_OF_CHAIN][MT][4];
#endif
    __device__ __forceinline__ void load(const char* const (&window)[MT], int second_bytes, const int* offsets) {
#pragma unroll
        for (int step = 0; step < STEPS_OF_CHAIN; ++step) {
            load_windows(high[step], window, second_bytes, offsets + step * STEP);
#if SPLIT
#pragma unroll
            for (int i = 0; i < MT; ++i) split(high[step][i], low[step][i]);
#else
            round_all_to_tf32(high[step]);
#endif
        }
    }
};

// Enqueues the products of a chain.
__device__ __forceinline__ void multiply_chain(float (&sum)[MT][NT][4], const Fragments& a, unsigned long long weight,
                                               bool is_added) {
    keep(sum);
    begin_products();
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#if SPLIT
#pragma unroll
        for (int step = 0; step < STEPS_OF_CHAIN; ++step) {
            const unsigned long long high = weight + step * (2 * PART_BYTES / 16);
            multiply_add(sum[i], a.low[step][i], high, step > 0);
            multiply_add(sum[i], a.high[step][i], high + PART_BYTES / 16, true);
        }
#endif
#pragma unroll
        for (int step = 0; step < STEPS_OF_CHAIN; ++step)
            multiply_add(sum[i], a.high[step][i], weight + step * (PARTS * PART_BYTES / 16), SPLIT || is_added || step > 0);
    }
    commit_products();
}

// Windows begin where `window` says, and second_bytes further those of the second pixels.
__device__ __forceinline__ void multiply_window(float (&sum)[MT][NT][4], const char* const (&window)[MT], int second_bytes,
                                                const uint4* weights, const int* offsets, int steps) {
    unsigned long long weight = descriptor_of_matrices(shared_address(weights));
#pragma unroll 1
    for (int step = 0; step < steps; step += STEPS_OF_CHAIN, weight += STEPS_OF_CHAIN * (PARTS * PART_BYTES / 16)) {
        Fragments a;
        a.load(window, second_bytes, offsets + step * STEP);
#if SPLIT
        float part[MT][NT][4];
        multiply_chain(part, a, weight, false);
        wait_for_all_products_but<0>(part);
#pragma unroll
        for (int i = 0; i < MT; ++i) {
#pragma unroll
            for (int j = 0; j < NT; ++j) {
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[i][j][e] += part[i][j][e];
            }
        }
#else
        multiply_chain(sum, a, weight, true);
        wait_for_all_products_but<0>(sum);
#endif
    }
}
