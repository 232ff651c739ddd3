// From a warp's sums of filters and pixels to y: part of implicit_gemm_tma_transposed.cu, after its macros.
//
//   chunk        16 filters by LINE pixels, which lie in shared memory as lines of pixels; the residual comes there first
//   swizzle      16 bytes c of line l lie at c ^ l % 8, of lines of 64 bytes at c ^ l % 8 / 2: eight lines meet all banks
//   UNIT         pixels that are copied at a time: 8 or 4 where planes are whole units, so that none lies in two images or is not
//                aligned. 1: planes of any size, pixel by pixel, neighbours by neighbours of a warp. A line within one image is stored as
//                pieces of whole sectors of L2 and one piece of its both ends: few sectors are written in parts, which is slow

#define LINE_BYTES (LINE * 2)
#define CHUNK_BYTES (16 * LINE_BYTES)
#define SECTOR_BYTES 32
#define ROWS_AHEAD 8  // that a warp has read before it stores them, pixel by pixel; as many as swizzles differ
#define BUFFERS (1 + RESIDUAL)
#define UNITS (UNIT > 1 ? LINE / UNIT : LINE / 2)  // of a line, a thread each
#define STEP (32 / UNITS)                          // lines that a warp copies at a time
static_assert(32 % UNITS == 0, "whole lines");

// The bias of the filters whose sums a thread has, each as two neighbours.
struct Bias {
    unsigned pairs[TILES_M][2];

    __device__ __forceinline__ void read(const Epilogue& epilogue, unsigned first_filter, const Sizes& sizes) {
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const unsigned filter = first_filter + i * 64 + threadIdx.x % 32 / 4 + half * 8;
                pairs[i][half] = filter < (unsigned)sizes.K ? epilogue.bias_twice_ahead(filter) : 0;
            }
        }
    }
};

// A pixel of a tile: where it lies in the first filter's planes, and whether it does.
struct Place {
    size_t at;
    bool exists;
};
__device__ __forceinline__ Place place_of(unsigned pixel, const Sizes& sizes) {
#if FORM == PLANAR
    unsigned inner = pixel / BOX;
    const unsigned image = sizes.of_plane.take_quotient(inner);
    inner = inner * BOX + pixel % BOX;
    return {(size_t)image * sizes.K * sizes.plane + inner, pixel < sizes.pixels && inner < sizes.plane};
#else
    unsigned inner = pixel;
    const unsigned image = sizes.of_plane.take_quotient(inner);
    return {(size_t)image * sizes.K * sizes.plane + inner, pixel < sizes.pixels};
#endif
}

class Lines {
   public:
    __device__ __forceinline__ Lines(unsigned place, unsigned filter, unsigned pixel, const Sizes& sizes)
        : place_(place), filter_(filter), pixel_(pixel), sizes_(sizes) {}

    __device__ __forceinline__ bool is_in_y() const { return filter_ < (unsigned)sizes_.K && pixel_ < sizes_.pixels; }

    // Begins to copy the residual to the lines; `wait_for_copies_but` before they are filled.
    __device__ __forceinline__ void copy(const Storage* residual) const {
        const unsigned unit = threadIdx.x % 32 % UNITS, first = threadIdx.x % 32 / UNITS;
#if UNIT > 1
        const Place place = place_of(pixel_ + unit * UNIT, sizes_);
#pragma unroll
        for (unsigned row = first; row < 16; row += STEP) {
            if (!place.exists || filter_ + row >= (unsigned)sizes_.K) continue;
            const Storage* const from = residual + place.at + (size_t)(filter_ + row) * sizes_.plane;
            const unsigned to = place_ + within(row, unit * UNIT * 2);
#if UNIT == 8
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(UNIT * 2) : "memory");
#endif
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
#else
        const Place even = place_of(pixel_ + unit * 2, sizes_), odd = place_of(pixel_ + unit * 2 + 1, sizes_);
#pragma unroll 2
        for (unsigned row = first; row < 16; row += STEP) {
            const bool exists = filter_ + row < (unsigned)sizes_.K;
            const unsigned short* const from = (const unsigned short*)residual + (size_t)(filter_ + row) * sizes_.plane;
            const unsigned low = exists && even.exists ? __ldg(from + even.at) : 0;
            const unsigned high = exists && odd.exists ? __ldg(from + odd.at) : 0;
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(place_ + within(row, unit * 4)), "r"(low | high << 16) : "memory");
        }
#endif
    }
    // Until the lines have been copied, but those of the last copy where there `is_more`.
    __device__ __forceinline__ static void wait_for_copies_but(bool is_more) {
#if UNIT > 1
        if (is_more)
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        else
            asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
        __syncwarp();
    }

    // A thread's sums of 8 columns: rows lane / 4 and 8 more, columns lane % 4 * 2 and the next. What a warp reads of the
    // residual it overwrites itself.
    __device__ __forceinline__ void fill(const Epilogue& epilogue, const Bias& bias, const float (&sum)[TILES_N][4], int first,
                                         int tile) const {
        const unsigned lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < LINE / 8; j += 2) {
            const unsigned to = place_ + within(lane % 16, (j + lane / 16) * 16);
            unsigned pairs[4] = {};
#if RESIDUAL
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                         : "r"(to)
                         : "memory");
