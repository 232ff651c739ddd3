// Of implicit_gemm_tma_split.cu: the ring of stages in shared memory, and who fills it.

// Addresses in shared memory.
struct Ring {
    unsigned full, empty, parted, x, weight, low;

    // What is the rows of a product, and its columns.
    __device__ __forceinline__ unsigned rows() const { return WGMMA ? weight : x; }
    __device__ __forceinline__ unsigned columns() const { return WGMMA ? x : weight; }
};

// Stages and whose turn it is: a ring that has gone round an even or odd number of times.
struct Turn {
    int slot = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance(int slots) {
        if (++slot == slots) slot = 0, parity ^= 1;
    }
};

__device__ __forceinline__ int first_stage(int rank, const Sizes& sizes) {
    return rank * sizes.stages + min(rank, sizes.more_stages);
}

// Where a stage's channels lie in gemm_k.
struct Walk {
    int tap, r, s, c;

    __device__ __forceinline__ Walk(int stage, const Sizes& sizes) {
        unsigned chunk = stage, column = sizes.of_tap.take_quotient(chunk);
        tap = column;
        r = sizes.of_taps.take_quotient(column);
        s = column;
        c = chunk * CHANNELS;
    }
    __device__ __forceinline__ void advance(const Sizes& sizes) {
        if ((c += CHANNELS) < sizes.C) return;
        c = 0, ++tap;
        if (++s == sizes.S) s = 0, ++r;
    }
};

#if defined(OVERLAPS)
// Has a block's filters brought to L2 while the kernel ahead runs: nothing on the way writes them.
__device__ __forceinline__ void prefetch_weight(const TensorMap& weight, int first, int count, unsigned filter, const Sizes& sizes) {
    Walk walk(first, sizes);
#pragma unroll 1
    for (int stage = 0; stage < count; ++stage, walk.advance(sizes)) prefetch_box(weight, walk.c, walk.tap, filter);
}
#endif

__device__ __forceinline__ void load_stages(const TensorMap& x, const TensorMap& weight, const Ring& ring, int first, int count,
                                            unsigned pixel, unsigned filter, const Sizes& sizes) {
    const unsigned bytes = (sizes.of_tile + sizes.filters) * ROW_BYTES;
#if !IS_DENSE
    unsigned column = pixel;
    const unsigned image = sizes.of_plane.take_quotient(column), p = sizes.of_row.take_quotient(column);
    const int h = (int)p * sizes.stride_h - sizes.pad_h, w = (int)column * sizes.stride_w - sizes.pad_w;
#endif
    Walk walk(first, sizes);
    Turn turn;
#pragma unroll 1
    for (int stage = 0; stage < count; ++stage, turn.advance(sizes.slots), walk.advance(sizes)) {
        const unsigned arrived = ring.full + turn.slot * 8, to = ring.x + turn.slot * X_BYTES;
        if (stage >= sizes.slots) wait_for(ring.empty + turn.slot * 8, turn.parity ^ 1);
        expect_bytes(arrived, bytes);
#if IS_DENSE
        load_box(to, x, arrived, walk.c, pixel);
#else
        load_pixels(to, x, arrived, walk.c, w, h, image, walk.s * sizes.dilation_w, walk.r * sizes.dilation_h);
#endif
        load_box(ring.weight + turn.slot * WEIGHT_BYTES, weight, arrived, walk.c, walk.tap, filter);
    }
}

#if PARTED
// What is left of a value behind the first 11 bits, which are all that the tensor cores read: so much that when they cut it too it is
// rounded to the nearest, ties to even.
__device__ __forceinline__ unsigned rest_of(unsigned value) {
    const unsigned rest = __float_as_uint(__uint_as_float(value) - __uint_as_float(value & 0xffffe000u));
    return rest + 0xfffu + (rest >> 13 & 1);
}

// By the threads behind the loader, of as many stages as are loaded; `parted` counts warps.
__device__ __forceinline__ void part_pixels(const uint4* x, uint4* low, const Ring& ring, int count, const Sizes& sizes) {
    constexpr int vectors = X_BYTES / 16, turns = (vectors + PARTERS - 1) / PARTERS;
    const int first = threadIdx.x - WORKERS - 32, used = sizes.of_tile * (ROW_BYTES / 16) - first;
    Turn turn;
#pragma unroll 1
    for (int stage = 0; stage < count; ++stage, turn.advance(sizes.slots)) {
        wait_for(ring.full + turn.slot * 8, turn.parity);
        const int place = turn.slot * vectors + first;
        uint4 value[turns];
        // All of them before the first is stored: the compiler cannot know that they are others.
#pragma unroll
        for (int i = 0; i < turns; ++i)
            if (i * PARTERS < used) value[i] = x[place + i * PARTERS];
#pragma unroll
        for (int i = 0; i < turns; ++i) {
            const uint4 rest = {rest_of(value[i].x), rest_of(value[i].y), rest_of(value[i].z), rest_of(value[i].w)};
            if (i * PARTERS < used) low[place + i * PARTERS] = rest;
        }
        publish_to_accelerator();
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(ring.parted + turn.slot * 8);
    }
}
#endif
