// float32 in three products of float16 by wgmma: part of implicit_gemm_tma.cu, after tf32.cuh and wgmma.cuh.
//
//   parts        high is a scaled value rounded to float16, low what is left of it, rounded too: high * high, high * low and
//                low * high make a product that errs by 2^-22; what is infinite becomes NaN. Scales are powers of two
//   weight       replaced where it lies: 32 floats of a filter become [32 high | 32 low] halves in the same swizzled 128 bytes, by
//                three warps beside the one that loads. A filter's scale is that of all its stages so far: it falls where a
//                weight would not fit float16, and all sums of the filter then with it
//   x            read as it arrived, its parts stay in registers; a pixel has a scale in every stage, by its largest value there
//   gemm_k       of 16 channels are those of two instructions: thread l of four has channels 4l .. 4l+3 of either, one 16-byte read,
//                as columns 2l, 2l+1, 2l+8 and 2l+9 of its fragment. Weight is stored in that order
//   rows         of a fragment are pixels 0, 4, 1, 5, 2, 6, 3 and 7 of eight, for eight threads to read 128 bytes of all banks
//   sums         the tensor cores cut them to float32, always towards zero: those of a stage begin at zero, the small products
//                first, and are added, scaled, to others in registers, to nearest. Those are 2^-30 * y * the filter's scale, so that
//                what is finite at the end is finite before
//   range        a value smaller than the largest of its pixel's stage by 2^-16, of its filter so far by 2^-13 at worst, keeps
//                fewer bits than the 22 of its parts; pixels below 2^-98 do too, and sums below some 2^-108 are flushed

#define PART_THREADS 96
#define STEPS (ROW_BYTES / 4 / 16)  // instructions along gemm_k
#define FILTER_LIMIT 0x1p15f  // of scaled weights: float16 ends at 65504
#define FITTED_EXPONENT 12    // of a filter's largest weight where its scale falls: what follows may be eight times as large
#define PIXEL_EXPONENT 14     // of a pixel's largest value
#define LEAST_EXPONENT -82    // of it; below, what its sums are multiplied by would be subnormal, and flushed
#define HELD_EXPONENT 30
#define SCALES_BYTES (16 + 12 * BF)  // of a stage
#define CHUNKS (BF / INSTRUCTION_N)
static_assert(ROW_BYTES == 128 && STEPS == 2, "the swizzle that is taken apart here");

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }
// Below 2^128 what they fall short of: of 0 and subnormal values the least exponent, of an infinity and NaN 128.
__device__ __forceinline__ int exponent_of(float value) { return (__float_as_int(value) >> 23 & 0xff) - 127; }

// Both parts of two scaled values, the first one's in the low half.
__device__ __forceinline__ void part_pair(float first, float second, unsigned& high, unsigned& low) {
    float of_first, of_second;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(second), "f"(first));
    asm("{\n.reg .b16 first, second;\nmov.b32 {first, second}, %2;\n"
        "cvt.f32.f16 %0, first;\ncvt.f32.f16 %1, second;\n}"
        : "=f"(of_first), "=f"(of_second)
        : "r"(high));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(low) : "f"(second - of_second), "f"(first - of_first));
}
__device__ __forceinline__ float4 scaled(float4 value, float scale) {
    return make_float4(value.x * scale, value.y * scale, value.z * scale, value.w * scale);
}
// NaN aside.
__device__ __forceinline__ float largest_of(float4 value) {
    return fmaxf(fmaxf(fabsf(value.x), fabsf(value.y)), fmaxf(fabsf(value.z), fabsf(value.w)));
}
// The largest of so many neighbouring lanes.
template <int LANES>
__device__ __forceinline__ float largest_of_lanes(float value) {
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFF, value, step));
    return value;
}

// What threads that part a stage's weight tell those that multiply.
struct Scales {
    unsigned char* bytes;

