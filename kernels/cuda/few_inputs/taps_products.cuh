// Part of few_inputs_taps.cu: the products of four warps' windows with the block's weight, by wgmma.
//
//   x            in registers: fragments that ldmatrix reads in place, of the next step while this one is multiplied
//   weight       in core matrices in shared memory
//   on a CPU     warps multiply by themselves, from the same memory

#define IS_LAST 1
#define IS_BEHIND 2
#define STEP_BYTES (FILTERS * 32)

#ifdef __CUDA_ARCH__
__device__ __forceinline__ void publish_weight() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Until the registers of x of all products but the last step's may be written again; sums are not there yet.
__device__ __forceinline__ void wait_for_step_before() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
typedef unsigned long long Weight;
__device__ __forceinline__ Weight weight_at(const unsigned char* weights) {
    return descriptor_of_matrices(shared_address(weights));
}
#define WEIGHT_STEP (STEP_BYTES / 16)
#else
inline void publish_weight() {}
inline void begin_products() {}
inline void commit_products() {}
inline void wait_for_step_before() {}
template <int COUNT, int TILES>
void wait_for_all_products_but(float (&)[TILES][NT][4]) {}
typedef const unsigned char* Weight;
inline Weight weight_at(const unsigned char* weights) { return weights; }
#define WEIGHT_STEP STEP_BYTES
inline void multiply_add(float (&sum)[NT][4], const unsigned (&a)[4], Weight weight) {
    const int lane = threadIdx.x % 32;
    for (int j = 0; j < NT; ++j) {
        unsigned b[2];
        for (int half = 0; half < 2; ++half) b[half] = ((const unsigned*)(weight + j * 256 + half * 128 + lane / 4 * 16))[lane % 4];
        multiply_fragments(sum[j], a, b);
    }
}
#endif

// The slots, and which of a row's last elements the lane keeps.
struct Slots {
    Address first;
    unsigned of_tail;

    // The fragments of a step; `at` says where its two chunks lie.
    __device__ __forceinline__ void load(unsigned (&a)[MT][4], const int (&window)[MT], int2 at) const {
        const int offset = (threadIdx.x % 32 < 16 ? at.x : at.y) & ~15;
#pragma unroll
        for (int i = 0; i < MT; ++i) load_matrices(a[i], first + window[i] + offset);
        if ((at.x | at.y) & (IS_LAST | IS_BEHIND)) {  // what is no part of the window may be infinite, and 0 times it not 0
            const unsigned low = kept(at.x), high = kept(at.y);
#pragma unroll
            for (int i = 0; i < MT; ++i) {
                a[i][0] &= low, a[i][1] &= low;
                a[i][2] &= high, a[i][3] &= high;
            }
        }
    }
    __device__ __forceinline__ unsigned kept(int chunk) const {
        return chunk & IS_BEHIND ? 0 : chunk & IS_LAST ? of_tail : 0xffffffffu;
    }
};

__device__ __forceinline__ void multiply_step(float (&sum)[MT][NT][4], const unsigned (&a)[MT][4], Weight weight) {
    begin_products();
#pragma unroll
    for (int i = 0; i < MT; ++i) multiply_add(sum[i], a[i], weight);
    commit_products();
    wait_for_step_before();
}

// An even number of steps.
__device__ __forceinline__ void multiply_window(float (&sum)[MT][NT][4], const Slots& slots, const int (&window)[MT],
                                                const unsigned char* weights, const int* offsets, int steps) {
    const int2* const at = (const int2*)offsets;
    Weight weight = weight_at(weights);
    unsigned even[MT][4], odd[MT][4];
    slots.load(even, window, at[0]);
    int2 next = at[1];
#pragma unroll 1
    for (int step = 0; step < steps; step += 2, weight += 2 * WEIGHT_STEP) {
        multiply_step(sum, even, weight);
        slots.load(odd, window, next);
        next = at[step + 2];
        multiply_step(sum, odd, weight + WEIGHT_STEP);
        slots.load(even, window, next);  // behind the last step there is one of which nothing is kept
        next = at[step + 3];
    }
    wait_for_all_products_but<0>(sum);
}
