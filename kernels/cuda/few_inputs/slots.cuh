// Part of few_inputs.cu: rows of x in shared memory, one 8-byte slot per pixel.

// Four channels; missing ones are zero.
__device__ __forceinline__ uint2 pixel_of(const unsigned (&channels)[CHANNELS]) {
    uint2 pixel = {channels[0], 0};
    if constexpr (CHANNELS > 1) pixel.x |= channels[1] << 16;
    if constexpr (CHANNELS > 2) pixel.y = channels[2];
    if constexpr (CHANNELS > 3) pixel.y |= channels[3] << 16;
    return pixel;
}

// Where rows are of whole runs, each of which lies in the image or beside it, a thread asks for its runs of the next tile while
// this one is multiplied: CHANNELS times eight bytes each, of NCHW of all planes, zeros beside the image.
__device__ __forceinline__ void ask_for_runs(uint2* asked, const Storage* __restrict__ image, int h0, int w0, int rows, int slots,
                                             int H, int W) {
    const int runs = (slots - 2) / RUN;
#pragma unroll 1
    for (int i = threadIdx.x; i < rows * runs; i += THREADS) {
        const int row = i / runs, h = h0 + row, w = w0 + (i - row * runs) * RUN;
        const bool is_there = is_inside(h, H) && is_inside(w, W);
        const Storage* const from = image + (is_there ? (h * W + w) * (IS_NHWC ? CHANNELS : 1) : 0);
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c)
            copy_async<8>(asked + i * CHANNELS + c, from + c * (IS_NHWC ? RUN : H * W), is_there ? 8 : 0);
    }
    commit_copies();
}

// RUN pixels of a row from w on, zeros beside the image: of those that were asked for, or where rows are of no whole runs.
__device__ __forceinline__ void read_run(uint2 (&pixels)[RUN], const uint2* asked, const Storage* row, int w, int W, int plane,
                                         bool is_row) {
    constexpr int of_pixel = IS_NHWC ? CHANNELS : 1;
    unsigned halves[RUN][CHANNELS] = {};
    if (asked) {
        unsigned words[RUN * CHANNELS / 2];
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i) ((uint2*)words)[i] = asked[i];
#pragma unroll
        for (int e = 0; e < RUN * CHANNELS; ++e) {
            const unsigned half = e % 2 ? words[e / 2] >> 16 : words[e / 2] & 0xffff;
            if (IS_NHWC)
                halves[e / CHANNELS][e % CHANNELS] = half;
            else
                halves[e % RUN][e / RUN] = half;
        }
    } else {
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            if (!is_row || !is_inside(w + i, W)) continue;
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c)
                halves[i][c] = __ldg((const unsigned short*)row + (w + i) * of_pixel + (IS_NHWC ? c : c * plane));
        }
    }
#pragma unroll
    for (int i = 0; i < RUN; ++i) pixels[i] = pixel_of(halves[i]);
}

__device__ __forceinline__ void store_two(unsigned char* to, uint2 first, uint2 second) {
    *(uint4*)to = {first.x, first.y, second.x, second.y};
}

// Rows from h0 on, from pixel w0 on: windows that begin at an even pixel read the first copy, where a pixel lies in its
// slot, the others the second, where it lies in the next. is_odd: whether any begin so; has_both: whether the others do too.
__device__ __forceinline__ void stage(unsigned char* staged, const uint2* asked, const Storage* __restrict__ image, int h0, int w0,
                                      int rows, int slots, int H, int W, bool is_odd, bool has_both, int copy_bytes) {
    const int runs = (slots - 2) / RUN;
#pragma unroll 2
    for (int i = threadIdx.x; i < rows * runs; i += THREADS) {
        const int row = i / runs, run = i - row * runs, h = h0 + row;
        uint2 pixels[RUN];
        const Storage* const first = image + (size_t)(is_inside(h, H) ? h : 0) * W * (IS_NHWC ? CHANNELS : 1);
        read_run(pixels, asked ? asked + i * CHANNELS : asked, first, w0 + run * RUN, W, H * W, is_inside(h, H));
        unsigned char* const to = staged + (row * slots + run * RUN) * 8;
        if (has_both || !is_odd) {
            store_two(to, pixels[0], pixels[1]);
            store_two(to + 16, pixels[2], pixels[3]);
        }
        if (has_both || is_odd) {
            unsigned char* const next = to + copy_bytes;
            *(uint2*)(next + 8) = pixels[0];
            store_two(next + 16, pixels[1], pixels[2]);
            *(uint2*)(next + 32) = pixels[3];
        }
    }
}
