// Blocks of a cluster that share a tile, each a part of its stages: part of implicit_gemm_tma_transposed.cu, after its macros.
//
//   chunks       those of all warps are counted as if all lay in y: chunk b is block b % blocks' own, to which the others push their
//                sums of it; where nothing is split every chunk is the block's own
//   received     where the ring was: for each own chunk the sums of the other blocks, as their threads have them, from the block
//                behind this one on

#if IS_SPLIT
class PushedSums {
   public:
    __device__ __forceinline__ PushedSums(float* received, int warp)
        : received_(received + threadIdx.x % 32 * 4), before_(warp * CHUNKS), rank_(cluster_rank()), blocks_(cluster_size()) {}

    __device__ __forceinline__ bool is_own(unsigned chunk) const { return owner(chunk) == rank_; }
    // Shared memory of so many stages, or of what is received.
    __device__ __forceinline__ unsigned bytes(int slots) const {
        const unsigned own = (WORKERS / 32 * CHUNKS + blocks_ - 1) / blocks_;
        return max(slots * STAGE_BYTES, own * (blocks_ - 1) * (16 * LINE * 4));
    }

    // All threads of the cluster: once before blocks push, when what lies in their rings has been read, and once after.
    __device__ __forceinline__ static void meet() {
        cluster_arrive();
        cluster_wait();
    }
    __device__ __forceinline__ void push_others(const Sums& sum, unsigned filter, unsigned pixel, const Sizes& sizes) const {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const int i = chunk / LINES_N, j = chunk % LINES_N;
            if (!Lines(0, filter + i * 64, pixel + j * LINE, sizes).is_in_y() || is_own(chunk)) continue;
            const unsigned to = owner(chunk);
            float* const there = place(chunk, (rank_ + blocks_ - to - 1) % blocks_);
#pragma unroll
            for (int e = 0; e < LINE / 8; ++e) {
                const float(&four)[4] = sum[i][j * (LINE / 8) + e];
                push(there + e * 128, to, make_float4(four[0], four[1], four[2], four[3]));
            }
        }
    }
    // To the sums of an own chunk, from 8 columns at `first` on, those of all others.
    __device__ __forceinline__ void add_others(float (&sum)[TILES_N][4], int first, unsigned chunk) const {
#pragma unroll 1
        for (unsigned other = 0; other < blocks_ - 1; ++other) {
            const float* const from = place(chunk, other);
#pragma unroll
            for (int e = 0; e < LINE / 8; ++e) {
                const float4 four = *(const float4*)(from + e * 128);
                sum[first + e][0] += four.x, sum[first + e][1] += four.y;
                sum[first + e][2] += four.z, sum[first + e][3] += four.w;
            }
        }
    }

   private:
    __device__ __forceinline__ unsigned owner(unsigned chunk) const { return (before_ + chunk) % blocks_; }
    __device__ __forceinline__ float* place(unsigned chunk, unsigned other) const {
        return received_ + ((before_ + chunk) / blocks_ * (blocks_ - 1) + other) * (16 * LINE);
    }

    float* received_;
    unsigned before_, rank_, blocks_;
};
#else
class PushedSums {
   public:
    __device__ __forceinline__ PushedSums(float*, int) {}

    __device__ __forceinline__ static bool is_own(unsigned) { return true; }
    __device__ __forceinline__ static void add_others(float (&)[TILES_N][4], int, unsigned) {}
};
#endif
