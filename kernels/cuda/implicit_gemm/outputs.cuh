// Of implicit_gemm.cu: from sums in shared memory to y.

// y of `rows` filters of the tile from first_k on: the sum of COUNT parts that lie `distance` floats apart.
template <int WIDTH>
__device__ __forceinline__ void store_y(Storage* __restrict__ y, const Epilogue& epilogue, const float* from, int pitch,
                                        int count, int distance, int first_k, int rows, unsigned first_pixel,
                                        unsigned pixels, int K, unsigned plane) {
    constexpr int columns = BN / WIDTH, step = THREADS / columns;
    const int column = threadIdx.x % columns * WIDTH;
    const unsigned pixel = first_pixel + column, image = pixel / plane;
    if (pixel >= pixels) return;
    rows = min(rows, K - first_k);
    int row = threadIdx.x / columns;
    Storage* target = y + ((size_t)image * K + first_k + row) * plane + (pixel - image * plane);
    from += row * pitch + column;
#pragma unroll 4
    for (; row < rows; row += step) {
        float total[WIDTH];
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) total[j] = from[j];
        for (int part = 1; part < count; ++part) {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) total[j] += from[part * distance + j];
        }
        epilogue.apply(total, first_k + row, target);
        __align__(16) Storage narrowed[WIDTH];
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) narrowed[j] = narrow(total[j]);
        if constexpr (WIDTH == 1) {
            *target = narrowed[0];
        } else {
#if ELEMENT == 4
            *(float4*)target = make_float4(narrowed[0], narrowed[1], narrowed[2], narrowed[3]);
#else
            *(uint2*)target = *(const uint2*)narrowed;
#endif
        }
        target += (size_t)step * plane;
        from += step * pitch;
    }
}