    __device__ __forceinline__ explicit Scales(unsigned char* bytes) : bytes(bytes) {}
    // Of a warp's eights, 1 to 3, a bit for each of which a filter's scale fell; and of such filters by how much.
    __device__ __forceinline__ int* fell(int warp) const { return (int*)bytes + warp; }
    __device__ __forceinline__ float* ratio(int filter) const { return (float*)(bytes + 16) + filter; }
    // Of a tile's last stage: what makes y of its sums, as two factors.
    __device__ __forceinline__ float2* end(int filter) const { return (float2*)(bytes + 16 + BF * 4) + filter; }
};

// A filter's scale from its largest weight on, which would not fit by the one before.
__device__ __forceinline__ float fitted_scale(float largest) { return power_of_two(FITTED_EXPONENT - exponent_of(largest)); }
// Two factors that make y of its sum by a filter's scale: one alone could leave float32's range.
__device__ __forceinline__ float2 ending_factors(float scale) {
    const int exponent = HELD_EXPONENT - exponent_of(scale), half = exponent >> 1;
    return make_float2(power_of_two(half), power_of_two(exponent - half));
}

#define PART_WARPS (PART_THREADS / 32)
#define EIGHTS ((BF / 8 + PART_WARPS - 1) / PART_WARPS)  // of filters, a warp's at most
// Threads 32 to 127, for as many stages as are loaded; `parted` counts warps. A warp takes every third eight filters, eight lanes
// a filter, of which lane j has channels 4j .. 4j+3: filters 0, 4, 1 and 5, and those 2 behind.
class WeightParts {
   public:
    // `scales` has one for every filter, which are read and written by eight lanes alone.
    // `warp`, 1 to 3, is told for the assembler to know that a warp's threads go the same way.
    __device__ __forceinline__ WeightParts(float* scales, int warp, const Sizes& sizes)
        : first_(warp - 1), loaded_(min(BF / 8, (sizes.K + 7) / 8)), scales_(scales + own()) {}

