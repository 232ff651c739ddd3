// Products of a stage, both operands in shared memory, by wgmma: after wgmma.cuh and the macros of a source of these.
//
//   operands     a (rows, ROW_BYTES), b (INSTRUCTION_N, ROW_BYTES), both with channels innermost, as the accelerator swizzles them

#define SUMS TILES_M][TILES_N][4

// Enqueues the products of the first bytes of a stage's rows, whose operands begin at `operand_at` of their addresses.
template <int BYTES = ROW_BYTES>
__device__ __forceinline__ void multiply(float (&sum)[SUMS], unsigned a, unsigned b, bool is_added) {
    keep(sum);
    begin_products();
#pragma unroll
    for (int k = 0; k < BYTES / 16; k += 2) {
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
            multiply_add(sum[i], descriptor(a + i * 64 * ROW_BYTES / 16 + k), descriptor(b + k), is_added || k > 0);
    }
    commit_products();
}
