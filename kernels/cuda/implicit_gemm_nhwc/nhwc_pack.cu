// Copies tensors so that channels are innermost and a multiple of 16 bytes: what products with channels innermost read.
//
//   tensors      x (N,C,H,W), weight (K,C,R,S) to packed_x (N,H,W,CP) and packed_weight (K,R,S,CP); the channels from C to CP are
//                zero. weight is the same with filters for images and taps for pixels; nhwc is padded as planes of one pixel
//   rounding     with -DROUNDS=1 float32 is rounded to the nearest tf32, because wgmma truncates: tf32 in nchw. Not in nhwc, whose
//                products compensate for the truncation, packed or not
//   versions     x, -DPIXELS=4 or 8: a thread reads that many pixels of a run's channels, where planes are multiples of that many,
//                and transposes them in registers: a run is 16 bytes of channels, and a warp stores RUNS of them side by side.
//                x, -DPIXELS=0, and weight: a block copies what lies together to shared memory, 16 aligned bytes at a time
//                wherever it begins, and its threads gather runs from there
//   segments     what lies together: all channels of a tile's planes; the tile's channels of an image's planes, where there are
//                more channels than a tile has; or part of a plane, where a plane is larger than a tile. A tile is laid out in
//                shared memory with the misalignment that each segment has in memory
//   grid, block  256 threads a tile of RUNS runs; channels fastest; first the tiles of x, then those of weight
//   limits       memory-bound. Source and copy have at most 2^31 - 1 elements. With PIXELS x is aligned as PIXELS elements are.
//                In shared memory 8 runs of 4 neighbours lie in 32 banks where planes, or parts of them, are odd

#include "division.cuh"
#include "overlap.cuh"

#ifdef STORAGE_FLOAT32
typedef unsigned Bits;
#else
typedef unsigned short Bits;
#endif
#define PER_WORD (4 / (int)sizeof(Bits))
#define VECTOR (4 * PER_WORD)
#define THREADS 256
#define READS 2        // of 16 bytes by a thread for a tile that is staged
#define PIECES 640     // of 16 bytes in its shared memory, gaps included
#define MAGIC_BITS 22  // of quotients of numbers below READS * THREADS

struct __align__(16) Run {
    unsigned words[4];
};

// How a tensor is cut into tiles that are staged; sizes in elements.
struct Cut {
    unsigned images, plane;
    Divisor parts;                // tiles that a plane is cut into
    unsigned planes;              // of a channel in a tile; one where they are cut
    unsigned pixels;              // of a plane in a tile
    unsigned pairs, pairs_magic;  // of them
    unsigned is_whole;            // whether a tile has all channels, so that its images are one segment
    unsigned stride, pitch;       // from segment to segment, in memory and in shared memory
    unsigned pieces, pieces_magic;  // of a segment, at most
    unsigned row, image_pitch;    // from channel to channel and from image to image, in shared memory
};

struct Sizes {
    unsigned x_tiles, C, CP;
    Divisor tiles_c;  // tiles of channels
    Divisor plane;    // of x
    Cut x, weight;
};

__device__ __forceinline__ unsigned rounded(unsigned bits) {
#if ROUNDS && defined(STORAGE_FLOAT32) && defined(__CUDA_ARCH__)
    asm("cvt.rna.tf32.f32 %0, %0;" : "+r"(bits));
#endif
    return bits;
}

#if PIXELS
struct __align__(PIXELS * sizeof(Bits)) Pixels {
    unsigned words[PIXELS / PER_WORD];
};

__device__ __forceinline__ void transpose(const Bits* __restrict__ source, Bits* __restrict__ target, unsigned tile,
                                          unsigned first_channel, const Sizes& sizes) {
    const unsigned channel = first_channel + threadIdx.x % RUNS * VECTOR;
    const unsigned position = (tile * (THREADS / RUNS) + threadIdx.x / RUNS) * PIXELS, plane = sizes.plane.value;
    if (position >= sizes.x.images * plane || channel >= sizes.CP) return;
    unsigned inner = position;
    const unsigned image = sizes.plane.take_quotient(inner);
    const Bits* const from = source + ((image * sizes.C + channel) * plane + inner);
    Pixels read[VECTOR];
    if (channel + VECTOR <= sizes.C) {
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) read[e] = *(const Pixels*)(from + (size_t)e * plane);
    } else {
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) read[e] = channel + e < sizes.C ? *(const Pixels*)(from + (size_t)e * plane) : Pixels{};
    }
    Bits* const to = target + (position * sizes.CP + channel);
#pragma unroll
    for (int j = 0; j < PIXELS; ++j) {
        Run run;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
#ifdef STORAGE_FLOAT32
            run.words[w] = rounded(read[w].words[j]);
#else
            run.words[w] = __byte_perm(read[2 * w].words[j / 2], read[2 * w + 1].words[j / 2], j % 2 ? 0x7632 : 0x5410);
#endif
        }
        *(Run*)(to + (size_t)j * sizes.CP) = run;
    }
}
#endif

