// Products that four warps make together on Hopper's tensor cores (wgmma): 64 rows of a by INSTRUCTION_N columns of b.
//
//   before       INSTRUCTION_N, a number that the list below has; for capability 9.0 alone (sm_90a)
//   types        the storage type's: two-byte operands, or float32 of which the instruction reads the tf32; float16 with
//                OPERANDS_ARE_HALVES
//   operands     rows with gemm_k innermost, 32 bytes of them: b in shared memory, told by a descriptor; a too, or in registers, in
//                the fragments of mma.sync; with COLUMNS_ARE_INNERMOST b has its columns innermost, gemm_k rows
//   sums         float32, in 16 x 8 fragments as mma.sync lays them out, 16 rows a warp; what is not added to them replaces them

#ifndef SWIZZLE_BYTES
#define SWIZZLE_BYTES 128  // of a row in shared memory; or 64
#endif
#if defined(STORAGE_FLOAT32) && !defined(OPERANDS_ARE_HALVES)
#define TYPES "k8.f32.tf32.tf32 "
#define AS_IT_LIES ""
#elif defined(STORAGE_FLOAT16) || defined(OPERANDS_ARE_HALVES)
#define TYPES "k16.f32.f16.f16 "
#define AS_IT_LIES ", 0"  // of a two-byte operand in shared memory, which dimension is innermost
#else
#define TYPES "k16.f32.bf16.bf16 "
#define AS_IT_LIES ", 0"
#endif
#ifdef COLUMNS_ARE_INNERMOST
#define B_AS_IT_LIES ", 1"
#else
#define B_AS_IT_LIES AS_IT_LIES
#endif
#define FOUR(d, j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define EIGHT(d, j) FOUR(d, j), FOUR(d, j + 1)
// A thread's sums, eight for every 16 columns: their names in the instruction, then themselves.
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
#define NAMES_160 NAMES_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_192 NAMES_160 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
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
// The names of what comes behind the sums: as many as the longer form has.
#if INSTRUCTION_N == 16
#define INSTRUCTION(form) form(16, 8, 9, 10, 11, 12, 13)
#elif INSTRUCTION_N == 24
#define INSTRUCTION(form) form(24, 12, 13, 14, 15, 16, 17)
#elif INSTRUCTION_N == 32
#define INSTRUCTION(form) form(32, 16, 17, 18, 19, 20, 21)
#elif INSTRUCTION_N == 40
#define INSTRUCTION(form) form(40, 20, 21, 22, 23, 24, 25)
#elif INSTRUCTION_N == 48
#define INSTRUCTION(form) form(48, 24, 25, 26, 27, 28, 29)
#elif INSTRUCTION_N == 56
#define INSTRUCTION(form) form(56, 28, 29, 30, 31, 32, 33)
#elif INSTRUCTION_N == 64
#define INSTRUCTION(form) form(64, 32, 33, 34, 35, 36, 37)
#elif INSTRUCTION_N == 80
#define INSTRUCTION(form) form(80, 40, 41, 42, 43, 44, 45)
#elif INSTRUCTION_N == 96
#define INSTRUCTION(form) form(96, 48, 49, 50, 51, 52, 53)
#elif INSTRUCTION_N == 112
#define INSTRUCTION(form) form(112, 56, 57, 58, 59, 60, 61)
#elif INSTRUCTION_N == 128
#define INSTRUCTION(form) form(128, 64, 65, 66, 67, 68, 69)
#elif INSTRUCTION_N == 160
#define INSTRUCTION(form) form(160, 80, 81, 82, 83, 84, 85)
#elif INSTRUCTION_N == 192
#define INSTRUCTION(form) form(192, 96, 97, 98, 99, 100, 101)
#elif INSTRUCTION_N == 256
#define INSTRUCTION(form) form(256, 128, 129, 130, 131, 132, 133)
#else
#error "no such instruction here"
#endif
#define OF_SHARED(n, a, b, adds, ...)                                                                       \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #adds ", 0;\n"                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #n TYPES "{" NAMES_##n "}, %" #a ", %" #b              \
                 ", adds, 1, 1" AS_IT_LIES B_AS_IT_LIES ";\n}"                                              \
                 : SUMS_##n(d)                                                                              \
                 : "l"(from_a), "l"(from_b), "r"((int)is_added))
#define OF_REGISTERS(n, a0, a1, a2, a3, b, adds)                                                            \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #adds ", 0;\n"                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #n TYPES "{" NAMES_##n "}, {%" #a0 ", %" #a1 ", %" #a2 \
                 ", %" #a3 "}, %" #b ", adds, 1, 1" AS_IT_LIES ";\n}"                                       \
                 : SUMS_##n(d)                                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(from_b), "r"((int)is_added))
// The same, always added: no predicate, for whose sake the compiler arranges some kernels otherwise.
#define OF_REGISTERS_ADDED(n, a0, a1, a2, a3, b, adds)                                                      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n TYPES "{" NAMES_##n "}, {%" #a0 ", %" #a1 ", %" #a2 \
                 ", %" #a3 "}, %" #b ", 1, 1, 1" AS_IT_LIES ";"                                             \
                 : SUMS_##n(d)                                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(from_b))

typedef float ProductSums[INSTRUCTION_N / 8][4];

__device__ __forceinline__ void multiply_add(ProductSums& d, unsigned long long from_a, unsigned long long from_b, bool is_added) {
    INSTRUCTION(OF_SHARED);
}
__device__ __forceinline__ void multiply_add(ProductSums& d, const unsigned (&a)[4], unsigned long long from_b, bool is_added) {
    INSTRUCTION(OF_REGISTERS);
}
__device__ __forceinline__ void multiply_add(ProductSums& d, const unsigned (&a)[4], unsigned long long from_b) {
    INSTRUCTION(OF_REGISTERS_ADDED);
}

// The compiler moves no use of these sums across this place.
template <int TILES>
__device__ __forceinline__ void keep(float (&sums)[TILES][INSTRUCTION_N / 8][4]) {
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
#pragma unroll
        for (int j = 0; j < INSTRUCTION_N / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(sums[i][j][e])::"memory");
        }
    }
}
// Products that follow find in their registers what was written there before.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until the sums of all committed products but the last COUNT groups are there.
template <int COUNT, int TILES>
__device__ __forceinline__ void wait_for_all_products_but(float (&sums)[TILES][INSTRUCTION_N / 8][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(COUNT) : "memory");
    keep(sums);
}

// The low half of a descriptor of swizzled rows: where an operand begins, in units of 16 bytes, so that some further on is an
// addition. The high half says that it is swizzled by whole rows, of which eight are a group; 128-byte and 64-byte swizzle
// are 1 and 2.
__device__ __forceinline__ unsigned operand_at(unsigned address) { return (address & 0x3FFFF) >> 4 | 1u << 16; }
__device__ __forceinline__ unsigned long long descriptor(unsigned operand) {
    const unsigned shape = 8 * SWIZZLE_BYTES / 16 | (SWIZZLE_BYTES == 128 ? 1u : 2u) << 30;
    return (unsigned long long)shape << 32 | operand;
}
// That of core matrices of 8 rows x 16 bytes without swizzle: 128 bytes apart along gemm_k, 256 along the rows.
__device__ __forceinline__ unsigned long long descriptor_of_matrices(unsigned address) {
    return (unsigned long long)((address & 0x3FFFF) >> 4) | (128ull >> 4) << 16 | (256ull >> 4) << 32;
}
