// Programmatic dependent launch: a kernel begins while the one ahead of it in the stream still runs, from compute capability 9.0
// on. Compiled in with OVERLAPS; without it, and elsewhere, these functions are empty.
//
// Before its wait a kernel must not read or write device memory, and no block may exit: then whoever waits for it has also
// waited for everything before it. It lets the next kernel begin only after its own wait. A prefetch to L2 may come earlier: it
// reads nothing into the kernel, and L2 sees later writes.
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