#endif
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float(&four)[4] = sum[first + j + e / 2];
                float two[] = {four[e % 2 * 2], four[e % 2 * 2 + 1]};
#if HAS_EPILOGUE
                epilogue.apply_given(two, pairs[e], bias.pairs[tile][e % 2]);
#endif
                pairs[e] = narrow_pair(two[0], two[1]);
            }
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(pairs[0]),
                         "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                         : "memory");
        }
        __syncwarp();
        (void)epilogue, (void)bias, (void)tile;
    }

    __device__ __forceinline__ void store(Storage* y) const {
#if UNIT > 1
        const unsigned unit = threadIdx.x % 32 % UNITS, first = threadIdx.x % 32 / UNITS;
        const Place place = place_of(pixel_ + unit * UNIT, sizes_);
        Storage* const to = y + place.at + (size_t)filter_ * sizes_.plane;
#pragma unroll
        for (unsigned row = first; row < 16; row += STEP) {
            const unsigned from = place_ + within(row, unit * UNIT * 2);
            if (!place.exists || filter_ + row >= (unsigned)sizes_.K) continue;
            Storage* const there = to + (size_t)row * sizes_.plane;
#if UNIT == 8
            uint4 pixels;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(pixels.x), "=r"(pixels.y), "=r"(pixels.z), "=r"(pixels.w)
                         : "r"(from)
                         : "memory");
            *(uint4*)there = pixels;
#else
            uint2 pixels;
            asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(pixels.x), "=r"(pixels.y) : "r"(from) : "memory");
            *(uint2*)there = pixels;
#endif
        }
#else
        const unsigned lane = threadIdx.x % 32;
        const Place begin = place_of(pixel_, sizes_), end = place_of(pixel_ + LINE - 1, sizes_);
        unsigned char* const to = (unsigned char*)y + (size_t)filter_ * sizes_.plane * 2;
        if (end.exists && end.at == begin.at + LINE - 1) {
            const unsigned behind = (unsigned)(unsigned long long)(to + begin.at * 2);
            store_pixels(to + begin.at * 2, [&](unsigned row, int part, unsigned& byte) {
                byte = (lane * 2 - (behind + row * sizes_.plane * 2) % SECTOR_BYTES) % LINE_BYTES ^ part * 64;
                return (long long)byte;
            });
        } else {
            long long places[LINE / 32];
#pragma unroll
            for (int part = 0; part < LINE / 32; ++part) {
                const Place place = place_of(pixel_ + part * 32 + lane, sizes_);
                places[part] = place.exists ? (long long)place.at * 2 : -1;
            }
            store_pixels(to, [&](unsigned, int part, unsigned& byte) {
                byte = part * 64 + lane * 2;
                return places[part];
            });
        }
#endif
        __syncwarp();
    }

   private:
#if UNIT == 1
    // The lines pixel by pixel. `place_in` says which byte of a part of a line a thread has, and where it goes, or -1.
    template <class PlaceIn>
    __device__ __forceinline__ void store_pixels(unsigned char* line, const PlaceIn& place_in) const {
        const unsigned rows = min(16u, sizes_.K - filter_);
#pragma unroll 1
        for (unsigned begin = 0; begin < 16; begin += ROWS_AHEAD) {
            unsigned short pixels[ROWS_AHEAD][LINE / 32];
            unsigned byte;
#pragma unroll
            for (int i = 0; i < ROWS_AHEAD; ++i) {
#pragma unroll
                for (int part = 0; part < LINE / 32; ++part) {
                    place_in(begin + i, part, byte);
                    asm volatile("ld.shared.u16 %0, [%1];"
                                 : "=h"(pixels[i][part])
                                 : "r"(place_ + begin * LINE_BYTES + within(i, byte))
                                 : "memory");
                }
            }
#pragma unroll
            for (int i = 0; i < ROWS_AHEAD; ++i, line += sizes_.plane * 2ull) {
#pragma unroll
                for (int part = 0; part < LINE / 32; ++part) {
                    const long long at = place_in(begin + i, part, byte);
                    if (at >= 0 && begin + i < rows) *(unsigned short*)(line + at) = pixels[i][part];
                }
            }
        }
    }
#endif
    // Where a byte of a line lies in a chunk.
    __device__ __forceinline__ static unsigned within(unsigned row, unsigned byte) {
        return row * LINE_BYTES + (byte ^ row % 8 / (128 / LINE_BYTES) * 16);
    }

    unsigned place_, filter_, pixel_;
    const Sizes& sizes_;
};