    __device__ __forceinline__ void begin_tile() const {
#pragma unroll 1
        for (int i = 0; i < EIGHTS; ++i) {
            if (is_loaded(i) && threadIdx.x % 8 < 2) *scale(i, threadIdx.x % 8) = 0x1p126f;
        }
        __syncwarp();
    }
    // Replaces the weight of a stage by its parts.
    __device__ __forceinline__ void part(unsigned char* weight, const Scales& told, bool is_last) const {
        unsigned char* const rows = weight + own() * ROW_BYTES;
        int fell = 0;
        Eight now, next;
        next.read(rows, scale(0, 0));
#pragma unroll
        for (int i = 0; i < EIGHTS; ++i) {
            if (!is_loaded(i)) break;
            now = next;
            if (i + 1 < EIGHTS && is_loaded(i + 1)) next.read(rows + behind(i + 1, 0) * ROW_BYTES, scale(i + 1, 0));
            now.scale_values();
            if (__any_sync(0xFFFFFFFF, now.largest() >= FILTER_LIMIT)) {
                fell |= 1 << i;
                now.read(rows + behind(i, 0) * ROW_BYTES, scale(i, 0));
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float ratio = fit(now.scale[half], largest_of_lanes<8>(largest_of(now.value[half])));
                    if (threadIdx.x % 8 == 0) told.ratio(own())[behind(i, half)] = ratio, *scale(i, half) = now.scale[half];
                }
                now.scale_values();
            }
            __syncwarp();  // all lanes have read
            now.write(rows + behind(i, 0) * ROW_BYTES);
        }
        if (threadIdx.x % 32 == 0) *told.fell(first_ + 1) = fell;
        __syncwarp();
        if (is_last && threadIdx.x % 8 < 2) tell_ends(told, threadIdx.x % 8);
    }

   private:
    __device__ __forceinline__ static int line() { return threadIdx.x / 8 % 2 * 4 + threadIdx.x / 16 % 2; }
    // A thread's first filter, and how far behind it another is.
    __device__ __forceinline__ int own() const { return first_ * 8 + line(); }
    __device__ __forceinline__ static constexpr int behind(int i, int half) { return i * PART_WARPS * 8 + half * 2; }
    __device__ __forceinline__ bool is_loaded(int i) const { return first_ + i * PART_WARPS < loaded_; }
    __device__ __forceinline__ float* scale(int i, int half) const { return scales_ + behind(i, half); }

    // A thread's values of eight filters, whose first line of this thread begins at `row`.
    struct Eight {
        float4 value[2];
        float scale[2];

        __device__ __forceinline__ void read(const unsigned char* row, const float* scales) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                value[half] = *(const float4*)(row + half * 2 * ROW_BYTES + (threadIdx.x % 8 ^ line() ^ half * 2) * 16);
                scale[half] = scales[half * 2];
            }
        }
        __device__ __forceinline__ void scale_values() {
#pragma unroll
            for (int half = 0; half < 2; ++half) value[half] = scaled(value[half], scale[half]);
        }
        __device__ __forceinline__ float largest() const { return fmaxf(largest_of(value[0]), largest_of(value[1])); }
        // 16 bytes of a step are of channels 4l and 4l+1, the next of 4l+2 and 4l+3; low parts lie 64 behind the high ones.
        __device__ __forceinline__ void write(unsigned char* row) const {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                unsigned char* const own = row + half * 2 * ROW_BYTES + threadIdx.x % 4 * 4;
                const int chunk = threadIdx.x % 8 / 4 * 2 ^ line() ^ half * 2;
                unsigned high[2], low[2];
                part_pair(value[half].x, value[half].y, high[0], low[0]);
                part_pair(value[half].z, value[half].w, high[1], low[1]);
                *(unsigned*)(own + chunk * 16) = high[0];
                *(unsigned*)(own + (chunk ^ 1) * 16) = high[1];
                *(unsigned*)(own + (chunk ^ 4) * 16) = low[0];
                *(unsigned*)(own + (chunk ^ 5) * 16) = low[1];
            }
        }
    };

    // Lowers a scale where the largest weight does not fit, and says by how much.
    __device__ __forceinline__ static float fit(float& scale, float largest) {
        if (!(largest * scale >= FILTER_LIMIT)) return 1.0f;
        const float inverse = power_of_two(-exponent_of(scale));
        scale = fitted_scale(largest);
        return scale * inverse;
    }
    __device__ __forceinline__ void tell_ends(const Scales& told, int half) const {
#pragma unroll 1
        for (int i = 0; i < EIGHTS; ++i) {
            if (is_loaded(i)) told.end(own() + half * 2)[behind(i, 0)] = ending_factors(*scale(i, half));
        }
    }

    int first_, loaded_;  // eights
    float* scales_;
};

__device__ __forceinline__ void part_weights(int warp, unsigned char* ring, unsigned char* scales, unsigned full,
                                             unsigned parted, const Sizes& sizes) {
    const Stages stages = stages_of(sizes);
    const WeightParts weight((float*)(scales + STAGES * SCALES_BYTES), warp, sizes);
    Ring turn;
#pragma unroll 1
    for (unsigned tile = FIRST_TILE; tile < sizes.tiles_p * sizes.tiles_f; tile += gridDim.x) {
        weight.begin_tile();
#pragma unroll 1
        for (int stage = stages.first; stage < stages.end; ++stage, turn.advance()) {
            wait_for(full + turn.stage * 8, turn.parity);
            weight.part(ring + turn.stage * STAGE_BYTES + BP * ROW_BYTES, Scales(scales + turn.stage * SCALES_BYTES),
                        stage == stages.end - 1);
            publish_to_accelerator();
            __syncwarp();
            if (threadIdx.x % 32 == 0) arrive(parted + turn.stage * 8);
        }
    }
}

// Parts of 16 pixels of a stage, as fragments of the products along gemm_k, and what their sums are to be multiplied by: a
// thread's two pixels.
struct PixelParts {
    unsigned high[STEPS][4], low[STEPS][4];
    float factor[2];

