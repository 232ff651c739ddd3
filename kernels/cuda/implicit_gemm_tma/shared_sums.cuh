// Blocks of a cluster that share a tile, each a part of its stages: part of implicit_gemm_tma.cu, after its macros.
//
//   boxes        those of all warps are counted as if all lay in y: box b is block b % blocks' own, to which the others push
//                their sums of it; where nothing is split every box is the block's own
//   received     where the ring was: for each own box the sums of the other blocks, as their threads have them, from the block
//                behind this one on
#define BOXES_OF_FILLER (TILES_M * (BF / BOX_FILTERS))

#if IS_SPLIT
class SharedSums {
   public:
    __device__ __forceinline__ SharedSums(float* received, int filler)
        : received_(received + threadIdx.x % BOX_THREADS * 4),
          before_(filler * BOXES_OF_FILLER),
          rank_(cluster_rank()),
          blocks_(cluster_size()) {}

    __device__ __forceinline__ bool is_own(unsigned box) const { return owner(box) == rank_; }
    // The first own box of a filler, and how far the next one is from it.
    __device__ __forceinline__ unsigned first() const { return (rank_ + blocks_ * before_ - before_) % blocks_; }
    __device__ __forceinline__ unsigned step() const { return blocks_; }

    // All threads of the cluster: once before blocks push, when what lies in their rings has been read, and once after.
    __device__ __forceinline__ static void meet() {
        cluster_arrive();
        cluster_wait();
    }
    __device__ __forceinline__ void push_others(const float (&sum)[SUMS], const Part& part, const Sizes& sizes) const {
        unsigned box = 0;
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
            for (int j = 0; j < BF / BOX_FILTERS; ++j) {
                if (!is_in_y(box_of(part, i, j), sizes) || is_own(box++)) continue;
                const unsigned to = owner(box - 1);
                float* const there = place(box - 1, (rank_ + blocks_ - to - 1) % blocks_);
#pragma unroll
                for (int e = 0; e < BOX_FILTERS / 8; ++e) {
                    const float(&four)[4] = sum[i][j * (BOX_FILTERS / 8) + e];
                    push(there + e * BOX_THREADS * 4, to, make_float4(four[0], four[1], four[2], four[3]));
                }
            }
        }
    }
    // To the sums of an own box, from 8 columns at `first` on, those of all others.
    __device__ __forceinline__ void add_others(float (&sum)[TILES_N][4], int first, unsigned box) const {
#pragma unroll 1
        for (unsigned other = 0; other < blocks_ - 1; ++other) {
            const float* const from = place(box, other);
#pragma unroll
            for (int e = 0; e < BOX_FILTERS / 8; ++e) {
                const float4 four = *(const float4*)(from + e * BOX_THREADS * 4);
                sum[first + e][0] += four.x, sum[first + e][1] += four.y;
                sum[first + e][2] += four.z, sum[first + e][3] += four.w;
            }
        }
    }

   private:
    __device__ __forceinline__ unsigned owner(unsigned box) const { return (before_ + box) % blocks_; }
    __device__ __forceinline__ float* place(unsigned box, unsigned other) const {
        return received_ + ((before_ + box) / blocks_ * (blocks_ - 1) + other) * (BOX * BOX_FILTERS);
    }

    float* received_;
    unsigned before_, rank_, blocks_;
};
#else
class SharedSums {
   public:
    __device__ __forceinline__ SharedSums(float*, int) {}

    __device__ __forceinline__ static bool is_own(unsigned) { return true; }
    __device__ __forceinline__ static unsigned first() { return 0; }
    __device__ __forceinline__ static unsigned step() { return 1; }
    __device__ __forceinline__ static void add_others(float (&)[TILES_N][4], int, unsigned) {}
};
#endif
