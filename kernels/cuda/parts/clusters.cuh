// Thread-block clusters, and the addresses of shared memory: from compute capability 9.0 on; elsewhere, and on a CPU, a
// block is a cluster of its own, and pushes to nobody.

#ifdef __CUDA_ARCH__
typedef unsigned Address;  // of shared memory
__device__ __forceinline__ Address shared_address(const void* pointer) {
    return (Address)__cvta_generic_to_shared(pointer);
}
#else  // on a CPU
typedef uintptr_t Address;
inline Address shared_address(const void* pointer) { return (Address)pointer; }
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ unsigned cluster_size() {
    unsigned size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}
__device__ __forceinline__ unsigned cluster_index() {
    unsigned index;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
    return index;
}
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// For a barrier that orders no memory: a release waits for what was written before.
__device__ __forceinline__ void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ unsigned address_in(unsigned address, unsigned rank) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
// The same place in another block's shared memory.
__device__ __forceinline__ void push(float* place, unsigned rank, float4 value) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address_in(shared_address(place), rank)),
                 "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
                 : "memory");
}
#else
__device__ __forceinline__ unsigned cluster_rank() { return 0; }
__device__ __forceinline__ unsigned cluster_size() { return 1; }
__device__ __forceinline__ unsigned cluster_index() { return blockIdx.x; }
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_arrive_relaxed() {}
__device__ __forceinline__ void cluster_wait() {}
__device__ __forceinline__ void push(float*, unsigned, float4) {}
#endif
