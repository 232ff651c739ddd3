// A kernel that begins while the one ahead of it in the stream still runs: programmatic dependent launch, from compute
// capability 9.0 on. Compiled with OVERLAPS; without it, and elsewhere, nothing of it is left.
//
// Before the wait a kernel reads and writes no memory of the device, and no block ends: then whoever has waited for it
// has waited for all that ran before it too. Only after its own wait does it let the next one begin. A prefetch may come
// before: it reads nothing, and L2 sees what is written later.
#if defined(OVERLAPS) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void wait_for_kernel_ahead() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Has rows of an operand that nothing on the way writes, filters, brought to L2: `count` rows from `first` on, of `bytes`
// each, `pitch` bytes apart, as far as the block's threads come in four turns.
__device__ __forceinline__ void prefetch_rows(const void* first, unsigned count, unsigned bytes, size_t pitch) {
    const unsigned lines = (bytes + 127) / 128;
#pragma unroll
    for (int turn = 0; turn < 4; ++turn) {
        const unsigned index = threadIdx.x + turn * blockDim.x;
        if (index >= count * lines) break;
        const char* const place = (const char*)first + index / lines * pitch + index % lines * 128;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(place));
    }
}
#else
__device__ __forceinline__ void wait_for_kernel_ahead() {}
__device__ __forceinline__ void prefetch_rows(const void*, unsigned, unsigned, size_t) {}
#endif