__device__ __forceinline__ void stage(const Bits* __restrict__ source, Bits* __restrict__ target, unsigned tile,
                                      unsigned first_channel, unsigned C, unsigned CP, const Cut& cut) {
    __shared__ Run staged[PIECES];
    unsigned part = tile;
    const unsigned first_image = cut.parts.take_quotient(part) * cut.planes, first_pixel = part * cut.pixels;
    const unsigned channels = min(RUNS * VECTOR + 0u, C - first_channel), images = min(cut.planes, cut.images - first_image);
    const unsigned pixels = min(cut.pixels, cut.plane - first_pixel);
    const bool is_part = cut.parts.value > 1;
    const unsigned segments = is_part ? channels : cut.is_whole ? 1 : images;
    const unsigned length = is_part ? pixels : (cut.is_whole ? images : 1) * channels * cut.plane;
    const int first = (first_image * C + first_channel) * cut.plane + first_pixel, elements = cut.images * C * cut.plane;
    const unsigned wholes = max(elements - VECTOR + 1, 0);  // places from which 16 bytes lie in the tensor
    const unsigned misaligned = (size_t)source / sizeof(Bits) % VECTOR, skew = (misaligned + first) % VECTOR;

    Run read[READS];
    int at[READS], piece[READS];
#pragma unroll
    for (int i = 0; i < READS; ++i) {
        const unsigned index = threadIdx.x + i * THREADS, segment = index * cut.pieces_magic >> MAGIC_BITS;
        const unsigned begin = first + segment * cut.stride, from = (index - segment * cut.pieces) * VECTOR;
        const unsigned own_skew = (misaligned + begin) % VECTOR;
        at[i] = begin - own_skew + from;
        piece[i] = segment < segments && from < own_skew + length ? (int)((skew + segment * cut.pitch + from) / VECTOR) : -1;
        if (piece[i] >= 0 && (unsigned)at[i] < wholes) read[i] = *(const Run*)(source + at[i]);
    }
#pragma unroll
    for (int i = 0; i < READS; ++i) {
        if (piece[i] < 0) continue;
        if ((unsigned)at[i] < wholes) {
            staged[piece[i]] = read[i];
        } else {  // the tensor begins or ends in it
#pragma unroll 1
            for (int e = max(0, -at[i]); e < min(VECTOR, elements - at[i]); ++e)
                ((Bits*)(staged + piece[i]))[e] = source[at[i] + e];
        }
    }
    __syncthreads();
    const unsigned run = threadIdx.x % RUNS, channel = first_channel + run * VECTOR, pair = threadIdx.x / RUNS;
    const unsigned first_of_pair = pair * cut.pairs_magic >> MAGIC_BITS, pixel = (pair - first_of_pair * cut.pairs) * 2;
    const bool is_point = cut.plane == 1;  // a pair is of two images
    const unsigned image = is_point ? 2 * first_of_pair : first_of_pair, step = is_point ? cut.image_pitch : 1;
    const bool has_second = is_point ? image + 1 < images : pixel + 1 < pixels;
    if (channel >= CP || image >= images || pixel >= pixels) return;
    const Bits* const from = (const Bits*)staged + (skew + image * cut.image_pitch + run * VECTOR * cut.row + pixel);
    Bits* const to = target + (((first_image + image) * cut.plane + first_pixel + pixel) * CP + channel);
    Run gathered[2];  // the second may be of no pixel; it is not stored then
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        const Bits* const at_word = from + w * PER_WORD * cut.row;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#ifdef STORAGE_FLOAT32
            gathered[j].words[w] = channel + w < C ? rounded(at_word[j * step]) : 0;
#else
            gathered[j].words[w] = at_word[j * step] | (unsigned)at_word[cut.row + j * step] << 16;
#endif
        }
    }
#ifndef STORAGE_FLOAT32
    if (channel + VECTOR > C) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const int kept = (int)(C - channel) - w * PER_WORD;
            const unsigned mask = kept > 1 ? 0xFFFFFFFF : kept == 1 ? 0xFFFF : 0;
            gathered[0].words[w] &= mask;
            gathered[1].words[w] &= mask;
        }
    }
#endif
    *(Run*)to = gathered[0];
    if (has_second) *(Run*)(to + CP) = gathered[1];
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    nhwc_pack(const Bits* __restrict__ x, const Bits* __restrict__ weight, Bits* __restrict__ packed_x,
              Bits* __restrict__ packed_weight, const __grid_constant__ Sizes sizes) {
    wait_for_kernel_ahead();
    // The blocks of the next launch may come as soon as there is room; they wait for these to end before they read.
#if !defined(OVERLAPS) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    const bool is_x = blockIdx.x < sizes.x_tiles;
    unsigned tile_c = is_x ? blockIdx.x : blockIdx.x - sizes.x_tiles;
    const unsigned tile = sizes.tiles_c.take_quotient(tile_c), first_channel = tile_c * (RUNS * VECTOR);
#if PIXELS
    if (is_x)
        transpose(x, packed_x, tile, first_channel, sizes);
    else
        stage(weight, packed_weight, tile, first_channel, sizes.C, sizes.CP, sizes.weight);
#else
    stage(is_x ? x : weight, is_x ? packed_x : packed_weight, tile, first_channel, sizes.C, sizes.CP, is_x ? sizes.x : sizes.weight);
#endif
}
