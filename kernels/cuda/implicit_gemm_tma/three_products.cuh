// float32 in three products of tf32 by wgmma: part of implicit_gemm_tma.cu, after tf32.cuh and wgmma.cuh.
//
//   parts        high is a value rounded to tf32, low what is left of it, of which wgmma reads the first 11 bits: high * high,
//                high * low and low * high make a product that errs by 2^-22; what is infinite becomes NaN
//   weight       its parts lie one behind the other in a stage: three warps beside the one that loads replace what has arrived
//                by its high parts, and write the low ones
//   x            read as it arrived, its parts stay in registers
//   sums         the tensor cores cut them to float32, always towards zero: those of a stage begin at zero, the small products
//                first, and are added to others in registers, to nearest

#define PART_THREADS 96
static_assert(ROW_BYTES == 128, "the swizzle in which x is read here");

// Threads 32 to 127, for as many stages as are loaded; `parted` counts warps.
__device__ __forceinline__ void part_weights(unsigned char* ring, unsigned full, unsigned parted, const Sizes& sizes) {
    const Stages stages = stages_of(sizes);
    Ring turn;
#pragma unroll 1
    for (unsigned tile = FIRST_TILE; tile < sizes.tiles_p * sizes.tiles_f; tile += gridDim.x) {
#pragma unroll 1
        for (int stage = stages.first; stage < stages.end; ++stage, turn.advance()) {
            wait_for(full + turn.stage * 8, turn.parity);
            float4* const high = (float4*)(ring + turn.stage * STAGE_BYTES + BP * ROW_BYTES);
#pragma unroll 2
            for (int i = threadIdx.x - 32; i < BF * ROW_BYTES / 16; i += PART_THREADS) {
                const float4 value = high[i];
                const float4 first = make_float4(high_part(value.x), high_part(value.y), high_part(value.z), high_part(value.w));
                high[i] = first;
                high[i + BF * ROW_BYTES / 16] =
                    make_float4(value.x - first.x, value.y - first.y, value.z - first.z, value.w - first.w);
            }
            publish_to_accelerator();
            __syncwarp();
            if (threadIdx.x % 32 == 0) arrive(parted + turn.stage * 8);
        }
    }
}

// The products of a stage, done; x (PIXELS, ROW_BYTES) of the group, weight both parts.
__device__ __forceinline__ void multiply_parts(float (&sum)[SUMS], const unsigned char* x, unsigned weight) {
    const int lane = threadIdx.x % 32, row = lane / 4;
    const unsigned char* const rows = x + (threadIdx.x / 32 % 4 * 16 + row) * ROW_BYTES + lane % 4 * 4;
    unsigned high[TILES_M][ROW_BYTES / 32][4], low[TILES_M][ROW_BYTES / 32][4];
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
        for (int k = 0; k < ROW_BYTES / 32; ++k) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const unsigned char* const place = rows + (i * 64 + e % 2 * 8) * ROW_BYTES + ((k * 2 + e / 2) ^ row) * 16;
                const float value = *(const float*)place, first = high_part(value);
                high[i][k][e] = __float_as_uint(first);
                low[i][k][e] = __float_as_uint(value - first);
            }
        }
    }
    keep(sum);
    begin_products();
#pragma unroll
    for (int k = 0; k < ROW_BYTES / 32; ++k) {
        const unsigned long long of_high = descriptor(operand_at(weight) + k * 2);
        const unsigned long long of_low = descriptor(operand_at(weight + BF * ROW_BYTES) + k * 2);
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
            multiply_add(sum[i], low[i][k], of_high, k > 0);
            multiply_add(sum[i], high[i][k], of_low, true);
        }
    }
#pragma unroll
    for (int k = 0; k < ROW_BYTES / 32; ++k) {
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) multiply_add(sum[i], high[i][k], descriptor(operand_at(weight) + k * 2), true);
    }
    commit_products();
    wait_for_all_products_but<0>(sum);
}

// sum = the products of a group's part of a tile; `channels` of a tap.
__device__ __forceinline__ void multiply_tile(float (&sum)[SUMS], const unsigned char* ring, unsigned full, unsigned empty,
                                              unsigned parted, int group, Ring& turn, int stages, int channels) {
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage, turn.advance()) {
        wait_for(full + turn.stage * 8, turn.parity);
        wait_for(parted + turn.stage * 8, turn.parity);
        const unsigned char* const from = ring + turn.stage * STAGE_BYTES;
        float part[SUMS];
        multiply_parts(part, from + group * PIXELS * ROW_BYTES, shared_address(from + BP * ROW_BYTES));
        if (threadIdx.x % 32 == 0) arrive(empty + turn.stage * 8);
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[i][j][e] += part[i][j][e];
            }
        }
    }
    restore_cut(sum, raised_by(mean_steps<ROW_BYTES / 32>((channels + 7) / 8)));
}