    __device__ __forceinline__ void read(const unsigned char* rows) {
        const int l = threadIdx.x % 4, row = pixel_of_row(threadIdx.x % 32 / 4);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float4 value[STEPS];
#pragma unroll
            for (int k = 0; k < STEPS; ++k)
                value[k] = *(const float4*)(rows + (half * 8 + row) * ROW_BYTES + ((k * 4 + l) ^ row) * 16);
            const float largest = largest_of_lanes<4>(fmaxf(largest_of(value[0]), largest_of(value[1])));
            const int exponent = max(exponent_of(largest), LEAST_EXPONENT);
            const float scale = power_of_two(PIXEL_EXPONENT - exponent);
            factor[half] = power_of_two(exponent - PIXEL_EXPONENT) * power_of_two(-HELD_EXPONENT);
#pragma unroll
            for (int k = 0; k < STEPS; ++k) {
                const float4 own = scaled(value[k], scale);
                part_pair(own.x, own.y, high[k][half], low[k][half]);
                part_pair(own.z, own.w, high[k][half + 2], low[k][half + 2]);
            }
        }
    }
};

// To 64 pixels' sums, the products of a stage; of columns `chunk`, weight both parts.
__device__ __forceinline__ void add_products_of(const PixelParts& x, unsigned weight, int chunk, float (&sum)[TILES_N][4]) {
    const unsigned of_high = operand_at(weight) + chunk * (INSTRUCTION_N * ROW_BYTES / 16), of_low = of_high + ROW_BYTES / 2 / 16;
    float part[1][INSTRUCTION_N / 8][4];
    keep(part);
    begin_products();
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        multiply_add(part[0], x.low[k], descriptor(of_high + k * 2), k > 0);
        multiply_add(part[0], x.high[k], descriptor(of_low + k * 2), true);
    }
#pragma unroll
    for (int k = 0; k < STEPS; ++k) multiply_add(part[0], x.high[k], descriptor(of_high + k * 2), true);
    commit_products();
    wait_for_all_products_but<0>(part);
#pragma unroll
    for (int j = 0; j < INSTRUCTION_N / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float& own = sum[chunk * (INSTRUCTION_N / 8) + j][e];
            own = fmaf(part[0][j][e], x.factor[e / 2], own);
        }
    }
}

// sum *= by how much the scales of its filters fell.
__device__ __forceinline__ void follow_scales(float (&sum)[SUMS], const Scales& told) {
    const int4 by_warp = *(const int4*)told.bytes;
    const int fell[] = {by_warp.y, by_warp.z, by_warp.w};
    if (!(fell[0] | fell[1] | fell[2])) return;
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
        if (!(fell[j % PART_WARPS] >> j / PART_WARPS & 1)) continue;
        const float2 ratio = *(const float2*)told.ratio(j * 8 + threadIdx.x % 4 * 2);
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[i][j][e] *= e % 2 ? ratio.y : ratio.x;
        }
    }
}
// Of the last stage: y of the sums; `channels` of a tap.
__device__ __forceinline__ void end_scales(float (&sum)[SUMS], const Scales& told, int channels) {
    restore_cut(sum, raised_by(mean_steps<STEPS>((channels + 15) / 16)));
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
        const float4 both = *(const float4*)told.end(j * 8 + threadIdx.x % 4 * 2);
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[i][j][e] = sum[i][j][e] * (e % 2 ? both.z : both.x) * (e % 2 ? both.w : both.y);
        }
    }
}

__device__ __forceinline__ void multiply_tile(float (&sum)[SUMS], const unsigned char* ring, unsigned char* scales, unsigned full,
                                              unsigned empty, unsigned parted, int group, Ring& turn, int stages, int channels) {
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage, turn.advance()) {
        const unsigned char* const from = ring + turn.stage * STAGE_BYTES;
        const unsigned char* const x = from + (group * PIXELS + threadIdx.x / 32 % 4 * 16) * ROW_BYTES;
        const Scales told(scales + turn.stage * SCALES_BYTES);
        PixelParts parts;
        wait_for(full + turn.stage * 8, turn.parity);
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
            parts.read(x + i * 64 * ROW_BYTES);
            if (i == 0) {
                wait_for(parted + turn.stage * 8, turn.parity);
                follow_scales(sum, told);
            }
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) add_products_of(parts, shared_address(from + BP * ROW_BYTES), chunk, sum[i]);
        }
        if (stage == stages - 1) end_scales(sum, told, channels);
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(empty + turn.stage * 8);
    }
}
