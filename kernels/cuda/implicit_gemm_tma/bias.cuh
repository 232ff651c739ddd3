// The bias of the filters whose sums a thread has, asked for before there are any: part of both sources here.

// Columns lane % 4 * 2 and the next of every 8, from a filter on; of two-byte types, those of float32 are read with the sums.
struct Bias {
#ifdef STORAGE_FLOAT32
    __device__ __forceinline__ void read(const Epilogue&, unsigned, const Sizes&) {}
#else
    unsigned pairs[TILES_N];

    __device__ __forceinline__ void read(const Epilogue& epilogue, unsigned first_filter, const Sizes& sizes) {
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
            const unsigned filter = first_filter + j * 8 + threadIdx.x % 4 * 2;
            pairs[j] = filter < (unsigned)sizes.K ? epilogue.bias_ahead(filter) : 0;
        }
    }
#endif
};
