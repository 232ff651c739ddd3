// Copies y from channels innermost to planes, and computes the epilogue on the way: what follows products with channels innermost.
//
//   tensors      rows (N P Q, pitch) of K filters to y (N,K,P,Q); pitch is K rounded up to fours, and what lies behind K is not used
//   versions     -DUNIT=4: planes are multiples of four pixels, which a thread stores together; -DUNIT=1: any planes
//   grid, block  256 threads a tile of 64 pixels, of one image or several, and 32 filters; filters fastest
//   shared       a filter has 64 pixels in a line, four in 16 bytes. Four i of filter f lies at i ^ f / 4: a warp that writes has eight
//                such f / 4 and the pixels of one four, a warp that reads 32 pixels or 16-byte pieces of a line, so all banks meet
//   limits       float32; memory-bound. y has at most 2^31 - 1 elements; with UNIT 4 it is aligned to 16 bytes, as rows are

#include "division.cuh"
#include "overlap.cuh"
#include "epilogue.cuh"

#define THREADS 256
#define FILTERS 32
#define PIXELS 64
#define FOURS (FILTERS / 4)
#define READS (PIXELS * FOURS / THREADS)  // of 16 bytes by a thread

struct Sizes {
    unsigned K, pitch, pixels;
    Divisor tiles_f;  // tiles of filters
    Divisor plane;
};

// Where a pixel of a filter lies in a tile.
__device__ __forceinline__ unsigned place_of(unsigned filter, unsigned pixel) {
    return filter * PIXELS + ((pixel / 4 ^ filter / 4) * 4 + pixel % 4);
}

extern "C" __global__ void __launch_bounds__(THREADS, 8)
    nhwc_unpack(const float* __restrict__ rows, Storage* __restrict__ y EPILOGUE, const __grid_constant__ Sizes sizes) {
    __shared__ __align__(16) float tile[FILTERS * PIXELS];
    wait_for_kernel_ahead();
    unsigned tile_f = blockIdx.x;
    const unsigned first_pixel = sizes.tiles_f.take_quotient(tile_f) * PIXELS, first_filter = tile_f * FILTERS;

    float4 read[READS] = {};
#pragma unroll
    for (int i = 0; i < READS; ++i) {
        const unsigned index = threadIdx.x + i * THREADS, pixel = first_pixel + index / FOURS;
        const unsigned filter = first_filter + index % FOURS * 4;
        if (pixel < sizes.pixels && filter < sizes.K) read[i] = *(const float4*)(rows + (size_t)pixel * sizes.pitch + filter);
    }
#pragma unroll
    for (int i = 0; i < READS; ++i) {
        const unsigned index = threadIdx.x + i * THREADS, pixel = index / FOURS, filter = index % FOURS * 4;
        tile[place_of(filter, pixel)] = read[i].x;
        tile[place_of(filter + 1, pixel)] = read[i].y;
        tile[place_of(filter + 2, pixel)] = read[i].z;
        tile[place_of(filter + 3, pixel)] = read[i].w;
    }
    __syncthreads();

    const unsigned own = threadIdx.x % (PIXELS / UNIT) * UNIT;  // the same pixels of every filter
    if (first_pixel + own >= sizes.pixels) return;
    unsigned inner = first_pixel + own;
    const unsigned image = sizes.plane.take_quotient(inner);
    const Epilogue epilogue = EPILOGUE_OF(y);
#pragma unroll
    for (int f = threadIdx.x / (PIXELS / UNIT); f < FILTERS; f += THREADS * UNIT / PIXELS) {
        const unsigned filter = first_filter + f;
        if (filter >= sizes.K) return;
        Storage* const target = y + ((image * sizes.K + filter) * sizes.plane.value + inner);
        const float* const from = tile + place_of(f, own);
#if UNIT == 4
        const float4 four = *(const float4*)from;
        float sums[] = {four.x, four.y, four.z, four.w};
        epilogue.apply(sums, filter, target);
        *(float4*)target = make_float4(sums[0], sums[1], sums[2], sums[3]);
#else
        *target = epilogue.of(*from, filter, target);
#endif
    }
}
