// Part of implicit_gemm_tensor.cu: filters of any size; a column element is an offset into a window of the image.
//
//   a stage      CHANNELS channels of what the tile's taps see: rows of `pitch` elements from a multiple of UNIT columns on,
//                zeros where the image has none. A tile goes through a strip of columns of y row by row
//   an element   of (channel, tap) and a pixel lies at the sum of the two's places: the first from a table that all stages
//                share, the second in a register

// What a tile's taps see of one image, padded with zeros, and how a block copies it: a warp a channel.
struct Window {
    const Storage* image;
    int first_flat, first_p, lead;  // pixel of the strip, its row; elements before the window's first column
    int offsets[LINES];             // in a plane, of the units that a lane copies; -1 outside
};

__device__ __forceinline__ Window window_at(const Storage* x, int tile, int image, const Sizes& z) {
    Window window;
    window.image = x + (size_t)image * z.C * z.H * z.W;
    const int strip = z.strip == z.Q ? 0 : tile / z.strip_tiles;
    window.first_flat = (tile - strip * z.strip_tiles) * BN;
    window.first_p = __umulhi(window.first_flat, z.strip_umulhi);
    const int h0 = window.first_p * z.stride_h - z.pad_h, w0 = strip * z.strip * z.stride_w - z.pad_w;
    window.lead = w0 & (UNIT - 1);
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
        if (line * 32 >= z.positions) break;
        const int position = line * 32 + threadIdx.x % 32, row = position * z.units_magic16 >> 16;
        const int h = h0 + row, w = w0 - window.lead + (position - row * z.units) * UNIT;
        const bool is_seen = position < z.positions && is_inside(h, z.H) && is_inside(w, z.W);
        window.offsets[line] = is_seen ? h * z.W + w : -1;
    }
    return window;
}

// Places of the stage's gemm_k in the order in which a lane reads those of a fragment, and of the pixels of a lane; bytes.
__device__ __forceinline__ void find_places(int* table, int (&pixels)[TILES_N], const Window& window, const Sizes& z) {
    for (int k = threadIdx.x; k < z.stage_k; k += THREADS) {
        const int channel = k * z.taps_magic20 >> 20, tap = k - channel * z.taps;
        const int r = tap * z.S_magic16 >> 16, s = tap - r * z.S;
        const int place = channel * z.channel_pitch + r * z.dilation_h * z.pitch + s * z.dilation_w;
        const int step = k % MMA_K, lane = step % (MMA_K / 2) / (MMA_K / 8), turn = step / (MMA_K / 2);
        const int entry = k - step + lane * (MMA_K / 4) + turn * (MMA_K / 8) + step % (MMA_K / 8);
        table[entry] = k < CHANNELS * z.taps ? place * ELEMENT : 0;
    }
    const int n0 = threadIdx.x / 32 / WARPS_M % WARPS_N * (BN / WARPS_N) + threadIdx.x % 32 / 4;
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
        const int flat = window.first_flat + n0 + 8 * j, p = __umulhi(flat, z.strip_umulhi), q = flat - p * z.strip;
        const int place = (p - window.first_p) * z.stride_h * z.pitch + q * z.stride_w;
        pixels[j] = (min(place, z.last_place) + window.lead) * ELEMENT;
    }
}

#if !IS_GATHER
// A stage of x (CHANNELS, channel_pitch).
__device__ __forceinline__ void fetch_window(Storage* target, const Storage* x, const Window& window, int c0, const Sizes& z) {
    const int warp = threadIdx.x / 32, plane = z.H * z.W;
    const Storage* source = window.image + (c0 + warp) * plane;
    target += warp * z.channel_pitch + threadIdx.x % 32 * UNIT;
#pragma unroll 1
    for (int channel = warp; channel < CHANNELS; channel += WARPS) {
#pragma unroll
        for (int line = 0; line < LINES; ++line) {
            if (line * 32 >= z.positions) break;
            const bool is_read = c0 + channel < z.C && window.offsets[line] >= 0;
            copy_async<UNIT * ELEMENT>(target + line * 32 * UNIT, is_read ? source + window.offsets[line] : x,
                                       is_read ? UNIT * ELEMENT : 0);
        }
        source += WARPS * plane;
        target += WARPS * z.channel_pitch;
    }
}
#else
// A stage of x on its way through registers.
struct Gathered {
    unsigned short values[CHANNELS / WARPS][LINES];
};
static_assert(CHANNELS % WARPS == 0, "whole channels a warp");

__device__ __forceinline__ void gather_window(Gathered& found, const Window& window, int c0, const Sizes& z) {
    const int warp = threadIdx.x / 32, plane = z.H * z.W;
    const unsigned short* source = (const unsigned short*)window.image + (c0 + warp) * plane;
#pragma unroll
    for (int i = 0; i < CHANNELS / WARPS; ++i) {
#pragma unroll
        for (int line = 0; line < LINES; ++line) {
            if (line * 32 >= z.positions) break;
            const bool is_read = c0 + warp + i * WARPS < z.C && window.offsets[line] >= 0;
            found.values[i][line] = is_read ? __ldg(source + window.offsets[line]) : 0;
        }
        source += WARPS * plane;
    }
}
__device__ __forceinline__ void store_window(Storage* target, const Gathered& found, const Sizes& z) {
    unsigned short* to = (unsigned short*)target + threadIdx.x / 32 * z.channel_pitch + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < CHANNELS / WARPS; ++i) {
#pragma unroll
        for (int line = 0; line < LINES; ++line) {
            if (line * 32 >= z.positions) break;
            to[line * 32] = found.values[i][line];
        }
        to += WARPS * z.channel_pitch;
    }
}
#endif

#if ELEMENT == 4
typedef int2 Places;  // of a lane's gemm_k of a fragment
#else
typedef int4 Places;
#endif
__device__ __forceinline__ void multiply(Sums& sum, const Storage* weight, const Storage* x, const int* table,
                                         const int (&pixels)[TILES_N], const Sizes& z) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    weight += (warp % WARPS_M * (BM / WARPS_M) + lane % 16) * z.weight_pitch + lane / 16 * VECTOR;
    table += lane % 4 * (MMA_K / 4);
#pragma unroll 1
    for (int k = warp / (WARPS_M * WARPS_N) * MMA_K; k < z.stage_k; k += WARPS_K * MMA_K) {
        const Places places = *(const Places*)(table + k);
        unsigned a[TILES_M][4], b[TILES_N][2];
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) load_matrices(a[i], weight + i * 16 * z.weight_pitch + k);
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
            const char* const pixel = (const char*)x + pixels[j];
#if ELEMENT == 4
            b[j][0] = *(const unsigned*)(pixel + places.x);
            b[j][1] = *(const unsigned*)(pixel + places.y);
#else
            b[j][0] = *(const unsigned short*)(pixel + places.x) | *(const unsigned short*)(pixel + places.y) << 16;
            b[j][1] = *(const unsigned short*)(pixel + places.z) | *(const unsigned short*)(pixel + places.w) << 16;
#endif
        }
        add_product(sum, a, b);
    }
}
