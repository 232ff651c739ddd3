// Products by wgmma of tf32 in registers, in the fragments of mma.sync, and in shared memory: after warp_products.cuh.

#define INSTRUCTION_OF_REGISTERS(n, a0, a1, a2, a3, b, adds)                                                      \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #adds ", 0;\n"                                              \
                 "wgmma.mma_async.sync.aligned.m64n" #n TYPES "{" NAMES_##n "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 \
                 "}, %" #b ", adds, 1, 1;\n}"                                                                           \
                 : SUMS_##n(d)                                                                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(from_b), "r"((int)is_added))
__device__ __forceinline__ void multiply_add(float (&d)[TILES_N][4], const unsigned (&a)[4], unsigned long long from_b,
                                             bool is_added) {
#if INSTRUCTION_N == 24
    INSTRUCTION_OF_REGISTERS(24, 12, 13, 14, 15, 16, 17);
#elif INSTRUCTION_N == 40
    INSTRUCTION_OF_REGISTERS(40, 20, 21, 22, 23, 24, 25);
#elif INSTRUCTION_N == 48
    INSTRUCTION_OF_REGISTERS(48, 24, 25, 26, 27, 28, 29);
#elif INSTRUCTION_N == 56
    INSTRUCTION_OF_REGISTERS(56, 28, 29, 30, 31, 32, 33);
#elif INSTRUCTION_N == 64
    INSTRUCTION_OF_REGISTERS(64, 32, 33, 34, 35, 36, 37);
#elif INSTRUCTION_N == 128
    INSTRUCTION_OF_REGISTERS(128, 64, 65, 66, 67, 68, 69);
#else
#error "no registers left for two sets of sums"
#endif
}
