// The tensor memory accelerator and the barriers that count its bytes: after clusters.cuh.

struct __align__(64) TensorMap {
    unsigned long long words[16];
};
__device__ __forceinline__ void start_barrier(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// What one thread has started is seen by the accelerator and, after a barrier of the block, by its threads.
__device__ __forceinline__ void publish_to_accelerator() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    publish_to_accelerator();
}
__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void expect_bytes(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Until the phase of this parity is complete.
__device__ __forceinline__ void wait_for(unsigned barrier, unsigned parity) {
    unsigned is_done = 0;
    while (!is_done) {
        asm volatile(
            "{\n.reg .pred done;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
            "selp.u32 %0, 1, 0, done;\n}"
            : "=r"(is_done)
            : "r"(barrier), "r"(parity)
            : "memory");
    }
}

// One thread of a warp that is whole here; the assembler knows that there is one, and loads need no loop over threads.
__device__ __forceinline__ bool is_elected() {
    unsigned elected;
    asm volatile("{\n.reg .pred one;\nelect.sync _|one, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, one;\n}" : "=r"(elected)::"memory");
    return elected;
}

// Has a map brought to where the accelerator reads it.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// A box of a matrix.
__device__ __forceinline__ void load_box(unsigned to, const TensorMap& map, unsigned barrier, int first, int second) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(first), "r"(second)
        : "memory");
}
// A box of a tensor of three dimensions.
__device__ __forceinline__ void load_box(unsigned to, const TensorMap& map, unsigned barrier, int first, int second,
                                         int third) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(first), "r"(second), "r"(third)
        : "memory");
}
// The same box to the L2 cache alone.
__device__ __forceinline__ void prefetch_box(const TensorMap& map, int first, int second, int third) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(&map), "r"(first), "r"(second),
                 "r"(third)
                 : "memory");
}
// Pixels from (n, h, w) on, each moved by (down, right), from channel c on.
__device__ __forceinline__ void load_pixels(unsigned to, const TensorMap& map, unsigned barrier, int c, int w, int h, int n,
                                            int right, int down) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2], {%7, %8};" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(n), "h"((unsigned short)right), "h"((unsigned short)down)
        : "memory");
}
// What lies outside the matrix is left out.
__device__ __forceinline__ void store_box(const TensorMap& map, unsigned from, int first, int second) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map), "r"(from),
                 "r"(first), "r"(second)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until all boxes that this thread stored but the last COUNT have been read.
template <int COUNT>
__device__ __forceinline__ void wait_for_all_boxes_but() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(COUNT) : "memory");
}
