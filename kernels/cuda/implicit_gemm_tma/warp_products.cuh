// Products of a stage in shared memory by wgmma: part of both sources here, after their macros.
//
//   operands     a (rows, ROW_BYTES), b (BF, ROW_BYTES), both with channels innermost, as the accelerator swizzles them
//   sums         16 x 8 fragments, 16 rows a warp

#define SUMS TILES_M][TILES_N][4
// Behind the types: signs of both operands, and of two-byte ones which dimension is innermost; of tf32 it is channels.
#if defined(STORAGE_FLOAT32)
#define TYPES "k8.f32.tf32.tf32 "
#define AS_THEY_LIE "1, 1"
#elif defined(STORAGE_FLOAT16)
#define TYPES "k16.f32.f16.f16 "
#define AS_THEY_LIE "1, 1, 0, 0"
#else
#define TYPES "k16.f32.bf16.bf16 "
#define AS_THEY_LIE "1, 1, 0, 0"
#endif
#ifndef INSTRUCTION_N
#define INSTRUCTION_N BF
#endif
#define FOUR(d, j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define EIGHT(d, j) FOUR(d, j), FOUR(d, j + 1)
// Eight sums for every 16 columns: their names in the instruction, then themselves.
#define NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NAMES_24 NAMES_16 ", %8, %9, %10, %11"
#define NAMES_32 NAMES_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_40 NAMES_32 ", %16, %17, %18, %19"
#define NAMES_48 NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_56 NAMES_48 ", %24, %25, %26, %27"
#define NAMES_64 NAMES_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_80 NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_96 NAMES_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_112 NAMES_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_128 NAMES_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_160 \
    NAMES_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_192 \
    NAMES_160 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_256 \
    NAMES_192 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_16(d) EIGHT(d, 0)
#define SUMS_24(d) SUMS_16(d), FOUR(d, 2)
#define SUMS_32(d) SUMS_16(d), EIGHT(d, 2)
#define SUMS_40(d) SUMS_32(d), FOUR(d, 4)
#define SUMS_48(d) SUMS_32(d), EIGHT(d, 4)
#define SUMS_56(d) SUMS_48(d), FOUR(d, 6)
#define SUMS_64(d) SUMS_48(d), EIGHT(d, 6)
#define SUMS_80(d) SUMS_64(d), EIGHT(d, 8)
#define SUMS_96(d) SUMS_80(d), EIGHT(d, 10)
#define SUMS_112(d) SUMS_96(d), EIGHT(d, 12)
#define SUMS_128(d) SUMS_112(d), EIGHT(d, 14)
#define SUMS_160(d) SUMS_128(d), EIGHT(d, 16), EIGHT(d, 18)
#define SUMS_192(d) SUMS_160(d), EIGHT(d, 20), EIGHT(d, 22)
#define SUMS_256(d) SUMS_192(d), EIGHT(d, 24), EIGHT(d, 26), EIGHT(d, 28), EIGHT(d, 30)
// The first products of a tile are not added to what the registers held.
#define INSTRUCTION(n, a, b, adds)                                                                            \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #adds ", 0;\n"                                    \
                 "wgmma.mma_async.sync.aligned.m64n" #n TYPES "{" NAMES_##n "}, %" #a ", %" #b                \
                 ", adds, " AS_THEY_LIE ";\n}"                                                               \
                 : SUMS_##n(d)                                                                                \
                 : "l"(from_a), "l"(from_b), "r"((int)is_added))
__device__ __forceinline__ void multiply_add(float (&d)[TILES_N][4], unsigned long long from_a, unsigned long long from_b,
                                             bool is_added) {
#if INSTRUCTION_N == 16
    INSTRUCTION(16, 8, 9, 10);
#elif INSTRUCTION_N == 24
    INSTRUCTION(24, 12, 13, 14);
#elif INSTRUCTION_N == 32
    INSTRUCTION(32, 16, 17, 18);
#elif INSTRUCTION_N == 40
    INSTRUCTION(40, 20, 21, 22);
#elif INSTRUCTION_N == 48
    INSTRUCTION(48, 24, 25, 26);
#elif INSTRUCTION_N == 56
    INSTRUCTION(56, 28, 29, 30);
#elif INSTRUCTION_N == 64
    INSTRUCTION(64, 32, 33, 34);
#elif INSTRUCTION_N == 80
    INSTRUCTION(80, 40, 41, 42);
#elif INSTRUCTION_N == 96
    INSTRUCTION(96, 48, 49, 50);
#elif INSTRUCTION_N == 112
    INSTRUCTION(112, 56, 57, 58);
#elif INSTRUCTION_N == 128
    INSTRUCTION(128, 64, 65, 66);
#elif INSTRUCTION_N == 160
    INSTRUCTION(160, 80, 81, 82);
#elif INSTRUCTION_N == 192
    INSTRUCTION(192, 96, 97, 98);
#elif INSTRUCTION_N == 256
    INSTRUCTION(256, 128, 129, 130);
#else
#error "no such instruction here"
#endif
}
__device__ __forceinline__ void keep(float (&sum)[SUMS]) {
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(sum[i][j][e])::"memory");
        }
    }
}
// The low half of a descriptor: where an operand begins, in units of 16 bytes, so that a stage or a row on is an addition. The
// high half says that it is swizzled by whole rows, of which eight are a group; 128-byte and 64-byte swizzle are 1 and 2.
__device__ __forceinline__ unsigned operand_at(unsigned address) { return (address & 0x3FFFF) >> 4 | 1u << 16; }
__device__ __forceinline__ unsigned long long descriptor(unsigned operand) {
    const unsigned shape = 8 * ROW_BYTES / 16 | (ROW_BYTES == 128 ? 1u : 2u) << 30;
    return (unsigned long long)shape << 32 | operand;
}
// Enqueues the products of the first bytes of a stage's rows, whose operands begin at `operand_at` of their addresses.
template <int BYTES = ROW_BYTES>
__device__ __forceinline__ void multiply(float (&sum)[SUMS], unsigned a, unsigned b, bool is_added) {
    keep(sum);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < BYTES / 16; k += 2) {
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
            multiply_add(sum[i], descriptor(a + i * 64 * ROW_BYTES / 16 + k), descriptor(b + k), is_added || k > 0);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int COUNT>
__device__ __forceinline__ void wait_for_all_products_but(float (&sum)[SUMS]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(COUNT) : "memory");
    keep(sum);
}
