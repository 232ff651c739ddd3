// Asynchronous copies to shared memory, and their stand-ins on a CPU. Include after clusters.cuh.
//
//   copies       cp.async of 4, 8 or 16 bytes, optionally zero-filled from some byte on; kernels wait by groups
//   counted      to another block of the cluster, which waits for a number of bytes; from compute capability 9.0 on

#ifdef __CUDA_ARCH__
// Copies the first `bytes` of BYTES and fills the rest with zeros.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* target, const void* source, int bytes) {
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)), "l"(source), "r"(bytes));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(target)), "l"(source), "n"(BYTES),
                     "r"(bytes));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int COUNT>
__device__ __forceinline__ void wait_for_all_copies_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
}
#else  // on a CPU
template <int BYTES>
void copy_async(void* target, const void* source, int bytes) {
    memset(target, 0, BYTES);
    if (bytes) memcpy(target, source, bytes);
}
inline void commit_copies() {}
template <int COUNT>
void wait_for_all_copies_but() {}
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// As push, and 16 bytes to the count that the other block's barrier waits for.
__device__ __forceinline__ void push_counted(float* place, unsigned rank, float4 value, const void* barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     address_in(shared_address(place), rank)),
                 "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(address_in(shared_address(barrier), rank))
                 : "memory");
}
// By one thread, before a barrier of the cluster.
__device__ __forceinline__ void expect_bytes(void* barrier, int bytes) {
    const unsigned address = shared_address(barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait_for_bytes(const void* barrier) {
    unsigned is_done = 0;
    while (!is_done) {
        asm volatile(
            "{\n.reg .pred done;\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], 0;\n"
            "selp.u32 %0, 1, 0, done;\n}"
            : "=r"(is_done)
            : "r"(shared_address(barrier))
            : "memory");
    }
}
#else
__device__ __forceinline__ void push_counted(float*, unsigned, float4, const void*) {}
__device__ __forceinline__ void expect_bytes(void*, int) {}
__device__ __forceinline__ void wait_for_bytes(const void*) {}
#endif
